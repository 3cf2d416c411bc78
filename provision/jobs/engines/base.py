"""The interface of job engines, which run batch jobs. All code above it is the same for every engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from provision.errors import ProvisionError, UsageError
from provision.model.job import JobRecord, JobSpec
from provision.model.job_requests import GpuRequest, LogRequest, Secrets
from provision.model.job_views import DryRun, JobPage, NodeList

if TYPE_CHECKING:
    from provision.advisor.series import NodeSeries

Progress = Callable[[str], None]
"""Takes a line of progress."""
WriteLine = Callable[[str, bytes], None]
"""Takes the instance and a line of its output, with its newline."""


class Capability(StrEnum):
    """What an engine may or may not support."""

    GANG = "gang scheduling"
    """Starts all workers of a job at once, or none."""
    RETRY = "retry"
    """Starts a failed job again, as often as its ``retry`` allows."""
    TOPOLOGY = "topology choice"
    """Chooses the GPUs of a job by their links."""
    ATTACH = "attach"
    """Runs a command in an instance."""
    PORT_FORWARD = "port forwarding"
    """Forwards a local port to a job or its TensorBoard."""
    FOLLOW = "following output"
    """Passes lines on while the job runs."""
    LABELS = "node labels"
    """Places jobs by labels of nodes that can be changed."""
    DRAIN = "drain"
    """Excludes nodes from new jobs."""
    GPU_RESERVATION = "GPU reservation"
    """Reserves GPUs for a program that is not a batch job."""
    SAMPLING = "sampling"
    """Samples the processes of a running job."""
    OWN_QUEUE = "own queue"
    """Starts waiting jobs itself. Without it, they are started by commands and by `provision queue run`."""
    TAKE_OVER = "taking over waiting jobs"
    """Takes over the jobs that wait in the queue of the engine `direct`."""

    @property
    def code(self) -> str:
        """The reason for programs."""
        return f"engine.no_{self.name.lower()}"


class EngineUnavailable(UsageError):
    """The requested engine does not exist, or cannot be used on this cluster."""

    code = "engine.unavailable"


class MissingCapability(UsageError):
    """The command needs a capability that the engine lacks."""

    def __init__(self, what: str, engine: str, capability: Capability, remedy: str = "") -> None:
        super().__init__(
            f"{what}: the job engine {engine} does not support {capability}",
            remedy=remedy or "Choose an engine that supports it: --engine NAME, or cluster_engine in the inventory.",
        )
        self.capability = capability
        self.code = capability.code


@dataclass(frozen=True)
class MaintenanceResult:
    """The result of one maintenance pass."""

    started: tuple[str, ...] = ()
    """Jobs that the pass started."""
    waiting: tuple[str, ...] = ()
    """Jobs that cannot start yet."""


@dataclass(frozen=True)
class MovedJob:
    """A waiting job that an engine has taken over, or would take over."""

    job: JobRecord
    engine_job: int = 0
    """Its number in the scheduler of the engine; 0 if it is not submitted there yet."""


@dataclass(frozen=True)
class WaitingJob:
    """A waiting job that an engine has not taken over."""

    job: JobRecord
    error: ProvisionError
    """Why, with a remedy."""


@dataclass(frozen=True)
class TakeOver:
    """The result of taking over the waiting jobs of the engine `direct`."""

    moved: tuple[MovedJob, ...] = ()
    """In the order of their submission."""
    remaining: tuple[WaitingJob, ...] = ()
    """They still wait in the queue of the engine `direct`, or cannot start at all."""
    unfinished: tuple[JobRecord, ...] = ()
    """Jobs that the engine `direct` has started; they finish there."""


@dataclass(frozen=True)
class NodeSample:
    """A sample of a running job on one node."""

    series: NodeSeries
    problem: str = ""
    """Why the sample ended early; empty if it is complete."""


class Maintenance(Protocol):
    """The work of an engine that is done only while a command runs.

    An engine without a queue of its own starts waiting jobs, retries failed ones and deletes old ones. Another engine
    may, for example, choose new nodes for a waiting job. Leaving the context waits for the started work.
    """

    def run(self, progress: Progress, *, time_limit: float | None = None) -> MaintenanceResult:
        """Do one pass. Starts that take longer than `time_limit` seconds continue after the return."""

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Wait for an event that may need another pass.

        Returns:
            Whether one occurred before the time was over or `stop` was set.
        """


class JobEngine(Protocol):
    """Runs jobs on the nodes of one cluster. Errors are those of `provision.errors`.

    A name is unique among all jobs that are not deleted. NotFound (exit 3): no such job. NameTaken (exit 4): a job has
    the name. NeverFits (exit 5): the job could not start on an idle cluster either. An ID is accepted in place of a
    name. Callers check `capabilities` before they use a method that needs one (`require`).
    """

    name: str
    capabilities: Collection[Capability]
    remedies: Mapping[Capability, str]
    """What to do instead, for capabilities that the engine lacks; without an entry, another engine is the remedy."""

    def submit(self, spec: JobSpec, secrets: Secrets, progress: Progress) -> JobRecord:
        """Record a job; start it if its resources are free, otherwise it is PENDING with the reason."""

    def dry_run(self, spec: JobSpec) -> DryRun:
        """Return what would be started and where; nothing is changed."""

    def jobs(self, *, limit: int = 0, cursor: str = "", recent: int = 0, time_limit: float | None = None) -> JobPage:
        """Return jobs, the newest first.

        Args:
            limit: the most jobs of a page; 0: all.
            cursor: `JobPage.next_cursor` of the page before; empty: the first page.
            recent: leave out ended jobs that are older than so many others; an engine may return more. 0: none.
            time_limit: seconds after which nodes that have not answered are reported as unreachable.

        Raises:
            UsageError: the cursor is not valid.
        """

    def nodes(self, *, time_limit: float | None = None) -> NodeList:
        """Return the nodes with their GPUs; `time_limit` as for `jobs`."""

    def get(self, name: str, *, time_limit: float | None = None) -> JobRecord:
        """Return all that is known of a job, with its events; `time_limit` as for `jobs`."""

    def logs(self, job: JobRecord, request: LogRequest, write: WriteLine) -> JobRecord:
        """Write lines of output of a job (of `get`), with ``follow`` (FOLLOW) until it has ended.

        Returns:
            The job as it is then.
        """

    def stop(self, name: str, progress: Progress, *, grace: float = 15.0) -> JobRecord:
        """End a job gracefully; its record stays. A finished job is not changed.

        Returns:
            The job; STOPPING as long as its end is not confirmed.
        """

    def delete(self, name: str, progress: Progress, *, lost: Sequence[str] = ()) -> None:
        """Stop a job and delete its record; then its name is free.

        Args:
            name: the name or ID.
            progress: takes lines of progress.
            lost: nodes that never come back, so their confirmation is not waited for.

        Raises:
            NodeUnreachable: a node has not confirmed the end; the job is STOPPING until it does.
        """

    def restart(
        self, name: str, progress: Progress, *, supply: Callable[[JobSpec], Secrets] | None = None, renew: bool = False
    ) -> JobRecord:
        """Start the next attempt of a finished job; stop it first if it runs.

        Args:
            name: the name or ID.
            progress: takes lines of progress.
            supply: returns the secrets of a job of this user again; they are deleted when a job ends.
            renew: whether to use `supply` also while the secrets are still stored.
        """

    def release(self, name: str, progress: Progress) -> JobRecord:
        """Release a held job (QUEUING), so that it starts when its resources are free. Other jobs are not changed."""

    def owns(self, job: JobRecord) -> bool:
        """Return whether a job (of `get`) is owned by this user."""

    def owned(self, jobs: Sequence[JobRecord]) -> list[str]:
        """Return the IDs of those jobs (of `jobs`) that are owned by this user."""

    def refuses(self, job: JobRecord) -> bool:
        """Return whether the cluster itself refuses every change of a job (of `get`) by this user."""

    def maintenance(self) -> AbstractContextManager[Maintenance]:
        """Return the context for maintenance passes."""

    def take_over(self, progress: Progress, *, dry_run: bool = False) -> TakeOver:
        """Take over the waiting jobs of the engine `direct` (TAKE_OVER); a second call completes an interrupted one.

        Name, ID, owner, specification, secrets and signature of a job stay. At no time may both engines start it. With
        `dry_run`, nothing is changed.

        Raises:
            UsageError: this engine cannot start jobs on this cluster.
            LockedError: another command is starting jobs, or takes them over.
        """

    def exec_argv(self, name: str, instance: str, argv: Sequence[str], *, terminal: bool) -> tuple[str, ...]:
        """Return the local command that runs `argv` in an instance (ATTACH)."""

    def forward_argv(self, name: str, local: int, target: str) -> tuple[str, ...]:
        """Return the local command that forwards 127.0.0.1:`local` to a port or ``tensorboard`` (PORT_FORWARD)."""

    def drain(self, names: Sequence[str], reason: str) -> Mapping[str, ProvisionError | None]:
        """Exclude nodes from new jobs, for a reason (DRAIN). Running jobs continue.

        Returns:
            Node -> the error there, None for success.
        """

    def resume(self, names: Sequence[str], progress: Progress) -> Mapping[str, ProvisionError | None]:
        """Include drained nodes again (DRAIN), and start the jobs that waited for them.

        Returns:
            Node -> the error there, None for success.
        """

    def set_labels(self, labels: Mapping[str, Mapping[str, str]]) -> None:
        """Apply the labels of nodes after the inventory has recorded them (LABELS)."""

    def reserve_gpus(self, owner: str, requests: Sequence[GpuRequest]) -> AbstractContextManager[None]:
        """Reserve all requested GPUs for the program `owner`, or none, while the context is open (GPU_RESERVATION).

        Raises:
            LaunchError: one of them is in use.
        """

    def sample(self, job: JobRecord, *, seconds: float, interval: float) -> Mapping[str, NodeSample | ProvisionError]:
        """Sample a running job on all of its nodes for so many seconds (SAMPLING)."""


def require(engine: JobEngine, capability: Capability, what: str) -> None:
    """Check that an engine has a capability.

    Raises:
        MissingCapability: the engine lacks it.
    """
    if capability not in engine.capabilities:
        raise MissingCapability(what, engine.name, capability, engine.remedies.get(capability, ""))


def require_for(engine: JobEngine, spec: JobSpec) -> None:
    """Check that an engine has the capabilities that a job needs.

    Raises:
        MissingCapability: the engine lacks one.
    """
    if spec.retry:
        require(engine, Capability.RETRY, "--retry")
    if spec.gputopology:
        require(engine, Capability.TOPOLOGY, "--gputopology")
    if spec.selector:
        require(engine, Capability.LABELS, "--selector")
    if spec.gang and spec.workers > 1:
        require(engine, Capability.GANG, "--gang")


def all_jobs(engine: JobEngine, *, page_size: int = 0, recent: int = 0) -> JobPage:
    """Return all pages of an engine's jobs as one."""
    pages = [engine.jobs(limit=page_size, recent=recent)]
    while pages[-1].next_cursor:
        pages.append(engine.jobs(limit=page_size, cursor=pages[-1].next_cursor, recent=recent))
    return JobPage(
        tuple({job.id: job for page in pages for job in page.jobs}.values()),
        unreachable={node: why for page in pages for node, why in page.unreachable.items()},
        problems=tuple(dict.fromkeys(problem for page in pages for problem in page.problems)),
        incomplete=next((page.incomplete for page in pages if page.incomplete), ""),
        older=pages[0].older,
    )


def page_of(jobs: Iterable[JobRecord], limit: int, cursor: str) -> tuple[tuple[JobRecord, ...], str]:
    """Return one page of jobs, the newest first, and the cursor of the next page.

    The cursor holds the position, so a job that is deleted between two pages moves no other job.

    Raises:
        UsageError: the cursor is not valid.
    """
    ordered = sorted(jobs, key=_position)
    if cursor:
        try:
            submitted, name, token = cursor.split(" ")
            after = (-float(submitted), name, token)
        except ValueError:
            raise UsageError(f"'{cursor:.80}' is not the cursor of a list of jobs") from None
        ordered = [job for job in ordered if _position(job) > after]
    page = tuple(ordered[:limit] if limit else ordered)
    last = page[-1] if len(page) < len(ordered) else None
    return page, f"{last.submitted!r} {last.spec.name} {last.id}" if last else ""


def _position(job: JobRecord) -> tuple[float, str, str]:
    return -job.submitted, job.spec.name, job.id
