"""What the nodes tell of a job becomes one answer, also when some of them are silent, rebooted or lie."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from provision.batch.ranks import Place, assignments_of
from provision.batch.records import STARTING, Report, contradictions, records, result_of
from provision.documents import decode
from provision.documents.jobs import ReportAnswer, assignment_document
from provision.errors import InvalidDocument
from provision.model.job import JobRecord, JobSpec, JobStatus, Kind, as_document

SPEC = JobSpec("dist", Kind.PYTORCH, ("x",), image="i", gpus=1, workers=2)
ASSIGNMENTS = assignments_of(SPEC, (Place("a", "10.0.0.1", (0,), ("GPU-a",)), Place("b", "10.0.0.2", (0,), ("GPU-b",))))


def told(node: str, status: str = "Running", **more: Any) -> dict[str, Any]:
    """Return what a node tells of its instance."""
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
        "keeper": "active",
        "result": None,
        **more,
    }


def report(node: str, document: dict[str, Any]) -> Report:
    """Return the report of a node's answer."""
    return Report.of(node, decode(json.dumps(document), ReportAnswer, node=node, what="answer"))


def job(*reports: tuple[str, dict[str, Any]], away: dict[str, str] | None = None) -> JobRecord:
    """Return the job that these nodes tell of."""
    made = [report(node, {"now": 200.0, "jobs": [document], "leases": {}}) for node, document in reports]
    return records(made, away or {}, "a")["dist"]


QUEUE = {"state": "started", "attempt": 1}


def test_a_job_runs_when_all_of_its_instances_run() -> None:
    """One that is still coming makes it PENDING, and is named."""
    assert job(("a", told("a", queue=QUEUE)), ("b", told("b"))).status is JobStatus.RUNNING
    coming = job(("a", told("a", queue=QUEUE)), ("b", told("b", "ContainerCreating")))
    assert coming.status is JobStatus.PENDING
    assert "dist-worker-0 is ContainerCreating" in coming.reason


def test_the_chiefs_word_is_the_jobs() -> None:
    """A worker's node sees only its own part."""
    result = {"status": "FAILED", "reason": "rank 1 exited with 3", "exit_code": 3, "first_failure": "dist-worker-0"}
    other = {"status": "STOPPED", "reason": "the chief said so", "exit_code": 143}
    found = job(("a", told("a", queue=QUEUE, result=result)), ("b", told("b", "Error", result=other)))

    assert (found.status, found.exit_code, found.first_failure) == (JobStatus.FAILED, 3, "dist-worker-0")
    assert found.reason == "rank 1 exited with 3"


def test_a_rebooted_node_ends_the_job_though_nobody_wrote_it_down() -> None:
    """Its boot id is another one than at the start."""
    found = job(("a", told("a", queue=QUEUE, boot_id="later", keeper="gone")), ("b", told("b")))

    assert found.status is JobStatus.FAILED
    assert "node a was rebooted" in found.reason


def test_a_silent_node_is_named_and_nothing_is_made_up() -> None:
    """What is known stays RUNNING."""
    found = job(("a", told("a", queue=QUEUE)), away={"b": "no route"})

    assert found.status is JobStatus.RUNNING
    assert found.unreachable == ("b",)


def test_a_job_that_nobody_watches_over_is_not_said_to_run() -> None:
    """The keeper is gone for longer than systemd needs to start it anew."""
    found = job(("a", told("a", queue=QUEUE, keeper="gone")), ("b", told("b")))

    assert found.status is JobStatus.FAILED
    assert "nothing watches over it on a" in found.reason


def test_a_start_under_way_is_pending() -> None:
    """No keeper has it yet."""
    found = job(("a", told("a", "Pending", queue=QUEUE, keeper="none")))

    assert (found.status, found.reason) == (JobStatus.PENDING, STARTING)


def test_a_start_that_reached_some_of_its_nodes_only_waits_to_begin_anew() -> None:
    """Whoever made it is gone: the keepers that came have given up, and the job is not said to have failed."""
    handed = {**QUEUE, "handed": True}
    gave_up = {"status": "FAILED", "reason": "node b does not answer", "exit_code": 1, "ended": 150.0}
    none = told("b", "Pending", keeper="none")

    half = job(("a", told("a", queue=handed, keeper="gone", result=gave_up)), ("b", none))
    assert (half.status, half.reason) == (JobStatus.PENDING, STARTING)
    nowhere = job(("a", told("a", "Pending", queue=handed, keeper="none")), ("b", none))
    assert (nowhere.status, nowhere.reason) == (JobStatus.PENDING, STARTING)
    alive = job(("a", told("a", "Pending", queue=handed)), ("b", none))
    assert alive.reason != STARTING
    stopped = job(("a", told("a", "Pending", queue={**handed, "state": "stopped"}, keeper="none")), ("b", none))
    assert stopped.status is JobStatus.STOPPED


@pytest.mark.parametrize("deleted", [False, True])
def test_a_job_is_stopping_until_all_of_its_nodes_have_confirmed(*, deleted: bool) -> None:
    """A silent node confirms nothing, neither does one with an unfinished part; a record left confirms no deletion."""
    ended = {"status": "STOPPED", "reason": "stopped by me", "exit_code": 143, "ended": 150.0}
    queue = {**QUEUE, "state": "stopped", "nodes": ["a", "b"], "unconfirmed": ["a", "b"], "deleted": deleted}
    queue["reason"] = "stopped by me"
    head = told("a", queue=queue, result=ended)

    silent = job(("a", head), away={"b": "no route"})
    assert (silent.status, silent.unconfirmed, silent.silent) == (JobStatus.STOPPING, ("b",), ("b",))
    assert silent.reason == "stopped by me; not confirmed by b"
    assert (silent.exit_code, silent.ended, silent.deleting) == (None, 0.0, deleted)
    running = job(("a", head), ("b", told("b")))
    assert (running.status, running.unconfirmed, running.silent) == (JobStatus.STOPPING, ("b",), ())
    prepared = job(("a", head), ("b", told("b", "Pending", keeper="none")))
    assert prepared.status is JobStatus.STOPPING, "a start that goes on may still start it"
    over = job(("a", head), ("b", told("b", result=ended)))
    assert over.status is (JobStatus.STOPPING if deleted else JobStatus.STOPPED)
    other = told("b", id="2", submitted=1.0)
    assert job(("a", head), ("b", other)).status is JobStatus.STOPPED, "that is another job"


def test_a_job_that_has_succeeded_keeps_its_result_while_its_deletion_is_not_confirmed() -> None:
    """Whoever waits for the job gets its exit code; a silent node has nothing left to run."""
    ended = {"status": "SUCCEEDED", "exit_code": 0, "ended": 150.0}
    queue = {**QUEUE, "state": "stopped", "nodes": ["a", "b"], "unconfirmed": ["a", "b"], "deleted": True}

    found = job(("a", told("a", queue=queue, result=ended)), away={"b": "no route"})

    assert (found.status, found.exit_code, found.deleting) == (JobStatus.SUCCEEDED, 0, True)
    assert found.unconfirmed == ("b",)


@pytest.mark.parametrize("state", ["started", "over", "stopped"])
@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED"])
def test_a_recorded_result_is_known_while_no_node_of_the_job_answers(state: str, status: str) -> None:
    """It says of a job that has ended neither that it runs nor that it is stopping; the silent node is named."""
    first = {"first_failure": "dist-worker-0", "first_rank": 1} if status == "FAILED" else {}
    result = {"status": status, "reason": "rank 1 exited with 3", "exit_code": 3, "ended": 150.0, **first}
    more = {"unconfirmed": ["b"], "deleted": True} if state == "stopped" else {}
    queue = {**QUEUE, "state": state, "nodes": ["b"], "result": result, **more}
    head = told("a", attempt=0, attempt_record=None, instances={}, queue=queue)

    found = job(("a", head), away={"b": "no route"})

    assert (found.status, found.exit_code, found.ended, found.attempt) == (JobStatus(status), 3, 150.0, 1)
    assert (found.unreachable, found.unrecorded) == (("b",), False)
    assert {name: item.exit_code for name, item in found.instances.items()} == ({"dist-worker-0": 3} if first else {})
    assert (found.unconfirmed, found.silent) == ((("b",), ("b",)) if more else ((), ()))


def test_a_failed_job_of_which_a_node_still_runs_a_part_is_stopping() -> None:
    """A recorded result does not hide what runs."""
    result = {"status": "FAILED", "exit_code": 3, "ended": 150.0}
    queue = {**QUEUE, "state": "stopped", "nodes": ["a", "b"], "unconfirmed": ["a", "b"], "result": result}

    assert job(("a", told("a", queue=queue, result=result)), ("b", told("b"))).status is JobStatus.STOPPING


def test_only_a_result_that_cannot_change_is_recorded() -> None:
    """A job that its nodes seem to have lost may turn out to run; a retry is another attempt."""
    result = {"status": "FAILED", "exit_code": 3, "ended": 150.0}
    whole = ("b", told("b", "Error", result=result))
    failed = job(("a", told("a", queue=QUEUE, result=result)), whole)
    assert failed.unrecorded
    assert result_of(failed) is not None
    assert not job(("a", told("a", queue={**QUEUE, "result": result}, result=result)), whole).unrecorded
    assert not job(("a", told("a", queue={**QUEUE, "retry": 1}, result=result)), whole).unrecorded
    assert result_of(job(("a", told("a", queue=QUEUE, result=result)), away={"b": "no route"})) is None
    assert result_of(job(("a", told("a", queue=QUEUE, keeper="gone")), ("b", told("b", keeper="gone")))) is None


def test_a_job_that_was_stopped_without_the_queue_host_is_stopping() -> None:
    """Its nodes that answer have ended; the queue host has a part too, and cannot confirm."""
    ended = {"status": "FAILED", "reason": "stopped by me", "exit_code": 143, "ended": 150.0}
    assignments = told("b")["attempt_record"]["seats"]

    found = job(("b", told("b", result=ended, stopping=True)), away={"a": "no route"})

    assert {assignment["node"] for assignment in assignments} == {"a", "b"}
    assert (found.status, found.unconfirmed, found.exit_code) == (JobStatus.STOPPING, ("a",), None)


def test_a_stopped_job_that_runs_all_the_same_is_never_said_to_have_ended() -> None:
    """Whatever the list of the queue host says."""
    head = told("a", attempt=0, attempt_record=None, instances={}, queue={**QUEUE, "state": "stopped"})

    assert job(("a", head), ("b", told("b"))).status is JobStatus.STOPPING


def test_a_running_job_whose_name_another_job_has_is_listed_as_well() -> None:
    """It holds GPUs; one of which nothing runs is not."""
    new = told("a", queue=QUEUE)
    old = told("b", id="0", submitted=1.0)
    reports = [report(name, {"now": 200.0, "jobs": [one]}) for name, one in (("a", new), ("b", old))]

    assert {one.id: one.name_reused for one in records(reports, {}, "a").values()} == {"1": False, "0": True}
    (problem,) = contradictions(reports, "a")
    assert "another job dist (ID 0) runs there" in problem
    over = told("b", id="0", submitted=1.0, result={"status": "FAILED"})
    reports[1] = report("b", {"now": 200.0, "jobs": [over]})
    assert [one.id for one in records(reports, {}, "a").values()] == ["1"]


def test_a_job_whose_nodes_are_all_away_may_well_run() -> None:
    """It was handed to them; whoever took it for waiting would start it a second time."""
    handed = {**QUEUE, "handed": True, "nodes": ["b"]}
    alone = told("a", attempt=0, attempt_record=None, instances={}, queue=handed)

    away = job(("a", alone), away={"b": "no route"})
    assert (away.status, away.unreachable) == (JobStatus.RUNNING, ("b",))
    gone = job(("a", alone), ("c", {**told("b"), "id": "0"}))
    assert gone.status is JobStatus.FAILED
    assert "none of its nodes (b) knows of it" in gone.reason


def test_a_job_with_a_living_keeper_is_never_waiting() -> None:
    """Whatever somebody has written into the queue meanwhile."""
    found = job(("a", told("a", queue={"state": "pending", "attempt": 1})), ("b", told("b")))

    assert found.status is JobStatus.RUNNING


def test_what_waits_says_why() -> None:
    """The reason is what the queue has written down."""
    waiting = told("a", attempt=0, attempt_record=None, instances={}, queue={"state": "pending", "reason": "2 GPUs"})
    held = told("a", attempt=0, attempt_record=None, instances={}, queue={"state": "held", "reason": "held"})

    assert (job(("a", waiting)).status, job(("a", waiting)).reason) == (JobStatus.PENDING, "2 GPUs")
    assert job(("a", held)).status is JobStatus.QUEUING


def test_a_job_with_tries_left_is_not_over() -> None:
    """Until the last try has failed it is PENDING, with what happened; one that was stopped is not tried again."""
    failed = {"status": "FAILED", "reason": "exit code 3", "exit_code": 3, "ended": 150.0}
    left = told("a", result=failed, queue={**QUEUE, "retry": 2, "failures": 1})
    none = told("a", result=failed, queue={**QUEUE, "retry": 2, "failures": 2})
    stopped = told("a", result=failed, queue={**QUEUE, "retry": 2, "failures": 1, "state": "stopped"})

    assert (job(("a", left)).status, job(("a", left)).retrying) == (JobStatus.PENDING, True)
    assert "attempt 1 failed: exit code 3" in job(("a", left)).reason
    assert job(("a", none)).status is JobStatus.FAILED
    assert job(("a", stopped)).retrying is False
    last = told("b", attempt=2, result=failed, spec={**as_document(SPEC), "retry": 1})
    first = told("b", result=failed, spec={**as_document(SPEC), "retry": 1})
    away = {"a": "no route"}
    assert (job(("b", first), away=away).retrying, job(("b", last), away=away).retrying) == (True, False), (
        "the queue is on a"
    )


def test_an_older_job_of_the_same_name_on_a_node_that_was_away_is_another_job() -> None:
    """The head's job is the one that counts."""
    old = told("b", id="0", submitted=1.0, result={"status": "FAILED", "reason": "old"})
    found = job(("a", told("a", queue=QUEUE)), ("b", old))

    assert found.id == "1"
    assert found.status is not JobStatus.SUCCEEDED
    assert "old" not in found.reason


def test_nonsense_of_a_node_is_left_out() -> None:
    """A node cannot break the list of all others' jobs."""
    good = report("a", {"now": 1, "jobs": [told("a", queue=QUEUE)], "leases": {"GPU-a": {"id": "1"}}})
    odd: list[Any] = [{"name": "x", "id": "1", "spec": {"gpus": "many"}}, "?", {"name": 3}, {"name": "y", "id": "-o"}]
    bad = report("b", {"jobs": [*odd, {"name": "well", "id": "2"}]})

    found = records([good, bad], {}, "a")

    assert set(found) == {"dist", "well"}
    assert found["dist"].allocations == {"a": ("GPU-a",)}
    messages = contradictions([good, bad], "a")
    assert [text.partition(" is ignored")[0] for text in messages] == [
        "b: job x",
        "b: job without a valid name",
        "b: job without a valid name",
        "b: job y",
    ]


def test_a_malformed_answer_is_that_node_s_error() -> None:
    """It names the node and the request; nothing else is raised."""
    for document in (["no"], {"jobs": "none"}, {"leases": ["no"]}, {"now": "NaN"}, {"now": -1}):
        with pytest.raises(InvalidDocument) as caught:
            report("b", document)
        assert caught.value.node == "b"
    with pytest.raises(InvalidDocument):
        decode('{"now": NaN}', ReportAnswer, node="b", what="answer")


def test_only_the_head_says_how_a_job_stands_in_the_queue() -> None:
    """Another node that claims to keep the queue, or an attempt that it was never given, changes nothing."""
    queue = {**QUEUE, "nodes": ["a", "b"]}
    ended = {"status": "SUCCEEDED", "ended": 150.0}
    for claim in (
        told("b", queue={"state": "failed", "attempt": 1, "reason": "forged"}),
        told("b", attempt=999, result=ended),
        told("b", id="2", submitted=1e9, owner="mallory@b", result=ended),
    ):
        found = job(("a", told("a", queue=queue)), ("b", claim))
        assert (found.id, found.owner, found.attempt) == ("1", "me@here", 1)
        assert found.status in {JobStatus.RUNNING, JobStatus.FAILED}
        assert "forged" not in found.reason
    stranger = told("b", result=ended, keeper="gone")
    found = job(("a", told("a", queue=queue)), ("b", told("b")), ("c", stranger))
    assert found.status is JobStatus.RUNNING
    reports = [report(name, {"jobs": [one]}) for name, one in (("a", told("a", queue=queue)), ("c", stranger))]
    assert contradictions(reports, "a") == [
        "c: it reports attempt 1 of dist; this is ignored, as a gave attempt 1 to a, b"
    ]


HOSTILE = JobSpec("dist", Kind.PYTORCH, ("x",), image="i", gpus=1, workers=3)
ASSIGNMENTS_OF_THREE = assignments_of(HOSTILE, tuple(Place(name, f"10.0.0.{at}") for at, name in enumerate("abc")))
PLACES_OF_THREE = {assignment.instance: assignment.node for assignment in ASSIGNMENTS_OF_THREE}


def of_three(
    node: str, *, assignments: Any = ASSIGNMENTS_OF_THREE, record: dict[str, Any] | None = None, **more: Any
) -> Any:
    """Return what a node tells of a job of three nodes: `a` has rank 0; `q` is the head and has no part in it."""
    if node == "q":
        queue = {**QUEUE, "nodes": ["a", "b", "c"], "places": PLACES_OF_THREE, "handed": True}
        return told(
            "a", attempt=0, attempt_record=None, instances={}, queue=queue, spec=as_document(HOSTILE), keeper="none"
        )
    about = {
        "seats": [assignment_document(one) for one in assignments],
        "boot_id": "boot",
        "time": 100.0,
        **(record or {}),
    }
    own = {
        assignment.instance: {"instance": assignment.instance, "status": "Running"}
        for assignment in ASSIGNMENTS_OF_THREE
        if assignment.node == node
    }
    return {**told("a"), "spec": {}, "owner": None, "attempt_record": about, "instances": own, **more}


def three(*reports: tuple[str, Any], away: dict[str, str] | None = None) -> JobRecord:
    """Return the job that these nodes tell of, whose head is `q`."""
    made = [report(node, {"now": 200.0, "jobs": [document]}) for node, document in (("q", of_three("q")), *reports)]
    return records(made, away or {}, "q")["dist"]


@pytest.mark.parametrize("order", ["abc", "bac", "cba"])
def test_a_node_says_nothing_of_other_nodes_ranks(order: str) -> None:
    """Whichever node is first: a claim of another's rank, of the leader, of an end or of what started is ignored."""
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
    hostile = of_three("b", assignments=more, record=lies, instances=every, result=ended)
    documents = {"a": of_three("a", record={"code_sha": "a" * 40}), "b": hostile, "c": of_three("c")}
    found = three(*((name, documents[name]) for name in order))

    assert [
        (assignment.instance, assignment.node, assignment.rank, assignment.is_leader)
        for assignment in found.assignments
    ] == [
        ("dist-master-0", "a", 0, True),
        ("dist-worker-0", "b", 1, False),
        ("dist-worker-1", "c", 2, False),
    ]
    assert [assignment.address for assignment in found.assignments] == ["10.0.0.0", "", "10.0.0.2"]
    assert found.status is JobStatus.RUNNING
    assert {name: item.status for name, item in found.instances.items()} == {
        "dist-master-0": "Running",
        "dist-worker-0": "Completed",
        "dist-worker-1": "Running",
    }
    assert (found.code_sha, found.tensorboard, found.image_digest) == ("a" * 40, "", "")
    reports = [report(name, {"jobs": [document]}) for name, document in (("q", of_three("q")), ("b", hostile))]
    assert contradictions(reports, "q") == ["b: it reports that it has dist-master-0; this is ignored, as a has it"]


def test_a_node_that_lies_about_its_own_rank_is_still_placed_where_the_head_has_put_it() -> None:
    """Rank and leader follow from the instance's name."""
    lies = [
        replace(assignment, is_leader=True, rank=0) if assignment.node == "b" else assignment
        for assignment in ASSIGNMENTS_OF_THREE
    ]
    ended = {"status": "SUCCEEDED", "exit_code": 0, "ended": 150.0}
    found = three(("b", of_three("b", assignments=lies, result=ended)), ("a", of_three("a")), ("c", of_three("c")))

    assert [(assignment.node, assignment.rank, assignment.is_leader) for assignment in found.assignments] == [
        ("a", 0, True),
        ("b", 1, False),
        ("c", 2, False),
    ]
    assert found.status is JobStatus.RUNNING


def test_while_the_first_node_is_away_the_worst_result_of_the_others_counts_and_names_their_own_ranks_alone() -> None:
    """One node cannot make a failed job a success, nor blame another one."""
    good = {"status": "SUCCEEDED", "exit_code": 0, "ended": 150.0}
    bad = {
        "status": "FAILED",
        "exit_code": 3,
        "first_failure": "dist-worker-1",
        "first_rank": 2,
        "reason": "exit code 3",
    }
    away = {"a": "no route"}

    found = three(("b", of_three("b", result=good)), ("c", of_three("c", result=bad)), away=away)
    assert (found.status, found.exit_code, found.first_failure, found.first_rank) == (
        *(JobStatus.FAILED, 3),
        *("dist-worker-1", 2),
    )
    blamed = three(("b", of_three("b", result=bad)), ("c", of_three("c", result=good)), away=away)
    assert (blamed.status, blamed.first_failure, blamed.first_rank) == (JobStatus.FAILED, "", None)
    assert {assignment.node for assignment in found.assignments} == {"a", "b", "c"}
    assert found.unreachable == ("a",)


def test_a_node_of_an_earlier_attempt_says_nothing_of_this_one() -> None:
    """The head gave this attempt to other nodes."""
    queue = {**QUEUE, "nodes": ["a"], "attempt": 2, "places": {"dist-master-0": "a", "dist-worker-0": "a"}}
    assignments = [assignment_document(replace(assignment, node="a")) for assignment in ASSIGNMENTS]
    head = told("a", attempt=2, queue=queue, nodes=["a", "b"], attempt_record={"seats": assignments, "time": 100.0})
    forged = told("b", attempt=2, result={"status": "FAILED", "reason": "forged", "ended": 150.0})

    found = job(("a", head), ("b", forged))

    assert "forged" not in found.reason
    assert {assignment.node for assignment in found.assignments} == {"a"}
    reports = [report(name, {"jobs": [one]}) for name, one in (("a", head), ("b", forged))]
    assert contradictions(reports, "a") == [
        "b: it reports attempt 2 of dist; this is ignored, as a gave attempt 2 to a"
    ]


def test_places_of_a_next_attempt_do_not_count_for_the_one_before() -> None:
    """While the next start begins elsewhere, the nodes of the last attempt still report it."""
    queue = {**QUEUE, "attempt": 2, "nodes": ["c"], "places": {"dist-master-0": "c", "dist-worker-0": "c"}}
    found = job(("a", told("a", queue=queue, nodes=["a", "b", "c"])), ("b", told("b")))

    assert [(assignment.instance, assignment.node) for assignment in found.assignments] == [
        ("dist-master-0", "a"),
        ("dist-worker-0", "b"),
    ]
