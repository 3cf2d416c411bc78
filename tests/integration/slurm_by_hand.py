"""Two lab nodes whose Slurm is configured by hand, and the verbs of jobs for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.integration.conftest import ENGINES
from tests.support.command import Provision, eventually
from tests.support.engine import engine_host
from tests.support.jobs import Jobs
from tests.support.slurm.by_hand import configure


def on(jobs: Jobs, node: str, command: str) -> str:
    """Return the output of a shell command on a node."""
    return jobs.provision.ok("lab", "ssh", jobs.lab, node, "--", command).out


def nodes_of(jobs: Jobs) -> list[str]:
    """Return the nodes; the first one is Slurm's controller."""
    return [f"{jobs.lab}-1", f"{jobs.lab}-2"]


@contextmanager
def slurm_jobs(
    provision: Provision, lab: str, *, machine: str, gpus: int, cpus: int, system: str = "debian12"
) -> Iterator[Jobs]:
    """Job verbs for a lab that Slurm schedules, as long as the context is open.

    Args:
        provision: the command.
        lab: the name of the lab.
        machine: what its nodes simulate.
        gpus: GPUs of a node.
        cpus: processors of a node that Slurm counts.
        system: the system of the nodes, with its version of Slurm.
    """
    words = ("--driver", "container", "--system", system, "--nodes", "2", "--machine", machine)
    try:
        provision.ok("lab", "up", lab, *words)
        ENGINES.add(engine_host(provision.folder / "state/provision/labs" / lab))
        done = provision("apply", "--lab", lab, "--yes", "--json")
        assert done.code == 0, str(done)
        jobs = Jobs(provision, "slurm", lab)
        make_cluster(jobs, gpus=gpus, cpus=cpus)
        yield jobs
    finally:
        down = provision("lab", "down", lab)
    assert down.code == 0, str(down)


def make_cluster(jobs: Jobs, *, gpus: int, cpus: int) -> None:
    """Configure Slurm on both nodes, and wait until they are idle."""
    nodes = nodes_of(jobs)
    configure(lambda node, script: on(jobs, node, script), nodes, gpus=gpus, cpus=cpus)
    eventually(lambda: on(jobs, nodes[0], "sinfo -h -o %t").split() == ["idle"], seconds=120, what="idle nodes")


def nothing_is_left(jobs: Jobs, *, seconds: float = 0) -> None:
    """Delete all jobs; then no container or lease is left, and within `seconds` no job in Slurm, also no plain one."""
    left = [job["name"] for job in jobs.ok("list", "-o", "json").document]
    if left:
        jobs.ok("delete", "--force", *left)
    nodes = nodes_of(jobs)
    for node in nodes:
        assert on(jobs, node, "ls /run/provision/leases; docker ps -aq --filter label=provision.id").split() == []
    eventually(lambda: on(jobs, nodes[0], "squeue -h") == "", seconds=seconds, what="an empty queue")
