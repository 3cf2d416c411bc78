"""Faults at random moments of batch jobs, and operators who are killed: the jobs' end is as it has to be.

What is left is asked of the nodes themselves, by no network. The GPUs are SIMULATED. JOB_FAULTS_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.conftest import ENGINES, LAB
from tests.integration.job_faults import (
    FAULTS,
    LINES,
    LINES_A_SECOND,
    OVER,
    QUICK,
    WITHIN_SECONDS,
    Job,
    Scene,
    Struck,
    begun,
    judged,
    killed_after,
    killed_at_a_mark,
    killed_in_between,
    scene_of_a_lab,
    strike,
)
from tests.support.command import Provision

OWN = f"faults{os.getpid()}"
SEED = int(os.environ.get("JOB_FAULTS_SEED") or random.SystemRandom().randrange(10**6))
SHORT = 40
"""Lines of a job that only its operator's end is tried on."""
VERBS = ("wait", "logs -f", "stop", "queue run") * 2
ROUNDS = int(os.environ.get("JOB_FAULTS_ROUNDS") or 20)


def say(text: str) -> None:
    """Print each action, so that a run can be followed and repeated."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def finished(job: Job, context: str, seconds: float = 180) -> dict:
    """Wait until a job has ended; a job that is to be retried is started now and then, as by a daemon."""
    end, last = time.monotonic() + seconds, None
    while time.monotonic() < end:
        last = job.get()
        if last and last["status"] in OVER:
            return last
        if last and last["status"] == "PENDING":
            job.scene.start_waiting()
        time.sleep(0.5)
    raise AssertionError(f"{context}: {job.name} did not end: {last}")


def right_in_time(
    struck: Struck,
    jobs: Sequence[Job],
    context: str,
    judge: Callable[[Any, Job], str] = judged,
    seconds: float = WITHIN_SECONDS,
) -> None:
    """Soon after a fault each job has the right status and reason."""
    wrong = {job.name: "not asked" for job in jobs}
    with ThreadPoolExecutor(len(jobs)) as pool:
        while wrong and time.monotonic() - struck.since < seconds:
            answers = pool.map(lambda job: judge(struck, job), jobs)
            wrong = {job.name: why for job, why in zip(jobs, answers, strict=True) if why}
    took = time.monotonic() - struck.since
    assert not wrong, f"{context}: after {took:.1f} s: {wrong}"
    assert took < seconds, f"{context}: right after {took:.1f} s"
    say(f"  right after {took:.1f} s; ends: {struck.ends or 'none'}")


def one_round(
    scene: Scene,
    dice: random.Random,
    number: int | str,
    fault: Callable[[Struck], None],
) -> None:
    """Two jobs, of which one is on all nodes, and a fault in the first half of their life.

    Soon after it each job has the right status, and ends so; nothing is left of it.
    """
    sizes = {f"wide-{number}": len(scene.nodes), f"side-{number}": 2}
    jobs = [
        Job(scene, name, dice.choice(("pytorch", "mpi")), workers, dice.choice((0, 1)))
        for name, workers in sizes.items()
    ]
    moment = dice.uniform(0, LINES / LINES_A_SECOND / 2)
    words = ", ".join(f"{job.name} ({job.kind}, --retry={job.retry})" for job in jobs)
    context = f"seed {SEED}, round {number}: {words}"
    say(context)
    submitted(jobs, context)
    time.sleep(moment)
    struck = strike(scene, dice, jobs, fault)
    context = f"{context}; after {moment:.1f} s {struck.description}"
    say(f"  after {moment:.1f} s {struck.description}")
    with struck.lift:
        right_in_time(struck, jobs, context)
    scene.ready()
    for job in jobs:
        ended = finished(job, context)
        tried = job.name in struck.ends and job.retry
        wanted = "FAILED" if job.name in struck.ends and not job.retry else "SUCCEEDED"
        assert (ended["status"], ended["attempt"]) == (wanted, 2 if tried else 1), f"{context}: {ended}"
        if wanted == "SUCCEEDED":
            job.is_whole()
        else:
            job.has_no_gap()
            assert judged(struck, job) == "", f"{context}: {ended}"
        if tried:
            job.has_no_gap(1)
    scene.nothing_left(context)
    scene.forget([job.name for job in jobs])


def submitted(jobs: Sequence[Job], context: str) -> None:
    """Submit jobs at the same time, and wait until they run."""
    for job in jobs:
        job.hand_in()
    for job in jobs:
        said, _ = job.submit.communicate(timeout=300)
        assert job.submit.returncode == 0, f"{context}: {said}"
    for job in jobs:
        running(job, context)


def running(job: Job, context: str) -> None:
    """Wait until a job runs."""
    end = time.monotonic() + 60
    while (job.get() or {}).get("status") != "RUNNING":
        assert time.monotonic() < end, f"{context}: {job.name} does not run: {job.get()}"


def killed_starts(scene: Scene, dice: random.Random, number: int | str, count: int) -> None:
    """Kill those who submit, at any moment: each job is not there at all, or ends as it would have."""
    jobs = []
    for place in range(count):
        job = Job(scene, f"cut-{number}-{place}", dice.choice(("pytorch", "mpi")), 2, lines=SHORT)
        more = dice.choice(((), ("--wait",), ("--follow",)))
        process = job.hand_in(scene.operator("killed"), *more)
        if place % 4 == 1:
            when = killed_after(process, dice.uniform(0.5, 6))
        elif place % 4 == 3:
            when = killed_in_between(scene, dice, job, process)
        else:
            when = killed_at_a_mark(scene, dice, job, process)
        context = f"seed {SEED}: submit of {job.name} ({job.kind}, {' '.join(more) or 'alone'}) killed {when}"
        say(context)
        jobs.append((job, context))
    for job, context in jobs:
        ends_well(job, context)


def ends_well(job: Job, context: str) -> None:
    """A job whose submit was killed ends well; where it is not there, its name is free for another operator."""
    asked = job.scene.by(job.scene.other, "get", job.name, "--json")
    assert asked.code in {0, 3}, f"{context}: {asked}"
    if asked.code == 3:
        said, _ = job.hand_in(job.scene.other).communicate(timeout=300)
        assert job.submit.returncode == 0, f"{context}: {said}"
    ended = finished(job, context, seconds=400)
    say(f"  {job.name}: {'submitted again, ' if asked.code else ''}{ended['status']}, attempt {ended['attempt']}")
    assert ended["status"] == "SUCCEEDED", f"{context}: {ended}"
    job.is_whole()


def killed_followers(scene: Scene, dice: random.Random, number: int | str, verbs: Sequence[str]) -> None:
    """Kill those who wait for a job, follow its output, stop it, or start what waits."""
    for place, verb in enumerate(verbs):
        job = Job(scene, f"seen-{number}-{place}", dice.choice(("pytorch", "mpi")), len(scene.nodes), lines=SHORT)
        if verb == "queue run":
            waits_for_a_node(scene, job)
        else:
            said, _ = job.hand_in().communicate(timeout=200)
            assert job.submit.returncode == 0, said
        words = ("queue", "run") if verb == "queue run" else (*verb.split(), job.name)
        words += ("--yes",) if verb == "stop" else ()  # it is another operator's
        process = begun(scene.operator("killed"), ["--inventory", scene.inventory, *words])
        if verb == "queue run" and place % 2:
            when = killed_at_a_mark(scene, dice, job, process)
        else:
            when = killed_after(process, dice.uniform(0.5, 5))
        context = f"seed {SEED}: `{verb}` of {job.name} ({job.kind}) killed {when}"
        say(context)
        ended = finished(job, context, seconds=300)
        say(f"  {job.name}: {ended['status']}, attempt {ended['attempt']}")
        assert ended["status"] in {"SUCCEEDED", *(["STOPPED"] if verb == "stop" else [])}, f"{context}: {ended}"
        if ended["status"] == "SUCCEEDED":
            job.is_whole()
        else:
            job.has_no_gap()


def waits_for_a_node(scene: Scene, job: Job) -> None:
    """Hand a job in that waits until somebody runs the queue."""
    node = scene.nodes[-1]
    assert scene.by(scene.other, "node", "drain", node).code == 0
    said, _ = job.hand_in(None, "--max-per-node=1").communicate(timeout=200)
    assert job.submit.returncode == 0, said
    status = job.get()
    assert status is not None
    assert status["status"] == "PENDING", status
    assert scene.by(scene.other, "node", "resume", node).code == 0


def killed_operators(scene: Scene, dice: random.Random, number: int | str, starts: int, verbs: Sequence[str]) -> None:
    """Kill operators at any moment; afterwards nothing is left of any job."""
    killed_starts(scene, dice, number, starts)
    killed_followers(scene, dice, number, verbs)
    scene.nothing_left(f"seed {SEED}")
    names = scene.by(scene.other, "list", "-o", "name").out.split()
    scene.forget([name for name in names if name.startswith((f"cut-{number}-", f"seen-{number}-"))])


@pytest.fixture(scope="module")
def own_scene(provision: Provision) -> Iterator[Scene]:
    """Three nodes for many faults; applied once."""
    with scene_of_a_lab(provision, OWN, machine="pair") as scene:
        ENGINES.add(scene.host)
        yield scene


@pytest.mark.slow
def test_jobs_survive_a_few_faults_at_random_moments(provision: Provision, cluster: dict) -> None:
    """The short form of the two below, on nodes that other tests go on with."""
    assert cluster["nodes"]
    scene, dice = Scene(provision, LAB), random.Random(SEED)  # noqa: S311 - to be repeated
    one_round(scene, dice, "short", dice.choice(QUICK))
    killed_operators(scene, dice, "short", 1, [dice.choice(VERBS)])


@pytest.mark.long
def test_jobs_survive_many_faults_at_random_moments(own_scene: Scene) -> None:
    """Status and reason are right in time, bystanders end as they would have, nothing is left."""
    dice = random.Random(SEED)  # noqa: S311 - to be repeated
    kinds = [FAULTS[number % len(FAULTS)] for number in range(ROUNDS)]
    dice.shuffle(kinds)
    for number, fault in enumerate(kinds):
        one_round(own_scene, dice, number, fault)


@pytest.mark.long
def test_jobs_continue_when_commands_of_operators_are_killed(own_scene: Scene) -> None:
    """Whatever they were doing: their jobs end as they would have, and others see all of it."""
    killed_operators(own_scene, random.Random(SEED), "long", 12, VERBS)  # noqa: S311 - to be repeated
