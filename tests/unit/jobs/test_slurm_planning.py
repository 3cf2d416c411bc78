"""The choice of nodes and exact GPUs for jobs with --gputopology in Slurm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provision.batch.slurm.states import SlurmJob, SlurmNodeState
from provision.jobs.engines.slurm.planning import Choice, PlanNode, choose, taken_gpus
from provision.model.job import JobSpec, Kind
from provision.model.reason import Reason
from provision.topology.candidates import Mode
from tests.unit.topology.boxes import BOXES

DGX1 = BOXES["DGX-1V"]
"""The two-lane pairs are 0-3, 0-4, 1-2, 1-5, 2-3, 4-7, 5-6 and 6-7."""


def spec(workers: int = 1, gpus: int = 1, **more: Any) -> JobSpec:
    return JobSpec("mnist", Kind.RUN, ("true",), image="image", gputopology=True, workers=workers, gpus=gpus, **more)


def nodes(names: str = "a", minors: dict[int, int] | None = None) -> list[PlanNode]:
    """Return nodes of the mode topology; the GPUs have their indices as minor numbers."""
    made = []
    for name in names:
        candidate = replace(DGX1.candidate(name), mode=Mode.TOPOLOGY)
        made.append(PlanNode(f"s-{name}", candidate, minors or {index: index for index in range(8)}))
    return made


def chosen(job: JobSpec, names: str = "a", **taken: set[int]) -> Choice:
    """Return the choice for a job; `taken` is node -> minor numbers."""
    used = {f"s-{name}": frozenset(minors) for name, minors in taken.items()}
    choice = choose(job, nodes(names), used, ())
    assert isinstance(choice, Choice)
    return choice


@pytest.mark.row(2, 17)
@pytest.mark.parametrize(
    ("gpus", "used", "expected"),
    [
        (4, set(), {(0, 1, 2, 3), (4, 5, 6, 7)}),
        (2, {0, 1, 4}, {(5, 6), (6, 7), (2, 3)}),
        (1, {0, 1, 2, 3, 4}, {(5,), (7,)}),
    ],
)
def test_workers_of_one_gpu_get_linked_gpus_of_one_node(
    gpus: int, used: set[int], expected: set[tuple[int, ...]]
) -> None:
    choice = chosen(spec(gpus), a=used)

    assert choice.minors in expected
    assert (choice.nodes, choice.workers, choice.is_free) == (("s-a",), gpus, True)


def test_gpus_are_named_by_minor_number() -> None:
    """The driver's numbers may differ from those of nvidia-smi."""
    (node,) = nodes(minors={index: 7 - index for index in range(8)})
    choice = choose(spec(2), [node], {"s-a": frozenset({7, 6, 3})}, ())  # indices 0, 1 and 4

    assert isinstance(choice, Choice)
    assert choice.minors in {(1, 2), (0, 1), (4, 5)}


def test_gpus_without_a_type_of_their_own_are_not_chosen() -> None:
    """Slurm cannot allocate exactly these."""
    (node,) = nodes(minors={index: index for index in range(8) if index not in {5, 6, 7}})
    choice = choose(spec(2), [node], {"s-a": frozenset({0, 1})}, ())

    assert isinstance(choice, Choice)
    assert choice.minors == (2, 3)


def test_all_nodes_have_the_same_gpus() -> None:
    """One request for GPUs holds for all nodes of a job in Slurm."""
    choice = chosen(spec(2, gpus=2, max_per_node=1), "ab", a={0, 3}, b={1, 2, 6})

    assert (choice.nodes, choice.minors, choice.workers, choice.is_free) == (("s-a", "s-b"), (4, 7), 1, True)


def test_a_job_gets_the_same_gpus_where_the_best_ones_of_no_node_are_free_on_the_others() -> None:
    """Each node would choose another pair of two lanes; what both have free is a pair without links."""
    choice = chosen(spec(2, gpus=2, max_per_node=1), "ab", a={0, 3, 4, 7, 1}, b={1, 2, 3, 4, 6, 7})

    assert (choice.nodes, choice.is_free) == (("s-a", "s-b"), False)  # only GPU 5 is free on both
    wide = chosen(spec(2, gpus=2, max_per_node=1), "ab", a={0, 3, 4, 7}, b={1, 3, 4, 6, 7})
    assert (wide.minors, wide.is_free) == ((2, 5), True)


def test_a_job_that_does_not_fit_now_waits_for_gpus_of_idle_nodes() -> None:
    choice = chosen(spec(4), a={0, 1, 2, 3, 4})

    assert (len(choice.minors), choice.is_free) == (4, False)


def test_nodes_that_are_down_are_not_awaited_while_others_fit() -> None:
    choice = choose(spec(8), nodes("ab"), {"s-a": frozenset({0})}, {"s-b"})
    assert isinstance(choice, Choice)
    assert (choice.nodes, choice.is_free) == (("s-a",), False)

    alone = choose(spec(16), nodes("ab"), {}, {"s-b"})
    assert isinstance(alone, Choice)
    assert (alone.nodes, alone.is_free) == (("s-a", "s-b"), False)


def test_a_job_that_would_not_fit_on_idle_nodes_has_a_reason() -> None:
    assert isinstance(choose(spec(9), nodes(), {}, ()), Reason)
    assert isinstance(choose(spec(3, max_per_node=2), nodes("ab"), {}, ()), Reason)  # 2 and 1 workers


def test_an_exclusive_job_gets_idle_nodes() -> None:
    choice = chosen(spec(2, exclusive=True), "ab", a={7})

    assert (choice.nodes, choice.is_free) == (("s-b",), True)


def test_spread_workers_are_on_several_nodes() -> None:
    assert chosen(spec(2, spread=True), "ab").nodes == ("s-a", "s-b")
    assert chosen(spec(4, spread=True), "ab").workers == 2


def test_without_gang_fewer_workers_start_now() -> None:
    choice = chosen(spec(4, gpus=2, gang=False), a={0, 1, 2, 4})

    assert (choice.workers, len(choice.minors), choice.is_free) == (2, 4, True)


# GPUs that are taken


def state(used: str = "", words: str = "mixed") -> SlurmNodeState:
    gres = ",".join(f"gpu:g{index}:1" for index in range(8))
    return SlurmNodeState("s-a", words, gres, ",".join(f"gpu:g{index}:1(IDX:{index})" for index in used))


def waiting(number: int, minors: set[int], **more: Any) -> SlurmJob:
    fields = {"pending_reason": "Resources", "required_nodes": ("s-a",), "required_minors": frozenset(minors), **more}
    return SlurmJob(number, "mnist", "abc1", **{"state": "PENDING", **fields})


def test_the_free_gpus_of_a_waiting_job_are_about_to_be_taken() -> None:
    taken, stale = taken_gpus({"s-a": state("01")}, [waiting(3, {2, 3}), waiting(4, {3, 4}), waiting(5, {4})])

    assert (taken["s-a"], stale) == ({0, 1, 2, 3, 4}, {4})


@pytest.mark.parametrize(
    "more",
    [{"pending_reason": "JobHeldUser"}, {"pending_reason": "Dependency"}, {"state": "RUNNING"}, {"required_nodes": ()}],
)
def test_a_job_that_waits_for_something_else_takes_nothing(more: dict[str, Any]) -> None:
    assert taken_gpus({"s-a": state("01")}, [waiting(3, {0, 2}, **more)]) == ({"s-a": {0, 1}}, set())


@pytest.mark.parametrize("words", ["drained", "down*"])
def test_gpus_of_a_node_that_takes_no_jobs_are_not_free(words: str) -> None:
    assert taken_gpus({"s-a": state(words=words)}, [waiting(3, {2})])[1] == {3}
    assert taken_gpus({}, [waiting(3, {2})])[1] == {3}


def test_an_exclusive_job_waits_for_the_whole_node() -> None:
    assert taken_gpus({"s-a": state("0")}, [waiting(3, set())])[1] == {3}
    assert taken_gpus({"s-a": state()}, [waiting(3, set())])[0]["s-a"] == set(range(8))
