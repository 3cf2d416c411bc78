"""The job engine that needs SSH and Docker only: it reads the state of the nodes and acts on them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from provision.batch.direct_record import DirectRecord
from provision.batch.records import contradictions
from provision.documents.jobs import LookAnswer
from provision.errors import NodeUnreachable, ProvisionError, UsageError
from provision.jobs.cluster_snapshot import BackgroundProbe
from provision.jobs.connections import Connections
from provision.jobs.engines.base import Capability, MaintenanceResult, MissingCapability, TakeOver
from provision.jobs.engines.common.engine import RecordedJob, RecordedJobs, Say
from provision.jobs.engines.common.job_reports import PATIENCE_SECONDS
from provision.jobs.engines.common.node_probe import NodeProbe
from provision.jobs.engines.common.queue_host import queue_held
from provision.jobs.node_ask import ask_jobs
from provision.model.job import JobRecord, JobSpec
from provision.model.job_views import DryRun
from provision.model.reason import reason
from provision.report.reasons import error_of

if TYPE_CHECKING:
    from provision.connectors.absent import AbsentNodes
    from provision.jobs.cluster_snapshot import ClusterProbe
    from provision.jobs.code import Archive
    from provision.jobs.extras import JobExtras
    from provision.jobs.signing import JobKeys
    from provision.model import Cluster

LOOK_SECONDS = 60.0


class DirectEngine(RecordedJobs):
    """Runs jobs on the nodes of one cluster: commands place waiting jobs and start them over SSH."""

    name = "direct"
    capabilities = frozenset(Capability) - {Capability.OWN_QUEUE, Capability.TAKE_OVER}

    def __init__(
        self,
        cluster: Cluster,
        cluster_probe: ClusterProbe,
        keys: JobKeys,
        extras: JobExtras | None = None,
        absent: AbsentNodes | None = None,
    ) -> None:
        super().__init__(cluster, cluster_probe, keys, extras, absent)
        self._watched: Mapping[str, Mapping[str, Any]] = {}
        self._starts: list[threading.Thread] = []

    def _check_change(self, record: JobRecord) -> None:
        engine = record.starting_engine if isinstance(record, DirectRecord) else ""
        if engine not in {"", self.name} and not record.status.over:
            raise error_of(UsageError, reason("job.of_other_engine", job=record.spec.name, engine=engine))

    def _begin(self, job: RecordedJob, say: Say) -> ProvisionError | None:
        own = {job.signed.id: job.code} if job.code is not None else {}
        return self._start_waiting(say, mine=job.signed.name, own=own)[1]

    def _begin_again(self, record: JobRecord, say: Say) -> ProvisionError | None:
        return self._start_waiting(say, mine=record.spec.name)[1]

    def _begin_released(self, record: JobRecord, say: Say) -> None:
        del record  # the pass starts all jobs that fit
        self._start_waiting(say)

    def _begin_waiting(self, say: Say) -> None:
        """Start jobs that waited for released resources; after a failure a later command does it."""
        with contextlib.suppress(ProvisionError):
            self._start_waiting(say, patience=PATIENCE_SECONDS)

    def take_over(self, progress: Say, *, dry_run: bool = False) -> TakeOver:
        """Refuse: this engine takes over no jobs.

        Raises:
            MissingCapability: always.
        """
        del progress, dry_run
        raise MissingCapability("take_over", self.name, Capability.TAKE_OVER)

    def maintenance(self) -> QueueMaintenance:
        """Return the context of scheduling passes: this engine's queue is processed by commands."""
        return QueueMaintenance(self)

    def start_pending(self, say: Say, *, patience: float | None = None) -> MaintenanceResult:
        """Start waiting jobs that fit, and retries; delete finished jobs after their retention time.

        With `patience`, starts that take longer than so many seconds continue after the return: a slow registry of one
        job keeps no other job waiting.
        """
        return self._start_waiting(say, start_patience=patience)[0]

    def await_starts(self) -> None:
        """Wait for the end of all starts that continued after `start_pending`."""
        for thread in self._starts:
            thread.join()

    def watch(self, seconds: float, stop: threading.Event) -> bool:
        """Wait for a change since the last `start_pending` that may let a job start."""
        from provision.jobs.engines.direct.change_watch import await_change

        return await_change(self._nodes, self._watched, seconds, stop)

    def _start_waiting(
        self,
        say: Say,
        *,
        mine: str = "",
        patience: float | None = None,
        own: Mapping[str, Archive] | None = None,
        start_patience: float | None = None,
    ) -> tuple[MaintenanceResult, ProvisionError | None]:
        """Start all jobs that fit. Returns why the job `mine` can never start; the caller deletes it."""
        if self._agent:  # an operator's command or queue starts what submitters submit
            return MaintenanceResult(), None
        from provision.jobs.engines.direct.change_watch import watches
        from provision.jobs.engines.direct.queue_starts import start_all
        from provision.jobs.engines.direct.scheduling import SchedulingPass

        background_probe = BackgroundProbe(self._cluster_probe, self._cluster, self._contact.present)
        if mine:
            background_probe.begin()
        with contextlib.ExitStack() as stack:
            connections = stack.enter_context(Connections(self._contact))
            with queue_held(connections, self.head) as all_tried:
                probes, unreachable = self._probe_nodes(patience)
                scheduling_pass = SchedulingPass(connections, self._cluster, self.head, background_probe, self._keys)
                attempts, refused = scheduling_pass.schedule(probes, unreachable, mine)
                if scheduling_pass.is_complete:
                    all_tried()
            for problem in (*contradictions(list(probes.values()), self.head), *scheduling_pass.refused):
                say(f"warning: {problem}")
            self._delete_aged(scheduling_pass.aged, say)
            open_connections = stack.pop_all()

        failed: set[str] = set()

        def start() -> None:
            with open_connections:
                failed.update(start_all(connections, self.head, attempts, self._extras, say, mine=mine, own=own))

        if start_patience is None:
            start()
        else:
            self._start_in_background(start, start_patience)
        self._watched = watches(scheduling_pass.probes, self.head, attempts, waits=bool(scheduling_pass.waiting))
        started = tuple(attempt.spec.name for attempt in attempts if attempt.spec.name not in failed)
        return MaintenanceResult(started, tuple(scheduling_pass.waiting)), refused

    def _start_in_background(self, start: Callable[[], None], seconds: float) -> None:
        """Run a function in a thread, and wait at most so many seconds for its end."""
        thread = threading.Thread(target=start, daemon=True, name="starts")
        thread.start()
        thread.join(seconds)
        self._starts = [one for one in (*self._starts, thread) if one.is_alive()]

    def _probe_nodes(self, patience: float | None = None) -> tuple[dict[str, NodeProbe], dict[str, str]]:
        """Probe all nodes for leases and waiting jobs; with `patience`, late nodes count as unreachable."""
        answers = self._contact.each(
            self._cluster.nodes,
            lambda connector: ask_jobs(connector, "look", LookAnswer, timeout=LOOK_SECONDS),
            patience=patience,
        )
        self._carry_out(answers)
        probes = {name: NodeProbe.of(name, one) for name, one in answers.items() if not isinstance(one, ProvisionError)}
        lost = {name: one.message for name, one in answers.items() if isinstance(one, ProvisionError)}
        if self.head in lost:
            raise NodeUnreachable(f"{self.head}, which keeps the queue, does not answer: {lost[self.head]}")
        return probes, lost

    def dry_run(self, spec: JobSpec) -> DryRun:
        """Return what would be started and where; nothing is written on any node."""
        if self._agent:
            raise UsageError("--dry-run needs an operator's inventory: the job agent does not place jobs")
        from provision.jobs.engines.common import dry_run as plan
        from provision.jobs.engines.common.placement import allowed, place_job

        nodes, _ = allowed(spec, self._cluster.nodes)
        probes, _ = self._probe_nodes()
        snapshot = self._cluster_probe.probe(self._cluster, list(probes))
        placement = place_job(spec, snapshot, probes, [node.name for node in nodes])
        return plan.dry_run(spec, placement, snapshot, self._extras)


class QueueMaintenance:
    """Scheduling passes; leaving the context waits for the starts that they began.

    Args:
        engine: the engine.
    """

    def __init__(self, engine: DirectEngine) -> None:
        self._engine = engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.await_starts()

    def run(self, progress: Say, *, time_limit: float | None = None) -> MaintenanceResult:
        """Do one pass. Starts that take longer than `time_limit` seconds continue after the return."""
        return self._engine.start_pending(progress, patience=time_limit)

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Wait for a change that may let a job start."""
        return self._engine.watch(seconds, stop)
