"""Reports of nodes become one record, also if nodes are silent, rebooted or report wrong values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from msgspec import to_builtins

from provision.batch.direct_record import DirectRecord
from provision.batch.ranks import Place, assignments_of
from provision.batch.records import Report, contradictions, records, result_of
from provision.documents import decode
from provision.documents.jobs import ReportAnswer, assignment_document, recorded_reason
from provision.errors import InvalidDocument
from provision.model.job import JobSpec, JobStatus, Kind, as_document
from provision.model.reason import reason
from provision.report.job_reasons import with_message

SPEC = JobSpec("dist", Kind.PYTORCH, ("x",), image="i", gpus=1, workers=2)
ASSIGNMENTS = assignments_of(SPEC, (Place("a", "10.0.0.1", (0,), ("GPU-a",)), Place("b", "10.0.0.2", (0,), ("GPU-b",))))


def reported(node: str, status: str = "Running", supervisor: str = "active", **more: Any) -> dict[str, Any]:
    """Return the report of a node about its instance."""
    assignment = next(assignment for assignment in ASSIGNMENTS if assignment.node == node)
    return {
        "name": "dist",
        "id": "1",
        "owner": "me@here",
        "submitted": 100.0,
        "spec": as_document(SPEC),
        "attempt": 1,
        "attempt_record": {
            "seats": [assignment_document(one) for one in ASSIGNMENTS],
            "boot_id": "boot",
            "time": 100.0,
        },
        "boot_id": "boot",
        "instances": {assignment.instance: {"instance": assignment.instance, "status": status, "started": 110.0}},
        "keeper": supervisor,
        "result": None,
        **more,
    }


def report(node: str, document: dict[str, Any]) -> Report:
    """Return the report of a node's answer."""
    return Report.of(node, decode(json.dumps(document), ReportAnswer, node=node, what="answer"))


def job(*reports: tuple[str, dict[str, Any]], unreachable: dict[str, str] | None = None) -> DirectRecord:
    """Return the record of the job that these nodes report."""
    made = [report(node, {"now": 200.0, "jobs": [document], "leases": {}}) for node, document in reports]
    return records(made, unreachable or {}, "a")["dist"]


QUEUE = {"state": "started", "attempt": 1}


def test_a_job_is_running_if_all_instances_run() -> None:
    """An instance that does not run yet makes it PENDING, and is named."""
    assert job(("a", reported("a", queue=QUEUE)), ("b", reported("b"))).status is JobStatus.RUNNING
    coming = job(("a", reported("a", queue=QUEUE)), ("b", reported("b", "ContainerCreating")))
    assert coming.status is JobStatus.PENDING
    assert coming.cause == reason(
        "job.instance_starting", instance="dist-worker-0", status="ContainerCreating", detail=""
    )


def test_the_result_of_the_leader_is_the_result_of_the_job() -> None:
    """The node of a worker knows only its own part."""
    result = {"status": "FAILED", "reason": "rank 1 exited with 3", "exit_code": 3, "first_failure": "dist-worker-0"}
    other = {"status": "STOPPED", "reason": "requested by the leader", "exit_code": 143}
    record = job(("a", reported("a", queue=QUEUE, result=result)), ("b", reported("b", "Error", result=other)))

    assert (record.status, record.exit_code, record.first_failure) == (JobStatus.FAILED, 3, "dist-worker-0")
    assert record.reason == "rank 1 exited with 3"
    assert record.cause == reason("job.instance_failed", instance="dist-worker-0", rank=None, exit_code=3)


def test_a_reboot_fails_the_job_without_a_recorded_result() -> None:
    """The boot ID differs from the one at the start."""
    record = job(("a", reported("a", queue=QUEUE, boot_id="later", supervisor="gone")), ("b", reported("b")))

    assert record.status is JobStatus.FAILED
    assert (record.cause, record.reason) == (reason("job.node_rebooted", nodes=["a"]), "")


def test_a_silent_node_is_listed_as_unreachable() -> None:
    """The job stays RUNNING."""
    record = job(("a", reported("a", queue=QUEUE)), unreachable={"b": "no route"})

    assert record.status is JobStatus.RUNNING
    assert record.unreachable == ("b",)


def test_a_job_whose_failure_is_decided_is_stopping_with_its_reason() -> None:
    """Its result follows when its part on the silent node has ended too; until then it is not retried."""
    silent = {"reason": "node b does not answer", "code": "job.node_silent", "params": {"nodes": ["b"]}}
    ending = {"status": "FAILED", "exit_code": 1, "begun": 190.0, **silent}
    queue = {**QUEUE, "retry": 1}

    record = job(("a", reported("a", queue=queue, ending=ending)), unreachable={"b": "no route"})

    assert (record.status, record.cause.code) == (JobStatus.STOPPING, "job.node_silent")
    assert (record.ended, record.exit_code, record.retrying) == (0.0, None, False)
    assert result_of(record) is None
    succeeded = {"status": "SUCCEEDED", "exit_code": 0}
    both = job(("a", reported("a", queue=queue, ending=succeeded)), ("b", reported("b", ending=ending)))
    assert both.status is JobStatus.RUNNING, "the leader decides"


def test_a_job_without_a_job_supervisor_has_failed() -> None:
    """It has been missing for longer than systemd needs to restart it."""
    record = job(("a", reported("a", queue=QUEUE, supervisor="gone")), ("b", reported("b")))

    assert record.status is JobStatus.FAILED
    assert record.cause == reason("job.unsupervised", nodes=["a"])


def test_a_starting_job_is_pending() -> None:
    """It has no job supervisor yet."""
    record = job(("a", reported("a", "Pending", queue=QUEUE, supervisor="none")))

    assert (record.status, record.cause, record.starting) == (JobStatus.PENDING, reason("job.starting"), True)


def test_a_start_that_reached_only_some_nodes_is_repeated() -> None:
    """It was interrupted: the job supervisors of the other nodes have given up, and the job is PENDING, not FAILED."""
    started = {**QUEUE, "handed": True}
    gave_up = {"status": "FAILED", "reason": "node b does not answer", "exit_code": 1, "ended": 150.0}
    none = reported("b", "Pending", supervisor="none")

    half = job(("a", reported("a", queue=started, supervisor="gone", result=gave_up)), ("b", none))
    assert (half.status, half.cause) == (JobStatus.PENDING, reason("job.starting"))
    nowhere = job(("a", reported("a", "Pending", queue=started, supervisor="none")), ("b", none))
    assert (nowhere.status, nowhere.cause) == (JobStatus.PENDING, reason("job.starting"))
    alive = job(("a", reported("a", "Pending", queue=started)), ("b", none))
    assert alive.cause != reason("job.starting")
    stopped = job(
        ("a", reported("a", "Pending", queue={**started, "state": "stopped"}, supervisor="none")), ("b", none)
    )
    assert stopped.status is JobStatus.STOPPED


@pytest.mark.parametrize("deleted", [False, True])
def test_a_job_is_stopping_until_all_nodes_have_confirmed(*, deleted: bool) -> None:
    """A silent node, or one with an unfinished part, confirms no stop; one with a record confirms no deletion."""
    ended = {"status": "STOPPED", "reason": "stopped by me", "exit_code": 143, "ended": 150.0}
    queue = {**QUEUE, "state": "stopped", "nodes": ["a", "b"], "unconfirmed": ["a", "b"], "deleted": deleted}
    queue["reason"] = "stopped by me"
    head = reported("a", queue=queue, result=ended)

    silent = job(("a", head), unreachable={"b": "no route"})
    assert (silent.status, silent.unconfirmed, silent.silent) == (JobStatus.STOPPING, ("b",), ("b",))
    assert silent.cause == reason("job.end_unconfirmed", cause="stopped by me", nodes=["b"])
    assert (silent.exit_code, silent.ended, silent.deleting) == (None, 0.0, deleted)
    running = job(("a", head), ("b", reported("b")))
    assert (running.status, running.unconfirmed, running.silent) == (JobStatus.STOPPING, ("b",), ())
    prepared = job(("a", head), ("b", reported("b", "Pending", supervisor="none")))
    assert prepared.status is JobStatus.STOPPING, "a running start may still start it"
    over = job(("a", head), ("b", reported("b", result=ended)))
    assert over.status is (JobStatus.STOPPING if deleted else JobStatus.STOPPED)
    other = reported("b", id="2", submitted=1.0)
    assert job(("a", head), ("b", other)).status is JobStatus.STOPPED, "that is another job"


def test_a_succeeded_job_keeps_its_result_until_its_deletion_is_confirmed() -> None:
    """`wait` returns its exit code; nothing of it runs on a silent node."""
    ended = {"status": "SUCCEEDED", "exit_code": 0, "ended": 150.0}
    queue = {**QUEUE, "state": "stopped", "nodes": ["a", "b"], "unconfirmed": ["a", "b"], "deleted": True}

    record = job(("a", reported("a", queue=queue, result=ended)), unreachable={"b": "no route"})

    assert (record.status, record.exit_code, record.deleting) == (JobStatus.SUCCEEDED, 0, True)
    assert record.unconfirmed == ("b",)


@pytest.mark.parametrize("state", ["started", "over", "stopped"])
@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED"])
def test_a_recorded_result_is_reported_if_no_node_of_the_job_answers(state: str, status: str) -> None:
    """The status is neither RUNNING nor STOPPING; the silent node is listed as unreachable."""
    first = {"first_failure": "dist-worker-0", "first_rank": 1} if status == "FAILED" else {}
    result = {"status": status, "reason": "rank 1 exited with 3", "exit_code": 3, "ended": 150.0, **first}
    more = {"unconfirmed": ["b"], "deleted": True} if state == "stopped" else {}
    queue = {**QUEUE, "state": state, "nodes": ["b"], "result": result, **more}
    head = reported("a", attempt=0, attempt_record=None, instances={}, queue=queue)

    record = job(("a", head), unreachable={"b": "no route"})

    assert (record.status, record.exit_code, record.ended, record.attempt) == (JobStatus(status), 3, 150.0, 1)
    assert (record.unreachable, record.unrecorded) == (("b",), False)
    assert {name: item.exit_code for name, item in record.instances.items()} == ({"dist-worker-0": 3} if first else {})
    assert (record.unconfirmed, record.silent) == ((("b",), ("b",)) if more else ((), ()))


def test_a_failed_job_with_a_running_part_is_stopping() -> None:
    """A recorded result does not hide a running part."""
    result = {"status": "FAILED", "exit_code": 3, "ended": 150.0}
    queue = {**QUEUE, "state": "stopped", "nodes": ["a", "b"], "unconfirmed": ["a", "b"], "result": result}

    assert job(("a", reported("a", queue=queue, result=result)), ("b", reported("b"))).status is JobStatus.STOPPING


def test_only_a_result_that_cannot_change_is_recorded() -> None:
    """A job that its nodes have lost may be reported again; a retry is another attempt."""
    result = {"status": "FAILED", "exit_code": 3, "ended": 150.0}
    whole = ("b", reported("b", "Error", result=result))
    failed = job(("a", reported("a", queue=QUEUE, result=result)), whole)
    assert failed.unrecorded
    assert result_of(failed) is not None
    assert not job(("a", reported("a", queue={**QUEUE, "result": result}, result=result)), whole).unrecorded
    assert not job(("a", reported("a", queue={**QUEUE, "retry": 1}, result=result)), whole).unrecorded
    assert result_of(job(("a", reported("a", queue=QUEUE, result=result)), unreachable={"b": "no route"})) is None
    assert (
        result_of(job(("a", reported("a", queue=QUEUE, supervisor="gone")), ("b", reported("b", supervisor="gone"))))
        is None
    )


def test_a_job_that_was_stopped_without_the_queue_host_is_stopping() -> None:
    """The nodes that answer have confirmed; the queue host has a part of the job too, and does not answer."""
    ended = {"status": "FAILED", "reason": "stopped by me", "exit_code": 143, "ended": 150.0}
    assignments = reported("b")["attempt_record"]["seats"]

    record = job(("b", reported("b", result=ended, stopping=True)), unreachable={"a": "no route"})

    assert {assignment["node"] for assignment in assignments} == {"a", "b"}
    assert (record.status, record.unconfirmed, record.exit_code) == (JobStatus.STOPPING, ("a",), None)


def test_a_stopped_job_with_a_running_part_is_stopping() -> None:
    """The list of unconfirmed nodes on the queue host does not matter."""
    head = reported("a", attempt=0, attempt_record=None, instances={}, queue={**QUEUE, "state": "stopped"})

    assert job(("a", head), ("b", reported("b"))).status is JobStatus.STOPPING


def test_a_running_job_whose_name_is_reused_is_listed() -> None:
    """It has leases of GPUs; a finished one is not listed."""
    new = reported("a", queue=QUEUE)
    old = reported("b", id="0", submitted=1.0)
    reports = [report(name, {"now": 200.0, "jobs": [one]}) for name, one in (("a", new), ("b", old))]

    assert {one.id: one.name_reused for one in records(reports, {}, "a").values()} == {"1": False, "0": True}
    (problem,) = contradictions(reports, "a")
    assert "another job dist (ID 0)" in problem
    over = reported("b", id="0", submitted=1.0, result={"status": "FAILED"})
    reports[1] = report("b", {"now": 200.0, "jobs": [over]})
    assert [one.id for one in records(reports, {}, "a").values()] == ["1"]


def test_a_job_is_running_if_none_of_its_nodes_answers() -> None:
    """Another start would run it twice."""
    started = {**QUEUE, "handed": True, "nodes": ["b"]}
    alone = reported("a", attempt=0, attempt_record=None, instances={}, queue=started)

    away = job(("a", alone), unreachable={"b": "no route"})
    assert (away.status, away.unreachable) == (JobStatus.RUNNING, ("b",))
    assert away.cause == reason("job.all_nodes_silent", nodes=["b"])
    gone = job(("a", alone), ("c", {**reported("b"), "id": "0"}))
    assert gone.status is JobStatus.FAILED
    assert gone.cause == reason("job.all_nodes_lost_job", nodes=["b"])


def test_a_job_with_an_active_job_supervisor_is_not_waiting() -> None:
    """The state in the queue does not matter."""
    record = job(("a", reported("a", queue={"state": "pending", "attempt": 1})), ("b", reported("b")))

    assert record.status is JobStatus.RUNNING


def test_a_waiting_job_has_the_recorded_reason() -> None:
    """Older versions recorded no code."""
    waiting = reported(
        "a", attempt=0, attempt_record=None, instances={}, queue={"state": "pending", "reason": "2 GPUs"}
    )
    held = reported("a", attempt=0, attempt_record=None, instances={}, queue={"state": "held", "reason": "held"})

    assert (job(("a", waiting)).status, job(("a", waiting)).reason) == (JobStatus.PENDING, "2 GPUs")
    assert job(("a", waiting)).cause == reason("job.unspecified", text="2 GPUs")
    coded = {"state": "pending", **recorded_reason(reason("job.older_job", job="x"), "waits behind x")}
    assert job(("a", {**waiting, "queue": coded})).cause == reason("job.older_job", job="x")
    assert job(("a", held)).status is JobStatus.QUEUING


def test_a_recorded_reason_is_read_with_its_parts() -> None:
    """As the queue host returns it, and as the previous version recorded it: with a text as the only parameter."""
    waiting = reported("a", attempt=0, attempt_record=None, instances={})
    free = reason("placement.gpus_of_node", name="a", gpus=3)
    unused = reason("placement.nodes", names=["b"], cause=reason("placement.node_drained", cause="fan"))
    cause = reason(
        "job.insufficient_resources", cause=reason("x.y", free=[free], limit=None), nodes=[unused], to_set_up=()
    )
    old = reason("job.insufficient_resources", text="insufficient GPUs")

    for recorded in (cause, old):
        queue = {"state": "pending", **recorded_reason(recorded, "insufficient GPUs")}
        record = job(("a", {**waiting, "queue": json.loads(json.dumps(queue))}))
        assert (record.cause, with_message(record).reason) == (recorded, "insufficient GPUs")


def test_a_failed_job_with_retries_left_is_pending() -> None:
    """The reason contains the failure; a stopped job is not retried."""
    failed = {"status": "FAILED", "reason": "exit code 3", "exit_code": 3, "ended": 150.0}
    left = reported("a", result=failed, queue={**QUEUE, "retry": 2, "failures": 1})
    none = reported("a", result=failed, queue={**QUEUE, "retry": 2, "failures": 2})
    stopped = reported("a", result=failed, queue={**QUEUE, "retry": 2, "failures": 1, "state": "stopped"})

    assert (job(("a", left)).status, job(("a", left)).retrying) == (JobStatus.PENDING, True)
    failure = reason("job.attempt_failed", attempt=1, cause="exit code 3", cause_code="job.unspecified")
    assert job(("a", left)).cause == reason("job.retry", failure=failure)
    assert job(("a", none)).status is JobStatus.FAILED
    assert job(("a", stopped)).retrying is False
    last = reported("b", attempt=2, result=failed, spec={**as_document(SPEC), "retry": 1})
    first = reported("b", result=failed, spec={**as_document(SPEC), "retry": 1})
    away = {"a": "no route"}
    assert (job(("b", first), unreachable=away).retrying, job(("b", last), unreachable=away).retrying) == (
        True,
        False,
    ), "the queue is on a"


def test_a_deleted_job_that_a_node_still_reports_is_ignored() -> None:
    """The job of the queue host has the name."""
    old = reported("b", id="0", submitted=1.0, result={"status": "FAILED", "reason": "old"})
    record = job(("a", reported("a", queue=QUEUE)), ("b", old))

    assert record.id == "1"
    assert record.status is not JobStatus.SUCCEEDED
    assert "old" not in record.reason


def test_invalid_entries_of_a_node_are_ignored() -> None:
    """A node cannot break the list of jobs."""
    good = report("a", {"now": 1, "jobs": [reported("a", queue=QUEUE)], "leases": {"GPU-a": {"id": "1"}}})
    odd: list[Any] = [{"name": "x", "id": "1", "spec": {"gpus": "many"}}, "?", {"name": 3}, {"name": "y", "id": "-o"}]
    bad = report("b", {"jobs": [*odd, {"name": "well", "id": "2"}]})

    record = records([good, bad], {}, "a")

    assert set(record) == {"dist", "well"}
    assert record["dist"].allocations == {"a": ("GPU-a",)}
    messages = contradictions([good, bad], "a")
    assert [text.partition(" is ignored")[0] for text in messages] == [
        "b: job x",
        "b: job without a valid name",
        "b: job without a valid name",
        "b: job y",
    ]


def test_a_malformed_answer_is_that_node_s_error() -> None:
    """The error has the node; no other exception is raised."""
    for document in (["no"], {"jobs": "none"}, {"leases": ["no"]}, {"now": "NaN"}, {"now": -1}):
        with pytest.raises(InvalidDocument) as caught:
            report("b", document)
        assert caught.value.node == "b"
    with pytest.raises(InvalidDocument):
        decode('{"now": NaN}', ReportAnswer, node="b", what="answer")


def test_only_the_queue_host_reports_the_queue() -> None:
    """Reports of another node about the queue, or about an attempt that it was not assigned, are ignored."""
    queue = {**QUEUE, "nodes": ["a", "b"]}
    ended = {"status": "SUCCEEDED", "ended": 150.0}
    for claim in (
        reported("b", queue={"state": "failed", "attempt": 1, "reason": "forged"}),
        reported("b", attempt=999, result=ended),
        reported("b", id="2", submitted=1e9, owner="mallory@b", result=ended),
    ):
        record = job(("a", reported("a", queue=queue)), ("b", claim))
        assert (record.id, record.owner, record.attempt) == ("1", "me@here", 1)
        assert record.status in {JobStatus.RUNNING, JobStatus.FAILED}
        assert "forged" not in record.reason
    stranger = reported("b", result=ended, supervisor="gone")
    record = job(("a", reported("a", queue=queue)), ("b", reported("b")), ("c", stranger))
    assert record.status is JobStatus.RUNNING
    reports = [report(name, {"jobs": [one]}) for name, one in (("a", reported("a", queue=queue)), ("c", stranger))]
    assert contradictions(reports, "a") == [
        "c: it reports attempt 1 of dist; this is ignored, because a assigned attempt 1 to a, b"
    ]


HOSTILE = JobSpec("dist", Kind.PYTORCH, ("x",), image="i", gpus=1, workers=3)
ASSIGNMENTS_OF_THREE = assignments_of(HOSTILE, tuple(Place(name, f"10.0.0.{at}") for at, name in enumerate("abc")))
PLACES_OF_THREE = {assignment.instance: assignment.node for assignment in ASSIGNMENTS_OF_THREE}


def of_three(
    node: str, *, assignments: Any = ASSIGNMENTS_OF_THREE, attempt: dict[str, Any] | None = None, **more: Any
) -> Any:
    """Return the report of a node about a job of three nodes: `a` has rank 0; `q` is the queue host and has no rank."""
    if node == "q":
        queue = {**QUEUE, "nodes": ["a", "b", "c"], "places": PLACES_OF_THREE, "handed": True}
        return reported(
            "a", attempt=0, attempt_record=None, instances={}, queue=queue, spec=as_document(HOSTILE), supervisor="none"
        )
    about = {
        "seats": [assignment_document(one) for one in assignments],
        "boot_id": "boot",
        "time": 100.0,
        **(attempt or {}),
    }
    own = {
        assignment.instance: {"instance": assignment.instance, "status": "Running"}
        for assignment in ASSIGNMENTS_OF_THREE
        if assignment.node == node
    }
    return {**reported("a"), "spec": {}, "owner": None, "attempt_record": about, "instances": own, **more}


def three(*reports: tuple[str, Any], unreachable: dict[str, str] | None = None) -> DirectRecord:
    """Return the record of the job that these nodes report, with the queue host `q`."""
    made = [report(node, {"now": 200.0, "jobs": [document]}) for node, document in (("q", of_three("q")), *reports)]
    return records(made, unreachable or {}, "q")["dist"]


@pytest.mark.parametrize("order", ["abc", "bac", "cba"])
def test_reports_about_ranks_of_other_nodes_are_ignored(order: str) -> None:
    """In any order: another node's rank, the leader, a result, and the start of the attempt."""
    swapped = {"a": "b", "b": "a", "c": "b"}
    forged = [
        replace(assignment, node=swapped[assignment.node], is_leader=assignment.node == "b", rank=0)
        for assignment in ASSIGNMENTS_OF_THREE
    ]
    more = [*forged, replace(ASSIGNMENTS_OF_THREE[1], instance="dist-worker-9", container="dist-worker-9")]
    ended = {"status": "SUCCEEDED", "exit_code": 0, "ended": 150.0}
    lies = {"code_sha": "f" * 40, "tensorboard": "http://10.9.9.9:1", "image_digest": "sha256:forged"}
    every = {
        assignment.instance: {"instance": assignment.instance, "status": "Completed"}
        for assignment in ASSIGNMENTS_OF_THREE
    }
    hostile = of_three("b", assignments=more, attempt=lies, instances=every, result=ended)
    documents = {"a": of_three("a", attempt={"code_sha": "a" * 40}), "b": hostile, "c": of_three("c")}
    record = three(*((name, documents[name]) for name in order))

    assert [
        (assignment.instance, assignment.node, assignment.rank, assignment.is_leader)
        for assignment in record.assignments
    ] == [
        ("dist-master-0", "a", 0, True),
        ("dist-worker-0", "b", 1, False),
        ("dist-worker-1", "c", 2, False),
    ]
    assert [assignment.address for assignment in record.assignments] == ["10.0.0.0", "", "10.0.0.2"]
    assert record.status is JobStatus.RUNNING
    assert {name: item.status for name, item in record.instances.items()} == {
        "dist-master-0": "Running",
        "dist-worker-0": "Completed",
        "dist-worker-1": "Running",
    }
    assert (record.code_sha, record.tensorboard, record.image_digest) == ("a" * 40, "", "")
    reports = [report(name, {"jobs": [document]}) for name, document in (("q", of_three("q")), ("b", hostile))]
    assert contradictions(reports, "q") == ["b: it reports dist-master-0; this is ignored, because it is assigned to a"]


def test_a_wrong_rank_in_a_report_is_ignored() -> None:
    """Rank and leader follow from the instance's name."""
    lies = [
        replace(assignment, is_leader=True, rank=0) if assignment.node == "b" else assignment
        for assignment in ASSIGNMENTS_OF_THREE
    ]
    ended = {"status": "SUCCEEDED", "exit_code": 0, "ended": 150.0}
    record = three(("b", of_three("b", assignments=lies, result=ended)), ("a", of_three("a")), ("c", of_three("c")))

    assert [(assignment.node, assignment.rank, assignment.is_leader) for assignment in record.assignments] == [
        ("a", 0, True),
        ("b", 1, False),
        ("c", 2, False),
    ]
    assert record.status is JobStatus.RUNNING


def test_without_the_leader_the_worst_result_of_the_others_counts() -> None:
    """A node cannot turn a failure into a success, and its result names only its own ranks."""
    good = {"status": "SUCCEEDED", "exit_code": 0, "ended": 150.0}
    bad = {
        "status": "FAILED",
        "exit_code": 3,
        "first_failure": "dist-worker-1",
        "first_rank": 2,
        "reason": "exit code 3",
    }
    away = {"a": "no route"}

    record = three(("b", of_three("b", result=good)), ("c", of_three("c", result=bad)), unreachable=away)
    assert (record.status, record.exit_code, record.first_failure, record.first_rank) == (
        *(JobStatus.FAILED, 3),
        *("dist-worker-1", 2),
    )
    blamed = three(("b", of_three("b", result=bad)), ("c", of_three("c", result=good)), unreachable=away)
    assert (blamed.status, blamed.first_failure, blamed.first_rank) == (JobStatus.FAILED, "", None)
    assert {assignment.node for assignment in record.assignments} == {"a", "b", "c"}
    assert record.unreachable == ("a",)


def test_reports_of_nodes_of_an_earlier_attempt_are_ignored() -> None:
    """The queue host assigned this attempt to other nodes."""
    queue = {**QUEUE, "nodes": ["a"], "attempt": 2, "places": {"dist-master-0": "a", "dist-worker-0": "a"}}
    assignments = [assignment_document(replace(assignment, node="a")) for assignment in ASSIGNMENTS]
    head = reported("a", attempt=2, queue=queue, nodes=["a", "b"], attempt_record={"seats": assignments, "time": 100.0})
    forged = reported("b", attempt=2, result={"status": "FAILED", "reason": "forged", "ended": 150.0})

    record = job(("a", head), ("b", forged))

    assert "forged" not in record.reason
    assert {assignment.node for assignment in record.assignments} == {"a"}
    reports = [report(name, {"jobs": [one]}) for name, one in (("a", head), ("b", forged))]
    assert contradictions(reports, "a") == [
        "b: it reports attempt 2 of dist; this is ignored, because a assigned attempt 2 to a"
    ]


def test_recorded_assignments_of_the_next_attempt_do_not_apply_to_the_last_one() -> None:
    """While the next attempt starts on other nodes, the nodes of the last one still report it."""
    queue = {**QUEUE, "attempt": 2, "nodes": ["c"], "places": {"dist-master-0": "c", "dist-worker-0": "c"}}
    record = job(("a", reported("a", queue=queue, nodes=["a", "b", "c"])), ("b", reported("b")))

    assert [(assignment.instance, assignment.node) for assignment in record.assignments] == [
        ("dist-master-0", "a"),
        ("dist-worker-0", "b"),
    ]


NO_PROGRAM = {"status": "FAILED", "reason": "node b does not answer", "exit_code": 1, "ended": 150.0}
CODED = {**NO_PROGRAM, "code": "job.node_silent", "params": {"nodes": ["b", "elsewhere"], "seconds": 30}}
PROGRAM = {**NO_PROGRAM, "reason": "node b does not answer", "first_failure": "dist-worker-0", "exit_code": 3}
RETRY = {**QUEUE, "nodes": ["a", "b"], "retry": 1}


@pytest.mark.parametrize(
    ("result", "unreachable", "failed"),
    [
        (CODED, {}, ("b",)),
        ({**CODED, "params": {"nodes": "b"}}, {}, ("b",)),
        ({**CODED, "code": "job.node_error"}, {}, ()),
        ({**CODED, "code": "job.invented"}, {}, ()),
        (NO_PROGRAM, {"b": "no route"}, ("b",)),
        (NO_PROGRAM, {}, ()),
        (PROGRAM, {"b": "no route"}, ()),
    ],
    ids=["code", "one name", "another code", "unknown code", "silent node", "no code", "program"],
)
def test_a_retry_excludes_the_nodes_that_failed_by_code(result: Any, unreachable: Any, failed: Any) -> None:
    """Only nodes of the attempt are excluded, and none if the program failed; the message does not matter."""
    worker = () if unreachable else (("b", reported("b")),)

    record = job(("a", reported("a", queue=RETRY, result=result)), *worker, unreachable=unreachable)

    assert (record.retrying, record.failed_nodes) == (True, failed)


def test_a_retry_excludes_a_rebooted_node() -> None:
    """No node has recorded a result."""
    head = reported("a", queue=RETRY)

    record = job(("a", head), ("b", reported("b", boot_id="later", supervisor="gone")))

    assert (record.retrying, record.failed_nodes) == (True, ("b",))
    assert record.failure.params["cause_code"] == "job.node_rebooted"


def test_the_code_of_a_result_is_recorded_with_it() -> None:
    """The queue host records it, and later reports have the same code and parameters."""
    head = reported("a", queue=QUEUE, result=CODED)

    recorded = to_builtins(result_of(job(("a", head), ("b", reported("b")))))
    later = job(("a", reported("a", attempt=0, attempt_record=None, queue={**QUEUE, "result": recorded})))

    assert later.cause == reason("job.node_silent", nodes=["b", "elsewhere"], seconds=30)
    assert later.reason == "node b does not answer"


@pytest.mark.parametrize(
    "change",
    [{"code": "No code"}, {"code": "a.b\n"}, {"params": {"X": 1}}, {"params": {"a": {"b": "c"}}}, {"params": []}],
)
def test_an_invalid_code_or_parameter_makes_the_entry_invalid(change: Any) -> None:
    """Reasons of nodes are parsed as strictly as all other fields."""
    entry = reported("b", result={**CODED, **change})

    assert "is ignored" in report("b", {"jobs": [entry]}).problems[0]


def test_every_reason_of_a_record_can_be_rendered() -> None:
    """A message that a node recorded is preserved; others come from the catalogue."""
    silent = {"b": "no route"}
    ended = {"status": "FAILED", "ended": 150.0, "first_failure": "dist-worker-0"}
    records_of = [
        job(("a", reported("a", queue=RETRY, boot_id="later", supervisor="gone")), ("b", reported("b"))),
        job(("a", reported("a", queue={**QUEUE, "state": "stopped", "unconfirmed": ["b"]})), unreachable=silent),
        job(("a", reported("a", queue=RETRY, result=ended)), ("b", reported("b"))),
        job(("a", reported("a", queue=RETRY, result=CODED)), ("b", reported("b"))),
    ]

    assert [with_message(record).reason for record in records_of] == [
        "attempt 1 failed: node a was rebooted during the job; it will be retried",
        "its end is requested; not confirmed by b, a",
        "attempt 1 failed: dist-worker-0 failed; it will be retried",
        "attempt 1 failed: node b does not answer; it will be retried",
    ]
