"""The scheduling pass: order and placement of the waiting jobs, and leases of their GPUs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import convert, to_builtins
from msgspec.structs import replace as replace_fields

from provision.batch.direct_record import DirectRecord
from provision.batch.queue import Backfill, cannot_start, in_order, waiting_for
from provision.batch.ranks import assignments_of
from provision.batch.records import Report, records, result_of
from provision.documents.jobs import Done, JobReport, Lease, QueueEntry, ReportAnswer, SignedJob, recorded_reason
from provision.errors import NeverFits, NodeError, ProvisionError, UsageError
from provision.jobs import attempt_start
from provision.jobs.attempt import Attempt
from provision.jobs.attempt_start import release, take_leases
from provision.jobs.cluster_snapshot import BackgroundProbe
from provision.jobs.command_check import command_notes
from provision.jobs.connections import Connections
from provision.jobs.engines.base import Secrets
from provision.jobs.engines.common.node_probe import NodeProbe
from provision.jobs.engines.common.placement import allowed, place_job
from provision.jobs.engines.common.queue_host import mark, mark_all, marking
from provision.jobs.node_ask import ask_jobs
from provision.jobs.signing import JobKeys
from provision.model import Cluster
from provision.model.job import InstanceRecord, JobRecord, JobStatus, as_document
from provision.model.reason import Reason, reason
from provision.report.job_reasons import with_message
from provision.report.reasons import error_of, message


class SchedulingPass:
    """One pass over the waiting jobs, under the lock of the queue."""

    def __init__(
        self, connections: Connections, cluster: Cluster, head: str, background_probe: BackgroundProbe, keys: JobKeys
    ) -> None:
        self._connections, self._cluster, self._head, self._background_probe, self._keys = (
            connections,
            cluster,
            head,
            background_probe,
            keys,
        )
        self._texts: dict[str, dict[str, str]] = {}
        """Job ID -> signed text and signature, which the nodes record and use to identify the owner."""
        self._own: set[str] = set()
        """IDs of jobs that the user of this controller submitted."""
        self.probes: dict[str, NodeProbe] = {}
        """The probed nodes, with the leases that were taken since."""
        self.refused: list[str] = []
        """Why jobs are refused: an invalid entry, or no signature of a user who may submit them."""
        self.waiting: list[str] = []
        """Names of the jobs that did not start."""
        self.aged: list[JobRecord] = []
        """Finished jobs whose retention time has passed."""
        self.is_complete = False
        """Whether all waiting jobs were tried and their reasons recorded."""
        self._over: list[dict[str, Any]] = []
        """State changes of finished jobs, which delete their secrets."""

    def schedule(
        self, probes: Mapping[str, NodeProbe], unreachable: Mapping[str, str], mine: str
    ) -> tuple[list[Attempt], ProvisionError | None]:
        """Lease the GPUs of all waiting jobs that fit, in their order; start nothing yet.

        Returns the attempts to start, and why the job `mine` can never start, otherwise None.
        """
        self.probes = dict(probes)
        by_name = records(list(probes.values()), unreachable, self._head)
        records_by_name = {name: with_message(record) for name, record in by_name.items()}
        queues = {job.name: job.queue for job in probes[self._head].jobs if job.queue.state}
        waiting = in_order(self._waiting_jobs(records_by_name, queues))
        self._mark_all(self._over)
        full = self._full([record.spec.name for record in waiting])
        tried = {record.spec.name for record in waiting}
        self.aged = [
            one
            for one in records_by_name.values()
            if one.spec.name not in tried and self._is_aged(one, records_by_name)
        ]
        passing = Backfill([], {name: queue.passed for name, queue in queues.items()})
        ids = self._ids(records_by_name)
        attempts: list[Attempt] = []
        reasons: dict[str, tuple[JobRecord, QueueEntry, Wait]] = {}
        for brief in (one for one in waiting if one.spec.name in full):
            queue = queues.get(brief.spec.name, QueueEntry())
            try:
                record, signed = self._signed(full[brief.spec.name], brief)
                _insist_on_own_id(record, ids)
            except NodeError as error:
                if brief.spec.name == mine:
                    return attempts, error
                refusal = _refusal(error)
                self.refused.append(message(refusal))
                reasons[brief.spec.name] = (brief, queue, Wait(refusal))
                continue
            never = cannot_start(record, records_by_name.get)
            if never is not None:
                self._mark(record, queue, state="failed", **recorded_reason(never, message(never)))
                continue
            try:
                own = waiting_for(record, records_by_name.get)
                wait = Wait(own) if own is not None else self._blocked(record, passing)
                held = wait or self._hold(record, queue, signed)
            except (NeverFits, UsageError, NodeError) as error:
                if record.spec.name == mine:
                    return attempts, error
                held = Wait(_refusal(error))
            if isinstance(held, Attempt):
                attempts.append(held)
                passing.started(record)
                continue
            reasons[record.spec.name] = (record, queue, held)
            if held.is_blocking:
                passing.blocked.append(record)
        self.waiting = list(reasons)
        self.is_complete = self._mark_waiting(reasons, passing)
        return attempts, None

    def _mark_waiting(self, reasons: Mapping[str, tuple[JobRecord, QueueEntry, Wait]], passing: Backfill) -> bool:
        """Record changed reasons and backfill counts of waiting jobs; return whether that succeeded."""
        markings = []
        for name, (record, queue, wait) in reasons.items():
            passed = passing.passed.get(name, 0)
            changes = {"state": "pending", "passed": passed, **recorded_reason(wait.cause, message(wait.cause))}
            if changes["reason"] != queue.reason or wait.cause.code != queue.code or passed != queue.passed:
                markings.append(marking(record, queue, **changes))
        return self._mark_all(markings)

    @staticmethod
    def _blocked(record: JobRecord, passing: Backfill) -> Wait | None:
        earlier = passing.may_start(record)
        return Wait(reason("job.older_job", job=earlier.spec.name), is_blocking=True) if earlier is not None else None

    def _ids(self, records_by_name: Mapping[str, JobRecord]) -> dict[str, dict[str, float]]:
        """Return ID -> name -> time of submission of all jobs and leases; 0 for leases."""
        ids: dict[str, dict[str, float]] = {}
        for record in records_by_name.values():
            ids.setdefault(record.id, {})[record.spec.name] = record.submitted
        for probe in self.probes.values():
            for lease in probe.leases.values():
                ids.setdefault(lease.id, {}).setdefault(lease.job, 0.0)
        return ids

    def _signed(self, job: JobReport, brief: JobRecord) -> tuple[JobRecord, SignedJob]:
        """Return the signed job with its queue entry and attempt; ignore all other fields.

        Raises:
            NodeError: it must not start.
        """
        signed = self._keys.check(job, self._head)
        self._texts[signed.id] = {"signed": job.signed, "signature": job.signature}
        if signed.spec.sync is not None and self._keys.is_own(job):
            self._own.add(signed.id)
        return replace(brief, spec=signed.spec, id=signed.id, owner=signed.owner), signed

    def _hold(self, record: JobRecord, queue: QueueEntry, signed: SignedJob) -> Attempt | Wait:
        """Place a job and lease its GPUs; return the reason if that is not possible."""
        attempt = self._place(record, queue, signed)
        if isinstance(attempt, Wait):
            return attempt
        problem = take_leases(self._connections, attempt, force=record.spec.allow_drained)
        if problem is not None:
            return Wait(problem)
        places = {assignment.instance: assignment.node for assignment in attempt.assignments}
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
            release(self._connections, attempt, attempt.nodes)
            raise
        if not marked:
            release(self._connections, attempt, attempt.nodes)
            return Wait(reason("job.changed"))
        self.probes = _with_leases(self.probes, attempt)
        for note in attempt.notes:
            event = {"time": time.time(), "source": "queue", "type": "Warning", "message": note}
            ask_jobs(self._connections.to(self._head), "event", Done, name=record.spec.name, event=event)
        return attempt

    def _place(self, record: JobRecord, queue: QueueEntry, signed: SignedJob) -> Attempt | Wait:
        spec = record.spec
        snapshot = self._background_probe.snapshot()
        excluded = queue.excluded
        nodes, _ = allowed(spec, self._cluster.nodes, excluded)
        if not nodes and excluded:
            nodes, _ = allowed(spec, self._cluster.nodes)
        try:
            placement = place_job(spec, snapshot, self.probes, [node.name for node in nodes])
        except NeverFits:
            if not excluded:
                raise
            nodes, _ = allowed(spec, self._cluster.nodes)  # the node of the failure is better than none
            placement = place_job(spec, snapshot, self.probes, [node.name for node in nodes])
        if not placement.places:
            return Wait(placement.reason, is_blocking=True)
        assignments = assignments_of(spec, placement.places)
        try:
            notes = command_notes(spec, assignments, snapshot)
        except UsageError as error:
            if len(placement.places) == spec.workers:
                raise
            return Wait(_refusal(error, placement.warnings[-1]))
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
            assignments,
            Secrets(),
            snapshot,
            {assignment.node: self.probes[assignment.node].all_gpus() for assignment in assignments}
            if spec.exclusive and spec.gpus
            else {},
            (*map(message, placement.warnings), *notes),
            signed,
            record.id in self._own,
        )

    def _is_aged(self, record: JobRecord, records_by_name: Mapping[str, JobRecord]) -> bool:
        """Return whether a job is to be deleted: by the clock of the queue host, and no job depends on it."""
        limit, now = record.spec.ttl_after_finished, self.probes[self._head].now
        if not limit or not record.status.over or not record.ended or record.unreachable or record.allocations:
            return False
        needed = any(
            record.spec.name in other.spec.depends for other in records_by_name.values() if not other.status.over
        )
        return now - record.ended > limit and not needed

    def _waiting_jobs(
        self, records_by_name: Mapping[str, DirectRecord], queues: dict[str, QueueEntry]
    ) -> Iterator[JobRecord]:
        """Yield the waiting jobs, and jobs with remaining retries whose last attempt failed."""
        for name, record in records_by_name.items():
            queue = queues.get(name)
            if queue is None or queue.state == "over" or queue.starting_engine != "direct":
                continue  # it has ended, or Slurm starts it
            if record.starting:
                if not self._is_interrupted(queue):
                    continue
                self._release(record, queue)
            begun = record.status is JobStatus.PENDING and queue.state == "started"
            if begun and not record.retrying and not record.starting:
                continue  # its supervisors have it, and its containers do not run yet
            if record.retrying:
                more = {
                    "state": "pending",
                    "attempt": record.attempt,
                    "failures": queue.failures + 1,
                    "excluded": sorted({*queue.excluded, *record.failed_nodes}),
                    **recorded_reason(record.failure, message(record.failure)),
                }
                if self._mark(record, queue, **more):
                    queues[name] = convert({**to_builtins(queue), **more}, QueueEntry)
                    yield record
                continue
            if record.status.over and queue.state == "started":
                result = queue.result or result_of(record)
                recorded = {"result": to_builtins(result)} if result is not None else {}
                self._over.append(marking(record, queue, state="over", over=True, **recorded))
            yield record

    def _mark_all(self, markings: Sequence[Mapping[str, Any]]) -> bool:
        """Record the states of several jobs; the next pass repeats it after a failure."""
        try:
            mark_all(self._connections, self._head, markings)
        except ProvisionError:
            return False
        return True

    def _mark(self, record: JobRecord, queue: QueueEntry, **changes: Any) -> bool:
        """Record the state of a job, unless another command has changed or deleted it since the probe."""
        try:
            return mark(self._connections, self._head, record, queue, **changes)
        except NodeError:
            return False

    def _release(self, record: JobRecord, queue: QueueEntry) -> None:
        """Release the leases of an interrupted start."""
        for name in dict.fromkeys((*record.allocations, *(assignment.node for assignment in record.assignments))):
            with contextlib.suppress(ProvisionError):
                ask_jobs(
                    self._connections.to(name),
                    "release",
                    Done,
                    job=record.spec.name,
                    id=record.id,
                    attempt=queue.attempt,
                )
        self.probes = {
            name: replace(probe, answer=replace_fields(probe.answer, leases=_without(probe.leases, record.id)))
            for name, probe in self.probes.items()
        }

    def _is_interrupted(self, queue: QueueEntry) -> bool:
        """Return whether a start was interrupted: a running one renews its time."""
        return self.probes[self._head].now - queue.time > attempt_start.BROKEN_SECONDS

    def _full(self, names: Sequence[str]) -> dict[str, JobReport]:
        """Return the complete entries of waiting jobs, with the signed text, from the queue host only."""
        if not names:
            return {}
        answer = ask_jobs(self._connections.to(self._head), "report", ReportAnswer, names=list(names), brief=False)
        report = Report.of(self._head, answer)
        self.refused += report.problems
        return {job.name: job for job in report.jobs if job.name in names}


@dataclass(frozen=True)
class Wait:
    """Why a job waits."""

    cause: Reason
    is_blocking: bool = False
    """Whether later jobs may have to wait for it."""


def _refusal(error: ProvisionError, warning: Reason | None = None) -> Reason:
    """Return why a job must not start; `warning` is the one about its placement."""
    why = error.reason or error.message
    return reason("job.refused", error=error.code, cause=why, remedy=error.remedy, warning=warning)


def _insist_on_own_id(job: JobRecord, ids: Mapping[str, Mapping[str, float]]) -> None:
    """Refuse a job with the id of an earlier job: nodes recognize containers and leases by the id.

    Raises:
        NodeError: another job or lease has the id.
    """
    earlier = (name for name, at in ids.get(job.id, {}).items() if name != job.spec.name and at <= job.submitted)
    other = next(earlier, None)
    if other is not None:
        raise error_of(NodeError, reason("job.duplicate_id", job=job.spec.name, other=other))


def _without(leases: Mapping[str, Lease], token: str) -> dict[str, Lease]:
    return {uuid: lease for uuid, lease in leases.items() if lease.id != token}


def _with_leases(probes: Mapping[str, NodeProbe], attempt: Attempt) -> dict[str, NodeProbe]:
    """Return the probes with the leases of an attempt."""
    updated = dict(probes)
    for name in attempt.nodes:
        if name in updated:
            more = {uuid: Lease(attempt.spec.name, attempt.id) for uuid in attempt.leases(name)}
            here = {
                assignment.instance: InstanceRecord(assignment.instance)
                for assignment in attempt.assignments
                if assignment.node == name
            }
            spec = {"exclusive": attempt.spec.exclusive}
            job = JobReport(name=attempt.spec.name, id=attempt.id, spec=spec, instances=here)
            answer = replace_fields(updated[name].answer, leases={**updated[name].leases, **more})
            updated[name] = replace(updated[name], answer=answer, jobs=(*updated[name].jobs, job))
    return updated
