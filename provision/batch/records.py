"""One job from what all nodes tell of it. Nodes' answers are hostile input: what makes no sense is left out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provision.model.job import InstanceRecord, JobEvent, JobRecord, JobSpec, JobStatus, Kind, Seat, from_document

__all__ = ["STARTING", "Report", "leases_by_job", "records", "starting"]

STARTING = "its start has begun"
HANDING_SECONDS = 180.0
"""A keeper that is not there so long after its node was made ready will not come."""
KEEPER_SECONDS = 20.0
"""systemd starts a keeper anew within this time."""

_OVER = {"Completed", "Error", "Stopped", "Lost"}


@dataclass(frozen=True)
class Report:
    """What one node answered to ``report`` or ``look``."""

    node: str
    document: Mapping[str, Any]

    @property
    def now(self) -> float:
        """The node's clock."""
        return _number(self.document.get("now"))

    @property
    def tried(self) -> float:
        """When the last pass over the queue began that tried all that waits, by the clock of the head; 0: not known."""
        return _number(self.document.get("tried"))

    def jobs(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield name and what is told of each job."""
        found = self.document.get("jobs")
        for job in found if isinstance(found, list) else ():
            if isinstance(job, Mapping) and isinstance(job.get("name"), str):
                yield job["name"], job


def records(reports: Sequence[Report], unreachable: Mapping[str, str]) -> dict[str, JobRecord]:
    """Return the jobs by name.

    Args:
        reports: of the nodes that answered.
        unreachable: the other nodes, and why.
    """
    by_name: dict[str, list[tuple[Report, Mapping[str, Any]]]] = {}
    for report in reports:
        for name, job in report.jobs():
            by_name.setdefault(name, []).append((report, job))
    held = leases_by_job(reports)
    found: dict[str, JobRecord] = {}
    for name, told in by_name.items():
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, OverflowError):
            record = _record(name, _of_newest(told), unreachable)
            found[name] = replace(record, leases=held.get(record.id, {}))
    return found


def _of_newest(told: list[tuple[Report, Mapping[str, Any]]]) -> list[tuple[Report, Mapping[str, Any]]]:
    """Two jobs of one name at different times: a node that was away when the first was forgotten still has it."""
    head = next((job for _, job in told if job.get("queue")), None)
    newest = head or max((job for _, job in told), key=lambda job: _number(job.get("submitted")))
    return [(report, job) for report, job in told if job.get("id") == newest.get("id")]


def leases_by_job(reports: Sequence[Report]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return job id -> node -> UUIDs of the GPUs that are held for it."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for report in reports:
        leases = report.document.get("leases")
        for uuid, lease in leases.items() if isinstance(leases, Mapping) else ():
            if isinstance(lease, Mapping):
                held = found.setdefault(str(lease.get("id")), {})
                held[report.node] = (*held.get(report.node, ()), str(uuid))
    return found


def starting(queue: Mapping[str, Any], current: Sequence[tuple[Report, Mapping[str, Any]]]) -> bool:
    """Whether a start has begun that has not handed the job to the keepers of all its nodes yet.

    A node without one is none of a job that runs: then the start still goes on, or whoever began it is gone.
    """
    number = int(_number(queue.get("attempt")))
    begun = [job for _, job in current if int(_number(job.get("attempt"))) == number]
    if queue.get("state") != "started" or any(job.get("keeper") == "active" for job in begun):
        return False
    handed = any(job.get("keeper") != "none" or job.get("result") for job in begun) or queue.get("handed")
    return not handed or any(job.get("keeper") == "none" and not _rebooted(job) for job in begun)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _spec(name: str, job: Mapping[str, Any]) -> JobSpec:
    document = dict(job.get("spec") or {})
    document.setdefault("name", name)
    document.setdefault("kind", Kind.RUN)
    document.setdefault("command", [])
    return from_document(JobSpec, document)


def _record(name: str, told: list[tuple[Report, Mapping[str, Any]]], unreachable: Mapping[str, str]) -> JobRecord:
    queue: Mapping[str, Any] = next((job["queue"] for _, job in told if job.get("queue")), {})
    attempt = max(int(_number(job.get("attempt"))) for _, job in told)
    current = [(report, job) for report, job in told if int(_number(job.get("attempt"))) == attempt and attempt]
    seats = _seats(current)
    instances = {key: value for _, job in current for key, value in _instances(job)}
    first = told[0][1]
    record = JobRecord(
        spec=_spec(name, next((job for _, job in told if job.get("spec")), first)),
        id=str(first.get("id")),
        owner=str(first.get("owner", "")),
        submitted=_number(first.get("submitted")),
        status=JobStatus.PENDING,
        attempt=attempt,
        seats=seats,
        instances={seat.instance: instances.get(seat.instance, InstanceRecord(seat.instance)) for seat in seats},
        started=min((item.started for item in instances.values() if item.started), default=0.0),
        unreachable=tuple(dict.fromkeys(seat.node for seat in seats if seat.node in unreachable)),
        events=tuple(sorted(_events(told), key=lambda event: event.time)),
        keeper_lost=tuple(report.node for report, job in current if _watched_by_none(job)),
        nodes=next((tuple(map(str, job["nodes"])) for _, job in told if isinstance(job.get("nodes"), list)), ()),
        **_of_attempt(current),
    )
    judged = _judged(record, queue, current, unreachable)
    if not judged.reason or queue.get("state") not in {"pending", "held"} or judged.reason != queue.get("reason"):
        return judged
    tried = max((report.tried for report, job in told if job.get("queue")), default=0.0)
    return replace(judged, reason_time=max(_number(queue.get("time")), tried))


def _seats(current: Sequence[tuple[Report, Mapping[str, Any]]]) -> tuple[Seat, ...]:
    for _, job in current:
        found = (job.get("attempt_record") or {}).get("seats")
        if isinstance(found, list):
            return tuple(from_document(Seat, item) for item in found)
    return ()


def _instances(job: Mapping[str, Any]) -> Iterator[tuple[str, InstanceRecord]]:
    found = job.get("instances")
    for name, item in found.items() if isinstance(found, Mapping) else ():
        with contextlib.suppress(ValueError):
            yield str(name), from_document(InstanceRecord, item)


def _events(told: Sequence[tuple[Report, Mapping[str, Any]]]) -> Iterator[JobEvent]:
    for _, job in told:
        for item in job.get("events") or ():
            with contextlib.suppress(ValueError):
                yield from_document(JobEvent, item)


def _of_attempt(current: Sequence[tuple[Report, Mapping[str, Any]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _, job in current:
        record = job.get("attempt_record") or {}
        for key in ("code_sha", "image_digest", "tensorboard"):
            if isinstance(record.get(key), str) and record[key]:
                found.setdefault(key, record[key])
    return found


def _watched_by_none(job: Mapping[str, Any]) -> bool:
    return job.get("keeper") == "gone" and not job.get("result")


def _judged(
    record: JobRecord,
    queue: Mapping[str, Any],
    current: Sequence[tuple[Report, Mapping[str, Any]]],
    unreachable: Mapping[str, str],
) -> JobRecord:
    """Say how the job stands: what its queue says before an attempt, what its nodes say of the last attempt."""
    state, reason = str(queue.get("state", "")), str(queue.get("reason", ""))
    if state == "stopped" and not any(job.get("keeper") == "active" or job.get("result") for _, job in current):
        return replace(record, status=JobStatus.STOPPED, reason=reason, ended=_number(queue.get("time")))
    if state == "failed":
        return replace(record, status=JobStatus.FAILED, reason=reason, ended=_number(queue.get("time")), exit_code=1)
    live = any(job.get("keeper") == "active" and not job.get("result") for _, job in current)
    if not live and (state in {"pending", "held"} or starting(queue, current)):
        status = JobStatus.QUEUING if state == "held" else JobStatus.PENDING
        return replace(record, status=status, reason=STARTING if state == "started" else reason)
    if not current:
        return _out_of_sight(record, queue, unreachable)
    return _of_nodes(record, queue, current, unreachable)


def _of_nodes(
    record: JobRecord,
    queue: Mapping[str, Any],
    current: Sequence[tuple[Report, Mapping[str, Any]]],
    unreachable: Mapping[str, str],
) -> JobRecord:
    """Judge an attempt by what its nodes tell of it."""
    result = _result(record, current)
    lost = "" if result is not None else _lost(record, current, unreachable)
    if result is not None:
        record = _ended(record, result)
    elif lost:
        record = replace(record, status=JobStatus.FAILED, reason=lost, exit_code=1)
    else:
        return _alive(record)
    if record.status is JobStatus.FAILED and (_may_retry(queue) if queue or not unreachable else _has_tries(record)):
        reason = f"attempt {record.attempt} failed: {record.reason}; it is to be tried again"
        return replace(record, status=JobStatus.PENDING, again=True, reason=reason)
    return record


def _out_of_sight(record: JobRecord, queue: Mapping[str, Any], unreachable: Mapping[str, str]) -> JobRecord:
    """Judge a job that was handed to nodes of which none tells of it now: it may well run."""
    nodes = [str(name) for name in queue.get("nodes") or ()]
    away = tuple(name for name in nodes if name in unreachable)
    if nodes and not away:
        why = f"none of its nodes ({', '.join(nodes)}) knows of it any more, or they are not in this inventory"
        return replace(record, status=JobStatus.FAILED, reason=why, exit_code=1)
    why = f"none of its nodes answers: {', '.join(away) or 'which they are is not known'}"
    return replace(record, status=JobStatus.RUNNING, reason=why, unreachable=away)


def _may_retry(queue: Mapping[str, Any]) -> bool:
    return queue.get("state") == "started" and _number(queue.get("failures")) < _number(queue.get("retry"))


def _has_tries(record: JobRecord) -> bool:
    """Whether tries are left of a job whose queue is on a node that does not answer: no attempt fails twice."""
    return record.attempt - 1 < record.spec.retry


def _result(record: JobRecord, current: Sequence[tuple[Report, Mapping[str, Any]]]) -> Mapping[str, Any] | None:
    """Return how the attempt ended: as the chief saw it, else as another node did when the chief cannot tell."""
    found = {report.node: job["result"] for report, job in current if isinstance(job.get("result"), Mapping)}
    chief = next((seat.node for seat in record.seats if seat.chief), "")
    if chief in found:
        of_chief: Mapping[str, Any] = found[chief]
        return of_chief
    gone = chief in record.unreachable or any(report.node == chief and _rebooted(job) for report, job in current)
    return next(iter(found.values()), None) if gone else None


def _rebooted(job: Mapping[str, Any]) -> bool:
    record = job.get("attempt_record") or {}
    return bool(job.get("boot_id")) and bool(record.get("boot_id")) and job["boot_id"] != record["boot_id"]


def _ended(record: JobRecord, result: Mapping[str, Any]) -> JobRecord:
    status = str(result.get("status"))
    code = result.get("exit_code")
    rank = result.get("first_rank")
    return replace(
        record,
        status=JobStatus(status) if status in set(JobStatus) else JobStatus.FAILED,
        reason=str(result.get("reason") or ""),
        ended=_number(result.get("ended")),
        exit_code=code if isinstance(code, int) else None,
        first_failure=str(result.get("first_failure") or ""),
        first_rank=rank if isinstance(rank, int) else None,
    )


def _lost(
    record: JobRecord,
    current: Sequence[tuple[Report, Mapping[str, Any]]],
    unreachable: Mapping[str, str],
) -> str:
    """Return why an attempt without a result cannot come to one."""
    for report, job in current:
        if _rebooted(job):
            return f"node {report.node} was rebooted during the job"
    told = {report.node for report, _ in current}
    forgotten = [seat.node for seat in record.seats if seat.node not in told and seat.node not in unreachable]
    if forgotten:
        return f"node {forgotten[0]} knows nothing of it any more"
    never = all(job.get("keeper") == "none" for _, job in current)
    if never and all(_since(report, job) > HANDING_SECONDS for report, job in current):
        return "its start was broken off before anything ran"
    old = [report.node for report, job in current if _watched_by_none(job) and _since(report, job) > KEEPER_SECONDS]
    return f"nothing watches over it on {', '.join(old)}" if old else ""


def _since(report: Report, job: Mapping[str, Any]) -> float:
    return report.now - _number((job.get("attempt_record") or {}).get("time"))


def _alive(record: JobRecord) -> JobRecord:
    """As arena's users were told wrongly: a job of which any instance does not run yet is not RUNNING."""
    behind = [name for name, item in record.instances.items() if item.status not in {"Running", *_OVER}]
    nodes = {seat.instance: seat.node for seat in record.seats}
    away = [name for name in behind if nodes[name] not in record.unreachable]
    if away:
        first = record.instances[away[0]]
        return replace(record, status=JobStatus.PENDING, reason=f"{away[0]} is {first.status} {first.reason}".rstrip())
    return replace(record, status=JobStatus.RUNNING)
