"""Every role's Molecule scenario: converge, idempotence, verify on fresh systemd containers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from provision.cli.progress import Steps
from provision.lab.engine_process import release_engine, require_engine
from provision.lab.systems import SYSTEMS
from tests.support.recorded_systems import SystemRecorder

HERE = Path(__file__).resolve().parent
ROLES = sorted(path.parents[2].name for path in HERE.parents[1].glob("roles/*/molecule/default/molecule.yml"))
SHORT = {"fabric_host", "peer_memory", "platform"}
"""Scenarios of `make test`, whose labs apply the other roles to bare nodes, and find nothing to do afterwards."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;;.*?\x1b\\")
NETWORK = "provision-molecule"
SYSTEM = os.environ.get("MOLECULE_SYSTEM", "debian_12")


@pytest.fixture(scope="session", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use the machine's docker engine, or a private one as the lab does; build the nodes' image once."""
    folder = tmp_path_factory.mktemp("engine")
    docker_engine = require_engine(folder, Steps())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", docker_engine.host)
        patch.setenv("DOCKER_TIMEOUT", "600")  # on a busy machine an engine removes a node in minutes
        patch.setenv("MOLECULE_NETWORK", NETWORK)
        docker("network", "rm", NETWORK, check=False)
        docker("network", "create", "--label", "provision.lab=molecule", NETWORK)
        if "MOLECULE_NODE_IMAGE" not in os.environ:
            image = f"provision-molecule-node:{SYSTEM}.1"
            subprocess.run([sys.executable, HERE / "image.py", "node", image], check=True)
        yield
        docker("network", "rm", NETWORK, check=False)
    docker_engine.close()
    release_engine(folder, Steps())


def docker(*words: str, check: bool = True) -> None:
    """Run one docker command on the chosen engine."""
    subprocess.run(["docker", *words], check=check, capture_output=True)


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest, engine: None) -> Iterator[dict[str, Future[tuple[int, str]]]]:
    """Run the scenarios of all roles that were chosen, two at a time: a node waits more than it works.

    Those that have the most roles to prepare come first, so that none of them is left to run alone at the end.
    """
    assert engine is None
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    roles = [item.callspec.params["role"] for item in items if hasattr(item, "callspec")]
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {role: pool.submit(scenario, role) for role in sorted(roles, key=prepared, reverse=True)}


def prepared(role: str) -> int:
    """How many roles a scenario applies before its own."""
    written = yaml.safe_load((HERE.parents[1] / "roles" / role / "molecule/default/molecule.yml").read_text()) or {}
    inventory = written.get("provisioner", {}).get("inventory", {})
    return len(inventory.get("group_vars", {}).get("all", {}).get("molecule_prepare_roles", ()))


def scenario(role: str) -> tuple[int, str]:
    """Run one role's scenario from bare node to bare node; return its exit code and what it printed."""
    molecule = Path(sys.executable).with_name("molecule")
    environment = os.environ | {
        "NO_COLOR": "1",
        "ANSIBLE_NOCOLOR": "1",
        "PATH": f"{molecule.parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        [molecule, "-c", HERE / "base.yml", "test"],
        cwd=HERE.parents[1] / "roles" / role,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, COLOUR.sub("", done.stdout)


@pytest.mark.row(46, 48)
@pytest.mark.parametrize(
    "role", [pytest.param(role, marks=() if role in SHORT else pytest.mark.slow) for role in ROLES]
)
def test_role_converges_is_idempotent_and_passes_its_verification(
    role: str, outcomes: dict[str, Future[tuple[int, str]]], record_system: SystemRecorder
) -> None:
    """The role applies to a bare node, changes nothing the second time, and its tasks/verify.yml holds."""
    code, output = outcomes[role].result()
    assert code == 0, "\n".join([*problems(output), *output.splitlines()[-40:]])
    if "MOLECULE_NODE_IMAGE" not in os.environ:
        record_system(next(name for name, row in SYSTEMS.items() if row.variables == SYSTEM), [role])


def problems(output: str) -> list[str]:
    """Return what Ansible printed of the tasks that failed, 20 lines for each."""
    lines = output.splitlines()
    failed = [place for place, line in enumerate(lines) if line.startswith("fatal: ")]
    return [line for place in failed for line in lines[place : place + 20]]
