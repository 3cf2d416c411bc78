"""The command, and two virtual machines for one file of tests."""

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


@pytest.fixture(scope="module")
def lab(provision: Provision) -> Iterator[dict]:
    """Two bare virtual machines that stand for machines with two SIMULATED GPUs each."""
    try:
        provision.ok("lab", "up", LAB, "--driver", "vm", "--nodes", "2", "--machine", "pair")
        yield provision.ok("lab", "status", LAB, "--json").document
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)
