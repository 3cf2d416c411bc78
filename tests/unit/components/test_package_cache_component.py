"""The role package_cache: which node it is for, what comes before it, and what the inventory must not contain."""

from __future__ import annotations

import dataclasses

import pytest

from provision.components import COMPONENTS
from provision.facts.records import Receipt
from provision.model import Node, Step, StepClass
from provision.planning import plan_node
from provision.planning.requirements import cluster_problems, packages_of, setting_problems
from provision.planning.waves import before_others, canary_wave
from provision.workflow.sources import role_sources
from tests.unit.planning.conftest import cluster_of, facts_of, receipts_of, scene_of

ROLE = "package_cache"
ON = {
    "cluster_package_cache": "gpu2",
    "cluster_package_cache_hosts": ["deb.example.org"],
    "cluster_package_cache_port": 3128,
}
URL = "http://10.77.0.2:3128"


def without_receipt(cluster, name):
    """Return the facts of a node to which the role was never applied."""
    receipts = {role: receipt for role, receipt in receipts_of(cluster, name).items() if role != ROLE}
    return dataclasses.replace(facts_of(cluster, name), receipts=receipts)


def steps_of(name, **variables):
    """Return the roles with a step on a node without a receipt of the role."""
    cluster = cluster_of(2, **ON, **variables)
    scene = scene_of(name, before=cluster, now=cluster, receipts=without_receipt(cluster, name).receipts)
    return [step.role for step in plan_node(scene)]


def test_the_cache_is_on_one_node_and_off_by_default() -> None:
    """No other node gets the package or a step."""
    cluster = cluster_of(3, **ON)

    assert steps_of("gpu2") == [ROLE]
    assert steps_of("gpu1") == []
    members = [(node, cluster) for node in cluster.nodes]
    packages = [packages_of(ROLE, member[0].variables, {}, facts_of(cluster), member) for member in members]
    assert packages == [(), ("squid",), ()]
    off = cluster_of(cluster_package_cache="")
    assert [step.role for step in plan_node(scene_of(now=off, receipts=without_receipt(off, "gpu1").receipts))] == []


def test_a_changed_setting_is_a_step_on_the_node_of_the_cache() -> None:
    """So is a cache that moved or was removed: its former node stops it."""
    names = ("cluster_package_cache", "cluster_package_cache_hosts", "cluster_package_cache_port", "cluster_http_proxy")

    assert set(names) <= role_sources()[ROLE].words


def test_the_node_of_the_cache_is_changed_before_all_others() -> None:
    """The others would wait for a proxy that does not exist; a node without a step of the role need not be first."""
    step, other = Step(ROLE, StepClass.SAFE, ()), Step("platform", StepClass.SAFE, ())

    assert before_others(cluster_of(3, **ON), {"gpu1": (other,), "gpu2": (other, step), "gpu3": (other,)}) == ("gpu2",)
    assert before_others(cluster_of(3, **ON), {"gpu1": (other,), "gpu2": (other,)}) == ()
    assert canary_wave(cluster_of(3, **ON), {"gpu1": (other,), "gpu2": (other, step)}) == 2
    assert canary_wave(cluster_of(3, **ON), {"gpu1": (other,), "gpu2": (other,)}) == 1


def serving(cluster, clients, hosts):
    """Return the facts of the node of the cache, which serves these clients and hosts."""
    facts = without_receipt(cluster, "gpu2")
    receipt = Receipt(ROLE, {"inputs": {"port": 3128, "clients": clients, "hosts": hosts}})
    return dataclasses.replace(facts, receipts={**facts.receipts, ROLE: receipt})


@pytest.mark.parametrize(
    ("clients", "hosts", "is_used"),
    [
        (["10.77.0.1"], ["deb.example.org", "security.example.org"], True),
        (["10.77.0.0/24"], ["deb.example.org"], True),
        (["10.77.0.9"], ["deb.example.org"], False),
        (["10.77.0.1"], ["security.example.org"], False),
        (["x"], ["deb.example.org"], False),
        (None, None, False),
    ],
)
def test_the_preflight_of_a_node_that_the_cache_does_not_serve_yet_asks_directly(clients, hosts, is_used) -> None:
    """A node or a host that is new in the inventory: the apply adds them to the cache first."""
    cluster = cluster_of(3, **ON)
    used = COMPONENTS[ROLE].package_proxy(cluster.node("gpu1"), cluster, {"gpu2": serving(cluster, clients, hosts)})

    assert bool(used) == is_used


def test_the_preflight_uses_the_cache_unless_it_is_not_set_up_yet() -> None:
    """New nodes get their package lists from it before they are set up. Its own node never does."""
    cluster = cluster_of(3, **ON)
    ready, missing = serving(cluster, ["10.77.0.1"], ["deb.example.org"]), without_receipt(cluster, "gpu2")
    cache = {"url": URL, "hosts": ["deb.example.org"]}

    def proxy(name, facts):
        return COMPONENTS[ROLE].package_proxy(cluster.node(name), cluster, facts)

    assert proxy("gpu1", {"gpu2": ready}) == cache
    assert proxy("gpu1", {}) == cache
    assert proxy("gpu1", {"gpu2": missing}) == {}
    assert proxy("gpu2", {"gpu2": ready}) == {}


PROBLEMS = [
    ({"cluster_package_cache": "gpu9"}, "cluster_package_cache"),
    ({"cluster_data_address": ""}, "cluster_package_cache"),
    ({"cluster_package_cache_hosts": []}, "cluster_package_cache_hosts"),
    ({"cluster_package_cache_hosts": ["http://deb.example.org/debian"]}, "cluster_package_cache_hosts"),
    ({"cluster_package_cache_hosts": ["a.org b.org"]}, "cluster_package_cache_hosts"),
    ({"cluster_package_cache_hosts": [".debian.org"]}, "cluster_package_cache_hosts"),
    ({"cluster_package_cache_port": 80}, "cluster_package_cache_port"),
]


@pytest.mark.parametrize(("variables", "variable"), PROBLEMS)
def test_a_cache_that_no_node_could_use_is_refused_before_anything_changes(variables, variable) -> None:
    """On every node, because every node would write it into its configuration."""
    cluster = cluster_of(2, **ON)
    nodes = [Node(node.name, node.connection, {**node.variables, **variables}) for node in cluster.nodes]
    cluster = dataclasses.replace(cluster, nodes=tuple(nodes))

    for node in cluster.nodes:
        assert [problem.object for problem in cluster_problems("platform", node, cluster, {})] == [variable]
    valid = cluster_of(2, **ON)
    assert cluster_problems("platform", valid.node("gpu1"), valid, {}) == ()


def test_a_squid_of_others_keeps_its_configuration() -> None:
    """The role would replace it; one that an apply installed, or began to install, is no obstacle."""
    cluster = cluster_of(3, **ON)
    facts = without_receipt(cluster, "gpu2")
    facts = dataclasses.replace(facts, packages={**facts.packages, "squid": "6.13-2"})
    begun = dataclasses.replace(facts, managed=dataclasses.replace(facts.managed, brought=frozenset({"squid"})))

    def problems(own):
        return [one.object for one in cluster_problems(ROLE, cluster.node("gpu2"), cluster, {"gpu2": own})]

    assert problems(facts) == ["cluster_package_cache"]
    assert problems(begun) == problems(facts_of(cluster, "gpu2")) == []


@pytest.mark.parametrize("proxy", ["http://bob:secret@proxy:3128", "https://proxy:3128"])
def test_a_proxy_that_squid_would_need_a_password_for_is_refused(proxy) -> None:
    """The password would be in a file that squid's account reads."""
    facts = facts_of(cluster_of())

    [problem] = setting_problems(ROLE, {**ON, "cluster_http_proxy": proxy}, facts)
    assert problem.object == "cluster_http_proxy"
    assert setting_problems(ROLE, {**ON, "cluster_http_proxy": "http://proxy:3128"}, facts) == ()
