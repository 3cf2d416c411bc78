"""Short notations of many node names that expand to the same names."""

from __future__ import annotations

import pytest

from provision.inventory.ranges import expand
from provision.report.node_names import as_limit, in_short


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["gpu1", "gpu2", "gpu3"], "gpu1, gpu2, gpu3"),
        ([f"b8-{n}" for n in range(1, 9)], "b8-[1-8]"),
        ([f"gpu{n:02}" for n in (*range(1, 17), 18)], "gpu[01-16,18]"),
        ([f"r{rack}n{n}.dc2" for rack in (1, 2) for n in range(8, 12)], "r1n[8-11].dc2, r2n[8-11].dc2"),
        (["login", "gpu3", "gpu2", "gpu1", "gpu1"], "login, gpu[1-3]"),
        (["gpu8", "gpu9", "gpu010", "gpu011"], "gpu[8-9,010-011]"),
        (["7", "8", "9", "10"], "[7-10]"),
    ],
)
def test_names_that_differ_in_a_number_are_shown_as_a_range(names, shown):
    """The same range that ``provision init`` takes."""
    assert in_short(names) == shown
    if len(names) > 3 and names[0] != "7":
        assert {word.name for word in expand([shown.replace(", ", ",")])} == set(names)


def test_names_that_do_not_fit_are_counted():
    assert in_short([f"gpu{n}" for n in range(1, 1001, 2)]) == "gpu[1,3,5,7,9,11,13,15] and 492 more"
    assert in_short([letter * 2 for letter in "abcdefghijkl"]) == "aa, bb, cc, dd, ee, ff, gg, hh and 4 more"
    assert in_short([]) == ""


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["gpu1", "gpu2"], "gpu1,gpu2"),
        ([f"gpu{n}" for n in range(1, 64)], "'gpu[1-63]'"),
        ([f"gpu{n}" for n in range(1, 41, 2)], "'gpu[" + ",".join(map(str, range(1, 41, 2))) + "]'"),
    ],
)
def test_a_limit_contains_all_nodes(names, pattern):
    assert as_limit(names) == pattern
