"""The command, and virtual machines for one file of tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.command import Provision, with_own_state

LAB = f"metal{os.getpid()}"


@pytest.fixture(scope="session")
def provision() -> Iterator[Provision]:
    """The command with a state folder of its own; built images are shared with every other lab."""
    with with_own_state() as command:
        yield command


def lab_up(nodes: int) -> tuple[str, ...]:
    """Return the command that creates or restarts so many machines."""
    return ("lab", "up", LAB, "--driver", "vm", "--nodes", str(nodes), "--machine", "pair")


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest, provision: Provision) -> Iterator[dict]:
    """Bare virtual machines that stand for machines with two SIMULATED GPUs each.

    Tests marked `long` use two. One is enough for the others: an emulated machine occupies a core.
    """
    items = (item for item in request.session.items if item.path == request.path)
    nodes = 2 if any(item.get_closest_marker("long") for item in items) else 1
    try:
        provision.ok(*lab_up(nodes))
        yield provision.ok("lab", "status", LAB, "--json").document
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)
