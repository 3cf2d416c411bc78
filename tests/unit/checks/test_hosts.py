"""A host file that cannot lie: who takes ranks, how many, and why the others do not."""

from __future__ import annotations

import dataclasses

import pytest

from provision.checks import host_entry
from provision.errors import ConnectionFailed
from provision.facts import Unknown
from provision.launchers import LAUNCHERS, HostEntry
from tests.support.reasons import shown
from tests.unit.checks.conftest import healthy, make_node


def entry(variables=None, **facts):
    """The entry of one node with some facts replaced."""
    return host_entry(make_node("gpu1", "10.77.0.1", **(variables or {})), dataclasses.replace(healthy(), **facts))


def test_slots_are_the_number_of_gpus():
    """A node with GPUs gets a slot for each, whatever cluster_slots says."""
    assert entry({"cluster_slots": 4}) == HostEntry("gpu1", "10.77.0.1", 1, "gpu")


def test_slots_without_gpus_come_from_the_inventory_or_cpus():
    """Zero, the role's default, means that nothing was said."""
    assert entry({"cluster_slots": 4}, gpus=(), gpu_pci=()) == HostEntry("gpu1", "10.77.0.1", 4, "cpu")
    assert entry({"cluster_slots": 0}, gpus=(), gpu_pci=()) == HostEntry("gpu1", "10.77.0.1", 16, "cpu")
    assert entry({"cluster_slots": "{{ x }}"}, gpus=(), gpu_pci=()).slots == 16


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"container": None}, "host.no_container"),
        (
            {"container": Unknown("hung: docker inspect")},
            "host.container_unknown: hung: docker inspect",
        ),
        ({"gpus": Unknown("hung: nvidia-smi")}, "host.gpus_unknown: hung: nvidia-smi"),
        ({"gpu_pci": ("a", "b")}, "host.gpus_missing: 1 2"),
        ({"gpus": (), "gpu_pci": ("a",)}, "host.gpus_missing: 0 1"),
        ({"container": dataclasses.replace(healthy().container, status="exited")}, "host.container_stopped: exited"),
    ],
)
def test_a_node_that_cannot_run_ranks_is_excluded_with_the_reason(facts, reason):
    """No slot is promised that is not there."""
    (left_out,) = entry(**facts)

    assert shown(left_out) == reason


def test_an_unreachable_node_is_excluded():
    """The connection's own reason is given."""
    (reason,) = host_entry(make_node("g", "10.0.0.1"), ConnectionFailed("no route to host"))

    assert shown(reason) == "host.unreachable: no route to host"


def test_every_launcher_writes_an_empty_file_for_no_nodes():
    """Nothing is made up where there is nothing."""
    assert {one.host_file([]) for one in LAUNCHERS.values() if one.host_file} == {""}
