"""A node without python3: the first step of its plan installs it, and the same apply runs all other steps."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.integration.conftest import ENGINES
from tests.support.command import Provision, with_own_state
from tests.support.engine import engine_host

LAB = f"bare{os.getpid()}"
NODE = f"{LAB}-1"
PURGE = "dpkg --purge --force-depends $(dpkg-query -W -f '${Package} ' 'python3*' 'libpython3*') 2>&1"


@pytest.fixture
def bare() -> Iterator[Provision]:
    """A lab of one node without python3."""
    with with_own_state() as provision:
        try:
            provision.ok("lab", "up", LAB, "--driver", "container", "--nodes", "1")
            ENGINES.add(engine_host(provision.folder / "state/provision/labs" / LAB))
            provision.ok("lab", "ssh", LAB, NODE, "--", PURGE)
            yield provision
        finally:
            provision("lab", "down", LAB)


@pytest.mark.slow
def test_an_apply_installs_python_and_then_everything_else(bare):
    plan = bare.ok("plan", "--lab", LAB, "--json").document["nodes"][0]
    verify = bare("verify", "--lab", LAB, "--json").document["nodes"][0]
    apply = bare("apply", "--lab", LAB, "--yes", "--json")
    again = bare("plan", "--lab", LAB, "--exit-code")

    steps = [(step["role"], [reason["code"] for reason in step["reason_codes"]]) for step in plan["steps"]]
    assert steps == [("platform", ["plan.python_missing"])]
    assert "Debian GNU/Linux" in str([check for check in verify["checks"] if check["id"].startswith("node.os")])
    assert apply.code == 0, apply
    assert apply.document["nodes"][0]["status"] == "changed"
    assert again.code == 0, again
