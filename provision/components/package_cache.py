"""The role package_cache: a proxy on one node that caches the packages of plain http repositories for all nodes.

The role platform makes the package managers of all nodes use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from provision.commands.package_repositories import package_cache, package_cache_problem
from provision.components.base import Component, NodeState, Setting, Variables
from provision.components.check import Check, Scene, Verdict, fail, known, passed, skip, warn
from provision.components.common import brought, text
from provision.facts import NodeFacts, Unknown, plain
from provision.facts.package_proxy import PackageProxy
from provision.facts.records import Receipt
from provision.model import CheckResult, Cluster, Node, PreflightCode
from provision.model.reason import Wording

ROLE = "package_cache"
_CACHE, _PACKAGE, _CHECK = "cluster_package_cache", "squid", "package_cache.reachable"


def _proxy_for(node: Node, cluster: Cluster, all_facts: Mapping[str, NodeFacts]) -> Mapping[str, Any]:
    """Return how a node reaches the package cache in an apply: ``url`` and ``hosts``.

    Empty without a valid cache, on its own node, and while the cache is known not to serve the node and all hosts.
    """
    name = text(node.variables, _CACHE)
    cache = {} if not name or name == node.name else _cache_of(node.variables, cluster)
    facts = all_facts.get(name)
    if facts is None or isinstance(facts.receipts, Unknown):
        return cache
    return cache if _serves(facts.receipts.get(ROLE), node, cache) else {}


def _serves(receipt: Receipt | None, node: Node, cache: Mapping[str, Any]) -> bool:
    """Return whether the cache serves a node and all its hosts, according to the receipt of its node."""
    inputs = receipt.content.get("inputs") if receipt else None
    if not isinstance(inputs, Mapping) or not cache:
        return False
    clients, hosts = (inputs.get(key) for key in ("clients", "hosts"))
    if not isinstance(clients, list) or not isinstance(hosts, list):
        return False
    try:
        address = ip_address(str(node.variables.get("cluster_data_address")))
        is_client = any(address in ip_network(str(client), strict=False) for client in clients)
    except ValueError:
        return False
    return is_client and set(cache["hosts"]) <= set(map(str, hosts))


def _cache_of(variables: Variables, cluster: Cluster) -> Mapping[str, Any]:
    values = _values(variables, cluster)
    return {} if any(package_cache_problem(*values)) else package_cache(*values)


def _values(variables: Variables, cluster: Cluster) -> tuple[str, str, Any, Any]:
    """Return the node of the cache, its address, port and hosts; no node if only Ansible can evaluate one of them."""
    name, port, hosts = text(variables, _CACHE), variables.get(f"{_CACHE}_port"), variables.get(f"{_CACHE}_hosts")
    addresses = [str(node.variables.get("cluster_data_address") or "") for node in cluster.nodes if node.name == name]
    address = addresses[0] if addresses else ""
    return (name, address, port, hosts) if plain([name, address, port, hosts]) else ("", "", 0, [])


def _reachable(scene: Scene) -> Verdict:
    """A node that is not set up for the cache yet does not use it; its plan has a step of the role platform."""
    name, cache = text(scene.node.variables, _CACHE), _cache_of(scene.node.variables, scene.cluster)
    if not name:
        return skip("package_cache.reachable.unset")
    state = known(scene.facts.package_proxy)
    if not cache or not state.url:
        return skip("package_cache.reachable.pending")
    return _answer(state, name, str(cache["url"]))


def _answer(state: PackageProxy, name: str, url: str) -> Verdict:
    if state.url != url:
        return warn("package_cache.reachable.other", url=state.url)
    if state.answer == "unreachable":
        return fail("package_cache.reachable.no_answer", cache=name, url=url, cause=state.cause)
    if state.answer == "refused":
        return fail("package_cache.reachable.refused", cache=name, url=url)
    if state.others:
        return warn("package_cache.reachable.bypassed", hosts=state.others)
    return passed("package_cache.reachable.ok", cache=name)


def _is_fixable(state: NodeState, _: CheckResult) -> bool:
    """Only a step on the node of the cache starts it."""
    return _is_cache(state.node)


def _is_cache(node: Node) -> bool:
    return bool(node.variables.get(_CACHE) == node.name)


def _cache_nodes(cluster: Cluster) -> frozenset[str]:
    return frozenset(node.name for node in cluster.nodes if _is_cache(node))


def _is_of_others(facts: NodeFacts) -> bool:
    """Return whether the node has a proxy that the role has not installed, and whose configuration it would replace."""
    if isinstance(facts.packages, Unknown) or isinstance(facts.receipts, Unknown):
        return False
    return _PACKAGE in facts.packages and ROLE not in facts.receipts and not brought(facts, (_PACKAGE,))


def cache_settings(node: Node, cluster: Cluster, _: Mapping[str, NodeFacts]) -> Iterator[Setting]:
    """Yield what is wrong in the inventory about the package cache, for the role platform: it uses the cache."""
    values = _values(node.variables, cluster)
    if values[0] and values[0] not in {one.name for one in cluster.nodes}:
        problem = f"the inventory has no node '{values[0]}'"
        yield PreflightCode.VARIABLE_INVALID, _CACHE, problem, "Set it to a node of the inventory, or remove it."
        return
    variable, problem = package_cache_problem(*values)
    if problem:
        remedy = "Correct it in the inventory, or remove cluster_package_cache."
        yield PreflightCode.VARIABLE_INVALID, variable, problem, remedy


def _cluster_settings(node: Node, _: Cluster, all_facts: Mapping[str, NodeFacts]) -> Iterator[Setting]:
    if _is_cache(node) and node.name in all_facts and _is_of_others(all_facts[node.name]):
        problem = f"{node.name} has a {_PACKAGE} that provision has not set up, and whose configuration would be lost"
        remedy = f"Name another node, or remove {_PACKAGE} from this one first."
        yield PreflightCode.VARIABLE_INVALID, _CACHE, problem, remedy


def _settings(variables: Variables, _: NodeFacts) -> Iterator[Setting]:
    proxy, size = text(variables, "cluster_http_proxy"), variables.get("package_cache_size_gib")
    if text(variables, _CACHE) and proxy and plain(proxy) and ("@" in proxy or urlsplit(proxy).scheme != "http"):
        problem = "the package cache supports no proxy with a user, a password or https"
        remedy = "Set a proxy of the form http://HOST:PORT for the node of the cache."
        yield PreflightCode.VARIABLE_INVALID, "cluster_http_proxy", problem, remedy
    if isinstance(size, int) and size < 1:
        yield PreflightCode.VARIABLE_INVALID, "package_cache_size_gib", f"{size} is below 1", "Set for example 20."


def _files(variables: Variables, _: NodeFacts) -> Iterator[str]:
    if variables.get(_CACHE):
        yield "/etc/squid/squid.conf"


def _packages(node: Node, _: Cluster) -> Iterator[str]:
    if _is_cache(node):
        yield _PACKAGE


_WORDINGS = {
    "package_cache.reachable.ok": Wording("{cache} serves this node"),
    "package_cache.reachable.unset": Wording("cluster_package_cache is empty"),
    "package_cache.reachable.pending": Wording("the node is not set up for the package cache yet"),
    "package_cache.reachable.other": Wording(
        "the node uses {url}, which is not the package cache of the inventory", "Run: provision apply"
    ),
    "package_cache.reachable.no_answer": Wording(
        "the package cache of {cache} does not answer at {url} ({cause}), so no package can be installed",
        "Run: provision apply --limit {cache}. If that does not help, check the firewall between the nodes, and read "
        "`journalctl -u squid` on {cache}. To do without the cache, remove cluster_package_cache and apply.",
    ),
    "package_cache.reachable.refused": Wording(
        "the package cache of {cache} refuses this node at {url}",
        "Correct cluster_data_address of this node, then run: provision apply --limit {cache},{node}",
    ),
    "package_cache.reachable.bypassed": Wording(
        "packages of {hosts} bypass the package cache",
        "Add the hosts to cluster_package_cache_hosts, then run: provision apply",
    ),
}

COMPONENT = Component(
    role=ROLE,
    after=("base_system",),
    node_variable=_CACHE,
    read_variables=(_CACHE, f"{_CACHE}_hosts", f"{_CACHE}_port", "cluster_data_address"),
    checks=(Check(_CHECK, _reachable),),
    fixes_if={_CHECK: _is_fixable},
    reasons=_WORDINGS,
    settings=_settings,
    cluster_settings=_cluster_settings,
    files=_files,
    cluster_packages=_packages,
    package_proxy=_proxy_for,
    nodes_before_others=_cache_nodes,
)
