"""Nodes held against the versions that a guide asks for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from provision.checks.minimums import hold
from provision.facts import Unknown
from provision.facts.gpudirect import Nccl
from provision.facts.rdma import RdmaStack
from provision.facts.system import System
from provision.model import Cluster
from tests.unit.checks.conftest import healthy, make_node


def verdicts(profile="topology", **facts):
    """Component -> (found, verdict) of a node that is healthy but for these facts."""
    node = make_node("gpu1", "10.77.0.1")
    cluster = Cluster("c", Path("hosts.yml"), (node,))
    held = hold(profile, node, dataclasses.replace(healthy(), **facts), cluster, supported={"debian 12": "tested"})
    return {item.component: (item.present, item.verdict.status.value) for item in held}


def gpus(**more):
    """The healthy node's GPUs, changed."""
    return tuple(dataclasses.replace(gpu, **more) for gpu in healthy().gpus)


@pytest.mark.row(1)
def test_versions_are_compared_with_the_minimums():
    """The lowest version that passes is the guide's own; Kubernetes and Helm have no part here."""
    good = verdicts(gpus=gpus(driver="418.87.01", name="Tesla V100-SXM2-16GB", compute_capability=""))
    old = verdicts(gpus=gpus(driver="418.67", name="Tesla P100", compute_capability="6.0"), nccl=Nccl(("2.6.4",), ()))

    assert {name: verdict for name, (_, verdict) in good.items()} == {
        "Kubernetes": "skip",
        "Helm": "skip",
        "driver": "pass",
        "NCCL": "pass",
        "docker": "pass",
        "system": "pass",
        "card": "pass",
    }
    assert (old["driver"], old["NCCL"], old["card"]) == (("418.67", "fail"), ("2.6.4", "fail"), ("Tesla P100", "fail"))


@pytest.mark.row(1)
def test_unknown_versions_fail():
    """Unknown facts fail; NCCL that is not seen may be within torch, which is said."""
    silent = verdicts(gpus=Unknown("it hangs"), docker_info=Unknown("no answer"), nccl=Nccl((), ()))

    assert (silent["driver"], silent["docker"], silent["card"]) == (("-", "fail"),) * 3
    assert silent["NCCL"] == ("-", "warn")


@pytest.mark.row(44)
def test_the_rdma_profile_checks_disk_space_card_and_drivers():
    """As the guide to bare metal asks for."""
    good, bare = verdicts("taco"), verdicts("taco", rdma=RdmaStack((), 0, (), ""), packages={}, gpus=())

    assert {verdict for _, verdict in good.values()} == {"pass"}
    assert {name for name, (_, verdict) in bare.items() if verdict == "fail"} == {
        "RDMA",
        "driver",
        "container toolkit",
    }


def test_a_simulated_system_is_marked_in_a_profile():
    """By its name and by the mark, supported or not."""
    node = make_node("gpu1", "10.77.0.1")
    cluster = Cluster("c", Path("hosts.yml"), (node,))
    system = System("ubuntu", "24.04", "Ubuntu 24.04 LTS", "6.1", "x86_64")
    facts = dataclasses.replace(healthy(), system=system, simulated={"system": "Ubuntu"})
    for supported, status in (({"ubuntu 24.04": "tested"}, "pass"), ({}, "fail")):
        [held] = [
            item for item in hold("topology", node, facts, cluster, supported=supported) if item.component == "system"
        ]

        assert (held.present, held.verdict.status.value) == ("ubuntu 24.04 (SIMULATED)", status)
        assert held.verdict.simulated
