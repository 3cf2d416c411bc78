"""Waves: a canary first, and never more of one rack at once than the inventory allows."""

from __future__ import annotations

import pytest

from provision.errors import UsageError
from provision.model.plan import StepClass
from provision.planning.waves import DISRUPTIVE_WAVES, default_waves, too_many_failures, wave_sizes, waves
from provision.testing import make_node


def nodes(count, **variables):
    return [make_node(f"n{number}", **variables) for number in range(count)]


def lengths(count, text=DISRUPTIVE_WAVES, **variables):
    return [len(wave) for wave in waves(nodes(count, **variables), wave_sizes(text, count))]


def test_default_waves_are_one_node_then_a_tenth_then_the_rest():
    assert lengths(100) == [1, 10, 89]
    assert lengths(8) == [1, 1, 6]
    assert lengths(1) == [1]
    assert lengths(2) == [1, 1]


def test_the_last_size_is_repeated():
    assert lengths(10, "4") == [4, 4, 2]
    assert lengths(5, "100%") == [5]


@pytest.mark.parametrize("text", ["", "0", "x", "1,,2", "-1", "10%%"])
def test_invalid_sizes_are_refused(text):
    with pytest.raises(UsageError, match="neither a number of nodes nor a percentage"):
        wave_sizes(text, 10)


def test_a_wave_never_takes_more_nodes_of_a_rack_than_allowed():
    """Two racks of four, one node of each at a time."""
    racks = [make_node(f"n{i}", cluster_rack=f"r{i % 2}", cluster_rack_at_once=1) for i in range(8)]
    made = waves(racks, wave_sizes("100%", 8))

    assert made == (("n0", "n1"), ("n2", "n3"), ("n4", "n5"), ("n6", "n7"))


def test_limits_of_rack_and_leaf_are_combined():
    """All in one rack, which may miss three; two leaves, which may miss one each."""
    shared = {"cluster_rack": "r", "cluster_rack_at_once": 3, "cluster_leaf_at_once": 1}
    made = waves([make_node(f"n{i}", cluster_leaf=f"l{i // 2}", **shared) for i in range(4)], (4,))

    assert made == (("n0", "n2"), ("n1", "n3"))


def test_a_failed_canary_or_a_tenth_of_failed_nodes_stops_the_apply():
    assert too_many_failures(1, 100, None, after_canary=False)
    assert not too_many_failures(9, 100, None, after_canary=True)
    assert too_many_failures(10, 100, None, after_canary=True)
    assert not too_many_failures(1, 100, 2, after_canary=False)
    assert not too_many_failures(0, 100, None, after_canary=False)


@pytest.mark.parametrize(
    ("classes", "provisioned", "expected"),
    [
        ({StepClass.SAFE}, False, [30]),
        ({StepClass.SAFE, StepClass.NEEDS_IDLE}, False, [30]),
        ({StepClass.SAFE}, True, [1, 29]),
        ({StepClass.SAFE, StepClass.NEEDS_IDLE}, True, [1, 3, 26]),
        ({StepClass.NEEDS_REBOOT}, False, [1, 3, 26]),
    ],
)
def test_the_default_waves_depend_on_what_the_steps_do(classes, provisioned, expected):
    """One node first; steps that end no job on all others at once; new nodes have no jobs."""
    assert lengths(30, default_waves(classes, provisioned=provisioned)) == expected
