"""A lab node with a real Slurm, for tests in this process. The GPUs are SIMULATED."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from provision.connectors import connect
from provision.inventory.load import load
from provision.model import Cluster
from tests.support.command import Provision, eventually, with_own_state
from tests.support.slurm.by_hand import configure

CPUS = 8
"""Processors that Slurm counts on the node: each worker has one."""


@dataclass(frozen=True)
class SlurmNode:
    """A lab of one node, which is Slurm's controller and compute node."""

    provision: Provision
    lab: str
    cluster: Cluster
    image: str
    """The lab's training image, which the node has."""
    folder: str = "/srv/contract"
    """A folder of the node for files of tests."""

    @property
    def name(self) -> str:
        return self.cluster.nodes[0].name

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment of commands for this lab."""
        return {"XDG_STATE_HOME": self.provision.environment["XDG_STATE_HOME"]}

    def run(self, command: str) -> str:
        """Return the output of a shell command on the node; it must succeed."""
        with closing(connect(self.cluster.nodes[0])) as connector:
            done = connector.run(command, timeout=600)
        assert done.ok, f"{command}: {done.stderr}"
        return done.stdout


@contextmanager
def slurm_lab(gpus: int, labels: Mapping[str, str]) -> Iterator[SlurmNode]:
    """Yield a lab node with Slurm, which has so many GPUs and these labels."""
    lab = f"contract{os.getpid()}"
    with with_own_state() as provision:
        try:
            provision.ok("lab", "up", lab, "--driver", "container", "--nodes", "1", "--machine", f"pcie{gpus}")
            inventory = Path(provision.ok("lab", "inventory", lab).out.strip())
            variables = inventory.parent / "group_vars/all.yml"
            variables.parent.mkdir()
            variables.write_text(yaml.safe_dump({"cluster_labels": dict(labels)}))
            provision.ok("apply", "--lab", lab, "--yes")
            image = provision.ok(
                "lab", "ssh", lab, f"{lab}-1", "--", "docker image ls --format '{{.Repository}}:{{.Tag}}'"
            )
            node = SlurmNode(provision, lab, load(inventory), image.out.split()[0])
            configure(lambda _, script: node.run(script), [node.name], gpus=gpus, cpus=CPUS)
            eventually(lambda: node.run("sinfo -h -o %t").split() == ["idle"], seconds=60, what="an idle node")
            yield node
        finally:
            down = provision("lab", "down", lab)
    assert down.code == 0, str(down)
