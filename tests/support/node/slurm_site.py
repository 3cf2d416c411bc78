"""Two nodes in folders with the real node programs, which Slurm schedules. Slurm's controller is a STAND-IN."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provision.jobs.engines.base import Secrets
from provision.jobs.engines.direct import DirectEngine
from provision.jobs.engines.slurm import compute_nodes
from provision.jobs.engines.slurm.bundle import Bundle
from provision.jobs.engines.slurm.engine import SlurmEngine
from provision.jobs.extras import JobExtras
from provision.model import Cluster
from provision.model.job import JobRecord, JobSpec, Kind
from tests.support.node.direct import FakeClusterProbe, reach_nodes, signing_keys
from tests.support.node.node import HERE, Engine, FakeNode

__all__ = ["QUIET", "Site", "slurm_site"]

QUIET = [].append


@dataclass
class Site:
    """An engine with two nodes, and the files of the STAND-IN."""

    engine: SlurmEngine
    folder: Path
    node: FakeNode
    other: FakeNode
    cluster: Cluster

    def direct(self) -> DirectEngine:
        """Return the engine `direct` of the same nodes, as a command of the same controller makes it."""
        return DirectEngine(self.cluster, FakeClusterProbe(), signing_keys(self.node), JobExtras(self.cluster))

    def again(self) -> SlurmEngine:
        """Return the engine of another command of the same controller."""
        return SlurmEngine(self.cluster, FakeClusterProbe(), signing_keys(self.node), JobExtras(self.cluster))

    def submit(self, name: str, secrets: Secrets | None = None, **more: Any) -> JobRecord:
        job = JobSpec(name, Kind.RUN, ("true",), image="image", **more)
        return self.engine.submit(job, secrets or Secrets(), QUIET)

    def rows(self) -> list[list[str]]:
        """The jobs in Slurm."""
        path = self.folder / "jobs"
        return [line.split("\x1f")[:-1] for line in path.read_text().splitlines()] if path.exists() else []

    def change(self, number: int, **fields: str) -> None:
        """Change a job in Slurm."""
        places = {"state": 2, "reason": 3, "restarts": 4, "ended": 7, "nodes": 9}
        rows = self.rows()
        for field, value in fields.items():
            rows[number - 1][places[field]] = value
        (self.folder / "jobs").write_text("".join("\x1f".join([*row, ""]) + "\n" for row in rows))

    def options(self, number: int) -> list[str]:
        return (self.folder / f"options-{number}").read_text().splitlines()

    def script(self, number: int) -> str:
        return (self.folder / f"script-{number}").read_text()


def slurm_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: Engine) -> Iterator[Site]:
    """Yield two nodes with four GPUs each; the first one is the queue host and Slurm's controller."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    line = "{}\x1fidle\x1fgpu:4\x1fgpu:0(IDX:N/A)\x1f0/8/0/8\x1fnone\x1f"
    (folder / "nodes").write_text("".join(line.format(name) + "\n" for name in ("a", "b", "login")))
    small = Bundle(b"no starter runs here", "0" * 64)
    monkeypatch.setattr(compute_nodes, "bundle_for", lambda _target: small)
    monkeypatch.setattr(compute_nodes, "_store", lambda _connector, _bundle: None)
    with FakeNode(tmp_path / "a", "a") as a, FakeNode(tmp_path / "b", "b") as b:
        for node in (a, b):
            node.with_docker(docker)
            node.environment |= {
                "PROVISION_SEAL": str(node.folder / "seal"),
                "PROVISION_STARTERS": str(node.folder / "starters"),
                "PROVISION_SLURM_OUTPUT": str(node.folder / "output"),
                "PROVISION_CGROUP": str(node.folder / "cgroup"),
            }
        for command in ("squeue", "sinfo", "sbatch", "scancel", "scontrol"):
            path = a.folder / "bin" / command
            path.write_text(f'#!/bin/sh\nexec {sys.executable} -I {HERE}/slurm_standin.py {folder} {command} "$@"\n')
            path.chmod(0o755)
        cluster = reach_nodes(monkeypatch, a, b, labels={"rack": "r1"})
        engine = SlurmEngine(cluster, FakeClusterProbe(), signing_keys(a), JobExtras(cluster))
        yield Site(engine, folder, a, b, cluster)
    docker.reset()
