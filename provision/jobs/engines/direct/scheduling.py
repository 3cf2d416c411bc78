"""Which of the waiting jobs start now: their order, their places, and the GPUs that are held for them."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace as replace_fields

from provision.batch.queue import Passing, cannot_start, in_order, waiting_for
from provision.batch.ranks import seats_of
from provision.batch.records import STARTING, Report, records, result_of
from provision.documents.jobs import Done, JobReport, Lease, QueueEntry, ReportAnswer, SignedJob
from provision.errors import NeverFits, NodeError, ProvisionError, UsageError
from provision.jobs import attempt_start
from provision.jobs.attempt import Attempt
from provision.jobs.attempt_start import release, take_leases
from provision.jobs.cluster_snapshot import Sight
from provision.jobs.command_check import line_notes
from provision.jobs.connections import Ways
from provision.jobs.engines.base import Secrets
from provision.jobs.engines.direct.node_probe import NodeLook
from provision.jobs.engines.direct.placement import allowed, place_job
from provision.jobs.engines.direct.queue_host import mark, mark_all, marking
from provision.jobs.node_ask import ask_jobs
from provision.jobs.signing import JobKeys
from provision.model import Cluster
from provision.model.job import InstanceRecord, JobRecord, JobStatus, as_document

__all__ = ["Booking"]


class Booking:
    """One pass over the waiting jobs, by whoever holds the queue's lock."""

    def __init__(self, ways: Ways, cluster: Cluster, head: str, sight: Sight, keys: JobKeys) -> None:
        self._ways, self._cluster, self._head, self._sight, self._keys = ways, cluster, head, sight, keys
        self._texts: dict[str, dict[str, str]] = {}
        """What was signed, by the job's id: its nodes record it, and know by it whose job it is."""
        self._own: set[str] = set()
        """Ids of jobs that the user of this controller submitted."""
        self.looks: dict[str, NodeLook] = {}
        """The nodes as they were seen, with what was held since."""
        self.refused: list[str] = []
        """Why jobs are not started that are not signed by somebody who may submit them, or not valid."""
        self.waiting: list[str] = []
        """Names of those that did not start."""
        self.aged: list[JobRecord] = []
        """Jobs that are over for as long as they asked to be kept."""
        self.whole = False
        """Whether all that waits was tried, and is written down."""
        self._over: list[dict[str, Any]] = []
        """Markings of those to which nothing more happens: their secrets go."""

    def book(
        self, looks: Mapping[str, NodeLook], unreachable: Mapping[str, str], mine: str
    ) -> tuple[list[Attempt], ProvisionError | None]:
        """Hold the GPUs of all waiting jobs that fit, in their order; nothing is started yet.

        Returns the attempts to start, and why the job `mine` will never fit, if it is so.
        """
        self.looks = dict(looks)
        found = records(list(looks.values()), unreachable, self._head)
        queues = {job.name: job.queue for job in looks[self._head].jobs if job.queue.state}
        waiting = in_order(self._to_try_again(found, queues))
        self._mark_all(self._over)
        full = self._full([record.spec.name for record in waiting])
        tried = {record.spec.name for record in waiting}
        self.aged = [one for one in found.values() if one.spec.name not in tried and self._is_aged(one, found)]
        passing = Passing([], {name: queue.passed for name, queue in queues.items()})
        ids = self._ids(found)
        attempts: list[Attempt] = []
        reasons: dict[str, tuple[JobRecord, QueueEntry, str]] = {}
        for brief in (one for one in waiting if one.spec.name in full):
            queue = queues.get(brief.spec.name, QueueEntry())
            try:
                record, signed = self._signed(full[brief.spec.name], brief)
                _insist_on_own_id(record, ids)
            except NodeError as error:
                if brief.spec.name == mine:
                    return attempts, error
                why = ". ".join(filter(None, (error.message, error.remedy)))
                self.refused.append(why)
                reasons[brief.spec.name] = (brief, queue, Waits(why))
                continue
            never = cannot_start(record, found.get)
            if never:
                self._mark(record, queue, state="failed", reason=never)
                continue
            try:
                own = waiting_for(record, found.get)
                held = own or self._behind(record, passing) or self._hold(record, queue, signed)
            except (NeverFits, UsageError, NodeError) as error:
                if record.spec.name == mine:
                    return attempts, error
                held = Waits(error.message)
            if isinstance(held, Attempt):
                attempts.append(held)
                passing.started(record)
                continue
            reasons[record.spec.name] = (record, queue, held)
            if isinstance(held, NoRoom):
                passing.blocked.append(record)
        self.waiting = list(reasons)
        self.whole = self._mark_waiting(reasons, passing)
        return attempts, None

    def _mark_waiting(self, reasons: Mapping[str, tuple[JobRecord, QueueEntry, str]], passing: Passing) -> bool:
        """Write down why jobs wait and how often they were passed, where that has changed; return whether it is."""
        markings = []
        for name, (record, queue, reason) in reasons.items():
            passed = passing.passed.get(name, 0)
            if reason != queue.reason or passed != queue.passed:
                markings.append(marking(record, queue, state="pending", reason=str(reason), passed=passed))
        return self._mark_all(markings)

    @staticmethod
    def _behind(record: JobRecord, passing: Passing) -> str:
        older = passing.may_start(record)
        return NoRoom(f"waits behind {older.spec.name}, which was submitted before") if older is not None else ""

    def _ids(self, found: Mapping[str, JobRecord]) -> dict[str, dict[str, float]]:
        """Return id -> name -> when it was submitted, of all jobs and leases; of a lease 0."""
        ids: dict[str, dict[str, float]] = {}
        for record in found.values():
            ids.setdefault(record.id, {})[record.spec.name] = record.submitted
        for look in self.looks.values():
            for lease in look.leases.values():
                ids.setdefault(lease.id, {}).setdefault(lease.job, 0.0)
        return ids

    def _signed(self, job: JobReport, brief: JobRecord) -> tuple[JobRecord, SignedJob]:
        """Return a job as it was signed, with its place in the queue and its attempt; all else of it is ignored.

        Raises:
            NodeError: it must not start.
        """
        signed = self._keys.check(job, self._head)
        self._texts[signed.id] = {"signed": job.signed, "signature": job.signature}
        if signed.spec.sync is not None and self._keys.is_own(job):
            self._own.add(signed.id)
        return replace(brief, spec=signed.spec, id=signed.id, owner=signed.owner), signed

    def _hold(self, record: JobRecord, queue: QueueEntry, signed: SignedJob) -> Attempt | str:
        """Place a job and hold its GPUs; return why not, where it cannot be."""
        attempt = self._place(record, queue, signed)
        if isinstance(attempt, str):
            return attempt
        reason = take_leases(self._ways, attempt, force=record.spec.allow_drained)
        if reason:
            return reason
        places = {seat.instance: seat.node for seat in attempt.seats}
        begun = {
            "state": "started",
            "attempt": attempt.number,
            "nodes": attempt.nodes,
            "places": places,
            "handed": False,
        }
        try:
            marked = self._mark(record, queue, **begun, reason="")
        except ProvisionError:
            release(self._ways, attempt, attempt.nodes)
            raise
        if not marked:
            release(self._ways, attempt, attempt.nodes)
            return "somebody else changed it just now"
        self.looks = _with_leases(self.looks, attempt)
        for note in attempt.notes:
            event = {"time": time.time(), "source": "queue", "type": "Warning", "message": note}
            ask_jobs(self._ways.to(self._head), "event", Done, name=record.spec.name, event=event)
        return attempt

    def _place(self, record: JobRecord, queue: QueueEntry, signed: SignedJob) -> Attempt | str:
        spec = record.spec
        known = self._sight.known()
        excluded = queue.excluded
        nodes, why = allowed(spec, self._cluster.nodes, excluded)
        if not nodes and excluded:
            nodes, why = allowed(spec, self._cluster.nodes)
        try:
            placed = place_job(spec, known, self.looks, [node.name for node in nodes])
        except NeverFits:
            if not excluded:
                raise
            nodes, why = allowed(spec, self._cluster.nodes)  # better where it failed than nowhere
            placed = place_job(spec, known, self.looks, [node.name for node in nodes])
        if not placed.places:
            return NoRoom(placed.reason or "; ".join(f"{name}: {text}" for name, text in why.items()))
        seats = seats_of(spec, placed.places)
        try:
            notes = line_notes(spec, seats, known)
        except UsageError as error:
            if len(placed.places) == spec.workers:
                raise
            return f"{error.message}; {placed.warnings[-1]}"
        return Attempt(
            spec,
            record.id,
            max(record.attempt, queue.attempt) + 1,
            {
                "id": record.id,
                "owner": record.owner,
                "submitted": record.submitted,
                "spec": as_document(spec),
                **self._texts.get(record.id, {}),
            },
            seats,
            Secrets(),
            known,
            {seat.node: self.looks[seat.node].whole() for seat in seats} if spec.exclusive and spec.gpus else {},
            (*placed.warnings, *notes),
            signed,
            record.id in self._own,
        )

    def _is_aged(self, record: JobRecord, found: Mapping[str, JobRecord]) -> bool:
        """Whether a job's record is to go: by the head's clock, unless a node of it is away or a job depends on it."""
        limit, now = record.spec.ttl_after_finished, self.looks[self._head].now
        if not limit or not record.status.over or not record.ended or record.unreachable or record.allocations:
            return False
        needed = any(record.spec.name in other.spec.depends for other in found.values() if not other.status.over)
        return now - record.ended > limit and not needed

    def _to_try_again(self, found: Mapping[str, JobRecord], queues: dict[str, QueueEntry]) -> Iterator[JobRecord]:
        """Yield the waiting jobs, and as waiting those whose last attempt failed while tries are left."""
        for name, record in found.items():
            queue = queues.get(name)
            if queue is None or queue.state == "over":
                continue
            if record.reason == STARTING:
                if not self._broken_off(queue):
                    continue
                self._let_go(record, queue)
            begun = record.status is JobStatus.PENDING and queue.state == "started"
            if begun and not record.retrying and record.reason != STARTING:
                continue  # its keepers have it, and its containers do not run yet
            if record.retrying:
                bad = _bad_nodes(record)
                more = {
                    "state": "pending",
                    "attempt": record.attempt,
                    "failures": queue.failures + 1,
                    "excluded": sorted({*queue.excluded, *bad}),
                    "reason": record.reason.removesuffix("; it is to be tried again"),
                }
                if self._mark(record, queue, **more):
                    queues[name] = replace_fields(queue, **more)
                    yield record
                continue
            if record.status.over and queue.state == "started":
                result = queue.result or result_of(record)
                known = {"result": to_builtins(result)} if result is not None else {}
                self._over.append(marking(record, queue, state="over", over=True, **known))
            yield record

    def _mark_all(self, markings: Sequence[Mapping[str, Any]]) -> bool:
        """Write down how several jobs stand; what cannot be is tried by the next pass."""
        try:
            mark_all(self._ways, self._head, markings)
        except ProvisionError:
            return False
        return True

    def _mark(self, record: JobRecord, queue: QueueEntry, **changes: Any) -> bool:
        """Write down how a job stands, unless somebody else has changed that or forgotten the job since we looked."""
        try:
            return mark(self._ways, self._head, record, queue, **changes)
        except NodeError:
            return False

    def _let_go(self, record: JobRecord, queue: QueueEntry) -> None:
        """Give back what a start that was broken off holds."""
        for name in dict.fromkeys((*record.allocations, *(seat.node for seat in record.seats))):
            with contextlib.suppress(ProvisionError):
                ask_jobs(
                    self._ways.to(name), "release", Done, job=record.spec.name, id=record.id, attempt=queue.attempt
                )
        self.looks = {
            name: replace(look, answer=replace_fields(look.answer, leases=_without(look.leases, record.id)))
            for name, look in self.looks.items()
        }

    def _broken_off(self, queue: QueueEntry) -> bool:
        """Whether who began a start is gone: it is written down anew as long as it lasts."""
        return self.looks[self._head].now - queue.time > attempt_start.BROKEN_SECONDS

    def _full(self, names: Sequence[str]) -> dict[str, JobReport]:
        """Return the whole entries of waiting jobs, with what was signed, from the head alone."""
        if not names:
            return {}
        answer = ask_jobs(self._ways.to(self._head), "report", ReportAnswer, names=list(names), brief=False)
        report = Report.of(self._head, answer)
        self.refused += report.problems
        return {job.name: job for job in report.jobs if job.name in names}


class Waits(str):
    """Why a job waits that keeps nobody else from starting."""

    __slots__ = ()


class NoRoom(str):
    """Why there is no room for a job now; others of its kind stand behind it."""

    __slots__ = ()


def _insist_on_own_id(job: JobRecord, ids: Mapping[str, Mapping[str, float]]) -> None:
    """Refuse a job with the id of an earlier job: nodes recognize containers and leases by the id.

    Raises:
        NodeError: another job or lease has the id.
    """
    earlier = (name for name, at in ids.get(job.id, {}).items() if name != job.spec.name and at <= job.submitted)
    other = next(earlier, None)
    if other is not None:
        raise NodeError(
            f"{job.spec.name} has the id of another job ({other})",
            remedy=f"Delete it and submit it again: provision delete {job.spec.name}",
        )


def _without(leases: Mapping[str, Lease], token: str) -> dict[str, Lease]:
    return {uuid: lease for uuid, lease in leases.items() if lease.id != token}


_OF_NODES = ("rebooted", "does not answer", "is cut off", "knows nothing", "nothing watches")


def _bad_nodes(record: JobRecord) -> list[str]:
    """Return the nodes that made an attempt fail, where it was not the program."""
    if not any(words in record.reason for words in _OF_NODES):
        return []
    return sorted({seat.node for seat in record.seats if re.search(rf"\b{re.escape(seat.node)}\b", record.reason)})


def _with_leases(looks: Mapping[str, NodeLook], attempt: Attempt) -> dict[str, NodeLook]:
    """Return the looks as they are after an attempt has been given its GPUs."""
    found = dict(looks)
    for name in attempt.nodes:
        if name in found:
            more = {uuid: Lease(attempt.spec.name, attempt.id) for uuid in attempt.leases(name)}
            here = {seat.instance: InstanceRecord(seat.instance) for seat in attempt.seats if seat.node == name}
            spec = {"exclusive": attempt.spec.exclusive}
            job = JobReport(name=attempt.spec.name, id=attempt.id, spec=spec, instances=here)
            answer = replace_fields(found[name].answer, leases={**found[name].leases, **more})
            found[name] = replace(found[name], answer=answer, jobs=(*found[name].jobs, job))
    return found
