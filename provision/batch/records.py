"""Combine the reports of all nodes about a job into one record.

Only the queue host reports the queue; other nodes report their own part of a job. A record has the message of a reason
where one was recorded; `provision/report/job_reasons.py` renders the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replace_fields

from provision.batch.direct_record import DirectRecord
from provision.batch.reasons import NODE_FAULTS, RESULT_CODES
from provision.batch.reports import Report
from provision.batch.requested_ends import END_REQUESTED, has_part, is_accepted, unconfirmed_nodes
from provision.documents.jobs import JobReport, QueueEntry, Result, spec_of
from provision.model.job import Assignment, InstanceRecord, JobRecord, JobSpec, JobStatus, Kind
from provision.model.reason import NO_REASON, Reason, Value, reason

__all__ = ["Report", "contradictions", "is_starting", "leases_by_job", "records", "result_of"]

START_SECONDS = 180.0
"""The time from the preparation of a node to the start of its job supervisor."""
SUPERVISOR_SECONDS = 20.0
"""systemd restarts a job supervisor within this time."""

_ENDED = {"Completed", "Error", "Stopped", "Lost"}
_WAITING = {"pending", "held", "started"}
_WORST_FIRST = ("FAILED", "STOPPED", "SUCCEEDED")


JobParts = Sequence[tuple[Report, JobReport]]


def records(reports: Sequence[Report], unreachable: Mapping[str, str], head: str) -> dict[str, DirectRecord]:
    """Return the jobs by name; reports of other nodes than `head`, the queue host, about queues are ignored.

    The key is "NAME ID" for a job with an unfinished part on a node if the queue host has another job of that name.
    """
    by_name: dict[str, list[tuple[Report, JobReport]]] = {}
    for report in sorted(reports, key=lambda one: one.node != head):
        for job in report.jobs:
            by_name.setdefault(job.name, []).append((report, job))
    leases, answered = leases_by_job(reports), {report.node for report in reports}
    by_job: dict[str, DirectRecord] = {}
    for name, job_parts in by_name.items():
        record = _record(_of_newest(job_parts, head), unreachable, head, answered)
        by_job[name] = replace(record, allocations=leases.get(record.id, {}))
        for other in _unlisted(job_parts, record.id):
            one = _record([(report, job) for report, job in job_parts if job.id == other], unreachable, head, answered)
            by_job[f"{name} {other}"] = replace(one, allocations=leases.get(other, {}), name_reused=True)
    return by_job


def _unlisted(job_parts: JobParts, token: str) -> list[str]:
    """Return the ids of other jobs of a name that still have a part on a node: they have leases of GPUs."""
    return sorted({job.id for _, job in job_parts if job.id != token and has_part(job)})


def contradictions(reports: Sequence[Report], head: str) -> list[str]:
    """Return a message for each ignored claim of a node about the queue, or about a job that it does not have.

    An old ID without an unfinished part is no contradiction: the job was deleted while its node did not answer.
    """
    by_name = {job.name: job for report in reports if report.node == head for job in report.jobs}
    messages = [problem for report in reports for problem in report.problems]
    for report in reports:
        for job in report.jobs if report.node != head else ():
            if job.queue.state in _WAITING:
                messages.append(
                    f"{report.node}: it reports a queue in which {job.name} is {job.queue.state}; this is ignored, "
                    f"because the queue is on {head} (cluster_head)"
                )
            known = by_name.get(job.name)
            if known is not None and known.id != job.id and has_part(job):
                messages.append(
                    f"{report.node}: another job {job.name} (ID {job.id}), of which {head} has no record, runs there; "
                    f"`provision delete {job.id}` ends it"
                )
            if known is not None and known.queue.state and known.id == job.id and not _accepted(report, job, known):
                messages.append(
                    f"{report.node}: it reports attempt {job.attempt} of {job.name}; this is ignored, because {head} "
                    f"assigned attempt {known.queue.attempt} to {', '.join(known.queue.nodes)}"
                )
            elif known is not None and job.id == known.id and job.attempt == known.queue.attempt:
                messages += _foreign_assignments(report.node, job, known)
    return messages


def _foreign_assignments(node: str, job: JobReport, of_head: JobReport) -> list[str]:
    """Return a message if a node reports an instance that the queue host has assigned to another node."""
    places = of_head.queue.places
    claimed = [
        assignment.instance
        for assignment in job.record.assignments
        if assignment.node == node and places.get(assignment.instance) != node
    ]
    if not places or not claimed:
        return []
    owner = places.get(claimed[0])
    truth = f"it is assigned to {owner}" if owner else f"{job.name} has no such instance"
    return [f"{node}: it reports {claimed[0]}; this is ignored, because {truth}"]


def _of_newest(job_parts: JobParts, head: str) -> JobParts:
    """Return the reports of the newest job of a name; a node may still report an older, deleted one."""
    of_head = next((job for report, job in job_parts if report.node == head), None)
    newest = of_head or max((job for _, job in job_parts), key=lambda job: job.submitted or 0.0)
    same = [(report, job) for report, job in job_parts if job.id == newest.id]
    if of_head is None or not of_head.queue.state:
        return same
    return [(report, job) for report, job in same if job is of_head or _accepted(report, job, of_head)]


def _accepted(report: Report, job: JobReport, of_head: JobReport) -> bool:
    return is_accepted(report.node, job, of_head)


def leases_by_job(reports: Sequence[Report]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return job ID -> node -> UUIDs of its leased GPUs."""
    by_node: dict[str, dict[str, tuple[str, ...]]] = {}
    for report in reports:
        for uuid, lease in report.answer.leases.items():
            leased = by_node.setdefault(lease.id, {})
            leased[report.node] = (*leased.get(report.node, ()), uuid)
    return by_node


def is_starting(queue: QueueEntry, current: JobParts) -> bool:
    """Return whether a start has begun that has not started the job supervisors of all nodes yet.

    Without a job supervisor on a node the job does not run: its start continues, or was interrupted.
    """
    begun = [job for _, job in current if job.attempt == queue.attempt]
    if queue.state != "started" or any(job.supervisor == "active" for job in begun):
        return False
    is_supervised = any(job.supervisor != "none" or job.result for job in begun) or queue.supervised
    return not is_supervised or any(job.supervisor == "none" and not _rebooted(job) for job in begun)


def _record(job_parts: JobParts, unreachable: Mapping[str, str], head: str, answered: Collection[str]) -> DirectRecord:
    queue = next((job.queue for report, job in job_parts if report.node == head), QueueEntry())
    attempt = max(job.attempt for _, job in job_parts)
    current = [(report, job) for report, job in job_parts if job.attempt == attempt and attempt]
    first, source = job_parts[0][1], next(((report, job) for report, job in job_parts if job.spec), job_parts[0])
    spec = spec_of(source[1], source[0].node)
    assignments = _assignments(spec, current, queue)
    place = {assignment.instance: assignment.node for assignment in assignments}
    leader = next((assignment.node for assignment in assignments if assignment.is_leader), "")
    instances = {
        key: value for report, job in current for key, value in job.instances.items() if place.get(key) == report.node
    }
    record = DirectRecord(
        spec=spec,
        id=first.id,
        owner=first.owner or "",
        submitted=first.submitted or 0.0,
        status=JobStatus.PENDING,
        attempt=attempt,
        assignments=assignments,
        instances={
            assignment.instance: instances.get(assignment.instance, InstanceRecord(assignment.instance))
            for assignment in assignments
        },
        started=min((item.started for item in instances.values() if item.started), default=0.0),
        unreachable=tuple(
            dict.fromkeys(assignment.node for assignment in assignments if assignment.node in unreachable)
        ),
        events=tuple(sorted((event for _, job in job_parts for event in job.events), key=lambda event: event.time)),
        unsupervised=tuple(report.node for report, job in current if _is_unsupervised(job)),
        nodes=next((tuple(job.nodes) for report, job in job_parts if report.node == head), ()),
        signed=first.signed,
        signature=first.signature,
        starting_engine=queue.starting_engine if queue.state else "",
        **next((_of_attempt(job) for report, job in current if report.node == leader), {}),
    )
    judged = _judged(record, queue, current, unreachable)
    if queue.state == "started" and queue.result is None and result_of(judged) is not None:
        judged = replace(judged, unrecorded=True)
    parts = {report.node: job for report, job in job_parts}
    left = unconfirmed_nodes(queue, parts, answered, head)
    if left and _keeps_result(judged, queue, [parts[node] for node in left if node in parts]):
        silent = tuple(node for node in left if node not in answered)
        return replace(judged, unconfirmed=left, silent=silent, deleting=queue.deleted)
    if left:
        cause = queue.reason or reason("job.end_requested")
        return _stopping(judged, cause, left, answered, deleting=queue.deleted)
    if head not in answered and record.unreachable and judged.status.over and any(job.stopping for _, job in current):
        # A stop that the queue host could not record: the nodes that answer have confirmed it.
        cause = judged.reason or judged.cause
        return _stopping(judged, cause, record.unreachable, answered, deleting=False)
    if not judged.reason or queue.state not in {"pending", "held"} or judged.reason != queue.reason:
        return judged
    tried = max((report.tried for report, _ in job_parts if report.node == head), default=0.0)
    return replace(judged, reason_time=max(queue.time, tried))


def result_of(record: JobRecord) -> Result | None:
    """Return the final result of a job, for the queue host to record; None where it may still change.

    A job without an end time is FAILED because its nodes have lost it: they may report it again.
    """
    has_failed = record.status is JobStatus.FAILED and bool(record.ended) and not record.unreachable
    if record.status is JobStatus.SUCCEEDED or has_failed:
        first = record.instances.get(record.first_failure)
        return Result(
            status="SUCCEEDED" if record.status is JobStatus.SUCCEEDED else "FAILED",
            reason=record.reason or None,
            code=record.cause.code if record.reason else "",
            params=record.cause.as_document()["params"] if record.reason else {},
            exit_code=(first and first.exit_code) or record.exit_code,
            first_failure=record.first_failure or None,
            first_rank=record.first_rank,
            ended=record.ended,
        )
    return None


def _first_failure(result: Result) -> dict[str, InstanceRecord]:
    """Return the record of the instance that failed first, from a recorded result."""
    name = result.first_failure
    return {name: InstanceRecord(name, "Error", exit_code=result.exit_code)} if name else {}


def _keeps_result(record: DirectRecord, queue: QueueEntry, parts: Sequence[JobReport]) -> bool:
    """Return whether a job ended before its end was requested: it keeps its result until all nodes have confirmed."""
    known = queue.result is not None and queue.result.status == record.status
    return record.status is JobStatus.SUCCEEDED or (known and not any(map(has_part, parts)))


def _stopping(
    record: DirectRecord, cause: Value, left: tuple[str, ...], answered: Collection[str], *, deleting: bool
) -> DirectRecord:
    """Return a job whose end is requested and that may still run on some nodes; its result may still change."""
    return replace(
        record,
        status=JobStatus.STOPPING,
        reason="",
        cause=reason("job.end_unconfirmed", cause=cause, nodes=left),
        unconfirmed=left,
        silent=tuple(node for node in left if node not in answered),
        deleting=deleting,
        retrying=False,
        starting=False,
        ended=0.0,
        exit_code=None,
    )


def _assignments(spec: JobSpec, current: JobParts, queue: QueueEntry) -> tuple[Assignment, ...]:
    """Return the instances of an attempt: of each node its own, and of silent nodes those that others report.

    The assignments that the queue host has recorded override the reports.
    """
    places = queue.places if any(job.attempt == queue.attempt for _, job in current) else {}
    reporting = {report.node for report, _ in current}
    by_instance = {
        assignment.instance: assignment
        for report, job in reversed(current)
        for assignment in job.record.assignments
        if assignment.node == report.node and (not places or places.get(assignment.instance) == assignment.node)
    }
    for _, job in current:
        if places and by_instance.keys() >= places.keys():
            break
        for assignment in job.record.assignments:
            if assignment.node not in reporting and (not places or places.get(assignment.instance) == assignment.node):
                by_instance.setdefault(assignment.instance, assignment)
    for instance, node in places.items():
        by_instance.setdefault(instance, Assignment(instance, "", 0, node, "", 0, container=instance))
    assignments = (_with_rank(spec, assignment) for assignment in by_instance.values())
    return tuple(
        sorted(assignments, key=lambda assignment: (not assignment.is_leader, assignment.rank, assignment.instance))
    )


def _with_rank(spec: JobSpec, assignment: Assignment) -> Assignment:
    """Return an assignment with the role, rank and leadership of its instance name: no node decides them."""
    role, _, number = assignment.instance.removeprefix(f"{spec.name}-").partition("-")
    index = int(number) if role == "worker" and number.isdecimal() else 0
    rank = index + 1 if role == "worker" and spec.kind is Kind.PYTORCH else index
    leader = role in {"launcher", "master"} or (spec.kind is Kind.RUN and index == 0)
    return replace(assignment, role=role, index=index, rank=rank, is_leader=leader)


def _of_attempt(job: JobReport) -> dict[str, Any]:
    """Return what the node of rank 0 has recorded of an attempt's start."""
    values = {key: getattr(job.record, key) for key in ("code_sha", "image_digest", "tensorboard")}
    return {key: value for key, value in values.items() if value}


def _is_unsupervised(job: JobReport) -> bool:
    return job.supervisor == "gone" and not job.result


def _judged(record: DirectRecord, queue: QueueEntry, current: JobParts, unreachable: Mapping[str, str]) -> DirectRecord:
    """Return a job with its status: from the queue before an attempt, from the reports of its nodes afterwards."""
    state = queue.state
    if queue.result is not None and record.attempt <= queue.attempt and _result(record, current) is None:
        silent = tuple(name for name in queue.nodes if name in unreachable)
        ended = _ended(record, queue.result)
        known = {**_first_failure(queue.result), **record.instances}
        return replace(ended, attempt=queue.attempt, unreachable=silent, instances=known)
    recorded = replace(record, reason=queue.reason, cause=queue.cause)
    if state == END_REQUESTED and not any(job.supervisor == "active" or job.result for _, job in current):
        cause = reason("job.stopped", text=queue.reason)
        return replace(recorded, status=JobStatus.STOPPED, cause=cause, ended=queue.time)
    if state == "failed":
        return replace(recorded, status=JobStatus.FAILED, ended=queue.time, exit_code=1)
    is_alive = any(job.supervisor == "active" and not job.result for _, job in current)
    if not is_alive and state in {"pending", "held"}:
        return replace(recorded, status=JobStatus.QUEUING if state == "held" else JobStatus.PENDING)
    if not is_alive and is_starting(queue, current):
        return replace(record, status=JobStatus.PENDING, cause=reason("job.starting"), starting=True)
    return _of_nodes(record, queue, current, unreachable) if current else _without_reports(record, queue, unreachable)


def _of_nodes(
    record: DirectRecord, queue: QueueEntry, current: JobParts, unreachable: Mapping[str, str]
) -> DirectRecord:
    """Return a job with the status of its last attempt, as its nodes report it."""
    result = _result(record, current)
    loss = None if result is not None else _loss(record, current, unreachable)
    if result is not None:
        record = _ended(record, result)
    elif loss is not None:
        record = replace(record, status=JobStatus.FAILED, cause=loss, exit_code=1)
    else:
        return _ending(record, current) or _alive(record)
    again = _may_retry(queue) if queue.state or not unreachable else _has_tries(record)
    if record.status is JobStatus.FAILED and again:
        cause = record.reason or (record.cause if record.cause.code else "unknown cause")
        failure = reason("job.attempt_failed", attempt=record.attempt, cause=cause, cause_code=record.cause.code)
        return replace(
            record,
            status=JobStatus.PENDING,
            retrying=True,
            reason="",
            cause=reason("job.retry", failure=failure),
            failure=failure,
            failed_nodes=_failed_nodes(record, current),
        )
    return record


def _failed_nodes(record: DirectRecord, current: JobParts) -> tuple[str, ...]:
    """Return the nodes of an attempt that made it fail; none if the program failed."""
    nodes = record.cause.params.get("nodes") if record.cause.code in NODE_FAULTS else ()
    failed: set[Value] = set(nodes) if isinstance(nodes, tuple) else {nodes}
    if not failed and not record.first_failure:
        failed = {*record.unreachable, *(report.node for report, job in current if _rebooted(job))}
    return tuple(sorted({assignment.node for assignment in record.assignments if assignment.node in failed}))


def _without_reports(record: DirectRecord, queue: QueueEntry, unreachable: Mapping[str, str]) -> DirectRecord:
    """Return a started job of which no node reports an attempt: it may still run on nodes that do not answer."""
    silent = tuple(name for name in queue.nodes if name in unreachable)
    if queue.nodes and not silent:
        lost = reason("job.all_nodes_lost_job", nodes=queue.nodes)
        return replace(record, status=JobStatus.FAILED, cause=lost, exit_code=1)
    return replace(
        record, status=JobStatus.RUNNING, cause=reason("job.all_nodes_silent", nodes=silent), unreachable=silent
    )


def _may_retry(queue: QueueEntry) -> bool:
    return queue.state == "started" and queue.failures < queue.retry


def _has_tries(record: DirectRecord) -> bool:
    """Return whether retries remain, if the queue host does not answer: each attempt fails at most once."""
    return record.attempt - 1 < record.spec.retry


def _result(record: DirectRecord, current: JobParts) -> Result | None:
    """Return the result that the leader's node reports; if it cannot report, the worst result of the others.

    The results of other nodes name only instances of their own.
    """
    return _decisive(record, current, {report.node: job.result for report, job in current if job.result is not None})


def _decisive(record: DirectRecord, current: JobParts, results: Mapping[str, Result]) -> Result | None:
    place = {assignment.instance: assignment.node for assignment in record.assignments}
    leader = next((assignment.node for assignment in record.assignments if assignment.is_leader), "")
    if leader in results:
        return results[leader]
    rebooted = any(report.node == leader and _rebooted(job) for report, job in current)
    is_lost = not leader or leader in record.unreachable or rebooted
    others = [_own_part(result, node, place) for node, result in results.items() if not place or node in place.values()]
    return min(others, key=lambda result: _WORST_FIRST.index(result.status)) if is_lost and others else None


def _own_part(result: Result, node: str, place: Mapping[str, str]) -> Result:
    """Return a node's result without instances of other nodes."""
    if place.get(result.first_failure or "") == node:
        return result
    return replace_fields(result, first_failure=None, first_rank=None)


def _rebooted(job: JobReport) -> bool:
    return bool(job.boot_id) and bool(job.record.boot_id) and job.boot_id != job.record.boot_id


def _ended(record: DirectRecord, result: Result) -> DirectRecord:
    return replace(
        record,
        status=JobStatus(result.status),
        reason=result.reason or "",
        cause=_cause(result),
        ended=result.ended,
        exit_code=result.exit_code,
        first_failure=result.first_failure or "",
        first_rank=result.first_rank,
    )


def _cause(result: Result) -> Reason:
    """Return the recorded reason of a result; without a code, one that follows from its other fields."""
    if result.cause.code in RESULT_CODES:
        return result.cause
    if result.status == "STOPPED":
        return reason("job.stopped", text=result.reason or "")
    if result.first_failure and result.status == "FAILED":
        code, rank = result.exit_code, result.first_rank
        return reason("job.instance_failed", instance=result.first_failure, rank=rank, exit_code=code)
    return reason("job.unspecified", text=result.reason) if result.reason else NO_REASON


def _loss(record: DirectRecord, current: JobParts, unreachable: Mapping[str, str]) -> Reason | None:
    """Return why an attempt without a result will never have one; None if it may."""
    for report, job in current:
        if _rebooted(job):
            return reason("job.node_rebooted", nodes=[report.node])
    reporting = {report.node for report, _ in current}
    nodes = (assignment.node for assignment in record.assignments)
    lost = next((node for node in nodes if node not in reporting and node not in unreachable), None)
    if lost is not None:
        return reason("job.node_lost_job", nodes=[lost])
    never = all(job.supervisor == "none" for _, job in current)
    if never and all(_since(report, job) > START_SECONDS for report, job in current):
        return reason("job.start_interrupted")
    old = [report.node for report, job in current if _is_unsupervised(job) and _since(report, job) > SUPERVISOR_SECONDS]
    return reason("job.unsupervised", nodes=old) if old else None


def _since(report: Report, job: JobReport) -> float:
    return report.now - job.record.time


def _ending(record: DirectRecord, current: JobParts) -> DirectRecord | None:
    """Return a job whose failure is decided while its containers end; None if no failure is decided.

    The result of such a job follows when its part on each node has ended, also on nodes that do not answer.
    """
    endings = {report.node: job.ending for report, job in current if job.ending is not None}
    ending = _decisive(record, current, endings)
    if ending is None or ending.status != "FAILED":
        return None
    return replace(_ended(record, ending), status=JobStatus.STOPPING, ended=0.0, exit_code=None)


def _alive(record: DirectRecord) -> DirectRecord:
    """Return a job that is RUNNING, or PENDING until all instances run."""
    behind = [name for name, item in record.instances.items() if item.status not in {"Running", *_ENDED}]
    nodes = {assignment.instance: assignment.node for assignment in record.assignments}
    late = next((name for name in behind if nodes[name] not in record.unreachable), None)
    if late is None:
        return replace(record, status=JobStatus.RUNNING)
    item = record.instances[late]
    cause = reason("job.instance_starting", instance=late, status=item.status, detail=item.reason)
    return replace(record, status=JobStatus.PENDING, cause=cause)
