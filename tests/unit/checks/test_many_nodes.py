"""Many nodes: each is compared with what all should have, and no pair of nodes is compared by itself."""

from __future__ import annotations

import dataclasses

import pytest

from provision.checks import judge
from provision.facts import Unknown
from provision.facts.container_ssh import ContainerTrust
from provision.model import CheckStatus, Cluster
from provision.model.reason import Reason
from provision.report.reasons import remedy
from tests.support.reasons import shown
from tests.unit.checks.conftest import Counted, healthy, make_cluster, make_node

PASS, FAIL, SKIP = CheckStatus.PASS, CheckStatus.FAIL, CheckStatus.SKIP
MUTUAL = ("base_system.hosts", "container_ssh.known_hosts", "container_ssh.trusted_nodes")
"""The checks of what nodes know of each other."""
COUNT = 40
ALL = range(1, COUNT + 1)
FOREIGN = "ssh-ed25519 FOREIGN"


def cluster_of(count: int, **variables: object) -> Cluster:
    nodes = tuple(make_node(f"gpu{n}", f"10.77.0.{n}", **variables) for n in range(1, count + 1))
    return Cluster("test", make_cluster().inventory, nodes)


def names_of(numbers):
    return {f"gpu{n}": (f"10.77.0.{n}",) for n in numbers}


def trust_of(numbers):
    return ContainerTrust(
        {f"[gpu{n}]:2222": (f"ssh-ed25519 KEY{n}",) for n in numbers},
        tuple(f"ssh-ed25519 CLIENT{n}" for n in numbers),
        {f"gpu{n}": (f"ssh-ed25519 CLIENT{n}",) for n in numbers},
        tuple(f"gpu{n}" for n in numbers),
    )


def trusting(**fields):
    """What a node trusts on which something is not as on the others."""
    return {"container_trust": dataclasses.replace(trust_of(ALL), **fields)}


def without(number, mapping):
    return {name: value for name, value in mapping.items() if name not in {f"gpu{number}", f"[gpu{number}]:2222"}}


def facts_of_all(numbers, names=None, trust=None):
    """All nodes as they should be; they share what is the same on all."""
    shared = {"names": names or names_of(numbers), "container_trust": trust or trust_of(numbers)}
    return {f"gpu{n}": dataclasses.replace(healthy(n), **shared) for n in numbers}


def judged_all(facts, cluster=None):
    """Node -> check -> (status, reason, remedy), of the checks of what nodes know of each other."""
    nodes = (cluster or cluster_of(COUNT)).nodes
    by_node = {
        n.name: judge(n, facts[n.name], cluster or cluster_of(COUNT), all_facts=facts) for n in nodes if n.name in facts
    }
    return {
        name: {r.id: (r.status, _shown(r.reason), remedy(r.reason, name) or None) for r in results if r.id in MUTUAL}
        for name, results in by_node.items()
    }


def _shown(reason):
    """Return the reason without the nodes that only its remedy names."""
    return shown(Reason(reason.code, {name: value for name, value in reason.params.items() if name != "others"}))


def with_one(**facts):
    """Judge all nodes, of which gpu7 has these facts; return what is said of gpu7 and what of the others."""
    everybody = facts_of_all(ALL)
    everybody["gpu7"] = dataclasses.replace(everybody["gpu7"], **facts)
    by_node = judged_all(everybody)
    return by_node.pop("gpu7"), by_node


def test_pairs_of_nodes_are_not_compared_individually():
    """Four hundred nodes are 160 000 pairs; comparing each would exceed this count three times over and more."""
    count = 400
    trust = trust_of(range(1, count + 1))
    counted = dataclasses.replace(
        trust, known_hosts=Counted(trust.known_hosts), authorized_nodes=Counted(trust.authorized_nodes)
    )
    names = Counted(names_of(range(1, count + 1)))
    facts = Counted(facts_of_all(range(1, count + 1), names, counted))
    Counted.lookups.clear()

    by_node = judged_all(facts, cluster_of(count))

    assert {status for checks in by_node.values() for status, _, _ in checks.values()} == {PASS}
    assert sum(Counted.lookups.values()) < 20 * count


def test_pairs_are_not_compared_individually_if_all_nodes_lack_one_key():
    """A node that was added concerns all others, and one comparison reports it for all."""
    count = 400
    trust = trust_of(range(1, count))
    counted = dataclasses.replace(trust, known_hosts=Counted(trust.known_hosts))
    facts = Counted(facts_of_all(range(1, count + 1), Counted(names_of(range(1, count + 1))), counted))
    Counted.lookups.clear()

    by_node = judged_all(facts, cluster_of(count))

    reasons = {checks["container_ssh.known_hosts"][1] for checks in by_node.values()}
    assert all(reason.startswith("container_ssh.known_hosts.missing: gpu400") for reason in reasons)
    assert sum(Counted.lookups.values()) < 20 * count


def test_healthy_nodes_have_the_keys_of_all_others():
    assert set(map(str, judged_all(facts_of_all(ALL)).values())) == {
        str(
            {
                "base_system.hosts": (PASS, "base_system.hosts.ok: 40", None),
                "container_ssh.known_hosts": (PASS, "container_ssh.known_hosts.ok: 40", None),
                "container_ssh.trusted_nodes": (
                    PASS, "container_ssh.trusted_nodes.ok: 40", None,
                ),
            }
        )
    }  # fmt: skip


APPLY, SOME = "Run: provision apply", "Run: provision apply --limit gpu7"
PINNED, CLIENTS = trust_of(ALL).known_hosts, trust_of(ALL).authorized_nodes


@pytest.mark.parametrize(
    ("facts", "check", "reason", "advice"),
    [
        ({"names": {**names_of(ALL), "gpu9": ("10.77.0.8",)}}, "base_system.hosts",
         "base_system.hosts.wrong: base_system.hosts.address gpu9 10.77.0.8 10.77.0.9", SOME),
        ({"names": {**names_of(ALL), "gpu9": ()}}, "base_system.hosts",
         "base_system.hosts.wrong: base_system.hosts.address gpu9 unknown 10.77.0.9", SOME),
        ({"names": {**names_of(ALL), "gpu7": ("127.0.1.1", "10.77.0.7")}}, "base_system.hosts",
         "base_system.hosts.wrong: base_system.hosts.loopback gpu7", SOME),
        ({"names": dict.fromkeys(names_of(ALL), ("10.0.0.1", "10.0.0.2"))}, "base_system.hosts",
         "base_system.hosts.wrong: " + " ".join(
             f"base_system.hosts.address gpu{n} 10.0.0.1 10.0.0.2 10.77.0.{n}" for n in ALL), SOME),
        ({"names": Unknown("hung: getent ahosts")}, "base_system.hosts", "check.fact_unavailable: hung: getent ahosts",
         "Log in to the node and run that command manually to see where it stops."),
        (trusting(known_hosts=without(9, PINNED)), "container_ssh.known_hosts",
         "container_ssh.known_hosts.missing: gpu9", f"{SOME},gpu9"),
        (trusting(known_hosts=without(7, PINNED)), "container_ssh.known_hosts",
         "container_ssh.known_hosts.missing: gpu7", SOME),
        (trusting(known_hosts={**PINNED, "[gpu9]:2222": (FOREIGN,)}), "container_ssh.known_hosts",
         "container_ssh.known_hosts.differ: gpu9", f"{SOME},gpu9"),
        (trusting(known_hosts={**without(3, PINNED), "[gpu9]:2222": (FOREIGN,)}), "container_ssh.known_hosts",
         "container_ssh.known_hosts.differ: gpu9", f"{SOME},gpu9"),
        (trusting(known_hosts={}), "container_ssh.known_hosts",
         "container_ssh.known_hosts.missing: " + " ".join(f"gpu{n}" for n in ALL), f"{SOME},gpu1,gpu2,gpu3,gpu4,gpu5"),
        (trusting(authorized_nodes={**CLIENTS, "gone": (FOREIGN,)}), "container_ssh.trusted_nodes",
         "container_ssh.trusted_nodes.differ: container_ssh.trusted_nodes.admits gone", APPLY),
        (trusting(authorized_nodes={**CLIENTS, "gpu9": (FOREIGN,)}), "container_ssh.trusted_nodes",
         "container_ssh.trusted_nodes.differ: container_ssh.trusted_nodes.other_key gpu9", APPLY),
        (trusting(authorized_nodes={**CLIENTS, "gpu9": (*CLIENTS["gpu9"], FOREIGN)}), "container_ssh.trusted_nodes",
         "container_ssh.trusted_nodes.differ: container_ssh.trusted_nodes.other_key gpu9", APPLY),
        (trusting(authorized_nodes=without(9, CLIENTS)), "container_ssh.trusted_nodes",
         "container_ssh.trusted_nodes.differ: container_ssh.trusted_nodes.not_admitted gpu9", APPLY),
        (trusting(known_nodes=("gone", *(f"gpu{n}" for n in ALL if n != 9))), "container_ssh.trusted_nodes",
         ("container_ssh.trusted_nodes.differ: "
          "container_ssh.trusted_nodes.knows gone container_ssh.trusted_nodes.not_known gpu9"), APPLY),
    ],
)  # fmt: skip
def test_a_problem_of_one_node_is_reported_for_that_node_only(facts, check, reason, advice):
    said, others = with_one(**facts)

    assert said.pop(check) == (FAIL, reason, advice)
    assert {status for status, _, _ in said.values()} == {PASS}
    assert {status for checks in others.values() for status, _, _ in checks.values()} == {PASS}


@pytest.mark.parametrize("fact", ["known_hosts", "trusted_nodes"])
def test_unreadable_trust_files_fail_the_checks_that_require_them(fact):
    said, others = with_one(container_trust=Unknown("hung: cat known_hosts"))

    assert said[f"container_ssh.{fact}"][:2] == (FAIL, "check.fact_unavailable: hung: cat known_hosts")
    assert said["base_system.hosts"][0] is PASS
    assert {status for checks in others.values() for status, _, _ in checks.values()} == {PASS}


@pytest.mark.parametrize(
    ("key", "check", "reason", "advice"),
    [
        ("host_key", "container_ssh.known_hosts",
         "container_ssh.known_hosts.differ: gpu7", "Run: provision apply --limit {name},gpu7"),
        ("client_key", "container_ssh.trusted_nodes",
         "container_ssh.trusted_nodes.differ: container_ssh.trusted_nodes.other_key gpu7", APPLY),
    ],
)  # fmt: skip
def test_a_changed_key_of_a_node_affects_all_nodes(key, check, reason, advice):
    """What it uses now decides, on itself and on all that trust its old key; each remedy names the node it is for."""
    ssh = dataclasses.replace(healthy(7).container_ssh, **{key: FOREIGN})
    itself, others = with_one(container_ssh=ssh)

    assert itself[check] == (FAIL, reason, advice.format(name="gpu7").replace("gpu7,gpu7", "gpu7"))
    assert {name: checks[check] for name, checks in others.items()} == {
        name: (FAIL, reason, advice.format(name=name)) for name in others
    }


def test_a_node_without_known_keys_does_not_affect_the_others():
    """Its keys are not known then: what is pinned for it may be right."""
    everybody = facts_of_all(ALL)
    everybody["gpu7"] = dataclasses.replace(everybody["gpu7"], container_ssh=None)
    everybody["gpu8"] = dataclasses.replace(everybody["gpu8"], container_ssh=Unknown("hung: cat"))
    del everybody["gpu9"]
    by_node = judged_all(everybody)

    assert by_node.pop("gpu7")["container_ssh.known_hosts"] == (SKIP, "check.waits: container_ssh.host_key", None)
    assert by_node.pop("gpu8")["container_ssh.known_hosts"] == (SKIP, "check.waits: container_ssh.host_key", None)
    assert {status for checks in by_node.values() for status, _, _ in checks.values()} == {PASS}


def test_verdicts_are_not_shared_between_clusters_or_probes():
    """The same node is judged anew when nodes were added, or have other addresses or keys than at the last look."""
    trust, names = trust_of(ALL), names_of(ALL)
    before = judged_all(facts_of_all(ALL, names, trust))["gpu1"]
    moved = judged_all(facts_of_all(ALL, names, trust), cluster_of(COUNT, cluster_data_address="10.1.1.1"))["gpu1"]
    fewer = judged_all(facts_of_all(range(1, COUNT), names, trust), cluster_of(COUNT - 1))["gpu1"]
    ported = judged_all(facts_of_all(ALL, names, trust), cluster_of(COUNT, container_ssh_port=2200))["gpu1"]

    assert {status for status, _, _ in before.values()} == {PASS}
    assert "base_system.hosts.address gpu2 10.77.0.2 10.1.1.1" in moved["base_system.hosts"][1]
    assert fewer["container_ssh.trusted_nodes"][1] == (
        "container_ssh.trusted_nodes.differ: "
        "container_ssh.trusted_nodes.admits gpu40 container_ssh.trusted_nodes.knows gpu40"
    )
    assert ported["container_ssh.known_hosts"][0] is FAIL
