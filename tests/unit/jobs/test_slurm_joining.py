"""The entry of a job in our queue, as it follows from its state in Slurm."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from provision.batch.records import Report, records
from provision.batch.slurm.states import SlurmJob
from provision.documents.jobs import QueueEntry, RecordedReason, ReportAnswer
from provision.errors import ConnectionFailed
from provision.jobs.engines.slurm.joining import Sighting, changes_of, join
from provision.model.job import JobStatus

NAMES = {"c1": "a", "c2": "b"}
ACTIVE: dict[str, Any] = {"keeper": "active"}
GONE: dict[str, Any] = {"keeper": "gone"}
"""Fields of a report about its supervisor."""
SUBMITTED = QueueEntry(state="pending", engine_job=12, engine_attempt=1, retry=1, engine="slurm")


def job(state: str, **more: Any) -> SlurmJob:
    return SlurmJob(12, "mnist", "abc1", state, **more)


def changed(entry: QueueEntry, slurm: SlurmJob | None, **more: Any) -> QueueEntry:
    """Return an entry with the changes, as the queue host's report has them."""
    changes = changes_of(entry, Sighting(slurm, **more), NAMES)
    return msgspec.convert({**msgspec.to_builtins(entry), **changes}, QueueEntry)


def test_a_job_waits_with_the_reason_of_slurm() -> None:
    entry = changed(SUBMITTED, job("PENDING", pending_reason="Resources"))

    assert (entry.state, entry.attempt, entry.code) == ("pending", 0, "slurm.resources")
    assert entry.reason


def test_a_held_job_is_held() -> None:
    assert changed(SUBMITTED, job("PENDING", pending_reason="JobHeldUser")).state == "held"


def test_a_running_job_has_its_nodes_by_their_names_in_the_inventory() -> None:
    entry = changed(SUBMITTED, job("RUNNING", nodes=("c1", "c2", "c3")))

    assert (entry.state, entry.attempt, entry.nodes) == ("started", 1, ["a", "b", "c3"])


def test_an_attempt_after_a_restart_has_the_next_number() -> None:
    """`provision restart` submits a new job to Slurm; Slurm counts the requeues of that job."""
    entry = changed(msgspec.structs.replace(SUBMITTED, engine_attempt=3), job("RUNNING", restarts=1, nodes=("c1",)))

    assert entry.attempt == 4


def test_a_requeued_job_waits_for_its_next_attempt() -> None:
    entry = changed(SUBMITTED, job("PENDING", pending_reason="BeginTime", restarts=1))

    assert (entry.state, entry.attempt, entry.code, entry.nodes) == ("pending", 1, "slurm.requeued", [])


def test_the_failure_of_a_start_is_that_of_the_starter() -> None:
    failure = RecordedReason(reason="no such image", code="job.start_failed")
    entry = changed(SUBMITTED, job("FAILED", nodes=("c1",), ended=5.0), failure=failure)

    assert (entry.state, entry.cause.code, entry.time) == ("failed", "job.start_failed", 5.0)
    assert "no such image" in entry.reason


def test_a_job_that_slurm_ended_without_a_record_on_its_nodes_has_failed() -> None:
    entry = changed(SUBMITTED, job("NODE_FAIL", nodes=("c1",)))

    assert (entry.state, entry.code) == ("failed", "slurm.ended")


def test_a_job_that_was_cancelled_while_it_waited_is_stopped() -> None:
    assert changed(SUBMITTED, job("CANCELLED")).state == "stopped"


def test_its_nodes_decide_how_an_attempt_ended() -> None:
    """Slurm knows only the exit status of the starter. It starts the job no more, so no retry is expected."""
    entry = changed(SUBMITTED, job("FAILED", nodes=("c1",)), attempt=1)

    assert (entry.state, entry.retry, entry.failures) == ("started", 0, 0)


@pytest.mark.parametrize("state", ["NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY"])
def test_a_job_that_its_supervisors_stopped_because_of_slurm_has_failed(state: str) -> None:
    entry = changed(SUBMITTED, job(state, nodes=("c1",)), attempt=1, is_stopped=True)

    assert (entry.state, entry.code, entry.params["state"]) == ("failed", "slurm.ended", state)


@pytest.mark.parametrize("state", ["stopped", "failed", "over"])
def test_a_recorded_end_is_not_changed(state: str) -> None:
    entry = msgspec.structs.replace(SUBMITTED, state=state)

    assert changes_of(entry, Sighting(job("RUNNING", nodes=("c1",))), NAMES) == {}


def test_a_job_that_slurm_has_forgotten_is_known_by_its_nodes() -> None:
    assert changed(SUBMITTED, None, attempt=1).state == "started"
    assert changed(SUBMITTED, None).code == "slurm.forgotten"


def test_a_job_that_never_reached_slurm_says_so() -> None:
    entry = changed(msgspec.structs.replace(SUBMITTED, engine_job=0), None)

    assert (entry.state, entry.code) == ("pending", "slurm.not_submitted")


def test_an_earlier_job_in_slurm_says_nothing_about_a_restart() -> None:
    """A restart is recorded before its job is submitted; another command may read the job in between."""
    restarted = QueueEntry(state="pending", attempt=1, engine_before=11, engine="slurm")
    earlier = msgspec.structs.replace(restarted, engine_before=12)

    assert changed(earlier, job("FAILED", nodes=("c1",)), attempt=1).code == "slurm.not_submitted"
    assert changed(restarted, job("RUNNING", nodes=("c1",))).attempt == 2
    assert changed(msgspec.structs.replace(restarted, engine_job=13), job("FAILED", nodes=("c1",))).state == "failed"


# Reports of nodes


def report(_node: str, queue: dict[str, Any] | None = None, **more: Any) -> ReportAnswer:
    entry = {"name": "mnist", "id": "abc1", "owner": "u@h", "submitted": 1.0, "queue": queue or {}, **more}
    return msgspec.json.decode(msgspec.json.encode({"now": 10.0, "jobs": [entry]}), type=ReportAnswer)


def test_the_reports_of_nodes_are_combined_with_slurm() -> None:
    result = {"status": "SUCCEEDED", "exit_code": 0, "ended": 9.0}
    assignments = [
        {"instance": "mnist-worker-0", "role": "worker", "index": 0, "node": "b", "address": "10.0.0.2", "rank": 0}
    ]
    part = {"attempt": 1, "attempt_record": {"seats": assignments}, "result": result, "keeper": "gone"}
    answers = {"a": report("a", {"state": "pending", "engine_job": 12}), "b": report("b", **part)}

    joined = join(answers, "a", {"abc1": job("COMPLETED", nodes=("c2",))}, {}, NAMES)
    record = records([Report.of(name, one) for name, one in joined.answers.items()], {}, "a")["mnist"]

    assert (record.status, record.attempt) == (JobStatus.SUCCEEDED, 1)
    assert [change["queue"]["nodes"] for change in joined.changes] == [["b"]]


def assigned(*nodes: str) -> list[dict[str, Any]]:
    """Return the assignments of a worker on each node."""
    return [
        {"instance": f"mnist-worker-{rank}", "role": "worker", "index": rank, "node": node, "address": "", "rank": rank}
        for rank, node in enumerate(nodes)
    ]


@pytest.mark.parametrize("recorded", [{"state": "started", "attempt": 1, "nodes": ["a", "b"]}, {"state": "pending"}])
def test_a_job_that_is_ending_has_all_of_its_nodes(recorded: dict[str, Any]) -> None:
    """Slurm lists only the nodes whose epilog has not ended; without the others, the job would seem lost there."""
    result = {"status": "SUCCEEDED", "exit_code": 0, "ended": 9.0}
    part = {"attempt": 1, "attempt_record": {"seats": assigned("a", "b")}, "result": result, "keeper": "gone"}
    answers = {"a": report("a", {**recorded, "engine_job": 12, "engine_attempt": 1}, **part), "b": report("b", **part)}

    joined = join(answers, "a", {"abc1": job("COMPLETING", nodes=("c2",))}, {}, NAMES)
    record = records([Report.of(name, one) for name, one in joined.answers.items()], {}, "a")["mnist"]

    assert record.status == JobStatus.SUCCEEDED
    assert joined.changes == ()  # what a node says of other nodes is not recorded


def test_a_start_that_failed_after_its_preparation_is_unexplained() -> None:
    """The nodes have a record of the attempt, and no supervisor: Slurm has the reason."""
    failed = {"abc1": job("FAILED", nodes=("c2",))}
    stopped = {"status": "STOPPED", "reason": "its start failed", "ended": 9.0}
    for part in ({}, {"result": stopped, "keeper": "gone"}):
        answers = {"a": report("a", {"state": "pending", "engine_job": 12}), "b": report("b", attempt=1, **part)}
        joined = join(answers, "a", failed, {}, NAMES)
        assert (joined.unexplained, joined.changes) == ((12,), ())

        (change,) = join(answers, "a", failed, {12: RecordedReason(reason="x", code="job.starting")}, NAMES).changes
        assert (change["queue"]["state"], change["queue"]["code"], change["over"]) == ("failed", "job.starting", True)


@pytest.mark.parametrize(
    ("state", "status"),
    [("COMPLETED", JobStatus.SUCCEEDED), ("FAILED", JobStatus.FAILED), ("CANCELLED", JobStatus.STOPPED)],
)
def test_a_silent_node_changes_no_result_of_slurm(state: str, status: JobStatus) -> None:
    """The result is not recorded: when the node answers, it has the exit code and the reason."""
    away = ConnectionFailed("no route to host", node="b")
    answers = {"a": report("a", {"state": "pending", "engine_job": 12}), "b": away}
    joined = join(answers, "a", {"abc1": job(state, nodes=("c2",))}, {12: RecordedReason()}, NAMES)
    reports = [Report.of("a", joined.answers["a"])]

    assert records(reports, {"b": "no route to host"}, "a")["mnist"].status is status
    assert [change["queue"]["state"] for change in joined.changes] == ["started"]


def test_only_the_nodes_of_the_job_in_slurm_count() -> None:
    """Another node claims an attempt of the job."""
    part = {"attempt": 1, "keeper": "active"}
    claim = report("x", **part)
    answers = {"a": report("a", {"state": "pending", "engine_job": 12}), "b": report("b"), "x": claim}

    assert join(answers, "a", {"abc1": job("FAILED", nodes=("c2",))}, {}, NAMES).unexplained == (12,)


def test_an_attempt_that_slurm_has_not_started_is_a_false_claim() -> None:
    """Another node of the job has its result; a false claim must not turn it into a failure."""
    result = {"status": "SUCCEEDED", "exit_code": 0, "ended": 9.0}
    slurm = {"abc1": job("COMPLETED", nodes=("c1", "c2"))}
    answers = {
        "a": report("a", {"state": "pending", "engine_job": 12}, attempt=1, result=result, **GONE),
        "b": report("b", attempt=99, **ACTIVE),
    }

    assert join(answers, "a", slurm, {}, NAMES).unexplained == ()


def test_of_a_forgotten_job_only_its_recorded_nodes_count() -> None:
    queue = {"state": "started", "attempt": 1, "engine_job": 12, "engine_attempt": 1, "nodes": ["b"], "retry": 3}
    claim = report("x", attempt=2, **ACTIVE)
    answers = {"a": report("a", queue), "b": report("b", attempt=1, **ACTIVE), "x": claim}

    assert join(answers, "a", {}, {}, NAMES).attempts == {"abc1": 1}


# Several jobs in Slurm of one ID


def numbered(number: int, state: str, **more: Any) -> SlurmJob:
    return SlurmJob(number, "mnist", "abc1", state, **more)


def test_of_two_restarts_at_a_time_only_the_recorded_one_lives() -> None:
    everything = [numbered(12, "RUNNING", nodes=("c2",)), numbered(13, "PENDING")]
    answers = {"a": report("a", {"state": "pending", "engine_job": 12, "engine_attempt": 2})}
    joined = join(answers, "a", {"abc1": everything[1]}, {}, NAMES, everything)

    assert joined.cancel == (13,)
    assert joined.changes[0]["queue"]["nodes"] == ["b"]


def test_a_cancelled_second_restart_says_nothing_about_the_recorded_one() -> None:
    everything = [numbered(12, "FAILED", nodes=("c2",), ended=5.0), numbered(13, "CANCELLED")]
    answers = {"a": report("a", {"state": "started", "engine_job": 12, "engine_attempt": 1})}

    assert join(answers, "a", {"abc1": everything[1]}, {}, NAMES, everything).unexplained == (12,)


def test_all_jobs_of_a_stopped_one_are_cancelled() -> None:
    everything = [numbered(12, "RUNNING"), numbered(13, "PENDING"), numbered(11, "FAILED")]
    answers = {"a": report("a", {"state": "stopped", "engine_job": 13})}

    assert join(answers, "a", {"abc1": everything[1]}, {}, NAMES, everything).cancel == (12, 13)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_a_job_whose_number_could_not_be_recorded_is_adopted(state: str) -> None:
    """Its command broke off between the submission and the record; a restart has its own first attempt."""
    answers = {"a": report("a", {"state": "pending", "attempt": 2, "engine_before": 11})}
    slurm = job(state, nodes=("c2",) if state == "RUNNING" else ())
    (change,) = join(answers, "a", {"abc1": slurm}, {}, NAMES).changes

    assert (change["queue"]["engine_job"], change["queue"]["engine_attempt"]) == (12, 3)
    assert change["if_engine_job"] == [0]


def test_a_job_whose_end_is_requested_is_cancelled_in_slurm() -> None:
    """An earlier command recorded the request, and could not reach Slurm."""
    answers = {"a": report("a", {"state": "stopped", "engine_job": 12})}

    assert join(answers, "a", {"abc1": job("PENDING")}, {}, NAMES).cancel == (12,)
    assert join(answers, "a", {"abc1": job("COMPLETED")}, {}, NAMES).cancel == ()


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING"])
def test_reading_a_job_that_has_just_succeeded_cancels_nothing(state: str) -> None:
    """The result is recorded while the starter is still exiting."""
    answers = {"a": report("a", {"state": "over", "engine_job": 12})}

    assert join(answers, "a", {"abc1": job(state, nodes=("c2",))}, {}, NAMES).cancel == ()
    assert join(answers, "a", {"abc1": job("PENDING", restarts=1)}, {}, NAMES).cancel == (12,)


def test_a_failed_attempt_after_a_lost_start_is_not_the_last_one() -> None:
    """Slurm's restarts count the lost start, which used no retry: the starter puts the job into the queue again."""
    running = changed(SUBMITTED, job("RUNNING", nodes=("c2",), restarts=1), attempt=2)
    ended = changed(SUBMITTED, job("FAILED", nodes=("c2",), restarts=1), attempt=2)

    assert (running.attempt, running.failures, running.retry) == (2, 0, 1)
    assert (ended.attempt, ended.failures, ended.retry) == (2, 1, 1)


def test_reading_an_entry_that_is_not_valid_cancels_nothing() -> None:
    answers = {"a": report("a", {"state": "pending", "engine_job": -1})}

    assert join(answers, "a", {"abc1": job("RUNNING", nodes=("c2",))}, {}, NAMES).cancel == ()


def test_without_the_queue_host_nothing_is_combined() -> None:
    answers = {"a": ConnectionFailed("no route to host", node="a")}

    assert join(answers, "a", {}, {}, NAMES).answers == answers


def test_nodes_that_are_recorded_already_are_not_recorded_again() -> None:
    queue = {"state": "started", "attempt": 1, "nodes": ["b"], "engine_job": 12}

    assert join({"a": report("a", queue)}, "a", {"abc1": job("RUNNING", nodes=("c2",))}, {}, NAMES).changes == ()


def test_an_invalid_entry_stays_for_the_reader_of_the_answers() -> None:
    answer = msgspec.json.decode(b'{"now": 1.0, "jobs": [{"name": "../x"}, 3]}', type=ReportAnswer)

    assert len(join({"a": answer}, "a", {}, {}, NAMES).answers["a"].jobs) == 2
