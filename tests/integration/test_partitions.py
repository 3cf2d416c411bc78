"""A node is cut off before, during and after each job verb: no false end, no unseen job, no leaked GPU.

What runs is asked of the nodes themselves, by no network. The GPUs are SIMULATED. PARTITIONS_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator

import pytest

from tests.integration.conftest import ENGINES, LAB
from tests.integration.job_faults import Scene, scene_of_a_lab
from tests.integration.partitions import (
    CUTS,
    MOMENTS,
    NAME_TAKEN,
    NODE_UNREACHABLE,
    STATES,
    Case,
    groups_of,
    random_case,
)
from tests.support.command import Provision, eventually

OWN = f"partitions{os.getpid()}"
SEED = int(os.environ.get("PARTITIONS_SEED") or random.SystemRandom().randrange(10**6))
CASES = int(os.environ.get("PARTITIONS_CASES") or 50)


@pytest.fixture(scope="module")
def scene(provision: Provision, cluster: dict) -> Scene:
    """The nodes that other tests go on with: the first one is the queue host."""
    assert cluster["nodes"]
    return Scene(provision, LAB)


@pytest.fixture(scope="module")
def own_scene(provision: Provision) -> Iterator[Scene]:
    """Three nodes for many cases; applied once."""
    with scene_of_a_lab(provision, OWN, machine="dgx1v") as made:
        ENGINES.add(made.host)
        yield made


def test_a_job_on_a_disconnected_node_is_stopping_until_the_node_reconnects(scene: Scene) -> None:
    """`stop` exits with 7, the job is named in all lists, and the next list carries the end out."""
    case = Case(scene, "cut-stop", "running", "stop", "before", scene.nodes[-1], CUTS[1])
    case.prepare()
    with case.cut():
        done = case.done = case.act()
        assert (done.code, done.out) == (NODE_UNREACHABLE, "cut-stop STOPPING\n"), str(done)
        status = case.get()
        assert status is not None
        assert (status["status"], status["unconfirmedNodes"]) == ("STOPPING", [scene.nodes[-1]])
        listed = scene.by(scene.other, "list", "-o", "wide")
        assert scene.nodes[-1] in listed.out
        assert "still unreachable after" in listed.err, "the node was remembered, and is not waited for again"
        case.judge_answer(cut=True)
        case.judge_job_while_cut()
    case.judge_afterwards()
    status = case.get()
    assert status is not None
    assert status["status"] == "STOPPED"
    case.clean()


@pytest.mark.slow
def test_a_deleted_job_on_a_disconnected_node_keeps_its_name(scene: Scene) -> None:
    """`delete` exits with 7, its name stays taken, and a queue run removes it when the node is back."""
    case = Case(scene, "cut-delete", "running", "delete", "before", scene.nodes[-1])
    case.prepare()
    with case.cut():
        done = case.done = case.act()
        assert (done.code, done.out) == (NODE_UNREACHABLE, ""), str(done)
        again = scene.by(scene.other, *case.words_of_a_second_job())
        assert again.code == NAME_TAKEN, str(again)
        assert f"{scene.nodes[-1]} has not confirmed" in again.err

    def gone() -> bool:
        scene.start_waiting()
        return scene.by(scene.other, "get", case.name).code == 3

    eventually(gone, seconds=90, what="the deletion is carried out by the queue run")
    case.nothing_runs()
    free = scene.by(scene.other, *case.words_of_a_second_job())
    assert free.code == 0, str(free)
    case.clean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "verb", "moment", "place"),
    [
        ("spread", "stop", "before", -1),
        ("on-head", "delete", "before", 0),
        ("finished", "delete", "before", -1),
        ("starting", "stop", "during", -1),
        ("running", "restart", "after", -1),
        ("waiting", "stop", "before", 0),
    ],
)
def test_a_few_verbs_work_while_a_node_is_disconnected(
    scene: Scene, state: str, verb: str, moment: str, place: int
) -> None:
    """The short form of the test below."""
    Case(scene, f"cut-{state}", state, verb, moment, scene.nodes[place], CUTS[0], 1.0).run()


@pytest.mark.long
def test_random_verbs_work_during_random_partitions(own_scene: Scene) -> None:
    """The seed that is printed repeats a run."""
    dice = random.Random(SEED)  # noqa: S311 - to be repeated
    for number in range(CASES):
        case = random_case(own_scene, dice, number)
        sys.stdout.write(f"seed {SEED}, {case}\n")
        sys.stdout.flush()
        case.run()


@pytest.mark.long
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_each_verb_works_in_each_job_state_while_a_node_is_disconnected(
    own_scene: Scene, state: str, moment: str
) -> None:
    """Every verb, on the node that has the job: for waiting jobs and jobs on the queue host that is the queue host."""
    sys.stdout.write(f"seed {SEED}\n")
    for group in groups_of(own_scene, state, moment, random.Random(f"{SEED} {state} {moment}")):  # noqa: S311
        group.run()
