"""Jobs with --gputopology on a real Slurm that is configured by hand, on two nodes with eight SIMULATED GPUs each.

The nodes simulate a DGX-1, in which the pairs of `PAIRS` have two links each. Plain jobs of Slurm hold GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.slurm_by_hand import make_cluster, nothing_is_left, on, slurm_jobs
from tests.support.command import Provision, eventually
from tests.support.jobs import Jobs

LAB = f"mesh{os.getpid()}"
FIRST, SECOND = f"{LAB}-1", f"{LAB}-2"
GPUS = CPUS = 8
RUNS = "echo $NVIDIA_VISIBLE_DEVICES; while true; do sleep 0.2; done"
QUADS = ({0, 1, 2, 3}, {4, 5, 6, 7})
PAIRS = ({0, 3}, {0, 4}, {1, 2}, {1, 5}, {2, 3}, {4, 7}, {5, 6}, {6, 7})

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=["debian12", "debian13"])
def slurm(provision: Provision, request: pytest.FixtureRequest) -> Iterator[Jobs]:
    """Job verbs for a lab that Slurm schedules: version 22.05, and 24.11, which chooses GPUs badly itself."""
    with slurm_jobs(provision, LAB, machine="dgx1v", gpus=GPUS, cpus=CPUS, system=request.param) as jobs:
        jobs.ok("node label", FIRST, SECOND, "gpu.schedule=topology")
        yield jobs


@pytest.fixture(autouse=True)
def nothing_left(slurm: Jobs) -> Iterator[None]:
    """Each test ends without jobs, containers and leases."""
    yield
    nothing_is_left(slurm, seconds=60)


@contextmanager
def held(jobs: Jobs, node: str, *gpus: int) -> Iterator[str]:
    """Let a plain job of Slurm hold GPUs of a node; yields its number."""
    gres = ",".join(f"gpu:g{gpu}:1" for gpu in gpus)
    sbatch = f"sbatch --parsable -N1 -w {node} --gres={gres} --mem=100 --wrap 'sleep 3600'"
    number = on(jobs, FIRST, sbatch).strip()
    try:
        is_running = lambda: on(jobs, FIRST, f"squeue -h -j {number} -o %T").strip() == "RUNNING"  # noqa: E731
        eventually(is_running, seconds=60, what="a plain job")
        yield number
    finally:
        on(jobs, FIRST, f"scancel {number} || true")


def gpus_of(jobs: Jobs, name: str) -> dict[str, set[int]]:
    """Return node -> indices of the GPUs that a running job has leased, and that its containers see there."""
    used: dict[str, set[int]] = {}
    for node, uuids in jobs.get(name)["leases"].items():
        listed = on(jobs, node, "nvidia-smi --query-gpu=uuid --format=csv,noheader").split()
        show = "docker inspect -f '{{json .Config.Env}}' $(docker ps -q --filter label=provision.job=" + name + ")"
        seen = on(jobs, node, show)
        assert [uuid for uuid in listed if uuid in seen] == [uuid for uuid in listed if uuid in uuids]
        used[node] = {listed.index(uuid) for uuid in uuids}
    return used


def allocated(jobs: Jobs, name: str) -> str:
    """Return what Slurm shows of the newest job of a name."""
    number = on(jobs, FIRST, f"squeue -h -t all -n {name} -o %A").split()[-1]
    return on(jobs, FIRST, f"scontrol show job -d -o {number}")


@pytest.mark.row(2, 6, 17)
def test_workers_get_the_best_linked_gpus_that_are_free(slurm: Jobs) -> None:
    """The chosen GPUs are those that Slurm allocates, and those that the containers have."""
    with held(slurm, FIRST, 0, 1, 4):
        slurm.submit("pytorch", "pair", "--gputopology", "--workers=2", "--gpus=1", f"--nodes={FIRST}", RUNS)
        slurm.submit("mpi", "quad", "--gputopology", "--workers=4", "--gpus=1", f"--nodes={SECOND}", RUNS)
        slurm.until("pair", "RUNNING")
        slurm.until("quad", "RUNNING")
        pair, quad = gpus_of(slurm, "pair"), gpus_of(slurm, "quad")

        assert pair[FIRST] in PAIRS
        assert not pair[FIRST] & {0, 1, 4}
        assert quad[SECOND] in QUADS
        assert all(f"gpu:g{gpu}:1(IDX:{gpu})" in allocated(slurm, "pair") for gpu in pair[FIRST])
        slurm.ok("stop", "pair", "quad")


@pytest.mark.row(2)
def test_a_job_on_two_nodes_has_the_same_gpus_on_each(slurm: Jobs) -> None:
    words = ("--gputopology", "--workers=4", "--gpus=1", "--max-per-node=2")
    with held(slurm, FIRST, 0, 3), held(slurm, SECOND, 1, 2, 6):
        slurm.submit("pytorch", "wide", *words, RUNS)
        slurm.until("wide", "RUNNING")

        assert gpus_of(slurm, "wide") == {FIRST: {4, 7}, SECOND: {4, 7}}
        slurm.ok("stop", "wide")


@pytest.mark.row(17)
def test_a_waiting_job_gets_other_gpus_that_become_free(slurm: Jobs) -> None:
    with held(slurm, FIRST, 0, 1, 2, 3) as low, held(slurm, FIRST, 4, 5, 6, 7) as high:
        slurm.submit("run", "waits", "--gputopology", "--workers=4", "--gpus=1", f"--nodes={FIRST}", RUNS)
        waiting = slurm.get("waits")
        assert (waiting["status"], waiting["code"]) == ("PENDING", "slurm.resources")
        chosen = QUADS[0] if "gpu:g0:1" in allocated(slurm, "waits") else QUADS[1]
        other = QUADS[1] if chosen == QUADS[0] else QUADS[0]
        on(slurm, FIRST, f"scancel {high if chosen == QUADS[0] else low}")

        def started() -> bool:
            slurm.ok("queue run")
            return bool(slurm.get("waits")["status"] == "RUNNING")

        eventually(started, seconds=180, what="a start on other GPUs")
        job = slurm.get("waits")

        assert (job["uuid"], job["attempt"]) == (waiting["uuid"], 1)
        assert gpus_of(slurm, "waits") == {FIRST: other}
        slurm.ok("stop", "waits")


@pytest.mark.row(17)
def test_an_exclusive_job_gets_the_best_linked_gpus_of_its_node(slurm: Jobs) -> None:
    with held(slurm, FIRST, 7):
        slurm.submit("run", "alone", "--gputopology", "--exclusive", "--workers=4", "--gpus=1", RUNS)
        slurm.until("alone", "RUNNING")
        used = {slurm.logs("alone", f"alone-worker-{rank}")[0] for rank in range(4)}
        listed = on(slurm, SECOND, "nvidia-smi --query-gpu=uuid --format=csv,noheader").split()

        assert {listed.index(uuid) for uuid in used} in QUADS
        slurm.ok("stop", "alone")


@pytest.mark.row(2)
def test_an_attempt_after_the_loss_of_a_node_uses_another_one(slurm: Jobs) -> None:
    """The job requires the lost node until a pass of the queue lets it leave."""
    with held(slurm, FIRST, *range(8)):
        slurm.submit("run", "moves", "--gputopology", "--workers=2", "--gpus=1", "--retry=1", RUNS)
        slurm.until("moves", "RUNNING")
        before = gpus_of(slurm, "moves")
    power = ("lab", "power", slurm.lab, SECOND)
    slurm.provision.ok(*power, "off")
    on(slurm, FIRST, f"scontrol update nodename={SECOND} state=down reason=test")
    try:

        def moved() -> bool:
            slurm.ok("queue run")
            job = slurm.get("moves")
            return bool(job["attempt"] == 2 and job["status"] == "RUNNING")

        eventually(moved, seconds=240, what="the second attempt")
        assert gpus_of(slurm, "moves") == {FIRST: before[SECOND]}
    finally:
        slurm.provision.ok(*power, "on")
        slurm.ok("delete", "--force", "moves")
        make_cluster(slurm, gpus=GPUS, cpus=CPUS)


@pytest.mark.row(4, 5, 6)
def test_a_labelled_node_runs_only_jobs_with_the_flag(slurm: Jobs) -> None:
    words = ("--workers=2", "--gpus=1")
    assert "gpu.schedule=default" in slurm.submit("run", "early", *words, "true", code=5).err
    slurm.ok("node label", FIRST, "gpu.schedule=default", "--overwrite")
    try:
        slurm.submit("run", "linked", "--gputopology", *words, RUNS)
        slurm.submit("run", "plain", *words, RUNS)
        slurm.until("linked", "RUNNING")
        slurm.until("plain", "RUNNING")

        assert set(gpus_of(slurm, "linked")) == {SECOND}
        assert set(gpus_of(slurm, "plain")) == {FIRST}
        slurm.ok("stop", "linked", "plain")
    finally:
        slurm.ok("node label", FIRST, "gpu.schedule=topology", "--overwrite")
