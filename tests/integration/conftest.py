"""A container lab of two bare nodes for all tests of this folder, brought up by the command itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import node_shell
from tests.support.command import Provision, with_own_state
from tests.support.engine import engine_host, held
from tests.support.jobs import Jobs, use_engine

LAB = f"jobs{os.getpid()}"
"""A name of its own, so that two checkouts can be tested beside each other."""

ENGINES: set[str] = set()
"""The docker engines that were used."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the engine of batch jobs; `slurm` makes the lab a Slurm cluster."""
    parser.addoption("--engine", choices=("direct", "slurm"), default="direct", help="engine of batch jobs in the lab")


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> str:
    """The engine of batch jobs in the lab."""
    return str(request.config.getoption("--engine"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that break the common lab on purpose run last, so that a failed repair does not fail other tests."""
    items.sort(key=lambda item: "test_chaos.py" in item.nodeid)


@pytest.fixture(scope="session")
def provision() -> Iterator[Provision]:
    """The command with a state folder of its own; built images are shared with every other lab."""
    with with_own_state() as command:
        yield command


@pytest.fixture(scope="session")
def lab(provision: Provision) -> Iterator[dict]:
    """Two bare systemd containers that stand for machines with two SIMULATED GPUs each.

    They run Debian 13; Molecule's nodes and the virtual machines run Debian 12.
    """
    try:
        provision.ok(
            "lab", "up", LAB, "--driver", "container", "--distro", "debian13", "--nodes", "2", "--machine", "pair"
        )
        ENGINES.add(engine_host(provision.folder / "state/provision/labs" / LAB))
        yield provision.ok("lab", "status", LAB, "--json").document
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


@pytest.fixture(scope="session")
def cluster(engine: str, provision: Provision, lab: dict) -> dict:
    """The lab after its first apply; the apply's own document is under ``apply``."""
    if engine != "direct":
        use_engine(provision, LAB, engine)
    done = provision("apply", "--lab", LAB, "--yes", "--json")
    assert done.code == 0, str(done)
    return {**lab, "apply": done.document}


@pytest.fixture
def on_node(provision: Provision, cluster: dict):
    """Run a shell command on a node; it must succeed, so that no silence passes for an answer."""

    def run(node: str, command: str) -> str:
        return node_shell.on_node(provision, LAB, node, command)

    assert cluster["nodes"]
    return run


@pytest.fixture(scope="module")
def jobs(engine: str, provision: Provision, cluster: dict) -> Iterator[Jobs]:
    """Job verbs for the lab's nodes; every job is forgotten at the end."""
    assert cluster["nodes"]
    made = Jobs(provision, engine, LAB)
    yield made
    left = [job["name"] for job in made.ok("list", "-o", "json").document]
    if left:
        made.ok("delete", "--force", *left)


@pytest.fixture(scope="session")
def ssh_files(provision: Provision) -> Path:
    """The folder with the lab's key and known_hosts."""
    return provision.folder / "state/provision/labs" / LAB


@pytest.fixture
def lab_variables(ssh_files: Path):
    """Set variables of the lab's nodes in a file of their group, until the end of the test."""
    file = ssh_files / "inventory/group_vars/gpu_nodes.yml"

    def write(variables: dict[str, Any]) -> None:
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump(variables))

    yield write
    file.unlink(missing_ok=True)


@pytest.fixture
def own_inventory(provision: Provision, cluster: dict, ssh_files: Path):
    """Write an inventory of the lab's nodes as a user does, with ``init``, and take it away after the test."""
    made: list[Path] = []

    def make(name: str) -> Path:
        hosts = [f"{node['name']}={node['address']}:{node['port']}" for node in cluster["nodes"]]
        provision.ok(
            "init", *hosts, "--name", name, "--user", "root", "--nvidia-repository", "none",
            "--key", str(ssh_files / "id_ed25519"), "--known-hosts", str(ssh_files / "known_hosts"),
        )  # fmt: skip
        made.append(provision.folder / "inventories" / name)
        lab = yaml.safe_load((ssh_files / "inventory/hosts.yml").read_text())["all"]
        given = {**lab.get("vars", {}), **lab["children"]["gpu_nodes"].get("vars", {})}
        ours = ("docker_engine_", "training_", "nvidia_container_", "platform_", "cluster_data_net")
        wanted = {key: value for key, value in given.items() if key.startswith(ours)}
        variables = made[-1] / "group_vars/all.yml"
        variables.write_text(variables.read_text() + "\n" + yaml.safe_dump(wanted))
        return made[-1]

    yield make
    for folder in made:
        shutil.rmtree(folder)


@pytest.fixture(scope="session", autouse=True)
def docker_left() -> Iterator[None]:
    """Nothing that a lab made may be left in the docker engine after all tests."""
    yield
    for host in ENGINES:
        assert held(host, "ps", "-aq", "--filter", f"name=provision-{LAB}-") == []
