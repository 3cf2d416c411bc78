"""A container lab of two bare nodes for all tests of this folder, brought up by the command itself."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Provision
from tests.support.engine import engine_host, held

LAB = f"jobs{os.getpid()}"
"""A name of its own, so that two checkouts can be tested beside each other."""

ENGINES: set[str] = set()
"""The docker engines that were used."""


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
        ENGINES.add(engine_host(provision.folder / "state/provision/labs" / LAB))
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
    """Run a shell command on a node by way of ``lab ssh``; it must succeed, so that no silence passes for an answer."""

    def run(node: str, command: str) -> str:
        return provision.ok("lab", "ssh", LAB, node, "--", command).out

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
    for host in ENGINES:
        assert held(host, "ps", "-aq", "--filter", f"name=provision-{LAB}-") == []
