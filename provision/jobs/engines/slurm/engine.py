"""The job engine `slurm`: Slurm decides when and where an attempt runs, and our programs on the nodes run it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from provision.batch.direct_record import DirectRecord
from provision.batch.records import result_of
from provision.batch.slurm.states import (
    SlurmJob,
    SlurmNodeState,
    all_our_jobs,
    newest_jobs,
    node_states,
    refusal,
    used_minors,
)
from provision.documents import decode
from provision.documents.jobs import (
    Done,
    LookAnswer,
    NodeProblem,
    QueueEntry,
    RecordedReason,
    ReportAnswer,
    SecretsDocument,
    Written,
    WrittenMany,
    recorded_reason,
)
from provision.documents.slurm_jobs import Sealed, SlurmNode, SlurmState, SlurmSubmitted, SlurmText, StepGpus
from provision.errors import InvalidDocument, NeverFits, NodeError, NotFound, ProvisionError, UsageError
from provision.jobs.connections import Connections
from provision.jobs.engines.base import Capability, MaintenanceResult, TakeOver
from provision.jobs.engines.common.engine import Answer, RecordedJob, RecordedJobs, Say
from provision.jobs.engines.common.job_reports import reports_of
from provision.jobs.engines.common.queue_host import owner
from provision.jobs.engines.slurm.joining import Joined, join
from provision.jobs.node_ask import as_error, ask_jobs
from provision.model.job import JobRecord, JobSpec, JobStatus
from provision.model.reason import NO_REASON, Reason, reason
from provision.report.reasons import error_of, message

if TYPE_CHECKING:
    from provision.connectors import Connector
    from provision.jobs.cluster_snapshot import ClusterSnapshot
    from provision.jobs.engines.slurm.payload import PayloadNode
    from provision.jobs.engines.slurm.planning import Choice
    from provision.jobs.engines.slurm.reservation import Scheduler
    from provision.jobs.engines.slurm.take_over import QueuedJob
    from provision.model import Node
    from provision.model.job_requests import GpuRequest
    from provision.model.job_views import DryRun, GpuView, JobPage, NodeList, NodeView

T = TypeVar("T")

_NEVER = "slurm.never_"
_BY_NODES = frozenset({"slurm.never_nodes", "slurm.never_gres", "slurm.never_feature", "slurm.never_memory"})
"""Refusals that may come from the nodes that a submission excludes."""
_RECORD_STAYS = frozenset({"slurm.uncertain", "slurm.superseded"})
"""Errors after which Slurm may have the job, or another command has it."""
_NOT_STOPPED = ["pending", "held", "started", "failed", "over"]
_FAILURES = 50
"""Jobs whose failed start is looked up in one command."""


@dataclass(frozen=True)
class _Survey:
    """What submissions need to know of the nodes."""

    states: Mapping[str, SlurmNodeState]
    """By names in Slurm."""
    taken: Mapping[str, frozenset[int]]
    """Node in Slurm -> minor numbers of the GPUs that are used, or about to be."""
    prepared: Mapping[str, tuple[SlurmNode, str] | ProvisionError]
    snapshot: ClusterSnapshot


@dataclass(frozen=True)
class _Batch:
    """A batch job for Slurm."""

    options: Mapping[str, Any]
    script: str
    usable: _Usable


@dataclass(frozen=True)
class _Usable:
    """Nodes of a submission."""

    nodes: Sequence[PayloadNode]
    """The nodes that the job may get."""
    start: str
    """The path of the starter there."""
    exclude: Sequence[str]
    """The other nodes of Slurm."""
    problems: Mapping[str, Reason]
    """Node -> why it is excluded although the job could use it."""
    choice: Choice | None = None
    """The nodes and GPUs of a job with --gputopology."""

    @property
    def causes(self) -> list[Reason]:
        """The problems with the names of their nodes."""
        return [reason("placement.nodes", names=[name], cause=why) for name, why in self.problems.items()]


class SlurmEngine(RecordedJobs):
    """Runs jobs on a cluster that Slurm schedules. `head` is the queue host, and has Slurm's commands."""

    name = "slurm"
    capabilities = frozenset(Capability)

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        from provision.jobs.engines.slurm.submission import slurm_names

        self._slurm_names = slurm_names(self._cluster)
        self._inventory_names = {slurm: name for name, slurm in self._slurm_names.items()}
        self._slurm: Mapping[str, SlurmJob] | ProvisionError = {}
        self._all_slurm: Sequence[SlurmJob] = ()
        self._attempts: Mapping[str, int] = {}
        self._open: Connector | None = None

    # Starting

    def _check(self, spec: JobSpec) -> None:
        from provision.jobs.engines.slurm.submission import check_spec

        if self._agent:
            raise error_of(UsageError, reason("slurm.submitter"))
        check_spec(spec)

    def _begin(self, job: RecordedJob, say: Say) -> ProvisionError | None:
        try:
            with self._head_connected():
                self._submit_to_slurm(job, 1, say)
        except ProvisionError as error:
            if error.code in _RECORD_STAYS:
                raise
            return error
        return None

    def _begin_again(self, record: JobRecord, say: Say) -> ProvisionError | None:
        """Submit the recorded job again; nothing of it is left in Slurm."""
        attempt = max(record.attempt, self._attempts.get(record.id, 0)) + 1
        with self._recorded(record) as job:
            try:
                with self._head_connected():
                    self._submit_to_slurm(job, attempt, say)
            except ProvisionError as error:
                return error
        return None

    @contextlib.contextmanager
    def _recorded(self, record: JobRecord) -> Iterator[RecordedJob]:
        """Yield a job as the queue host has it, with its secrets and its code, if the signature is valid."""
        from provision.jobs.code_archives import fetch_archive

        with Connections(self._contact) as connections:
            connector = connections.to(self.head)
            verified = self._verified(connector, record)
            with fetch_archive(connector, verified.signed) as code:
                yield replace(verified, code=code)

    def _verified(self, connector: Connector, record: JobRecord) -> RecordedJob:
        """Return a job as the queue host has it, with its secrets, if the signature is valid; without its code."""
        from provision.batch.records import Report
        from provision.batch.signed import check_secrets

        answer = ask_jobs(connector, "report", ReportAnswer, names=[record.spec.name], brief=False)
        entry = next((job for job in Report.of(self.head, answer).jobs if job.id == record.id), None)
        if entry is None:
            raise NotFound(f"there is no job {record.spec.name} on the queue host {self.head}")
        signed = self._keys.check(entry, self.head)
        stored = ask_jobs(connector, "secrets", SecretsDocument, name=record.spec.name)
        check_secrets(signed, stored, self.head)
        return RecordedJob(signed, entry.signed, entry.signature, stored)

    def _next_entry(self, record: JobRecord) -> QueueEntry:
        self._slurm_job(record)  # raises if Slurm does not answer
        attempt = max(record.attempt, self._attempts.get(record.id, 0))
        before = max((job.number for job in self._all_slurm if job.id == record.id), default=0)
        return QueueEntry(attempt=attempt, retry=record.spec.retry, engine_before=before, engine=self.name)

    def release(self, name: str, say: Say) -> JobRecord:
        """Release a held job, also one that Slurm holds, for example after a failed start."""
        record = super().release(name, say)
        job = self._slurm_job(record) if record.status is JobStatus.PENDING else None
        if job is not None and job.is_held:
            self._begin_released(record, say)
            return self.get(name)
        return record

    def _begin_released(self, record: JobRecord, say: Say) -> None:
        del say
        job = self._slurm_job(record)
        if job is not None:
            self._ask_head("slurm_job_update", Written, job=job.number, release=True)

    def _submit_to_slurm(self, job: RecordedJob, first_attempt: int, say: Say) -> int:
        """Submit the batch script of a job; return the number of the job in Slurm.

        Raises:
            NeverFits: Slurm refuses it, because it could never start.
        """
        from provision.jobs.engines.common.placement import allowed

        spec = job.signed.spec
        nodes, _ = allowed(spec, self._cluster.nodes)
        usable = self._usable(spec, self._survey(nodes), say)
        return self._submit_batch(job, first_attempt, self._batch(job, first_attempt, usable))

    def _batch(self, job: RecordedJob, first_attempt: int, usable: _Usable, *, hold: bool = True) -> _Batch:
        """Return the batch job of a job; with `hold`, its first attempt waits for its release where the job says so."""
        from provision.jobs.engines.slurm import submission
        from provision.jobs.engines.slurm.payload import SCRIPT_BYTES, script_text

        spec, after = job.signed.spec, self._after(job.signed.spec)
        sealed = self._sealed(job.stored, usable.nodes)
        payload = submission.payload_of_job(job, first_attempt, usable.nodes, self._cluster, sealed)
        script = script_text(payload, usable.start)
        if len(script) > SCRIPT_BYTES:
            raise submission.script_limit(len(script), SCRIPT_BYTES)
        nodes = (usable.nodes, usable.exclude)
        options = submission.options(spec, job.signed.id, *nodes, after, self._cluster, usable.choice)
        if first_attempt > 1 or not hold:
            options["hold"] = False
        return _Batch(options, script, usable)

    def _submit_batch(self, job: RecordedJob, first_attempt: int, batch: _Batch) -> int:
        """Submit a batch job and record its number, which is returned."""
        spec = job.signed.spec
        number = self._sbatch(job.signed.id, batch)
        numbers = {"engine_job": number, "engine_attempt": first_attempt}
        queue = {"engine": self.name, **numbers, **recorded_reason(NO_REASON, "")}
        only = {"if_id": job.signed.id, "if_state": _NOT_STOPPED, "if_engine_job": [0, number]}
        try:
            is_written = self._ask_head("queue", Written, name=spec.name, queue=queue, merge=True, **only).written
        except ProvisionError as error:
            if self._is_recorded(job):  # the next command that reads the job records it
                raise error_of(NodeError, reason("slurm.uncertain", cause=error.message), node=self.head) from error
            is_written = False
        if not is_written:
            with contextlib.suppress(ProvisionError):  # else the next command that reads the job cancels it
                self._ask_head("slurm_cancel", Done, jobs=[number])
            raise error_of(NodeError, reason("slurm.superseded", job=number), node=self.head)
        return number

    def _is_recorded(self, job: RecordedJob) -> bool:
        """Return whether the queue host has a job; True if it does not answer."""
        from provision.batch.records import Report

        try:
            answer = self._ask_head("report", ReportAnswer, names=[job.signed.spec.name], brief=True)
            return any(one.id == job.signed.id for one in Report.of(self.head, answer).jobs)
        except ProvisionError:
            return True

    def _sbatch(self, token: str, batch: _Batch) -> int:
        """Submit a batch script; return the number of the job in Slurm.

        Raises:
            NeverFits: Slurm refuses it, because it could never start.
            NodeError: nodes that cannot be used now are missing, or it is not known whether Slurm has the job.
        """
        usable = batch.usable
        try:
            answer = self._ask_head("slurm_submit", SlurmSubmitted, options=batch.options, script=batch.script)
            cause = answer.refused
        except ProvisionError as error:
            answer, cause = SlurmSubmitted(0, uncertain=True), error.message
        if answer.job:
            return answer.job
        why = refusal(cause)
        if not answer.uncertain and usable.problems and why.code in _BY_NODES:
            left_out = reason("slurm.nodes_left_out", cause=why.params.get("cause", ""), nodes=usable.causes)
            raise error_of(NodeError, left_out)
        if not answer.uncertain:
            raise error_of(NeverFits if why.code.startswith(_NEVER) else UsageError, why)
        number = self._accepted_job(token)
        if not number:
            raise error_of(NodeError, reason("slurm.uncertain", cause=cause[-300:]), node=self.head)
        return number

    def _accepted_job(self, token: str) -> int:
        """Return the number of a job that Slurm has accepted although the answer got lost; 0 if there is none."""
        known = {job.number for job in self._all_slurm}
        try:
            with contextlib.closing(self._contact.connect(self.head)) as connector:
                jobs = all_our_jobs(ask_jobs(connector, "slurm_state", SlurmState).jobs)
        except ProvisionError:
            return 0
        return max((job.number for job in jobs if job.id == token and job.number not in known), default=0)

    def _after(self, spec: JobSpec) -> list[int]:
        """Return the jobs in Slurm on which a job waits; those that have succeeded are left out."""
        numbers = []
        for name in spec.depends:
            record = self.get(name)
            if record.status is JobStatus.SUCCEEDED:
                continue
            job = self._slurm_job(record)
            if job is None or record.status.over:
                why = reason("job.dependency_failed", job=name, status=str(record.status))
                raise error_of(UsageError, why)
            numbers.append(job.number)
        return numbers

    def _survey(self, nodes: Sequence[Node]) -> _Survey:
        """Probe the cluster, and prepare those of the nodes that Slurm has for a submission."""
        from provision.jobs.cluster_snapshot import BackgroundProbe
        from provision.jobs.engines.slurm.compute_nodes import prepare
        from provision.jobs.engines.slurm.planning import taken_gpus

        background = BackgroundProbe(self._cluster_probe, self._cluster, self._contact.present)
        background.begin()
        answer = self._ask_head("slurm_state", SlurmState, nodes=True)
        states = node_states(answer.nodes)
        taken, _ = taken_gpus(states, all_our_jobs(answer.jobs))
        prepared = prepare(self._contact, [node for node in nodes if self._slurm_names[node.name] in states], seal=True)
        return _Survey(states, taken, prepared, background.snapshot())

    def _usable(self, spec: JobSpec, survey: _Survey, say: Say) -> _Usable:
        """Return the nodes that a job may get, the path of the starter there, and Slurm's other nodes.

        Raises:
            NeverFits: none of the nodes is in the inventory and in Slurm, or the job would not fit on idle nodes.
            NodeError: none of them can be used now.
        """
        from provision.jobs.engines.common.placement import allowed, mode_of, no_node_of_mode
        from provision.jobs.engines.slurm.allocation import is_planned
        from provision.jobs.engines.slurm.submission import payload_node

        known, snapshot, prepared = survey.states, survey.snapshot, survey.prepared
        nodes, _ = allowed(spec, self._cluster.nodes)
        nodes = [node for node in nodes if node.name in prepared]
        modes = {name: one.mode for name, one in snapshot.candidates.items()} if spec.gpus else {}
        of_mode = [node for node in nodes if modes.get(node.name) in {mode_of(spec), None}]
        if nodes and not of_mode:
            raise no_node_of_mode(spec)
        problems: dict[str, Reason] = {}
        usable: list[PayloadNode] = []
        starts: dict[str, list[str]] = {}
        for node in of_mode:
            answer = prepared[node.name]
            if isinstance(answer, ProvisionError):
                problems[node.name] = reason("slurm.node_not_prepared", cause=answer.message)
            elif node.name in snapshot.left_out:
                problems[node.name] = snapshot.left_out[node.name]
            elif spec.gpus and node.name in snapshot.gpus_out:
                problems[node.name] = snapshot.gpus_out[node.name]
            else:
                one = payload_node(node.name, self._slurm_names[node.name], snapshot, answer[0].certificate)
                usable.append(one)
                starts.setdefault(answer[1], []).append(node.name)
        start = max(starts, key=lambda path: len(starts[path]), default="")
        problems |= {node.name: reason("slurm.python_other") for node in usable if node.name not in starts[start]}
        for name, why in problems.items():
            say(f"warning: {spec.name} does not use {name}: {message(why)}")
        usable = [node for node in usable if node.name not in problems]
        names = {node.slurm for node in usable}
        result = _Usable(usable, start, sorted(name for name in known if name not in names), problems)
        if not usable:
            why = reason("slurm.no_node_usable", nodes=result.causes)
            raise error_of(NeverFits if not problems else NodeError, why)
        if is_planned(spec):
            return replace(result, choice=self._choice(spec, result, survey))
        return result

    def _choice(self, spec: JobSpec, usable: _Usable, survey: _Survey) -> Choice:
        """Return the nodes and GPUs of a job with --gputopology.

        Raises:
            NeverFits: Slurm cannot allocate exact GPUs, or the job would not fit on idle nodes either.
            NodeError: the same, without nodes that cannot be used now.
        """
        from provision.batch.slurm.states import gpu_types
        from provision.jobs.engines.slurm.planning import PlanNode, choose

        def devices(connector: Connector) -> StepGpus:
            return ask_jobs(connector, "slurm_gpus", StepGpus)

        answers = self._contact.each([self._nodes[node.name] for node in usable.nodes], devices)
        planned = []
        for node in usable.nodes:
            answer, types = answers[node.name], gpu_types(survey.states[node.slurm].gres)
            if node.name in survey.snapshot.candidates and not isinstance(answer, ProvisionError):
                minors = {device.index: device.minor for device in answer.devices if device.minor in types}
                planned.append(PlanNode(node.slurm, survey.snapshot.candidates[node.name], minors))
        if not any(node.minors for node in planned):
            raise error_of(UsageError, reason("slurm.no_gpu_types"))
        down = {name for name, state in survey.states.items() if state.problem.code}
        choice = choose(spec, planned, survey.taken, down)
        if not isinstance(choice, Reason):
            return choice
        if usable.problems:
            raise error_of(NodeError, reason("slurm.nodes_left_out", cause=choice, nodes=usable.causes))
        raise error_of(NeverFits, reason("placement.exceeds_cluster", cause=choice))

    def _sealed(self, stored: SecretsDocument, nodes: Sequence[PayloadNode]) -> str:
        """Return the secrets of a job, encrypted for the keys of nodes; empty for a job without secrets."""
        if not stored:
            return ""
        text = msgspec.json.encode(stored).decode()
        certificates = [node.certificate for node in nodes]
        return self._ask_head("slurm_seal", Sealed, certificates=certificates, text=text).sealed

    @contextlib.contextmanager
    def _head_connected(self) -> Iterator[None]:
        """Use one connection to the queue host for several requests."""
        with contextlib.closing(self._contact.connect(self.head)) as connector:
            self._open = connector
            try:
                yield
            finally:
                self._open = None

    def _ask_head(self, do: str, kind: type[T], **request: Any) -> T:
        if self._open is not None:
            return ask_jobs(self._open, do, kind, **request)
        with contextlib.closing(self._contact.connect(self.head)) as connector:
            return ask_jobs(connector, do, kind, **request)

    def dry_run(self, spec: JobSpec) -> DryRun:
        """Return what would be started on nodes that are free now; Slurm may choose others. Nothing is written."""
        from provision.jobs.engines.common import dry_run as plan
        from provision.jobs.engines.common.node_probe import NodeProbe
        from provision.jobs.engines.common.placement import allowed, place_job

        self._check(spec)
        nodes, _ = allowed(spec, self._cluster.nodes)
        answers = self._contact.each(self._cluster.nodes, lambda connector: ask_jobs(connector, "look", LookAnswer))
        probes = {name: NodeProbe.of(name, one) for name, one in answers.items() if not isinstance(one, ProvisionError)}
        snapshot = self._cluster_probe.probe(self._cluster, list(probes))
        placement = place_job(spec, snapshot, probes, [node.name for node in nodes])
        made = plan.dry_run(spec, placement, snapshot, self._extras)
        return replace(made, notes=(*made.notes, message(reason("slurm.example"))))

    # Reading

    def _report(
        self, connector: Connector, names: Sequence[str] | None, *, brief: bool, recent: int = 0
    ) -> ReportAnswer:
        """Return the report of a node; from the queue host, read Slurm's queue too, before the report."""
        if connector.name != self.head:
            return super()._report(connector, names, brief=brief, recent=recent)
        if self._agent:
            self._read_queue(lambda: ask_jobs(connector, "slurm_state", SlurmState).jobs)
            return super()._report(connector, names, brief=brief, recent=recent)
        only = {"recent": recent} if recent else {}
        answer = ask_jobs(connector, "slurm_report", ReportAnswer, names=names, brief=brief, **only)
        self._read_queue(partial(_queue_in, answer, connector.name))
        return answer

    def _read_queue(self, queue: Callable[[], str]) -> None:
        """Read Slurm's jobs from the output of squeue, or record why they cannot be read."""
        try:
            self._all_slurm = all_our_jobs(queue())
            self._slurm = newest_jobs(self._all_slurm)
        except ProvisionError as error:
            self._slurm = error

    def _reports_of(self, name: str, time_limit: float | None) -> Mapping[str, ReportAnswer | ProvisionError]:
        """Return the reports of the nodes of one job; the queue host may not know yet which nodes Slurm has chosen."""
        report = partial(self._report, names=[name], brief=False)
        answers = dict(reports_of(name, self._contact, self.head, report, time_limit=time_limit))
        jobs = self._slurm.values() if not isinstance(self._slurm, ProvisionError) else ()
        chosen = {self._inventory_names.get(node, node) for job in jobs if job.name == name for node in job.nodes}
        missing = [self._nodes[node] for node in sorted(chosen) if node in self._nodes and node not in answers]
        if missing:
            answers |= self._contact.each(missing, report, time_limit=time_limit)
        return self._with_engine(answers)

    def _with_engine(self, answers: Mapping[str, Answer | ProvisionError]) -> Mapping[str, Answer | ProvisionError]:
        """Return the reports with the queue as Slurm has it; record and cancel what follows from it."""
        if isinstance(self._slurm, ProvisionError):
            return answers
        joined = join(answers, self.head, self._slurm, {}, self._inventory_names, self._all_slurm)
        failures = self._failures(joined)
        if failures:
            joined = join(answers, self.head, self._slurm, failures, self._inventory_names, self._all_slurm)
        self._record(joined)
        self._attempts = joined.attempts
        return joined.answers

    def _failures(self, joined: Joined) -> dict[int, RecordedReason]:
        """Return why starts failed that have left no result on a node; an empty reason if the starter recorded none."""
        from provision.batch.slurm.states import admin_comment

        numbers = joined.unexplained[:_FAILURES]
        failures = {}
        for number in numbers:
            with contextlib.suppress(ProvisionError):
                text = self._ask_head("slurm_job", SlurmText, job=number).text
                failures[number] = _failure_of(admin_comment(text), self.head)
        return failures

    def _record(self, joined: Joined) -> None:
        """Record which nodes have attempts, and cancel jobs whose end is requested."""
        if self._agent:
            return
        with contextlib.suppress(ProvisionError):
            if joined.changes:
                self._ask_head("queues", WrittenMany, many=list(joined.changes))
            if joined.cancel:
                self._ask_head("slurm_cancel", Done, jobs=list(joined.cancel))

    def _record_results(self, jobs: Sequence[JobRecord]) -> None:
        """Record new results on the queue host, and delete the secrets of these jobs there."""
        many = []
        for job in jobs:
            result = result_of(job) if isinstance(job, DirectRecord) and job.unrecorded and not self._agent else None
            if result is not None:
                queue = {"result": msgspec.to_builtins(result), "state": "over"}
                only = {"if_id": job.id, "if_state": ["started"], "if_attempt": job.attempt}
                many.append({"name": job.spec.name, "queue": queue, "merge": True, "over": True, **only})
        if many:
            with contextlib.suppress(ProvisionError):  # the next command records them
                self._ask_head("queues", WrittenMany, many=many)

    def _slurm_job(self, record: JobRecord) -> SlurmJob | None:
        """Return the job in Slurm of a job that has just been read, a live one first; None if Slurm knows none."""
        if isinstance(self._slurm, ProvisionError):
            raise self._slurm
        return next(iter(self._live_jobs(record)), None) or self._slurm.get(record.id)

    def _live_jobs(self, record: JobRecord) -> list[SlurmJob]:
        """Return the jobs in Slurm of a job that have not ended; several after concurrent restarts."""
        return [job for job in self._all_slurm if job.id == record.id and not job.has_ended]

    def jobs(self, *, limit: int = 0, cursor: str = "", recent: int = 0, time_limit: float | None = None) -> JobPage:
        """Return jobs, the newest first; all nodes and Slurm are asked for every page."""
        page = super().jobs(limit=limit, cursor=cursor, recent=recent, time_limit=time_limit)
        if isinstance(self._slurm, ProvisionError):
            problem = f"{self.head}: Slurm does not answer: {self._slurm.message}"
            return replace(page, problems=(*page.problems, problem))
        return page

    def nodes(self, *, time_limit: float | None = None) -> NodeList:
        """Return the nodes with their GPUs and their state in Slurm."""
        listed = super().nodes(time_limit=time_limit)
        try:
            states = node_states(self._ask_head("slurm_state", SlurmState, nodes=True).nodes)
        except ProvisionError:
            return listed
        views = [self._with_slurm(view, states.get(self._slurm_names[view.name])) for view in listed.nodes]
        return replace(listed, nodes=tuple(views))

    def _with_slurm(self, view: NodeView, state: SlurmNodeState | None) -> NodeView:
        """Return a node with its state in Slurm, and with the GPUs that Slurm has given to other jobs."""
        problem = state.problem if state is not None else reason("slurm.node_missing")
        used = used_minors(state.gres_used) if state is not None else frozenset()
        if len(used) > sum(bool(gpu.job) for gpu in view.gpus):
            view = replace(view, gpus=tuple(self._with_foreign(view, used)))
        if not problem.code or view.reason.code:
            return view
        drained = problem.code == "slurm.node_drained"
        return replace(view, reason=problem, drained=view.drained or drained, ready=view.ready and drained)

    def _with_foreign(self, view: NodeView, used: Collection[int]) -> Iterator[GpuView]:
        """Yield the GPUs of a node; those that Slurm has allocated and that none of our jobs has are foreign."""
        uuids: set[str] = set()
        with contextlib.suppress(ProvisionError), contextlib.closing(self._contact.connect(view.name)) as connector:
            devices = ask_jobs(connector, "slurm_gpus", StepGpus).devices
            uuids = {device.uuid for device in devices if device.minor in used}
        for gpu in view.gpus:
            is_foreign = gpu.uuid in uuids and not gpu.job and not gpu.foreign
            yield replace(gpu, foreign="a job in Slurm") if is_foreign else gpu

    # Ending

    def _end(self, record: JobRecord, say: Say, grace: float, *, keep_secrets: bool = False) -> ProvisionError | None:
        """End a job on its nodes first, with the grace time, then in Slurm."""
        problem = super()._end(record, say, grace, keep_secrets=keep_secrets)
        self._end_elsewhere(record)
        return problem

    def _end_elsewhere(self, record: JobRecord) -> None:
        if isinstance(self._slurm, ProvisionError):
            raise self._slurm
        live = self._live_jobs(record)
        if live:
            self._ask_head("slurm_cancel", Done, jobs=[job.number for job in live])

    # Waiting jobs of the engine `direct`

    def take_over(self, progress: Say, *, dry_run: bool = False) -> TakeOver:
        """Move the waiting jobs of the engine `direct` to Slurm, under the lock of its scheduling passes.

        A second call completes an interrupted one. With `dry_run`, signatures, secrets, options and dependencies are
        verified, Slurm is not asked whether the jobs fit, and nothing is changed.

        Raises:
            UsageError: Slurm cannot start jobs on this cluster, or the user is a submitter.
            LockedError: another command is starting or moving jobs.
        """
        from provision.jobs.engines.common.queue_host import queue_held
        from provision.jobs.engines.common.survey import job_list
        from provision.jobs.engines.slurm.take_over import direct_queue, move_all

        if self._agent:
            raise error_of(UsageError, reason("slurm.submitter"))
        self._check_set_up()
        with contextlib.ExitStack() as stack:
            if not dry_run:
                connections = stack.enter_context(Connections(self._contact))
                stack.enter_context(queue_held(connections, self.head))
            reports: Mapping[str, ReportAnswer | ProvisionError] = self._contact.each(
                self._cluster.nodes, lambda connector: self._report(connector, None, brief=True)
            )
            answers = self._with_engine(reports)
            if isinstance(self._slurm, ProvisionError):
                raise self._slurm
            queue = direct_queue(job_list(self.head, answers).jobs, answers, self.head)
            if dry_run or not queue.waiting:
                return move_all(queue, self._check_move, progress)
            return move_all(queue, self._mover(progress), progress)

    def _check_set_up(self) -> None:
        """Raise UsageError if Slurm cannot start jobs on nodes of the inventory."""
        try:
            states = node_states(self._ask_head("slurm_state", SlurmState, nodes=True).nodes)
        except NodeError as error:
            raise error_of(UsageError, reason("slurm.not_set_up", cause=error.message), node=self.head) from error
        if not any(name in states for name in self._slurm_names.values()):
            raise error_of(UsageError, reason("slurm.not_set_up", cause=reason("slurm.no_nodes")), node=self.head)

    def _check_move(self, job: QueuedJob) -> int:
        """Raise if a job could not be moved; return no number."""
        from provision.jobs.engines.common.placement import allowed

        with contextlib.closing(self._contact.connect(self.head)) as connector:
            spec = self._verified(connector, job.record).signed.spec
        self._check(spec)
        allowed(spec, self._cluster.nodes)
        return 0

    def _mover(self, say: Say) -> Callable[[QueuedJob], int]:
        """Return a function that moves one job to Slurm and returns its number there."""
        survey = self._survey(self._cluster.nodes)
        taken = dict(survey.taken)

        def move(job: QueuedJob) -> int:
            with self._recorded(job.record) as recorded, self._head_connected():
                spec = recorded.signed.spec
                self._check(spec)
                usable = self._usable(spec, replace(survey, taken=taken), say)
                batch = self._batch(recorded, job.attempt, usable, hold=job.is_held)
                number = self._submit_marked(job, recorded, batch)
            if usable.choice is not None:
                taken.update({name: taken[name].union(usable.choice.minors) for name in usable.choice.nodes})
            return number

        return move

    def _submit_marked(self, job: QueuedJob, recorded: RecordedJob, batch: _Batch) -> int:
        """Mark a job as one of Slurm, so that the engine `direct` does not start it, then submit it."""
        if not self._ask_head("queue", Written, **job.marking(self.name)).written:
            raise error_of(NodeError, reason("job.changed"))
        try:
            number = self._submit_batch(recorded, job.attempt, batch)
        except ProvisionError as error:
            if error.code not in _RECORD_STAYS:
                with contextlib.suppress(ProvisionError):  # else the next take_over submits it
                    self._ask_head("queue", Written, **job.unmarking())
            raise
        text = f"moved by {owner()} from the engine direct to Slurm, as job {number}"
        event = {"time": time.time(), "source": "queue", "type": "Normal", "message": text}
        with contextlib.suppress(ProvisionError):
            self._ask_head("event", Done, name=job.record.spec.name, event=event)
        return number

    def maintenance(self) -> SlurmMaintenance:
        """Return the context of maintenance passes; Slurm starts waiting jobs itself."""
        return SlurmMaintenance(self)

    def maintain(self, say: Say) -> MaintenanceResult:
        """Delete finished jobs after their retention time, and plan waiting jobs with --gputopology again."""
        page = self.jobs()
        now = time.time()
        needed = {name for job in page.jobs if not job.status.over for name in job.spec.depends}
        aged = [
            job
            for job in page.jobs
            if job.spec.ttl_after_finished
            and job.status.over
            and job.ended
            and not job.unreachable
            and not job.allocations
            and now - job.ended > job.spec.ttl_after_finished
            and job.spec.name not in needed
        ]
        self._delete_aged(aged, say)
        waiting = tuple(job.spec.name for job in page.jobs if job.status is JobStatus.PENDING and not job.assignments)
        self._plan_again([job for job in page.jobs if job.spec.name not in needed], say)
        return MaintenanceResult((), waiting)

    # Waiting jobs with --gputopology

    def _plan_again(self, records: Sequence[JobRecord], say: Say) -> None:
        """Choose GPUs again for waiting jobs whose chosen GPUs are not free, where they can start with others now.

        A later attempt keeps its job in Slurm, which counts the attempts: it only leaves nodes that are not available.
        """
        from provision.jobs.engines.slurm.planning import taken_gpus

        waiting = self._waiting_for_gpus(records)
        if not waiting:
            return
        answer, survey = self._ask_head("slurm_state", SlurmState, nodes=True), None
        states = node_states(answer.nodes)
        taken, stale = taken_gpus(states, all_our_jobs(answer.jobs))
        for record, job in waiting:
            if job.number not in stale:
                continue
            try:
                if job.restarts:
                    self._leave_nodes(job, states)
                elif _may_start(record.spec, states, taken):
                    survey = survey or self._survey(self._cluster.nodes)
                    choice = self._move(record, job, replace(survey, taken=taken), say)
                    if choice is not None:
                        taken |= {name: taken[name].union(choice.minors) for name in choice.nodes}
            except ProvisionError as error:
                say(f"warning: no other GPUs were chosen for {record.spec.name}: {error.message}")

    def _waiting_for_gpus(self, records: Sequence[JobRecord]) -> list[tuple[JobRecord, SlurmJob]]:
        """Return the jobs that wait for chosen nodes and GPUs, the oldest first."""
        if isinstance(self._slurm, ProvisionError):
            return []
        pairs = [(record, self._slurm_job(record)) for record in records if record.status is JobStatus.PENDING]
        chosen = [(record, job) for record, job in pairs if job is not None and job.required_nodes and job.awaits_nodes]
        return sorted(chosen, key=lambda pair: pair[1].number)

    def _leave_nodes(self, job: SlurmJob, states: Mapping[str, SlurmNodeState]) -> None:
        """Let Slurm choose other nodes for the next attempt of a job if one of its nodes is not available."""
        if any(name not in states or states[name].problem.code for name in job.required_nodes):
            self._ask_head("slurm_job_update", Written, job=job.number, any_node=True)

    def _move(self, record: JobRecord, job: SlurmJob, survey: _Survey, say: Say) -> Choice | None:
        """Submit a waiting job again with GPUs that are free; return them, None if there are none."""
        attempt = max(record.attempt, self._attempts.get(record.id, 0)) + 1
        with self._recorded(record) as recorded, self._head_connected():
            usable = self._usable(recorded.signed.spec, survey, lambda _line: None)
            choice = usable.choice
            if choice is None or not choice.is_free or choice.matches(job):
                return None
            batch = self._batch(recorded, attempt, usable, hold=False)
            if not self._withdraw(record, job):
                return None
            try:
                self._submit_batch(recorded, attempt, batch)
            except ProvisionError as error:
                name = record.spec.name
                say(f"warning: {name} is not in Slurm now: {error.message}. Submit it again: provision restart {name}")
                return None
        say(f"{record.spec.name} gets other GPUs, which are free: on {', '.join(choice.nodes)}")
        return choice

    def _withdraw(self, record: JobRecord, job: SlurmJob) -> bool:
        """Cancel a waiting job in Slurm, so that another one can take its place; return False if it has started."""
        text = f"other GPUs than those of its job {job.number} in Slurm are free"
        event = {"time": time.time(), "source": "queue", "type": "Normal", "message": text}
        queue = {"engine_job": 0, "engine_before": job.number}
        if not self._change_entry(record, queue, job.number, event=event):
            return False
        self._ask_head("slurm_cancel", Done, jobs=[job.number], pending=True)
        jobs = all_our_jobs(self._ask_head("slurm_state", SlurmState).jobs)
        if any(one.number == job.number and one.state == "CANCELLED" for one in jobs):
            return True
        self._change_entry(record, {"engine_job": job.number}, 0)
        return False

    def _change_entry(self, record: JobRecord, queue: Mapping[str, Any], engine_job: int, **more: Any) -> bool:
        """Change the entry of a waiting job whose recorded number in Slurm is `engine_job`."""
        only = {"if_id": record.id, "if_state": ["pending"], "if_engine_job": [engine_job]}
        request = {"name": record.spec.name, "queue": queue, "merge": True, **only, **more}
        return self._ask_head("queue", Written, **request).written

    # Nodes

    def drain(self, names: Sequence[str], reason: str) -> dict[str, ProvisionError | None]:
        """Exclude nodes from new jobs in Slurm, and record the reason on the nodes."""
        errors = super().drain(names, reason)
        return self._update_nodes(names, errors, state="drain", reason=reason)

    def resume(self, names: Sequence[str], say: Say) -> dict[str, ProvisionError | None]:
        """Include drained nodes again, in Slurm too."""
        errors = super().resume(names, say)
        return self._update_nodes(names, errors, state="resume")

    def _update_nodes(
        self, names: Sequence[str], errors: Mapping[str, ProvisionError | None], **request: Any
    ) -> dict[str, ProvisionError | None]:
        updated = dict(errors)
        with contextlib.closing(self._contact.connect(self.head)) as connector:
            for name in names:
                try:
                    ask_jobs(connector, "slurm_node_update", Written, node=self._slurm_names[name], **request)
                except ProvisionError as error:
                    updated[name] = updated.get(name) or error
        return updated

    def reserve_gpus(self, owner: str, requests: Sequence[GpuRequest]) -> contextlib.AbstractContextManager[None]:
        """Allocate all requested GPUs in Slurm for the program `owner`, or none, while the context is open."""
        from provision.jobs.engines.slurm.reservation import allocated_gpus

        return allocated_gpus(owner, requests, self._scheduler())

    def _scheduler(self) -> Scheduler:
        from provision.jobs.engines.slurm.reservation import Scheduler
        from provision.jobs.engines.slurm.submission import labels

        return Scheduler(self._contact, self.head, self._slurm_names, labels(self._cluster))


class SlurmMaintenance:
    """Maintenance of the engine `slurm`.

    Args:
        engine: the engine.
    """

    def __init__(self, engine: SlurmEngine) -> None:
        self._engine = engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, progress: Say, *, time_limit: float | None = None) -> MaintenanceResult:
        """Do one pass."""
        del time_limit
        return self._engine.maintain(progress)

    @staticmethod
    def wait(seconds: float, stop: threading.Event) -> bool:
        """Wait; nothing needs another pass early."""
        stop.wait(seconds)
        return False


def _may_start(spec: JobSpec, states: Mapping[str, SlurmNodeState], taken: Mapping[str, frozenset[int]]) -> bool:
    """Return whether so many GPUs are free that it is worth to probe the nodes."""
    from provision.batch.slurm.states import gpu_types

    free = [len(gpu_types(one.gres) - taken[name]) for name, one in states.items() if not one.problem.code]
    return sum(free) >= spec.gpus * (spec.workers if spec.gang else 1)


def _queue_in(answer: ReportAnswer, node: str) -> str:
    """Return the output of squeue in a report; NodeError with the reason why there is none."""
    if answer.slurm is None:
        raise as_error(answer.slurm_problem or NodeProblem(), node)
    return answer.slurm


def _failure_of(text: str, node: str) -> RecordedReason:
    """Return the reason that the starter recorded in Slurm, or an empty one."""
    try:
        return decode(bytes.fromhex(text), RecordedReason, node=node, what="AdminComment") if text else RecordedReason()
    except (ValueError, InvalidDocument):
        return RecordedReason()
