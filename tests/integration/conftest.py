"""A container lab of two bare nodes for all tests of this folder, brought up by the command itself."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Provision

LAB = f"jobs{os.getpid()}"
"""A name of its own, so that two checkouts can be tested beside each other."""


@pytest.fixture(scope="session")
def provision() -> Iterator[Provision]:
    """The command with a state folder of its own; built images are shared with every other lab."""
    with tempfile.TemporaryDirectory(prefix="prov-") as folder:
        yield Provision(Path(folder), XDG_STATE_HOME=f"{folder}/state")


@pytest.fixture(scope="session")
def lab(provision: Provision) -> Iterator[dict]:
    """Two bare systemd containers that stand for machines with two SIMULATED GPUs each."""
    try:
        provision.ok("lab", "up", LAB, "--driver", "container", "--nodes", "2", "--machine", "pair")
        yield provision.ok("lab", "status", LAB, "--json").document
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


@pytest.fixture(scope="session")
def cluster(provision: Provision, lab: dict) -> dict:
    """The lab after its first apply; the apply's own document is under ``apply``."""
    done = provision("apply", "--lab", LAB, "--yes", "--json")
    assert done.code == 0, str(done)
    return {**lab, "apply": done.document}


@pytest.fixture
def on_node(provision: Provision, cluster: dict):
    """Run a shell command on a node by way of ``lab ssh``."""

    def run(node: str, command: str) -> str:
        done = provision("lab", "ssh", LAB, node, "--", command)
        return done.out

    assert cluster["nodes"]
    return run


@pytest.fixture(scope="session")
def ssh_files(provision: Provision) -> Path:
    """The folder with the lab's key and known_hosts."""
    return provision.folder / "state/provision/labs" / LAB


@pytest.fixture(scope="session", autouse=True)
def docker_left() -> Iterator[None]:
    """Nothing that a lab made may be left in the docker engine when all tests are over."""
    yield
    engine = subprocess.run(
        ["docker", "ps", "-aq", "--filter", f"name=provision-{LAB}-"], capture_output=True, text=True, check=False
    )
    assert engine.stdout.split() == []
