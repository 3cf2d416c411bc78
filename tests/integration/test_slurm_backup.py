"""A Slurm cluster with a backup controller: jobs, queue and our commands survive the loss of the first slurmctld.

Both controllers share the folder of slurmctld's state by SIMULATED network storage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.slurm_scene import SETTINGS, SlurmScene, write_inventory
from tests.support.command import Provision, eventually
from tests.support.engine import engine_host
from tests.support.shared_folder import share

LAB = f"backup{os.getpid()}"
FIRST, BACKUP, THIRD = (f"{LAB}-{number}" for number in (1, 2, 3))
FOLDER = "/srv/shared"
STATE = f"{FOLDER}/slurmctld"

pytestmark = pytest.mark.long


@pytest.fixture
def scene(provision: Provision, tmp_path: Path) -> Iterator[SlurmScene]:
    """Two controllers, and a node that takes jobs."""
    inventory = provision.folder / "slurm-backup"
    words = ("--driver", "container", "--distro", "debian12", "--nodes", "3", "--machine", "pair")
    try:
        provision.ok("lab", "up", LAB, *words)
        host = engine_host(Path(provision.environment["XDG_STATE_HOME"]) / "provision/labs" / LAB)
        shared = tmp_path / "shared"
        shared.mkdir(mode=0o755)
        share(host, shared, [f"provision-{LAB}-{name}" for name in (FIRST, BACKUP)], FOLDER)
        write_inventory(provision, LAB, inventory, FIRST)
        (inventory / f"host_vars/{BACKUP}.yml").write_text("cluster_takes_jobs: false\n")
        settings = {**SETTINGS, "slurm_backup_controller": BACKUP, "slurm_state_folder": STATE}
        (inventory / "group_vars/all.yml").write_text(yaml.safe_dump(settings))
        provision.ok("apply", "-i", str(inventory), "--yes", timeout=3000)
        made = SlurmScene(provision, LAB, inventory)
        made.nodes.remove(BACKUP)
        made.ready()
        yield made
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


def controllers(scene: SlurmScene) -> dict[str, bool]:
    """Return controller -> whether slurmctld answers there."""
    lines = scene.on(THIRD, "scontrol ping || true").splitlines()
    return {name: any(f" at {name} is UP" in line for line in lines) for name in (FIRST, BACKUP)}


def acts(scene: SlurmScene, name: str) -> bool:
    """Return whether slurmctld of a controller answers, also requests about jobs."""
    return controllers(scene)[name] and scene.on(THIRD, "squeue -h -o %A; echo answered", check=False) != ""


def job(scene: SlurmScene, name: str) -> dict[str, Any]:
    return dict(scene.by(scene.other, "get", name, "-o", "json").document)


def submit(scene: SlurmScene, name: str, gpus: int, line: str) -> None:
    words = (f"--name={name}", "--no-container", f"--gpus={gpus}", "--retry=1", line)
    done = scene.by(scene.other, "submit", "run", *words)
    assert done.code == 0, str(done)


def reaches(scene: SlurmScene, name: str, status: str) -> None:
    try:
        eventually(lambda: job(scene, name)["status"] == status, seconds=180, what=f"{name} is {status}")
    except AssertionError as error:
        shown = scene.on(
            THIRD, "scontrol ping; sinfo -N -l; squeue -t all; scontrol show job -d | tail -30", check=False
        )
        raise AssertionError(f"{error}: {job(scene, name)}\n{shown}") from error


def test_jobs_and_queue_survive_the_loss_of_the_first_slurmctld(scene: SlurmScene) -> None:
    """The backup takes over with the same jobs, and gives control back."""
    assert controllers(scene) == {FIRST: True, BACKUP: True}
    plan = scene.provision("plan", "-i", scene.inventory, "--json").document
    assert {node["name"]: node["steps"] for node in plan["nodes"]} == {FIRST: [], BACKUP: [], THIRD: []}
    submit(scene, "runs", 2, "while ! [ -e /run/go ]; do sleep 0.2; done")
    reaches(scene, "runs", "RUNNING")
    submit(scene, "waits", 1, "true")
    is_saved = lambda: scene.on(FIRST, f"grep -c waits {STATE}/job_state || true") != "0\n"  # noqa: E731
    eventually(is_saved, seconds=60, what="slurmctld has saved the job, which it does every few seconds")

    scene.on(FIRST, "systemctl kill -s KILL slurmctld; systemctl stop slurmctld")
    eventually(lambda: acts(scene, BACKUP), seconds=120, what="the backup controller acts")
    assert controllers(scene)[FIRST] is False
    shown = {name: job(scene, name) for name in ("runs", "waits")}
    statuses = {name: one["status"] for name, one in shown.items()}
    assert statuses == {"runs": "RUNNING", "waits": "PENDING"}, shown
    submit(scene, "later", 1, "true")
    scene.on(THIRD, "touch /run/go")
    for name in ("runs", "waits", "later"):
        reaches(scene, name, "SUCCEEDED")

    scene.on(FIRST, "systemctl start slurmctld")
    eventually(lambda: acts(scene, FIRST), seconds=120, what="the first controller acts again")
    submit(scene, "last", 1, "true")
    reaches(scene, "last", "SUCCEEDED")
    scene.forget(["runs", "waits", "later", "last"])


def test_slurmctld_does_not_start_without_the_folder_of_its_state(scene: SlurmScene) -> None:
    """It would start with an empty queue."""
    show = "systemctl show --property RequiresMountsFor --value slurmctld"
    for name in (FIRST, BACKUP):
        assert STATE in scene.on(name, show).split(), name
