"""Ids are an interface: each is documented, once."""

from __future__ import annotations

from pathlib import Path

import pytest

import provision.checks
from provision.checks import CHECKS, CLUSTER_CHECKS
from provision.checks.base import check
from provision.checks.controller import CONTROLLER_CHECKS
from provision.checks.minimums import MINIMUMS, profile_id
from provision.checks.reasons import DESCRIPTIONS


def test_check_ids_and_documentation_match():
    """`reasons.py` describes exactly the checks that exist; docs/reference/reasons.md is generated from it."""
    profiles = {profile_id(need.component) for needs in MINIMUMS.values() for need in needs}

    assert sorted(DESCRIPTIONS) == sorted({*CHECKS, *CLUSTER_CHECKS, *CONTROLLER_CHECKS, *profiles})


def test_prerequisites_of_a_check_exist_and_come_before_it(judged):
    """A check is judged after the one without which it means nothing."""
    order = list(judged({"cluster_engine": "slurm"}))

    assert all(order.index(item.after) < order.index(item.id) for item in CHECKS.values() if item.after)


def test_a_duplicate_id_is_refused():
    """Two checks of one name would hide each other."""
    with pytest.raises(ValueError, match=r"node\.os"):
        check("node.os")(lambda _: None)


def test_every_role_has_a_check():
    """Each role that changes a node is proved by at least one check of its name."""
    roles = Path(provision.checks.__file__).parents[2] / "roles"
    wanted = {folder.name for folder in roles.iterdir() if (folder / "tasks").is_dir()} - {"platform"}
    areas = {id.partition(".")[0] for id in [*CHECKS, *CLUSTER_CHECKS]}  # noqa: A001

    assert wanted <= areas
