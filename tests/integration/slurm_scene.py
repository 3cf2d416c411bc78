"""A lab whose nodes are a Slurm cluster by the role `slurm`: its first node is the controller, the others take jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.integration.job_faults import LEFT as JOBS_LEFT
from tests.integration.job_faults import Scene
from tests.support.command import Provision, eventually

SETTINGS: dict[str, Any] = {
    "cluster_engine": "slurm",
    "slurm_health_interval_seconds": 10,
    # The lab has two processors, so sixteen jobs share one: the GPUs are what jobs wait for.
    "slurm_partitions": [{"name": "gpu", "default": True, "options": {"OverSubscribe": "FORCE:16"}}],
    "slurm_options": {"SlurmdTimeout": 20, "SlurmctldTimeout": 20, "KillWait": 10},
    "training_container_enabled": False,
    "container_ssh_enabled": False,
}
LEFT = r"""
ls -A /run/provision/slurm 2>/dev/null | sed 's/^/mark /'
ls -d /var/lib/slurm/slurmd/job* 2>/dev/null
systemctl list-units --all --plain --no-legend 'provision-rank-*' 'provision-slurm-*' | sed 's/^/unit /'
pgrep -a slurmstepd | grep -v '[.]extern]' | sed 's/^/process /'
pgrep -af '[/]starter/[0-9a-f]*/start.py' | sed 's/^/process /'
true
"""
"""Prints what Slurm's jobs left behind, a line for each.

Slurm's own step of a job, `extern`, on a node that it had lost ends only when the node registers again.
"""


class SlurmScene(Scene):
    """A lab with Slurm, inspected and broken from its nodes."""

    def __init__(self, provision: Provision, lab: str, inventory: Path) -> None:
        super().__init__(provision, lab)
        self.inventory = str(inventory)
        self.controller, *self.nodes = self.nodes
        self.everywhere = [self.controller, *self.nodes]
        self.image = self.image_of(self.nodes[0])

    def left(self) -> dict[str, list[str]]:
        """Return what ended jobs left on the nodes and in Slurm's queue."""
        left = {node: self.on(node, JOBS_LEFT + LEFT).splitlines() for node in self.everywhere}
        left[self.controller] += self.on(self.controller, "squeue -h").splitlines()
        return left

    def start_waiting(self) -> None:
        """Do nothing: Slurm starts jobs."""

    def squeue(self, names: str, *words: str) -> list[list[str]]:
        """Return fields of Slurm's jobs, a list for each job; names are those of ``squeue -O``."""
        form = ",".join(f"{name}:|" for name in names.split())
        lines = self.on(self.controller, f"squeue -h -t all -O '{form}' {' '.join(words)}").splitlines()
        return [[value.strip() for value in line.split("|")[:-1]] for line in lines]

    def squeue_of(self, name: str, field: str) -> str:
        """Return a field of the newest job of this name in Slurm."""
        return self.squeue(field, "-n", name, "-S", "-i")[0][0]

    def states(self) -> dict[str, str]:
        """Return node -> its state in Slurm."""
        lines = self.on(self.controller, "sinfo -h -N -o '%N %T'").splitlines()
        return dict(line.split() for line in lines)

    def ready(self) -> None:
        """Wait until all nodes answer and Slurm may use them."""
        super().ready()
        idle = dict.fromkeys(self.nodes, True)
        eventually(
            lambda: {name: state in {"idle", "mixed", "allocated"} for name, state in self.states().items()} == idle,
            seconds=180,
            what=f"all nodes are up in Slurm ({self.on(self.controller, 'sinfo -N -l', check=False)})",
        )


def write_inventory(provision: Provision, lab: str, inventory: Path, controller: str) -> None:
    """Write an inventory of a lab's nodes: the lab's, with our settings."""
    hosts = Path(provision.environment["XDG_STATE_HOME"]) / "provision/labs" / lab / "inventory/hosts.yml"
    for folder in ("group_vars", "host_vars"):
        (inventory / folder).mkdir(parents=True, exist_ok=True)
    (inventory / "hosts.yml").write_text(hosts.read_text())
    (inventory / "group_vars/all.yml").write_text(yaml.safe_dump(SETTINGS))
    (inventory / f"host_vars/{controller}.yml").write_text("cluster_takes_jobs: false\n")


@contextmanager
def slurm_scene_of_a_lab(provision: Provision, name: str, computes: int, machine: str) -> Iterator[SlurmScene]:
    """Start a lab with a controller and nodes that take jobs, apply the role, and remove the lab at the end."""
    inventory = provision.folder / "slurm-scene"
    try:
        provision.ok("lab", "up", name, "--driver", "container", "--distro", "debian12",
                     "--nodes", str(computes + 1), "--machine", machine)  # fmt: skip
        write_inventory(provision, name, inventory, f"{name}-1")
        provision.ok("apply", "-i", str(inventory), "--yes", timeout=3000)
        scene = SlurmScene(provision, name, inventory)
        scene.ready()
        yield scene
    finally:
        down = provision("lab", "down", name)
    assert down.code == 0, str(down)
