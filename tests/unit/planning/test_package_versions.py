"""Which version of a package is older."""

from __future__ import annotations

import itertools

import pytest

from provision.planning.package_versions import older

ORDER = (
    "1.0~rc1-1", "1.0-1", "1.0-1+deb12u1", "1.0-2", "1.0+dfsg-1", "1.0.1-1", "1.2-1", "1.10-1", "2.0a-1", "1:0.1-1",
)  # fmt: skip


@pytest.mark.parametrize(("version", "other"), [*itertools.combinations(ORDER, 2)])
def test_versions_are_ordered_as_dpkg_orders_them(version, other):
    assert older(version, other)
    assert not older(other, version)


@pytest.mark.parametrize(
    ("version", "other"),
    [
        *itertools.combinations(
            ("1.0~rc1-1.el9", "1.0-1.el9", "1.0-1.el9_4", "1.0^git1-1.el9", "1.0.1-1.el9", "3:0.9-1.el9"), 2
        )
    ],
)
def test_versions_of_rpm_are_ordered_as_rpm_orders_them(version, other):
    """A caret marks what comes after a release, and before the next one."""
    assert older(version, other)
    assert not older(other, version)


@pytest.mark.parametrize("odd", ["", ":", "-", "~", "\x1b[2J", "9" * 5000, "ü:ß-²"])
def test_malformed_versions_raise_no_error(odd):
    assert older(odd, "1.0") in {True, False}
