"""One job from what all nodes report of it. The queue is the head's alone; others report their own part of a job."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replace_fields

from provision.batch.direct_record import DirectRecord
from provision.batch.endings import END_REQUESTED, has_part, is_accepted, unconfirmed_nodes
from provision.batch.reports import Report
from provision.documents.jobs import JobReport, QueueEntry, Result, spec_of
from provision.model.job import Assignment, InstanceRecord, JobRecord, JobSpec, JobStatus, Kind

__all__ = ["STARTING", "Report", "contradictions", "leases_by_job", "records", "result_of", "starting"]

STARTING = "its start has begun"
HANDING_SECONDS = 180.0
"""A keeper that is not there so long after its node was made ready will not come."""
SUPERVISOR_SECONDS = 20.0
"""systemd starts a keeper anew within this time."""

_MOST_NAMES = 8
_OVER = {"Completed", "Error", "Stopped", "Lost"}
_WAITING = {"pending", "held", "started"}
_WORST_FIRST = ("FAILED", "STOPPED", "SUCCEEDED")


JobParts = Sequence[tuple[Report, JobReport]]


def records(reports: Sequence[Report], unreachable: Mapping[str, str], head: str) -> dict[str, DirectRecord]:
    """Return the jobs by name.

    Args:
        reports: of the nodes that answered.
        unreachable: the other nodes, and why.
        head: the node that keeps the queue; what others report of queues is ignored.

    A job that still has a part on a node while the head has another job of that name has the key "NAME ID".
    """
    by_name: dict[str, list[tuple[Report, JobReport]]] = {}
    for report in sorted(reports, key=lambda one: one.node != head):
        for job in report.jobs:
            by_name.setdefault(job.name, []).append((report, job))
    held, answered = leases_by_job(reports), {report.node for report in reports}
    by_job: dict[str, DirectRecord] = {}
    for name, job_parts in by_name.items():
        record = _record(_of_newest(job_parts, head), unreachable, head, answered)
        by_job[name] = replace(record, allocations=held.get(record.id, {}))
        for other in _unlisted(job_parts, record.id):
            one = _record([(report, job) for report, job in job_parts if job.id == other], unreachable, head, answered)
            by_job[f"{name} {other}"] = replace(one, allocations=held.get(other, {}), name_reused=True)
    return by_job


def _unlisted(job_parts: JobParts, token: str) -> list[str]:
    """Return the ids of other jobs of a name that still have a part on a node: they hold GPUs, so they are listed."""
    return sorted({job.id for _, job in job_parts if job.id != token and has_part(job)})


def contradictions(reports: Sequence[Report], head: str) -> list[str]:
    """Return a message for each claim of another node than the head about the queue, or about a job that it has not.

    Such claims are ignored. A node whose job was deleted while it was away reports an old id: that is normal.
    """
    by_name = {job.name: job for report in reports if report.node == head for job in report.jobs}
    messages = [problem for report in reports for problem in report.problems]
    for report in reports:
        for job in report.jobs if report.node != head else ():
            if job.queue.state in _WAITING:
                messages.append(
                    f"{report.node}: it keeps a queue in which {job.name} is {job.queue.state}; this is ignored, as "
                    f"the queue is on {head} (cluster_head)"
                )
            known = by_name.get(job.name)
            if known is not None and known.id != job.id and has_part(job):
                messages.append(
                    f"{report.node}: another job {job.name} (ID {job.id}) runs there, which {head} does not know; "
                    f"`provision delete {job.id}` ends it"
                )
            if known is not None and known.queue.state and known.id == job.id and not _accepted(report, job, known):
                messages.append(
                    f"{report.node}: it reports attempt {job.attempt} of {job.name}; this is ignored, as {head} gave "
                    f"attempt {known.queue.attempt} to {', '.join(known.queue.nodes)}"
                )
            elif known is not None and job.id == known.id and job.attempt == known.queue.attempt:
                messages += _foreign_assignments(report.node, job, known)
    return messages


def _foreign_assignments(node: str, job: JobReport, of_head: JobReport) -> list[str]:
    """Return a message where a node says that it has an instance which the head has given to another node."""
    places = of_head.queue.places
    claimed = [
        assignment.instance
        for assignment in job.record.assignments
        if assignment.node == node and places.get(assignment.instance) != node
    ]
    if not places or not claimed:
        return []
    owner = places.get(claimed[0])
    truth = f"{owner} has it" if owner else f"{job.name} has no such instance"
    return [f"{node}: it reports that it has {claimed[0]}; this is ignored, as {truth}"]


def _of_newest(job_parts: JobParts, head: str) -> JobParts:
    """Return the reports of one job; a node that was away when an older job of its name was deleted still has that."""
    of_head = next((job for report, job in job_parts if report.node == head), None)
    newest = of_head or max((job for _, job in job_parts), key=lambda job: job.submitted or 0.0)
    same = [(report, job) for report, job in job_parts if job.id == newest.id]
    if of_head is None or not of_head.queue.state:
        return same
    return [(report, job) for report, job in same if job is of_head or _accepted(report, job, of_head)]


def _accepted(report: Report, job: JobReport, of_head: JobReport) -> bool:
    return is_accepted(report.node, job, of_head)


def leases_by_job(reports: Sequence[Report]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return job id -> node -> UUIDs of the GPUs that are held for it."""
    by_node: dict[str, dict[str, tuple[str, ...]]] = {}
    for report in reports:
        for uuid, lease in report.answer.leases.items():
            held = by_node.setdefault(lease.id, {})
            held[report.node] = (*held.get(report.node, ()), uuid)
    return by_node


def starting(queue: QueueEntry, current: JobParts) -> bool:
    """Whether a start has begun that has not handed the job to the keepers of all its nodes yet.

    A node without one is none of a job that runs: then the start still goes on, or whoever began it is gone.
    """
    begun = [job for _, job in current if job.attempt == queue.attempt]
    if queue.state != "started" or any(job.supervisor == "active" for job in begun):
        return False
    was_handed_over = any(job.supervisor != "none" or job.result for job in begun) or queue.handed
    return not was_handed_over or any(job.supervisor == "none" and not _rebooted(job) for job in begun)


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
        unsupervised=tuple(report.node for report, job in current if _watched_by_none(job)),
        nodes=next((tuple(job.nodes) for report, job in job_parts if report.node == head), ()),
        signed=first.signed,
        signature=first.signature,
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
        return _stopping(judged, queue, left, answered)
    if head not in answered and record.unreachable and judged.status.over and any(job.stopping for _, job in current):
        # A stop that the queue host could not record: its own nodes have confirmed it, the silent ones have not.
        return _stopping(judged, QueueEntry(reason=judged.reason), record.unreachable, answered)
    if not judged.reason or queue.state not in {"pending", "held"} or judged.reason != queue.reason:
        return judged
    tried = max((report.tried for report, _ in job_parts if report.node == head), default=0.0)
    return replace(judged, reason_time=max(queue.time, tried))


def result_of(record: JobRecord) -> Result | None:
    """Return the final result of a job, for the queue host to record; None where it may still change.

    A job is FAILED without the time of its end when its nodes only seem to have lost it.
    """
    has_failed = record.status is JobStatus.FAILED and bool(record.ended) and not record.unreachable
    if record.status is JobStatus.SUCCEEDED or has_failed:
        first = record.instances.get(record.first_failure)
        return Result(
            status="SUCCEEDED" if record.status is JobStatus.SUCCEEDED else "FAILED",
            reason=record.reason or None,
            exit_code=(first and first.exit_code) or record.exit_code,
            first_failure=record.first_failure or None,
            first_rank=record.first_rank,
            ended=record.ended,
        )
    return None


def _first_failure(result: Result) -> dict[str, InstanceRecord]:
    """Return what a recorded result says of the instance that failed first."""
    name = result.first_failure
    return {name: InstanceRecord(name, "Error", exit_code=result.exit_code)} if name else {}


def _keeps_result(record: DirectRecord, queue: QueueEntry, parts: Sequence[JobReport]) -> bool:
    """Return whether a job ended before its end was requested: it keeps its result until all nodes have confirmed."""
    known = queue.result is not None and queue.result.status == record.status
    return record.status is JobStatus.SUCCEEDED or (known and not any(map(has_part, parts)))


def _stopping(
    record: DirectRecord, queue: QueueEntry, left: tuple[str, ...], answered: Collection[str]
) -> DirectRecord:
    """Return a job whose end is requested and that may still run on some nodes; its result may still change."""
    return replace(
        record,
        status=JobStatus.STOPPING,
        reason=f"{queue.reason or 'its end is requested'}; not confirmed by {_names(left)}",
        unconfirmed=left,
        silent=tuple(node for node in left if node not in answered),
        deleting=queue.deleted,
        retrying=False,
        starting=False,
        ended=0.0,
        exit_code=None,
    )


def _names(nodes: Sequence[str]) -> str:
    """Return node names for a sentence; of very many nodes the first ones."""
    more = f" and {len(nodes) - _MOST_NAMES} more" if len(nodes) > _MOST_NAMES else ""
    return ", ".join(nodes[:_MOST_NAMES]) + more


def _assignments(spec: JobSpec, current: JobParts, queue: QueueEntry) -> tuple[Assignment, ...]:
    """Return the instances of an attempt: each node's own, and of nodes that do not report those that others name.

    Where the head has recorded who has which instance, it is these, and a node cannot claim another one.
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


def _watched_by_none(job: JobReport) -> bool:
    return job.supervisor == "gone" and not job.result


def _judged(record: DirectRecord, queue: QueueEntry, current: JobParts, unreachable: Mapping[str, str]) -> DirectRecord:
    """Say how the job stands: what its queue says before an attempt, what its nodes say of the last attempt."""
    state, reason = queue.state, queue.reason
    if queue.result is not None and record.attempt <= queue.attempt and _result(record, current) is None:
        away = tuple(name for name in queue.nodes if name in unreachable)
        ended = _ended(record, queue.result)
        known = {**_first_failure(queue.result), **record.instances}
        return replace(ended, attempt=queue.attempt, unreachable=away, instances=known)
    if state == END_REQUESTED and not any(job.supervisor == "active" or job.result for _, job in current):
        return replace(record, status=JobStatus.STOPPED, reason=reason, ended=queue.time)
    if state == "failed":
        return replace(record, status=JobStatus.FAILED, reason=reason, ended=queue.time, exit_code=1)
    live = any(job.supervisor == "active" and not job.result for _, job in current)
    if not live and (state in {"pending", "held"} or starting(queue, current)):
        status = JobStatus.QUEUING if state == "held" else JobStatus.PENDING
        begun = state == "started"
        return replace(record, status=status, reason=STARTING if begun else reason, starting=begun)
    if not current:
        return _out_of_sight(record, queue, unreachable)
    return _of_nodes(record, queue, current, unreachable)


def _of_nodes(
    record: DirectRecord, queue: QueueEntry, current: JobParts, unreachable: Mapping[str, str]
) -> DirectRecord:
    """Judge an attempt by what its nodes tell of it."""
    result = _result(record, current)
    lost = "" if result is not None else _lost(record, current, unreachable)
    if result is not None:
        record = _ended(record, result)
    elif lost:
        record = replace(record, status=JobStatus.FAILED, reason=lost, exit_code=1)
    else:
        return _alive(record)
    again = _may_retry(queue) if queue.state or not unreachable else _has_tries(record)
    if record.status is JobStatus.FAILED and again:
        failure = f"attempt {record.attempt} failed: {record.reason}"
        reason = f"{failure}; it is to be tried again"
        return replace(record, status=JobStatus.PENDING, retrying=True, reason=reason, last_failure=failure)
    return record


def _out_of_sight(record: DirectRecord, queue: QueueEntry, unreachable: Mapping[str, str]) -> DirectRecord:
    """Judge a job that was handed to nodes of which none tells of it now: it may well run."""
    away = tuple(name for name in queue.nodes if name in unreachable)
    if queue.nodes and not away:
        names = ", ".join(queue.nodes)
        why = f"none of its nodes ({names}) knows of it any more, or they are not in this inventory"
        return replace(record, status=JobStatus.FAILED, reason=why, exit_code=1)
    why = f"none of its nodes answers: {', '.join(away) or 'which they are is not known'}"
    return replace(record, status=JobStatus.RUNNING, reason=why, unreachable=away)


def _may_retry(queue: QueueEntry) -> bool:
    return queue.state == "started" and queue.failures < queue.retry


def _has_tries(record: DirectRecord) -> bool:
    """Whether tries are left of a job whose queue is on a node that does not answer: no attempt fails twice."""
    return record.attempt - 1 < record.spec.retry


def _result(record: DirectRecord, current: JobParts) -> Result | None:
    """Return how the attempt ended: as the leader reports it, else as other nodes do if the leader cannot report.

    Of the others the worst result counts, and each of them names instances of its own alone.
    """
    place = {assignment.instance: assignment.node for assignment in record.assignments}
    results = {report.node: job.result for report, job in current if job.result is not None}
    leader = next((assignment.node for assignment in record.assignments if assignment.is_leader), "")
    if leader in results:
        return results[leader]
    rebooted = any(report.node == leader and _rebooted(job) for report, job in current)
    gone = not leader or leader in record.unreachable or rebooted
    others = [_own_part(result, node, place) for node, result in results.items() if not place or node in place.values()]
    return min(others, key=lambda result: _WORST_FIRST.index(result.status)) if gone and others else None


def _own_part(result: Result, node: str, place: Mapping[str, str]) -> Result:
    """Return a node's result without what it says of other nodes' instances."""
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
        ended=result.ended,
        exit_code=result.exit_code,
        first_failure=result.first_failure or "",
        first_rank=result.first_rank,
    )


def _lost(record: DirectRecord, current: JobParts, unreachable: Mapping[str, str]) -> str:
    """Return why an attempt without a result cannot come to one."""
    for report, job in current:
        if _rebooted(job):
            return f"node {report.node} was rebooted during the job"
    reporting = {report.node for report, _ in current}
    forgotten = [
        assignment.node
        for assignment in record.assignments
        if assignment.node not in reporting and assignment.node not in unreachable
    ]
    if forgotten:
        return f"node {forgotten[0]} knows nothing of it any more"
    never = all(job.supervisor == "none" for _, job in current)
    if never and all(_since(report, job) > HANDING_SECONDS for report, job in current):
        return "its start was broken off before anything ran"
    old = [report.node for report, job in current if _watched_by_none(job) and _since(report, job) > SUPERVISOR_SECONDS]
    return f"nothing watches over it on {', '.join(old)}" if old else ""


def _since(report: Report, job: JobReport) -> float:
    return report.now - job.record.time


def _alive(record: DirectRecord) -> DirectRecord:
    """As arena's users were told wrongly: a job of which any instance does not run yet is not RUNNING."""
    behind = [name for name, item in record.instances.items() if item.status not in {"Running", *_OVER}]
    nodes = {assignment.instance: assignment.node for assignment in record.assignments}
    away = [name for name in behind if nodes[name] not in record.unreachable]
    if away:
        first = record.instances[away[0]]
        return replace(record, status=JobStatus.PENDING, reason=f"{away[0]} is {first.status} {first.reason}".rstrip())
    return replace(record, status=JobStatus.RUNNING)
