"""Data addresses that nodes claim: no node receives the traffic of another."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from provision import workflow
from provision.checks import judge_cluster
from provision.facts import NodeFacts, data_address, refused_addresses
from provision.facts.address_claims import Claim, admitted_sources, refused_claims
from provision.facts.network import Address, Route
from provision.inventory import data_network
from provision.model import CheckStatus, Cluster, Connection, Node
from provision.workflow import probe_snapshot
from tests.support.expressions import ROLES, Role
from tests.support.reasons import shown
from tests.unit.checks.conftest import healthy


def facts(address: str, interface: str = "ens3") -> NodeFacts:
    return NodeFacts(
        addresses=(Address(interface, address, 24, "global"),), routes=(Route("default", interface, address),)
    )


def node(name: str, host: str, **variables: Any) -> Node:
    return Node(name, Connection(host), variables)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "::1", "169.254.169.254", "fe80::1", "224.0.0.1", "ff02::1", "0.0.0.0", "::",  # noqa: S104
        "255.255.255.255", "::ffff:10.0.0.1", "fd00:0:0::1", "10.0.0.1 gpu2\n6.6.6.6", "fe80::1%eth0", "gpu1",
        "010.0.0.1", "-oProxyCommand=x",
    ],
)  # fmt: skip
def test_refuse_unreachable_data_addresses(address: str) -> None:
    """Loopback, link-local, multicast, unspecified and invalid addresses."""
    result = facts(address)

    assert data_address({}, result) is None
    refused = refused_addresses([node("gpu1", "10.0.0.1")], {"gpu1": result})
    assert list(refused) == ["gpu1"]
    assert "\n" not in refused["gpu1"]


def test_accept_any_address_in_a_configured_network() -> None:
    """The operator may configure a link-local network, or loopback addresses in a test."""
    link_local = facts("169.254.1.2")

    assert data_address({"cluster_data_networks": ["169.254.0.0/16"]}, link_local) == "169.254.1.2"
    assert data_address({"cluster_data_address": "127.0.0.5"}, link_local) == "127.0.0.5"


CASES = {
    "two nodes claim one address": (
        {"a": Claim("10.0.0.1", "", "a.example"), "b": Claim("10.0.0.1", "", "b.example")},
        {"a": "a and b claim the same address, 10.0.0.1", "b": "a and b claim the same address, 10.0.0.1"},
    ),
    "the address of another node's inventory": (
        {"a": Claim("10.0.0.1", "10.0.0.1", "a.example"), "b": Claim("10.0.0.1", "", "b.example")},
        {"b": "10.0.0.1 is the cluster_data_address of a"},
    ),
    "the address of another node without facts": (
        {"a": Claim("", "10.0.0.1", "a.example"), "b": Claim("10.0.0.1", "", "b.example")},
        {"b": "10.0.0.1 is the cluster_data_address of a"},
    ),
    "another node's management address": (
        {"a": Claim("10.9.0.1", "", "10.0.0.1"), "b": Claim("10.0.0.1", "", "10.0.0.2")},
        {"b": "10.0.0.1 is the address (ansible_host) of a"},
    ),
    "the owner of a management address keeps it": (
        {"a": Claim("10.0.0.1", "", "10.0.0.1"), "b": Claim("10.0.0.1", "", "10.0.0.2")},
        {"b": "10.0.0.1 is the address (ansible_host) of a"},
    ),
    "the same address in another notation": (
        {"a": Claim("fd00::1", "", "fd00:0:0::1"), "b": Claim("fd00::1", "", "b")},
        {"b": "fd00::1 is the address (ansible_host) of a"},
    ),
    "one machine with two SSH ports": (
        {"a": Claim("10.0.2.15", "", "127.0.0.1"), "b": Claim("10.0.2.16", "", "127.0.0.1")},
        {},
    ),
    "inside the configured networks": (
        {"a": Claim("10.0.0.1", "", "a", ["10.0.0.0/24"]), "b": Claim("10.0.0.1", "", "b", ["10.0.0.0/24"])},
        {"a": "a and b claim the same address, 10.0.0.1", "b": "a and b claim the same address, 10.0.0.1"},
    ),
    "nodes with their own addresses": (
        {"a": Claim("10.0.0.1", "", "10.0.0.1"), "b": Claim("10.0.0.2", "", "b"), "c": Claim("", "", "c")},
        {},
    ),
}


@pytest.mark.parametrize(("claims", "refused"), CASES.values(), ids=CASES)
def test_refuse_addresses_that_may_belong_to_another_node(claims: dict[str, Claim], refused: dict[str, str]) -> None:
    """An address in the inventory belongs to its node; without one, both nodes are refused."""
    assert refused_claims(claims) == refused


CLUSTER = Cluster("c", ROLES, (node("a", "192.0.2.1"), node("b", "192.0.2.2"), node("c", "192.0.2.3")))
CLAIMS = {"a": "10.0.0.1", "b": "10.0.0.1", "c": "10.0.0.3"}


def probed() -> dict[str, Any]:
    return {
        name: dataclasses.replace(healthy(), addresses=facts(address).addresses, routes=facts(address).routes)
        for name, address in CLAIMS.items()
    }


def test_refused_nodes_get_no_ranks_and_no_jobs(monkeypatch) -> None:
    result = probed()
    entries, left_out = workflow.host_entries(CLUSTER, result)
    monkeypatch.setattr(probe_snapshot, "probe", lambda *_, **__: result)
    known = probe_snapshot.ProbeSnapshot().probe(CLUSTER, list(CLAIMS))

    assert [entry.name for entry in entries] == ["c"]
    assert [name for name, _ in left_out] == ["a", "b"]
    assert all("a and b claim the same address" in reason for _, reason in left_out)
    assert sorted(known.left_out) == ["a", "b"]


def test_verify_reports_nodes_with_refused_addresses() -> None:
    results = {result.id: result for result in judge_cluster(CLUSTER, CLUSTER.nodes, probed(), None)}

    assert results["cluster.data_addresses"].status is CheckStatus.FAIL
    assert "a and b claim the same address, 10.0.0.1" in shown(results["cluster.data_addresses"].reason)


def test_init_omits_addresses_that_two_nodes_claim(monkeypatch, tmp_path) -> None:
    printed = {name: f"2: ens3    inet {address}/24 scope global ens3\n" for name, address in CLAIMS.items()}
    monkeypatch.setattr(data_network, "_addresses", lambda target, _: printed[target.name])
    targets: Any = [SimpleNamespace(name=one.name, connection=one.connection) for one in CLUSTER.nodes]

    result, failures = data_network.data_addresses(targets, ["10.0.0.0/24"], tmp_path)

    assert result == {"c": "10.0.0.3"}
    assert [text.partition(":")[0] for text in failures] == ["a", "b"]


def role(**changes: Any) -> Role:
    hostvars = {name: {"platform_node": {"data_address": address}, "ansible_host": f"192.0.2.{n}"}
                for n, (name, address) in enumerate(CLAIMS.items(), start=1)}  # fmt: skip
    return Role(
        "platform", hostvars=hostvars, groups={"all": list(hostvars)}, ansible_play_hosts_all=list(hostvars), **changes
    )


def test_apply_passes_no_refused_address_to_other_nodes() -> None:
    refused = role().value("__platform_address_claims | platform_addresses_refused")

    assert role().value("__platform_data_addresses") == {"c": "10.0.0.3"}
    assert sorted(refused) == ["a", "b"]
    for name in CLAIMS:
        checked = role(platform_refused_addresses=refused, inventory_hostname=name)
        check = ("preflight", "Check that no other node has the data address")
        assert checked.holds(*check) is (name == "c")
        assert checked.says(*check).startswith(f"{name}: "), "Ansible evaluates the message where the check passes too"


def test_the_role_and_the_package_apply_the_same_rules() -> None:
    """The role's filters are a link to the same module."""
    link = ROLES / "platform" / "filter_plugins" / "platform_address_claims.py"

    assert link.is_symlink()
    assert link.resolve() == ROLES.parent / "provision" / "facts" / "address_claims.py"


@pytest.mark.parametrize(
    ("networks", "sources"),
    [
        ([], ("10.77.0.2", "10.78.0.3", "fd00::2")),
        (["10.77.0.1/24"], ("10.77.0.0/24", "10.78.0.3", "fd00::2")),
        (["10.0.0.0/8", "fd00::/64", "192.0.2.0/24"], ("10.0.0.0/8", "fd00::/64", "192.0.2.0/24")),
    ],
)
def test_firewalls_admit_the_data_networks_or_the_other_nodes(networks, sources):
    """An address outside of all networks, which the inventory states, is admitted too; the node's own is not needed."""
    addresses = {"own": "10.77.0.1", "b": "10.78.0.3", "c": "10.77.0.2", "d": "fd00::2"}

    assert admitted_sources(addresses, networks, "own") == sources
