"""A complete job engine in memory: jobs are records, and with `gpus` also processes of this machine.

Tests of commands script it: `coming` has the next states of a job, `calls` the calls that were made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from provision.advisor.series import NodeSeries
from provision.errors import LaunchError, NameTaken, NeverFits, NotFound, ProvisionError
from provision.jobs.engines import EngineContext
from provision.jobs.engines.base import (
    Capability,
    GpuRequest,
    LogRequest,
    MaintenanceResult,
    NodeSample,
    Secrets,
    TakeOver,
    page_of,
)
from provision.jobs.engines.common.placement import no_placement
from provision.jobs.node_contact import Contact
from provision.jobs.sampling import sample_job
from provision.model import Cluster
from provision.model.job import Assignment, InstanceRecord, JobEvent, JobRecord, JobSpec, JobStatus, Kind
from provision.model.job_views import DryRun, GpuView, JobPage, NodeList, NodeView
from provision.model.reason import NO_REASON, Reason, reason
from provision.report.reasons import message

__all__ = ["MemoryEngine", "create", "job_of"]

OWNER = "me@here"
Progress = Callable[[str], None]


def job_of(
    name: str = "pytorch-dist",
    kind: Kind = Kind.PYTORCH,
    *,
    status: JobStatus = JobStatus.RUNNING,
    nodes: tuple[str, ...] = ("gpu1", "gpu2"),
    submitted: float = 1000.0,
    held: bool = True,
    assignments: bool = True,
    words: tuple[str, str] = ("Running", "abcde"),
    record: Mapping[str, object] | None = None,
    **spec: object,
) -> JobRecord:
    """Return a job with a placement for each of its workers, distributed over the nodes in turn."""
    workers = int(spec.setdefault("workers", len(nodes)))  # type: ignore[call-overload]
    made = JobSpec(name, kind, ("python3 x.py",), image="i", **spec)  # type: ignore[arg-type]
    roles = [("master", 0)] + [("worker", n) for n in range(workers - 1)]
    if kind is Kind.MPI:
        roles = [("launcher", 0)] + [("worker", n) for n in range(workers)]
    places = []
    for at, (role, index) in enumerate(roles):
        where = max(at - 1, 0) if kind is Kind.MPI else at
        node = nodes[where % len(nodes)]
        gpus = () if role == "launcher" else tuple(range(made.gpus))
        suffix = words[1] if role == "launcher" else str(index)
        address = f"10.0.0.{nodes.index(node) + 1}"
        uuids = tuple(f"GPU-{node}-{role}{index}-{n}" for n in gpus)
        places.append(Assignment(f"{name}-{role}-{suffix}", role, index, node, address, where, at == 0, gpus, uuids))
    leases: dict[str, tuple[str, ...]] = {}
    for assignment in places:
        leases[assignment.node] = (*leases.get(assignment.node, ()), *assignment.uuids)
    going = held and not status.over and assignments
    whole = JobRecord(
        made,
        f"id-{name}",
        "me@here",
        submitted,
        status,
        attempt=1 if assignments else 0,
        assignments=tuple(places) if assignments else (),
        instances={s.instance: InstanceRecord(s.instance, words[0], started=submitted) for s in places}
        if assignments
        else {},
        started=submitted if assignments else 0.0,
        allocations=leases if going else {},
    )
    return dataclasses.replace(whole, **(record or {}))  # type: ignore[arg-type]


class MemoryEngine:
    """Runs jobs in memory.

    Args:
        jobs: existing jobs.
        page: what lists report apart from the jobs.
        nodes: the nodes of `nodes`, for an engine without `gpus`.
        gpus: node -> GPUs: jobs are placed on them, and run as processes.
        cluster: nodes that `sample` connects to.
        lacks: capabilities that the engine does not have.
    """

    name = "memory"

    def __init__(
        self,
        jobs: tuple[JobRecord, ...] = (),
        page: JobPage | None = None,
        *,
        nodes: tuple[NodeView, ...] = (),
        gpus: Mapping[str, int] | None = None,
        cluster: Cluster | None = None,
        lacks: Sequence[Capability] = (Capability.OWN_QUEUE,),
    ) -> None:
        self.capabilities = frozenset(Capability) - set(lacks)
        self.remedies: Mapping[Capability, str] = {}
        self.known = {job.spec.name: job for job in jobs}
        self.page = page or JobPage(())
        self.coming: list[JobRecord] = []
        """The next states of a job, one for each `get`."""
        self.passes: list[MaintenanceResult | Exception] = []
        """The next results of maintenance passes."""
        self.takes_over = TakeOver()
        """The result of `take_over`."""
        self.changes = 0
        """Number of waits that end with a change."""
        self.lines: list[tuple[str, bytes]] = []
        """The output of all jobs of an engine without `gpus`."""
        self.calls: list[tuple[object, ...]] = []
        self.plan = DryRun((), NO_REASON, {}, {})
        self.drained: dict[str, str] = {}
        self.labels: dict[str, Mapping[str, str]] = {}
        self._views, self._gpus, self._cluster = nodes, gpus, cluster
        self._reserved: dict[tuple[str, int], str] = {}
        self._runs: dict[tuple[str, int], _Run] = {}
        self._failures: dict[str, int] = {}
        self._lock = threading.RLock()
        self._submitted = 1000.0

    # Jobs

    def take_over(self, progress: Progress, *, dry_run: bool = False) -> TakeOver:
        self.calls.append(("take_over", dry_run))
        progress("reading the queue")
        return self.takes_over

    def submit(self, spec: JobSpec, secrets: Secrets, progress: Progress) -> JobRecord:
        self.calls.append(("submit", spec, secrets))
        with self._lock:
            if spec.name in self.known:
                raise NameTaken(f"there is a job {spec.name} already", remedy=f"provision delete {spec.name}")
            if self._gpus is not None:
                self._require_capacity(spec)
            progress("probing 2 nodes")
            self._submitted += 1.0
            token = f"id-{spec.name}-{self._submitted:g}" if self._gpus is not None else "id"
            submitted = self._submitted if self._gpus is not None else 1000.0
            status = JobStatus.RUNNING if self._gpus is None else JobStatus.QUEUING if spec.hold else JobStatus.PENDING
            job = self.coming.pop(0) if self.coming else JobRecord(spec, token, OWNER, submitted, status)
            self.known[spec.name] = dataclasses.replace(job, spec=spec)
            self._schedule()
            return self.known[spec.name]

    def dry_run(self, spec: JobSpec) -> DryRun:
        self.calls.append(("dry_run", spec))
        if self._gpus is None:
            return self.plan
        self._require_capacity(spec)
        places, missing = self._places(spec)
        if missing:
            return DryRun((), self._shortage(spec, missing), {}, {})
        assignments = _assignments(spec, places)
        return DryRun(
            assignments,
            NO_REASON,
            {one.instance: dict(spec.env) for one in assignments},
            {one.instance: spec.command for one in assignments},
        )

    def jobs(self, *, limit: int = 0, cursor: str = "", recent: int = 0, time_limit: float | None = None) -> JobPage:
        del time_limit
        self.calls.append(("jobs", recent))
        self._refresh()
        page, following = page_of(self.known.values(), limit, cursor)
        return dataclasses.replace(self.page, jobs=page, next_cursor=following)

    def get(self, name: str, *, time_limit: float | None = None) -> JobRecord:
        del time_limit
        self._refresh()
        with self._lock:
            name = next((job.spec.name for job in self.known.values() if job.id == name), name)
            if name not in self.known:
                raise NotFound(f"there is no job {name}", remedy="provision list")
            if self.coming:
                self.known[name] = self.coming.pop(0)
            return self.known[name]

    def logs(self, job: JobRecord, request: LogRequest, write: Callable[[str, bytes], None]) -> JobRecord:
        name = job.spec.name
        self.calls.append(("logs", name, request))
        for instance, line in self.lines:
            write(instance, line)
        job = self.get(name)
        if self._gpus is None or not job.attempt:
            return job
        run = self._runs.get((job.id, request.attempt or job.attempt))
        if run is None:
            raise NotFound(f"{name} has no attempt {request.attempt}")
        wanted = list(run.lines) if request.every else request.instances or (next(iter(run.lines)),)
        written = dict.fromkeys(wanted, 0)
        while True:
            job = self.get(name)
            ended = job.status.over or not request.follow or job.attempt != run.number
            for instance in wanted:
                if instance not in run.lines:
                    raise NotFound(f"{name} has no instance {instance}")
                lines = run.lines[instance]
                if not written[instance] and request.tail >= 0:
                    written[instance] = max(len(lines) - request.tail, 0)
                for line in lines[written[instance] :]:
                    write(instance, line)
                written[instance] = len(lines)
            if ended:
                return job
            time.sleep(0.01)

    def stop(self, name: str, progress: Progress, *, grace: float = 15.0) -> JobRecord:
        progress(f"stopping {name}")
        self.calls.append(("stop", name, grace))
        job = self.get(name)
        if self._gpus is not None and job.status.over:
            return job
        self._end(job, grace)
        with self._lock:
            self.known[job.spec.name] = dataclasses.replace(
                self.known[job.spec.name],
                status=JobStatus.STOPPED,
                ended=time.time() if self._gpus is not None else job.ended,
                allocations={},
                retrying=False,
            )
            self._schedule()
            return self.known[job.spec.name]

    def delete(self, name: str, progress: Progress, *, lost: Sequence[str] = ()) -> None:
        progress(f"deleting {name}")
        job = self.get(name)
        self.calls.append(("delete", name, *lost))
        self._end(job, 1.0)
        with self._lock:
            self.known.pop(job.spec.name, None)
            self._schedule()

    def restart(
        self,
        name: str,
        progress: Progress,
        *,
        supply: Callable[[JobSpec], Secrets] | None = None,
        renew: bool = False,
    ) -> JobRecord:
        progress(f"restarting {name}")
        if renew and supply is not None:
            self.calls.append(("restart", name, supply(self.known[name].spec)))
        else:
            self.calls.append(("restart", name))
        job = self.get(name)
        if self._gpus is None:
            return job
        self._end(job, 1.0)
        with self._lock:
            self._failures.pop(job.id, None)
            self.known[job.spec.name] = dataclasses.replace(
                job, status=JobStatus.PENDING, reason="", exit_code=None, first_failure="", allocations={}, ended=0.0
            )
            self._schedule()
            return self.known[job.spec.name]

    def release(self, name: str, progress: Progress) -> JobRecord:
        progress(f"releasing {name}")
        self.calls.append(("release", name))
        job = self.get(name)
        if self._gpus is None or job.status is not JobStatus.QUEUING:
            return job
        with self._lock:
            event = JobEvent(time.time(), "queue", "Normal", f"released by {OWNER}")
            self.known[job.spec.name] = dataclasses.replace(job, status=JobStatus.PENDING, events=(*job.events, event))
            self._schedule()
            return self.known[job.spec.name]

    def owns(self, job: JobRecord) -> bool:
        return job.owner == OWNER

    def owned(self, jobs: Sequence[JobRecord]) -> list[str]:
        return [job.id for job in jobs if self.owns(job)]

    def refuses(self, _job: JobRecord) -> bool:
        return False

    # The queue

    def maintenance(self) -> MemoryMaintenance:
        return MemoryMaintenance(self)

    def maintain(self, progress: Progress) -> MaintenanceResult:
        progress("probing 2 nodes")
        self.calls.append(("maintenance",))
        if self.passes:
            result = self.passes.pop(0)
            if isinstance(result, Exception):
                raise result
            return result
        if self._gpus is None:
            return MaintenanceResult(tuple(n for n, job in self.known.items() if job.status is JobStatus.PENDING))
        self._refresh()
        with self._lock:
            return self._schedule()

    # Instances

    def exec_argv(self, name: str, instance: str, argv: Sequence[str], *, terminal: bool) -> tuple[str, ...]:
        self.calls.append(("exec", name, instance, tuple(argv), terminal))
        job = self.get(name)
        if instance not in {one.instance for one in job.assignments}:
            raise NotFound(f"{name} has no instance {instance}")
        return tuple(argv) if self._gpus is not None else ("sh", "-c", "exit 3")

    def forward_argv(self, name: str, local: int, target: str) -> tuple[str, ...]:
        self.calls.append(("forward", name, local, target))
        if self._gpus is not None and not self.get(name).tensorboard and target == "tensorboard":
            raise NotFound(f"{name} has no TensorBoard")
        return ("true",)

    def sample(self, job: JobRecord, *, seconds: float, interval: float) -> dict[str, NodeSample | ProvisionError]:
        if self._cluster is None:
            return {one.node: NodeSample(NodeSeries(one.node)) for one in job.assignments}
        contact = Contact({node.name: node for node in self._cluster.nodes})
        samples = sample_job(contact, job, seconds=seconds, interval=interval)
        return {node: one if isinstance(one, ProvisionError) else NodeSample(*one) for node, one in samples.items()}

    # Nodes

    def nodes(self, *, time_limit: float | None = None) -> NodeList:
        del time_limit
        self.calls.append(("nodes",))
        if self._gpus is None:
            return NodeList(self._views, self.page.unreachable)
        self._refresh()
        used = self._used()
        return NodeList(
            tuple(
                NodeView(
                    node,
                    "127.0.0.1",
                    ready=True,
                    reason=reason("placement.node_drained", cause=self.drained[node])
                    if node in self.drained
                    else NO_REASON,
                    drained=node in self.drained,
                    labels=self.labels.get(node, {}),
                    gpus=tuple(
                        GpuView(index, _uuid(node, index), "V100", used.get((node, index), ""))
                        for index in range(count)
                    ),
                )
                for node, count in self._gpus.items()
            )
        )

    def drain(self, names: Sequence[str], reason: str) -> dict[str, ProvisionError | None]:
        self.calls.append(("drain", tuple(names), reason))
        self.drained.update(dict.fromkeys(names, reason))
        return dict.fromkeys(names)

    def resume(self, names: Sequence[str], progress: Progress) -> dict[str, ProvisionError | None]:
        del progress
        self.calls.append(("resume", tuple(names)))
        for name in names:
            self.drained.pop(name, None)
        with self._lock:
            self._schedule()
        return dict.fromkeys(names)

    def set_labels(self, labels: Mapping[str, Mapping[str, str]]) -> None:
        self.labels.update(labels)

    @contextlib.contextmanager
    def reserve_gpus(self, owner: str, requests: Sequence[GpuRequest]) -> Iterator[None]:
        reserved: list[tuple[str, int]] = []
        with self._lock:
            for request in requests:
                count = (self._gpus or {}).get(request.node, 0)
                indices = [i for i in range(count) if _uuid(request.node, i) in request.uuids] or range(request.count)
                for index in indices:
                    holder = self._used().get((request.node, index))
                    if holder:
                        raise LaunchError(
                            f"{_uuid(request.node, index)} is held by the job {holder}", node=request.node
                        )
                    reserved.append((request.node, index))
            self._reserved.update(dict.fromkeys(reserved, owner))
        try:
            yield
        finally:
            with self._lock:
                for gpu in reserved:
                    del self._reserved[gpu]

    # Processes

    def _require_capacity(self, spec: JobSpec) -> None:
        counts = [(self._gpus or {}).get(node, 0) for node in spec.nodes or self._gpus or {}]
        workers = sum(count // spec.gpus for count in counts) if spec.gpus else spec.workers
        if workers < spec.workers:
            raise NeverFits(f"{spec.name} needs {spec.workers} times {spec.gpus} GPUs; {workers} workers fit")

    def _used(self) -> dict[tuple[str, int], str]:
        used = dict(self._reserved)
        for job in self.known.values():
            for one in job.assignments if job.allocations else ():
                used.update(dict.fromkeys(((one.node, index) for index in one.gpus), job.spec.name))
        return used

    def _places(self, spec: JobSpec) -> tuple[list[tuple[str, tuple[int, ...]]], int]:
        """Return places, and the number of workers that do not fit."""
        used, places = self._used(), []
        for _ in range(spec.workers):
            for node, count in (self._gpus or {}).items():
                free = [index for index in range(count) if (node, index) not in used]
                fits = len(free) >= spec.gpus and node not in self.drained and node in (spec.nodes or self._gpus or {})
                if fits:
                    places.append((node, tuple(free[: spec.gpus])))
                    used.update(dict.fromkeys(((node, index) for index in free[: spec.gpus]), spec.name))
                    break
        return places, spec.workers - len(places)

    def _shortage(self, spec: JobSpec, missing: int) -> Reason:
        fit = reason("placement.spread", workers=spec.workers, gpus=spec.gpus, fit=spec.workers - missing)
        drained = {node: reason("placement.node_drained", cause=why) for node, why in self.drained.items()}
        return no_placement(fit, drained)

    def _schedule(self) -> MaintenanceResult:
        """Start waiting jobs in the order of their submission."""
        started, waiting = [], []
        for name, job in list(self.known.items()) if self._gpus is not None else ():
            if job.status is not JobStatus.PENDING:
                continue
            places, missing = self._places(job.spec)
            if missing:
                cause = self._shortage(job.spec, missing)
                self.known[name] = dataclasses.replace(job, reason=message(cause), cause=cause)
                waiting.append(name)
                continue
            assignments = _assignments(job.spec, places)
            number = job.attempt + 1
            self._runs[job.id, number] = _Run(job.spec, assignments, number)
            allocations: dict[str, tuple[str, ...]] = {}
            for one in assignments:
                allocations[one.node] = (*allocations.get(one.node, ()), *one.uuids)
            self.known[name] = dataclasses.replace(
                job,
                status=JobStatus.RUNNING,
                reason="",
                cause=NO_REASON,
                attempt=number,
                retrying=False,
                assignments=assignments,
                allocations=allocations,
                started=time.time(),
                instances={one.instance: InstanceRecord(one.instance, "Running") for one in assignments},
            )
            started.append(name)
        return MaintenanceResult(tuple(started), tuple(waiting))

    def _refresh(self) -> None:
        """Record the ends of processes; with a queue of its own, start what waits."""
        with self._lock:
            for name, job in list(self.known.items()):
                run = self._runs.get((job.id, job.attempt))
                if job.status is JobStatus.RUNNING and run is not None and run.codes() is not None:
                    self.known[name] = self._ended(job, run)
            if Capability.OWN_QUEUE in self.capabilities:
                self._schedule()

    def _ended(self, job: JobRecord, run: _Run) -> JobRecord:
        codes = run.codes() or {}
        failed = next((instance for instance, code in codes.items() if code), "")
        instances = {
            name: InstanceRecord(name, "Error" if code else "Completed", exit_code=code) for name, code in codes.items()
        }
        failures = self._failures[job.id] = self._failures.get(job.id, 0) + bool(failed)
        retrying = bool(failed) and failures <= job.spec.retry
        status = JobStatus.PENDING if retrying else JobStatus.FAILED if failed else JobStatus.SUCCEEDED
        return dataclasses.replace(
            job,
            status=status,
            reason=f"{failed} failed: exit code {codes[failed]}" if failed else "",
            retrying=retrying,
            exit_code=codes[failed] if failed else 0,
            first_failure=failed,
            instances=instances,
            allocations={},
            ended=0.0 if retrying else time.time(),
        )

    def _end(self, job: JobRecord, grace: float) -> None:
        run = self._runs.get((job.id, job.attempt))
        if run is not None:
            run.end(grace)


class MemoryMaintenance:
    """Maintenance passes of a `MemoryEngine`."""

    def __init__(self, engine: MemoryEngine) -> None:
        self.engine = engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.calls.append(("maintenance ended",))

    def run(self, progress: Progress, *, time_limit: float | None = None) -> MaintenanceResult:
        del time_limit
        return self.engine.maintain(progress)

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        self.engine.calls.append(("wait", seconds))
        if self.engine.changes:
            self.engine.changes -= 1
            return True
        stop.wait(seconds)
        return False


class _Run:
    """The processes of one attempt."""

    def __init__(self, spec: JobSpec, assignments: Sequence[Assignment], number: int) -> None:
        self.number = number
        self.lines: dict[str, list[bytes]] = {one.instance: [] for one in assignments}
        self._processes = {
            one.instance: subprocess.Popen(
                ["sh", "-c", *spec.command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**spec.env}
            )
            for one in assignments
        }
        self._readers = [
            threading.Thread(target=self._read, args=(name, process), daemon=True)
            for name, process in self._processes.items()
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout:
            self.lines[name].extend(process.stdout)

    def codes(self) -> dict[str, int] | None:
        """Return the exit codes, None while an instance runs."""
        if any(process.poll() is None for process in self._processes.values()):
            return None
        for reader in self._readers:
            reader.join()
        return {
            name: 128 - process.returncode if process.returncode < 0 else process.returncode
            for name, process in self._processes.items()
        }

    def end(self, grace: float) -> None:
        """End all processes: SIGTERM, then SIGKILL."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(grace)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _uuid(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


def _assignments(spec: JobSpec, places: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[Assignment, ...]:
    return tuple(
        Assignment(
            f"{spec.name}-worker-{rank}",
            "worker",
            rank,
            node,
            "127.0.0.1",
            rank,
            rank == 0,
            gpus,
            tuple(_uuid(node, index) for index in gpus),
        )
        for rank, (node, gpus) in enumerate(places)
    )


def create(context: EngineContext) -> MemoryEngine:
    """Return an engine with a GPU on each node of the cluster, as the package of an engine does."""
    return MemoryEngine(gpus=dict.fromkeys((node.name for node in context.cluster.nodes), 1))
