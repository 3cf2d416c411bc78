"""The table of combinations that are known not to work: a failing and a working example for each row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provision.model.stack import Stack, StackPart
from provision.stack.conflicts import CONFLICTS, conflicts_of
from tests.support.reasons import shown

ROWS = {
    # name: the reported combination, and neighbours that the report says nothing about
    "driver-530-kernel-6.4": (("6.4.1-1", "530.41.03"), [("6.3.9-1", "530.41.03"), ("6.4.1-1", "530.99")]),
    "driver-535-kernel-6.12": (("6.12.22-amd64", "535.216.03"), [("6.6.1", "535.216.03"), ("6.12.22", "535.230.02")]),
    "driver-550-kernel-6.10": (("6.10.5", "550.78"), [("6.9.12", "550.78"), ("6.10.5", "550.90")]),
    "driver-550-kernel-6.17": (("6.17.13-2-pve", "550.163.01"), [("6.16.8", "550.163.01"), ("6.17.1", "550.164")]),
    "driver-555-kernel-6.10": (("6.10.0", "555.42.02"), [("6.9.12", "555.42.02"), ("6.10.0", "555.58.02")]),
    "driver-555-kernel-6.17": (("6.17.13-2-pve", "555.58.02"), [("6.16.8", "555.58.02"), ("6.17.1", "555.99")]),
    "driver-565-kernel-6.13": (("6.13.0", "565.77"), [("6.12.9", "565.77"), ("6.13.0", "565.78")]),
    "driver-575-kernel-6.15": (("6.15.0", "575.51.02"), [("6.14.9", "575.51.02"), ("6.15.0", "575.57.08")]),
    "peer-memory-kernel-6.0": (("6.0.0", "460.106.00"), [("5.15.0", "460.106.00"), ("6.0.0", "470.256.02")]),
    "ofed-4.9-kernel-5.14": (("5.14.0", "4.9-4.1.7.0"), [("5.4.0", "4.9-4.1.7.0"), ("5.14.0", "5.8-3.0.7.0")]),
}


def results(kernel: str, component: str, version: str) -> list[str]:
    """Return the conflicts of a kernel with another component."""
    return list(map(shown, conflicts_of(Stack("", "", {"kernel": StackPart(kernel), component: StackPart(version)}))))


@pytest.mark.parametrize("row", CONFLICTS, ids=lambda row: row.name)
def test_a_row_covers_what_was_reported_and_no_neighbour(row):
    """An older kernel and a newer release of the branch are not refused."""
    (kernel, version), neighbours = ROWS[row.name]
    component = row.older.component

    [conflict] = results(kernel, component, version)
    assert conflict.startswith(f"stack.conflict: {component} {version} kernel {kernel} ")
    assert row.source.split()[0] in conflict
    for other_kernel, other_version in neighbours:
        assert results(other_kernel, component, other_version) == []


@pytest.mark.parametrize("row", CONFLICTS, ids=lambda row: row.name)
def test_an_accepted_conflict_is_not_reported(row):
    """Packages can be patched; no other conflict is accepted with it."""
    (kernel, version), _ = ROWS[row.name]
    stack = Stack("", "", {"kernel": StackPart(kernel), row.older.component: StackPart(version)})

    assert list(conflicts_of(replace(stack, accepted=(row.name,)))) == []
    others = tuple(name for name in ROWS if name != row.name)
    assert len(list(conflicts_of(replace(stack, accepted=others)))) == 1


def test_every_row_has_a_source_and_an_example():
    """A row without a source is an opinion."""
    assert list(ROWS) == [row.name for row in CONFLICTS]
    assert all(row.source and row.effect for row in CONFLICTS)


@pytest.mark.parametrize(("manager", "expected"), [("550.90", 0), ("550.54.15", 1)])
def test_the_fabric_manager_has_the_version_of_the_driver(manager, expected):
    """It ends at its start otherwise."""
    stack = Stack("", "", {"driver": StackPart("550.90"), "fabric_manager": StackPart(manager)})

    assert len(list(conflicts_of(stack))) == expected


def test_an_inbox_stack_conflicts_with_no_kernel():
    """It is a part of the kernel."""
    assert results("6.12.0", "rdma", "inbox") == []
