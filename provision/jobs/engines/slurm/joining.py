"""The entry of a job in our queue, as it follows from the state of the job in Slurm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard, TypeVar

import msgspec

from provision.batch.slurm.states import COMPLETING, WAITING, SlurmJob, waiting_reason
from provision.documents import decode
from provision.documents.jobs import JobReport, QueueEntry, RecordedReason, ReportAnswer, recorded_reason
from provision.errors import InvalidDocument, ProvisionError
from provision.model.reason import NO_REASON, Reason, reason
from provision.report.reasons import message

Answer = TypeVar("Answer", bound=ReportAnswer)
OPEN_STATES = frozenset({"pending", "held", "started"})
"""States of the queue in which Slurm decides; in others the end of the job is recorded or requested."""
MOVING = "slurm.moving"
"""The reason of a job of the engine `direct` that a command moves to Slurm."""
_ENDS = frozenset({"stopped", "failed"})
"""States of the queue in which the job must not run in Slurm."""
_OWN_ENDS = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
"""In other states, such as NODE_FAIL and TIMEOUT, the supervisors stopped the job because of Slurm."""


@dataclass(frozen=True)
class Sighting:
    """What is known of a job beside its entry in the queue."""

    job: SlurmJob | None = None
    """Its job in Slurm; None if Slurm does not know it (any more)."""
    attempt: int = 0
    """The last attempt that a supervisor of a node has, or had."""
    failure: RecordedReason | None = None
    """Why its start failed, as the starter recorded it; None if that is unknown."""
    is_stopped: bool = False
    """Whether that attempt was stopped, and no node has another result of it."""
    is_silent: bool = False
    """Whether a node of its job in Slurm has not answered: it may know more."""


@dataclass(frozen=True)
class Joined:
    """Answers of nodes whose queue is that of Slurm."""

    answers: Mapping[str, Any]
    changes: tuple[Mapping[str, Any], ...] = ()
    """Requests ``queue`` that record the nodes of started attempts on the queue host."""
    cancel: tuple[int, ...] = ()
    """Jobs in Slurm whose end is requested, and that would start (again)."""
    attempts: Mapping[str, int] = field(default_factory=dict)
    """Job ID -> its last attempt."""
    unexplained: tuple[int, ...] = ()
    """Jobs in Slurm that have ended without a record of their attempt on a node."""


def changes_of(entry: QueueEntry, seen: Sighting, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of an entry that differ because of Slurm.

    Args:
        entry: the entry on the queue host.
        seen: what else is known.
        names: Slurm's name of a node -> its name in the inventory, where they differ.
    """
    if entry.state not in OPEN_STATES:
        return {}
    job = current_job(entry, seen.job)
    if job is None:
        return _forgotten(entry, seen)
    first = _first_attempt(entry, job)
    changes = _waiting(job, first) if job.state in WAITING else _begun(entry, job, first, seen, names)
    if entry.engine_job != job.number:  # the command that submitted it could not record it
        changes |= {"engine_job": job.number, "engine_attempt": first}
    return changes


def current_job(entry: QueueEntry, job: SlurmJob | None) -> SlurmJob | None:
    """Return the job in Slurm of the current attempt; None if it is one of an attempt before a restart.

    A restart is recorded before Slurm gets its job, and that job before its number is recorded.
    """
    if job is None or (entry.engine_job and job.number != entry.engine_job):
        return None
    return job if job.number > entry.engine_before else None


def _first_attempt(entry: QueueEntry, job: SlurmJob) -> int:
    """Return the number of the first attempt of a job in Slurm."""
    return max(entry.engine_attempt, 1) if entry.engine_job == job.number else entry.attempt + 1


def _begun(entry: QueueEntry, job: SlurmJob, first: int, seen: Sighting, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a job that Slurm has started."""
    nodes, attempt = [names.get(name, name) for name in job.nodes], first + job.restarts
    failures = 0 if entry.retry else job.restarts  # while it runs, its starter decides whether another attempt follows
    started = {"state": "started", "attempt": attempt, "failures": failures, **_why(NO_REASON)}
    if nodes:
        started["nodes"] = nodes
    if not job.has_ended:
        return started
    started |= {"retry": job.restarts, "failures": job.restarts}  # Slurm starts it no more
    was_lost = seen.is_stopped and job.state not in _OWN_ENDS
    if not _is_known(seen.failure) and seen.attempt == attempt and not was_lost:
        return started  # its nodes know how it ended
    if seen.is_silent and not _is_known(seen.failure):
        return {**started, "result": _result(job)}
    if job.state == "CANCELLED":
        cancelled = {"state": "stopped", "unconfirmed": [], "deleted": False, **_why(reason("slurm.cancelled"))}
        return {**started, "time": job.ended, **cancelled}
    cause = reason("slurm.ended", state=job.state, cause="" if job.pending_reason == "None" else job.pending_reason)
    why = _recorded(seen.failure) if _is_known(seen.failure) else _why(cause)
    return {**started, "state": "failed", "time": job.ended, **why}


def _result(job: SlurmJob) -> dict[str, Any]:
    """Return the result of an attempt as far as Slurm knows it; it is not recorded, because its nodes know more."""
    status = {"COMPLETED": "SUCCEEDED", "CANCELLED": "STOPPED"}.get(job.state, "FAILED")
    why = _why(reason("slurm.ended", state=job.state, cause="")) if status == "FAILED" else {}
    return {"status": status, "ended": job.ended, **why}


def _waiting(job: SlurmJob, first: int) -> dict[str, Any]:
    attempt, cause = first - 1 + job.restarts, waiting_reason(job)
    if job.restarts:
        cause = reason("slurm.requeued", attempt=attempt, cause=cause)
    state = "held" if job.is_held and not job.restarts else "pending"
    return {"state": state, "attempt": attempt, "failures": job.restarts, "nodes": [], "places": {}, **_why(cause)}


def _forgotten(entry: QueueEntry, seen: Sighting) -> dict[str, Any]:
    if not entry.engine_job:
        return _not_submitted(entry)
    if seen.attempt >= max(entry.engine_attempt, 1):
        return {"state": "started", "attempt": seen.attempt, "retry": 0, "failures": 0, **_why(NO_REASON)}
    if entry.state == "started":
        return {"retry": 0, "failures": 0}
    return {"state": "failed", **_why(reason("slurm.forgotten", job=entry.engine_job))}


def _not_submitted(entry: QueueEntry) -> dict[str, Any]:
    """Return why a job without a number in Slurm waits; nothing of one that the engine `direct` has started."""
    if entry.state == "started" or (entry.starting_engine == "slurm" and entry.code == MOVING):
        return {}
    return _why(reason("slurm.of_direct" if entry.starting_engine == "direct" else "slurm.not_submitted"))


def _why(cause: Reason) -> dict[str, Any]:
    return recorded_reason(cause, message(cause))


def _is_known(failure: RecordedReason | None) -> TypeGuard[RecordedReason]:
    return failure is not None and bool(failure.cause.code)


def _recorded(failure: RecordedReason) -> dict[str, Any]:
    """Return a reason in its recorded words: its parameters may be those of another version."""
    return {"reason": failure.reason, "code": failure.code, "params": msgspec.to_builtins(failure.params)}


class _BriefQueue(msgspec.Struct):
    state: str = ""
    attempt: int = 0


class _Brief(msgspec.Struct):
    """The fields of an entry that decide whether it is parsed completely: most jobs of a long history have ended."""

    id: str = ""
    queue: _BriefQueue = msgspec.field(default_factory=_BriefQueue)


_brief = msgspec.json.Decoder(_Brief)


def _brief_of(raw: msgspec.Raw) -> _Brief:
    try:
        return _brief.decode(bytes(raw))
    except (msgspec.MsgspecError, ValueError):
        return _Brief()  # the caller of the answers reports it


class _Parts:
    """What the nodes report of jobs."""

    def __init__(self, answers: Mapping[str, Answer | ProvisionError]) -> None:
        self._raws: dict[str, list[tuple[str, msgspec.Raw]]] = {}
        self._answered = {node for node, answer in answers.items() if not isinstance(answer, ProvisionError)}
        for node, answer in answers.items():
            for raw in answer.jobs if not isinstance(answer, ProvisionError) else ():
                self._raws.setdefault(_brief_of(raw).id, []).append((node, raw))

    def sighting(
        self, of_head: JobReport, job: SlurmJob | None, failure: RecordedReason | None, names: Mapping[str, str]
    ) -> Sighting:
        """Return what is known of a job; of one that Slurm has started, only its own nodes count.

        A prepared attempt without a supervisor does not count, and neither does one that Slurm has not started: a node
        could claim it. Of a job that Slurm has forgotten, the recorded nodes count, and all if none is recorded.
        """
        entry = of_head.queue
        own: set[str] | None
        if job is not None:
            own, last = {names.get(name, name) for name in job.nodes}, _first_attempt(entry, job) + job.restarts
        else:
            own, last = set(entry.nodes) or None, max(entry.engine_attempt, entry.attempt, 1) + entry.retry
        attempt, statuses = 0, frozenset[str]()
        for node, raw in self._raws.get(of_head.id, ()):
            part = _report(raw, node) if own is None or node in own else None
            if part is None or part.attempt > last or (part.supervisor == "none" and part.result is None):
                continue
            if part.attempt > attempt:
                attempt, statuses = part.attempt, frozenset()
            if part.attempt == attempt and part.result is not None:
                statuses |= {part.result.status}
        silent = job is not None and own is not None and not own <= self._answered
        return Sighting(job, attempt, failure, is_stopped=statuses == {"STOPPED"}, is_silent=silent)

    def with_all_nodes(self, of_head: JobReport, job: SlurmJob, names: Mapping[str, str]) -> SlurmJob:
        """Return a job with all of its nodes: of one that is ending, Slurm lists those whose epilog has not ended.

        They are recorded, or follow from the assignments that one of the listed nodes reports.
        """
        if job.state != COMPLETING:
            return job
        entry, attempt = of_head.queue, _first_attempt(of_head.queue, job) + job.restarts
        own_names = {name: slurm for slurm, name in names.items()}
        listed = {names.get(name, name) for name in job.nodes}
        nodes = list(entry.nodes) if (entry.engine_job, entry.attempt) == (job.number, attempt) else []
        for node, raw in self._raws.get(of_head.id, ()) if not nodes else ():
            part = _report(raw, node) if node in listed else None
            if part is not None and part.attempt == attempt:
                nodes = sorted(listed | {assignment.node for assignment in part.record.assignments})
                break
        return replace(job, nodes=tuple(own_names.get(node, node) for node in nodes or sorted(listed)))


def join(
    answers: Mapping[str, Answer | ProvisionError],
    head: str,
    jobs: Mapping[str, SlurmJob],
    failures: Mapping[int, RecordedReason],
    names: Mapping[str, str],
    everything: Iterable[SlurmJob] = (),
) -> Joined:
    """Return the answers of nodes with the queue entries of the queue host as Slurm has them.

    Args:
        answers: the reports of nodes.
        head: the queue host.
        jobs: the newest of our jobs in Slurm by ID.
        failures: number of a job in Slurm -> why its start failed.
        names: Slurm's name of a node -> its name in the inventory, where they differ.
        everything: all of our jobs in Slurm, also several of an ID.
    """
    answer = answers.get(head)
    if answer is None or isinstance(answer, ProvisionError):
        return Joined(answers)
    parts = _Parts(answers)
    raws: list[msgspec.Raw] = []
    records: list[dict[str, Any]] = []
    cancel, unexplained = list[int](), list[int]()
    attempts: dict[str, int] = {}
    by_id: dict[str, list[SlurmJob]] = {}
    for one in sorted({*everything, *jobs.values()}, key=lambda job: job.number):
        by_id.setdefault(one.id, []).append(one)
    for raw in answer.jobs:
        brief = _brief_of(raw)
        of_job = by_id.get(brief.id, [])
        job = _report(raw, head) if brief.queue.state in OPEN_STATES else None
        if job is None:
            attempts[brief.id] = brief.queue.attempt
            cancel += [one.number for one in of_job if _is_unwanted(brief.queue.state, one)]
            raws.append(raw)
            continue
        cancel += [one.number for one in of_job if _is_superseded(job.queue, one)]
        slurm = next((one for one in reversed(of_job) if current_job(job.queue, one) is not None), None)
        slurm = parts.with_all_nodes(job, slurm, names) if slurm is not None else None
        failure = failures.get(slurm.number) if slurm is not None else None
        seen = parts.sighting(job, slurm, failure, names)
        changes = changes_of(job.queue, seen, names)
        raws.append(_with_queue(raw, changes) if changes else raw)
        attempts[job.id] = max(seen.attempt, changes.get("attempt", job.queue.attempt))
        if slurm is not None and failure is None and _is_unexplained(slurm, changes, seen):
            unexplained.append(slurm.number)
        else:
            records += _records(job, changes, seen)
    joined = msgspec.structs.replace(answer, jobs=raws)
    return Joined({**answers, head: joined}, tuple(records), tuple(cancel), attempts, tuple(unexplained))


def _is_superseded(entry: QueueEntry, slurm: SlurmJob) -> bool:
    """Return whether a live job in Slurm is not that of the entry: two commands have restarted the job at a time."""
    if slurm.has_ended:
        return False
    if not entry.engine_job:  # its number is not recorded yet
        return slurm.number <= entry.engine_before
    return slurm.number != entry.engine_job


def _is_unwanted(state: str, slurm: SlurmJob) -> bool:
    """Return whether a job in Slurm has to be cancelled, because the end of ours is recorded or requested.

    After a recorded result, an active job in Slurm is a starter that is about to exit: cancelling it would turn its
    success into a cancellation. A waiting one would start again.
    """
    return slurm.state in WAITING if state == "over" else state in _ENDS and not slurm.has_ended


def _is_unexplained(slurm: SlurmJob, changes: Mapping[str, Any], seen: Sighting) -> bool:
    """Return whether the starter may have recorded in Slurm why its start failed."""
    if seen.is_silent and slurm.state == "COMPLETED":
        return False
    if seen.is_silent and slurm.has_ended:
        return True
    return slurm.has_ended and (changes.get("code") == "slurm.ended" or (slurm.state == "FAILED" and seen.is_stopped))


def _records(job: JobReport, changes: Mapping[str, Any], seen: Sighting) -> Iterator[dict[str, Any]]:
    """Yield the request that records on the queue host what follows from Slurm, if it is not recorded."""
    state = changes.get("state")
    if state == "started" and seen.is_stopped and seen.job is not None and seen.job.has_ended:
        yield _record(job, {**changes, "state": "over"}, over=True)
    elif state == "started" and _is_new(job.queue, changes) and not _is_completing(seen):
        yield _record(job, changes)
    elif "engine_job" in changes and state in {"pending", "held", "started"}:
        yield _adoption(job, changes)
    elif state in {"failed", "stopped"}:
        yield _record(job, changes, over=True)


def _report(raw: msgspec.Raw, node: str) -> JobReport | None:
    """Return an entry of a report; None for an invalid one, which the caller of the answers reports."""
    try:
        return decode(bytes(raw), JobReport, node=node, what="job entry")
    except InvalidDocument:
        return None


def _with_queue(raw: msgspec.Raw, changes: Mapping[str, Any]) -> msgspec.Raw:
    document = msgspec.json.decode(bytes(raw))
    document["queue"] = {**document["queue"], **changes}
    return msgspec.Raw(msgspec.json.encode(document))


def _is_completing(seen: Sighting) -> bool:
    """Return whether the nodes of the attempt may come from the report of a node, which is not recorded."""
    return seen.job is not None and seen.job.state == COMPLETING


def _is_new(entry: QueueEntry, changes: Mapping[str, Any]) -> bool:
    """Return whether the queue host does not know the nodes of the attempt yet."""
    known = (entry.state, entry.attempt, list(entry.nodes))
    return bool(changes.get("nodes")) and known != ("started", changes["attempt"], changes["nodes"])


def _record(job: JobReport, changes: Mapping[str, Any], *, over: bool = False) -> dict[str, Any]:
    keys = ("state", "attempt", "failures", "nodes", "reason", "code", "params", "engine_job", "engine_attempt")
    queue = {**{key: changes[key] for key in keys if key in changes}, "places": {}, "handed": False}
    only = {"if_id": job.id, "if_state": [job.queue.state], "if_engine_job": [job.queue.engine_job]}
    return {"name": job.name, "queue": queue, "merge": True, "over": over, **only}


def _adoption(job: JobReport, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that records the number of a job in Slurm that its command could not record."""
    numbers = {"engine_job": changes["engine_job"], "engine_attempt": changes["engine_attempt"]}
    queue = {"engine": "slurm", **numbers, **_why(NO_REASON)}
    only = {"if_id": job.id, "if_state": [job.queue.state], "if_engine_job": [job.queue.engine_job]}
    return {"name": job.name, "queue": queue, "merge": True, **only}
