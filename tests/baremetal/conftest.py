"""The command, and two virtual machines for one file of tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Provision

LAB = f"metal{os.getpid()}"


@pytest.fixture(scope="session")
def provision() -> Iterator[Provision]:
    """The command with a state folder of its own; built images are shared with every other lab."""
    with tempfile.TemporaryDirectory(prefix="prov-") as folder:
        yield Provision(Path(folder), XDG_STATE_HOME=f"{folder}/state")


@pytest.fixture(scope="module")
def lab(provision: Provision) -> Iterator[dict]:
    """Two bare virtual machines that stand for machines with two SIMULATED GPUs each."""
    try:
        provision.ok("lab", "up", LAB, "--driver", "vm", "--nodes", "2", "--machine", "pair")
        yield provision.ok("lab", "status", LAB, "--json").document
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)
