"""A lab that changes from the engine `direct` to a real Slurm: its waiting jobs are moved, and run there.

The GPUs are SIMULATED.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.job_faults import Scene
from tests.integration.slurm_scene import SETTINGS, SlurmScene, write_inventory
from tests.support.command import Provision, eventually

LAB = f"smove{os.getpid()}"
SECRET = "value-of-a-moved-job"

pytestmark = pytest.mark.long


class Site:
    """A controller and two nodes, whose inventory first chooses the engine `direct`."""

    def __init__(self, provision: Provision, inventory: Path) -> None:
        self.provision, self.inventory = provision, inventory
        self.image = Scene(provision, LAB).image_of(f"{LAB}-2")

    def ok(self, *words: str) -> Any:
        """Run a verb on the site, which has to succeed."""
        return self.provision.ok("-i", str(self.inventory), *words, timeout=3000)

    def submit(self, name: str, *words: str) -> None:
        """Submit a job that waits."""
        self.ok("submit", "run", f"--name={name}", "--gpus=1", f"--image={self.image}", *words)

    def states(self) -> dict[str, str]:
        """Return name -> status of all jobs."""
        return {job["name"]: job["status"] for job in self.ok("list", "-o", "json").document}

    def choose_slurm(self) -> SlurmScene:
        """Choose Slurm in the inventory, and set it up."""
        (self.inventory / "group_vars/all.yml").write_text(yaml.safe_dump(SETTINGS))
        self.ok("apply", "--yes")
        scene = SlurmScene(self.provision, LAB, self.inventory)
        scene.ready()
        return scene


@pytest.fixture
def site(provision: Provision) -> Iterator[Site]:
    """The lab, applied with the engine `direct`."""
    inventory = provision.folder / "moved"
    try:
        provision.ok("lab", "up", LAB, "--driver", "container", "--nodes", "3", "--machine", "pair")
        write_inventory(provision, LAB, inventory, f"{LAB}-1")
        settings = {name: value for name, value in SETTINGS.items() if not name.startswith(("slurm", "cluster_engine"))}
        (inventory / "group_vars/all.yml").write_text(yaml.safe_dump(settings))
        provision.ok("apply", "-i", str(inventory), "--yes", timeout=3000)
        yield Site(provision, inventory)
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


def test_waiting_jobs_move_to_slurm_and_run_there(site: Site) -> None:
    """Order, hold, dependencies and secrets stay; neither engine runs a job twice."""
    site.provision.environment["TOKEN"] = SECRET
    site.submit("first", "--hold", "--env=TOKEN", 'echo "attempt of first with $TOKEN"')
    site.submit("second", "--depends=first", "echo attempt of second")
    site.submit("held", "--hold", "echo attempt of held")
    before = {job["name"]: job["uuid"] for job in site.ok("list", "-o", "json").document}
    scene = site.choose_slurm()

    planned = site.ok("queue", "migrate", "--to", "slurm", "--dry-run", "--json").document
    assert {job["name"] for job in planned["moved"]} == {"first", "second", "held"}
    assert scene.squeue("JobID") == []

    moved = site.ok("queue", "migrate", "--to", "slurm", "--yes", "--json").document
    numbers = {job["name"]: str(job["engineJob"]) for job in moved["moved"]}
    assert {name: number for number, name in scene.squeue("JobID Name")} == numbers
    assert {job["name"]: job["uuid"] for job in moved["moved"]} == before
    again = site.ok("queue", "migrate", "--to", "slurm", "--yes", "--json").document
    assert (again["moved"], again["remaining"]) == ([], [])

    site.ok("queue", "release", "first")
    eventually(lambda: site.states()["second"] == "SUCCEEDED", seconds=180, what=f"second succeeds: {site.states()}")
    assert site.states()["first"] == "SUCCEEDED"
    assert scene.squeue_of("held", "State") == "PENDING"
    assert site.ok("logs", "first").out.count("attempt of first with") == 1
    assert site.ok("logs", "second").out.count("attempt of second") == 1
    site.ok("delete", "--force", "first", "second", "held")
    scene.nothing_left("after the moved jobs")
