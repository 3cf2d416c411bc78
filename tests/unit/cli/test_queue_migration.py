"""``queue migrate``: what it shows, asks and exits with. What an engine moves is tested with the engine."""

from __future__ import annotations

import json

import pytest

from provision.errors import NodeError
from provision.jobs.engines import ENGINES
from provision.jobs.engines.base import Capability, MovedJob, TakeOver, WaitingJob
from provision.model.job import JobStatus
from provision.model.reason import reason
from provision.report.reasons import error_of
from provision.testing import make_cluster
from tests.support import memory_engine
from tests.support.memory_engine import MemoryEngine, job_of

TO = ("queue", "migrate", "--to", "memory")


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """An engine that takes over jobs, on a cluster that chooses it."""
    made = MemoryEngine(gpus=None)
    made.capabilities = made.capabilities | {Capability.TAKE_OVER}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(ENGINES, "memory", "tests.support.memory_engine")
    monkeypatch.setattr(memory_engine, "create", lambda _context: made)
    monkeypatch.setattr(
        "provision.cli.queue.cluster_from", lambda *_a, **_k: make_cluster("gpu1", "gpu2", cluster_engine="memory")
    )
    return made


def moves(engine: MemoryEngine) -> list[bool]:
    """Return for each call of `take_over` whether it was a dry run."""
    return [call[1] for call in engine.calls if call[0] == "take_over"]


def test_a_dry_run_moves_no_job_and_lists_those_that_would_move(engine, typed):
    engine.takes_over = TakeOver((MovedJob(job_of("first")),))

    assert typed(*TO, "--dry-run")[:2] == (0, "first would be moved to memory\n")
    assert moves(engine) == [True]


def test_without_an_answer_no_job_moves(engine, typed):
    """Standard input is not a terminal here: the command needs --yes."""
    engine.takes_over = TakeOver((MovedJob(job_of("first")),))

    assert typed(*TO)[0] != 0
    assert moves(engine) == [True]


def test_moved_jobs_are_shown_with_their_numbers(engine, typed):
    engine.takes_over = TakeOver((MovedJob(job_of("first"), 17),))

    assert typed(*TO, "--yes")[:2] == (0, "first moved to memory as job 17\n")
    assert moves(engine) == [True, False]


def test_a_job_that_cannot_move_gives_the_exit_code_and_its_reason(engine, typed):
    """The others move all the same, and the document has the code."""
    refused = error_of(NodeError, reason("slurm.dependency_of_direct", job="busy"))
    engine.takes_over = TakeOver((MovedJob(job_of("first"), 17),), (WaitingJob(job_of("next"), refused),))

    code, out, err = typed(*TO, "--yes", "--json")
    document = json.loads(out)
    assert (code, [job["name"] for job in document["moved"]]) == (1, ["first"])
    assert [(job["name"], job["code"]) for job in document["remaining"]] == [("next", "slurm.dependency_of_direct")]
    assert "next: it depends on busy" in err


def test_nodes_that_the_new_engine_cannot_use_yet_are_named(engine, typed):
    running = job_of("busy", status=JobStatus.RUNNING, nodes=("gpu2",))
    engine.takes_over = TakeOver(unfinished=(running,))

    code, _, err = typed(*TO, "--yes")
    assert code == 0
    assert "busy RUNNING: it finishes under the engine direct" in err
    assert "memory cannot use gpu2 before these jobs end" in err
    assert moves(engine) == [True]


def test_an_inventory_with_another_engine_gets_a_warning(engine, typed, monkeypatch):
    monkeypatch.setattr("provision.cli.queue.cluster_from", lambda *_a, **_k: make_cluster("gpu1", "gpu2"))

    code, _, err = typed(*TO)
    assert (code, moves(engine)) == (0, [True])
    assert "Set: cluster_engine: memory" in err


def test_jobs_do_not_move_to_the_engine_direct(engine, typed):
    assert typed("queue", "migrate", "--to", "direct")[0] == 2
    assert moves(engine) == []


def test_an_engine_that_takes_over_no_jobs_is_refused(engine, typed):
    engine.capabilities = engine.capabilities - {Capability.TAKE_OVER}

    code, _, err = typed(*TO)
    assert (code, moves(engine)) == (2, [])
    assert "provision queue migrate" in err
