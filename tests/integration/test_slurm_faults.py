"""Faults at random moments of jobs on a Slurm cluster: status and reason are right in time, and nothing is left.

What is left is read on the nodes themselves, by no network. The GPUs are SIMULATED. SLURM_FAULTS_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from provision.batch.slurm.states import attempts_begun, restarts_of
from tests.integration import job_faults
from tests.integration.job_faults import OVER, Job, Struck, cut
from tests.integration.slurm_scene import SlurmScene, slurm_scene_of_a_lab
from tests.integration.test_job_faults import finished, right_in_time, say, submitted
from tests.support.command import Provision, eventually

LAB = f"sfaults{os.getpid()}"
SEED = int(os.environ.get("SLURM_FAULTS_SEED") or random.SystemRandom().randrange(10**6))
ROUNDS = int(os.environ.get("SLURM_FAULTS_ROUNDS") or 20)
KINDS = (os.environ.get("SLURM_FAULTS_KINDS") or "").split()
"""Names of faults; without any, all are drawn."""
WITHIN_SECONDS = 60.0
"""So long after Slurm or a supervisor could detect a fault, status and reason are right."""
DETECTION_SECONDS = 90.0
"""So long Slurm may take to detect that a node is lost: SlurmdTimeout is 20 s here, and slurmctld asks now and then."""
REQUEUE_SECONDS = 120.0
"""So long Slurm waits before it starts a job again that has lost a node."""
LINES = int(os.environ.get("SLURM_FAULTS_LINES") or 200)
LONG_LINES = LINES + 300
"""Of jobs that still run when Slurm detects the loss of a node."""
SLURM_LOSES = (
    r"Slurm ended it: NODE_FAIL|\bnode {node}\b.*(reboot|shuts down|shutdown|does not answer|is cut off)"
    r"|on {node} failed"
)
NO_LAUNCH = "/etc/slurm/prolog.d/99-fails"
"""A prolog that fails: Slurm drains the node, and cannot launch the job."""
SLURM_STATE = "scontrol show job -d; scontrol show node; tail -n 200 /var/log/slurm/slurmctld.log"
"""Shows what Slurm knows of a failed round."""
JOB_FILES = "cd /var/lib/provision/jobs && find . -type f -size -20k ! -name '*.log' -exec tail -n 5 {} +"
"""Shows what a node has recorded of its jobs."""

pytestmark = pytest.mark.long


@dataclass
class SlurmStruck(Struck):
    """A fault of a Slurm cluster."""

    status: str = "FAILED"
    """Of a job that ends by the fault without another attempt."""
    retries: bool = True
    """Whether jobs that ask for retries get another attempt."""
    lost: str = ""
    """The node that Slurm has to detect as lost."""

    @property
    def next_attempts(self) -> tuple[int, ...]:
        """The numbers of the next attempt: Slurm may fail to launch one on a node that has just come back."""
        return (2, 3) if self.lost else (2,)

    def batch_host(self, job: Job) -> str:
        """Return the node with the starter of a job."""
        return self.scene.squeue_of(job.name, "BatchHost")

    def number(self, job: Job) -> str:
        """Return the number of a job in Slurm."""
        return self.scene.squeue_of(job.name, "JobID")

    def lose(self, node: str) -> None:
        """Expect that Slurm loses a node, and all jobs there."""
        self.lost = node
        self.ends_all_of(node, SLURM_LOSES.format(node=node))


def job_of(struck: SlurmStruck) -> Job:
    """Draw a job."""
    return struck.dice.choice(list(struck.jobs))


def starter_killed(struck: SlurmStruck) -> None:
    """The program that Slurm started as the batch script is killed."""
    job = job_of(struck)
    struck.ends[job.name], struck.status, struck.retries = "killed in Slurm", "STOPPED", False
    command = f"pkill -KILL -f '[/]start.py /var/lib/slurm/slurmd/job0*{struck.number(job)}/'"
    struck.comes(f"the starter of {job.name} is killed", struck.batch_host(job), command)


def cancelled(struck: SlurmStruck) -> None:
    """A user cancels the job with Slurm's own command."""
    job = job_of(struck)
    struck.ends[job.name], struck.status, struck.retries = "cancelled in Slurm", "STOPPED", False
    struck.comes(f"scancel of {job.name}", struck.scene.controller, f"scancel {struck.number(job)}")


def killed_by_scancel(struck: SlurmStruck) -> None:
    """A user kills all of the job with Slurm's own command."""
    job = job_of(struck)
    struck.ends[job.name], struck.status, struck.retries = "(cancelled|killed|ended) (in|by) Slurm", "STOPPED", False
    words = f"scancel --signal=KILL --full {struck.number(job)}"
    struck.comes(f"{words} ({job.name})", struck.scene.controller, words)


def daemon_lost(struck: SlurmStruck, unit: str) -> None:
    """Stop a daemon of a node until Slurm has lost the node."""
    node = struck.node()
    struck.lose(node)
    struck.lift.callback(struck.scene.on, node, f"systemctl start {unit}")
    struck.comes(f"{unit} on {node} is stopped", node, f"systemctl kill -s KILL {unit}; systemctl stop {unit}")


def slurmd_lost(struck: SlurmStruck) -> None:
    """slurmd is killed and is not restarted."""
    daemon_lost(struck, "slurmd")


def munge_lost(struck: SlurmStruck) -> None:
    """munge dies on a node, so that slurmd cannot answer."""
    daemon_lost(struck, "munge")


def away(struck: SlurmStruck, node: str, unit: str, least: float, most: float) -> None:
    """Stop a daemon for a while, shorter than Slurm's time limits."""
    seconds = struck.dice.uniform(least, most)
    start = f"systemctl stop {unit}; sleep {seconds:.1f}; systemctl start {unit}"
    command = f"systemd-run --quiet --collect sh -c '{start}'"
    struck.comes(f"{unit} on {node} is stopped for {seconds:.1f} s", node, command)
    struck.lift.callback(lambda: time.sleep(max(0.0, struck.since + seconds + 1 - time.monotonic())))


def slurmd_restarted(struck: SlurmStruck) -> None:
    """An administrator restarts slurmd."""
    away(struck, struck.node(), "slurmd", 1, 5)


def slurmctld_away(struck: SlurmStruck) -> None:
    """The controller is stopped for a while: jobs go on."""
    away(struck, struck.scene.controller, "slurmctld", 3, 15)


def slurmctld_away_at_the_end(struck: SlurmStruck) -> None:
    """A job fails while slurmctld is stopped: its retry begins afterwards."""
    job, instance = struck.one(launcher=False)
    seconds = struck.dice.uniform(10, 20)
    start = f"systemctl stop slurmctld; touch /run/away; sleep {seconds:.1f}; systemctl start slurmctld; rm /run/away"
    struck.scene.on(struck.scene.controller, f"systemd-run --quiet --collect sh -c '{start}'")
    eventually(
        lambda: struck.scene.on(struck.scene.controller, "ls /run/away; true"), seconds=30, what="slurmctld stops"
    )
    struck.lift.callback(lambda: time.sleep(max(0.0, struck.since + seconds + 1 - time.monotonic())))
    kill_rank(struck, job, instance, f", slurmctld is stopped for {seconds:.1f} s")


def kill_rank(struck: SlurmStruck, job: Job, instance: dict[str, Any], more: str = "") -> None:
    """Kill the program of a rank."""
    node, rank = instance["node"], instance["rank"]
    struck.ends[job.name] = rf"({instance['name']}|rank {rank}) on {node} failed: killed by signal 9"
    variable = f"{'OMPI_COMM_WORLD_RANK' if job.kind == 'mpi' else 'RANK'}={rank}"
    command = job_faults.shlex.join(["python3", "-c", job_faults.KILL_RANK, variable, job.name])
    struck.comes(f"rank {rank} of {job.name} on {node} is killed{more}", node, command)


def munge_away(struck: SlurmStruck) -> None:
    """munge is stopped on the controller for a while: jobs go on."""
    away(struck, struck.scene.controller, "munge", 3, 10)


def rebooted(struck: SlurmStruck) -> None:
    """A node boots again in good order."""
    job_faults.rebooted(struck)
    struck.ends = dict.fromkeys(struck.ends, SLURM_LOSES.format(node=struck.away))


def power_cut(struck: SlurmStruck) -> None:
    """A node is lost without a word."""
    job_faults.power_cut(struck)
    struck.lost = struck.away
    struck.ends = dict.fromkeys(struck.ends, SLURM_LOSES.format(node=struck.lost))


def networks_cut(struck: SlurmStruck) -> None:
    """A node cannot be reached by anybody."""
    node = struck.node()
    struck.lose(node)
    cut(struck, node, ("eth0", "eth1"), f"all networks of {node} are cut")


FAULTS: dict[str, Callable[[SlurmStruck], None]] = {
    one.__name__: one
    for one in (
        job_faults.rank_killed, job_faults.container_removed, job_faults.supervisor_killed, job_faults.docker_killed,
        starter_killed, cancelled, killed_by_scancel, slurmd_lost, munge_lost, slurmd_restarted, slurmctld_away,
        slurmctld_away_at_the_end, munge_away, rebooted, power_cut, networks_cut,
    )
}  # fmt: skip
LOSSES = {"slurmd_lost", "munge_lost", "rebooted", "power_cut", "networks_cut"}


def detected(struck: SlurmStruck, context: str) -> None:
    """Wait until Slurm has detected the loss of the node; the clock runs from there."""
    if not struck.lost:
        return
    end = time.monotonic() + DETECTION_SECONDS
    while not struck.scene.states().get(struck.lost, "").startswith("down"):
        assert time.monotonic() < end, f"{context}: Slurm does not lose {struck.lost}: {struck.scene.states()}"
        time.sleep(0.5)
    say(f"  Slurm has lost {struck.lost} after {time.monotonic() - struck.since:.1f} s")
    struck.since = time.monotonic()


def judged(struck: SlurmStruck, job: Job) -> str:
    """Return what is wrong with a job's status after a fault; empty when it is right."""
    status = job.get()
    if status is None:
        return "get fails"
    summary = f"{status['status']}, attempt {status['attempt']}: {status['reason']} ({status['code']})"
    pattern = struck.ends.get(job.name)
    if pattern is None:
        return "" if status["status"] in {"RUNNING", "SUCCEEDED"} and status["attempt"] == 1 else summary
    if job.retry and struck.retries:
        is_next = status["attempt"] in struck.next_attempts
        is_right = is_next or (status["status"] == "PENDING" and status["code"] == "slurm.requeued")
        return "" if is_right else f"{summary} (wanted: attempt 2)"
    is_right = status["status"] == struck.status and re.search(pattern, status["reason"])
    return "" if is_right else f"{summary} (wanted: {struck.status}, {pattern})"


def off_the_bad_node(struck: SlurmStruck, jobs: Sequence[Job], context: str) -> None:
    """The next attempt of a job that fits on the other nodes starts there while the fault lasts."""
    others = len(struck.scene.nodes) - 1
    for job in jobs:
        if struck.lost and job.retry and job.name in struck.ends and job.workers <= others:
            again = eventually(
                lambda job=job: (
                    (one := job.get()) and one["attempt"] in struck.next_attempts and one["instances"] and one
                ),
                seconds=REQUEUE_SECONDS + 60, what=f"{context}: the second attempt of {job.name}",
            )  # fmt: skip
            assert struck.lost not in {one["node"] for one in again["instances"]}, f"{context}: {again}"


def one_round(scene: SlurmScene, dice: random.Random, number: int, name: str) -> None:
    """Two jobs, of which one is on all nodes, and a fault; each ends as it has to, and nothing is left of it."""
    sizes = {f"wide-{number}": len(scene.nodes), f"side-{number}": 2}
    lines = LONG_LINES if name in LOSSES else LINES
    jobs = [
        Job(scene, one, dice.choice(("pytorch", "mpi")), many, dice.choice((0, 1)), lines)
        for one, many in sizes.items()
    ]
    moment = dice.uniform(0, 10)
    words = ", ".join(f"{job.name} ({job.kind}, --retry={job.retry})" for job in jobs)
    context = f"seed {SEED}, round {number}, {name}: {words}"
    say(context)
    submitted(jobs, context)
    time.sleep(moment)
    struck = SlurmStruck(scene, dice, jobs)
    with struck.lift:
        FAULTS[name](struck)
        context = f"{context}; after {moment:.1f} s {struck.description}"
        say(f"  after {moment:.1f} s {struck.description}")
        detected(struck, context)
        right_in_time(struck, jobs, context, judged, WITHIN_SECONDS)
        off_the_bad_node(struck, jobs, context)
    scene.ready()
    for job in jobs:
        ends_right(struck, job, context)
    scene.nothing_left(context)
    scene.forget([job.name for job in jobs])


def ends_right(struck: SlurmStruck, job: Job, context: str) -> None:
    """Wait for the end of a job, and check its status, attempts and output."""
    ended = finished(job, context, seconds=300 + REQUEUE_SECONDS)
    is_hit = job.name in struck.ends
    tried = is_hit and bool(job.retry) and struck.retries
    wanted = struck.status if is_hit and not tried else "SUCCEEDED"
    attempts = struck.next_attempts if tried else (1,)
    assert ended["status"] == wanted and ended["attempt"] in attempts, f"{context}: {ended}"  # noqa: PT018
    if wanted == "SUCCEEDED":
        job.is_whole()
    else:
        job.has_no_gap()
        assert judged(struck, job) == "", f"{context}: {ended}"
    assert ended["status"] in OVER
    say(f"  {job.name}: {ended['status']}, attempt {ended['attempt']}: {ended['reason']}")


@pytest.fixture(scope="module")
def scene(provision: Provision) -> Iterator[SlurmScene]:
    """A controller and three nodes of two GPUs."""
    with slurm_scene_of_a_lab(provision, LAB, computes=3, machine="pair") as made:
        yield made


def test_a_start_that_slurm_cannot_launch_is_repeated_and_uses_no_retry(scene: SlurmScene) -> None:
    """The prolog fails on one node; when that is repaired, the job runs."""
    job, node = Job(scene, "launched", "pytorch", len(scene.nodes), retry=1, lines=20), scene.nodes[0]
    scene.on(node, f"printf '#!/bin/sh\\nexit 1\\n' >{NO_LAUNCH}; chmod 755 {NO_LAUNCH}")
    try:
        said, _ = job.hand_in().communicate(timeout=300)
        assert job.submit is not None and job.submit.returncode == 0, said  # noqa: PT018
        waiting = eventually(
            lambda: (one := job.get()) and one["code"] == "slurm.requeued" and one,
            seconds=60, what=f"Slurm puts {job.name} back into the queue",
        )  # fmt: skip
        assert waiting["status"] == "PENDING"
        assert scene.squeue_of(job.name, "Reason") != "launch_failed_requeued_held"
    finally:
        scene.on(node, f"rm {NO_LAUNCH}")
        scene.on(scene.controller, f"scontrol update nodename={node} state=resume", check=False)
    ended = finished(job, "after a failed launch", seconds=300)

    assert (ended["status"], ended["attempt"]) == ("SUCCEEDED", 2)
    shown = scene.on(scene.controller, f"scontrol show job -o {scene.squeue_of(job.name, 'JobID')}")
    assert (restarts_of(shown), attempts_begun(shown)) == (1, 1)
    scene.forget([job.name])


def drawn(dice: random.Random) -> list[str]:
    """Return the names of the faults in their order: each kind before one comes twice."""
    names = KINDS or [list(FAULTS)[number % len(FAULTS)] for number in range(ROUNDS)]
    if not KINDS:
        dice.shuffle(names)
    return names


def test_jobs_in_slurm_survive_faults_at_random_moments(scene: SlurmScene) -> None:
    """Status and reason are right in time, other jobs end as they would have, and nothing is left."""
    dice = random.Random(SEED)  # noqa: S311 - to be repeated
    for number, name in enumerate(drawn(dice)):
        try:
            one_round(scene, dice, number, name)
        except AssertionError:
            say(scene.on(scene.controller, SLURM_STATE, check=False))
            for node in scene.everywhere:
                say(f"{node}:\n{scene.on(node, JOB_FILES, check=False)}")
            raise
