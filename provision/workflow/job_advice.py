"""Sample the nodes of a running job, and judge why it does not use its GPUs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provision.advisor.advice import advise_from
from provision.advisor.base import Finding, Verdict
from provision.advisor.gpu_advice import idle_seconds
from provision.advisor.series import NodeSeries
from provision.batch.durations import elapsed
from provision.errors import NodeUnreachable, ProvisionError, UsageError
from provision.jobs.engines.base import Capability, require
from provision.model.job import JobRecord, JobStatus

if TYPE_CHECKING:
    from provision.jobs.engines.base import JobEngine

_TELL_SECONDS = 20.0


@dataclass(frozen=True)
class JobAdvice:
    """The result of sampling a job."""

    job: JobRecord
    seconds: float
    """The window."""
    findings: tuple[Finding, ...]
    nodes: tuple[NodeSeries, ...]
    """All nodes of the job in the order of its ranks; a node without samples is empty."""
    lost: Mapping[str, str]
    """Node -> why its samples are missing or incomplete."""
    idle: float | None = None
    """For how many seconds no GPU of the job did anything; None where one did, or where that is not known."""

    ended: str = ""
    """How the job ended within the window; empty where it went on."""

    @property
    def ok(self) -> bool:
        """Whether all nodes were sampled, and there is no advice."""
        return not self.lost and all(finding.verdict is not Verdict.PROBLEM for finding in self.findings)


def advise_job(
    engine: JobEngine,
    name: str,
    *,
    seconds: float,
    report: Callable[[str], None],
    interval: float = 1.0,
) -> JobAdvice:
    """Sample all nodes of a running job in parallel, one SSH session each, and judge the samples.

    Raises:
        UsageError: the job does not run.
        NotFound: there is no such job.
        NodeUnreachable: none of its nodes can be reached.
    """
    require(engine, Capability.SAMPLING, "provision advise")
    record = engine.get(name)
    _insist_on_running(record)
    foreign = _foreign(engine)
    names = {assignment.node for assignment in record.assignments}
    with _progress(seconds, len(names), report):
        samples = engine.sample(record, seconds=seconds, interval=interval)
    lost = {
        node: problem
        for node, sample in samples.items()
        if (problem := sample.message if isinstance(sample, ProvisionError) else sample.problem)
    }
    series = tuple(
        NodeSeries(node) if isinstance(sample, ProvisionError) else sample.series for node, sample in samples.items()
    )
    if not any(one.samples for one in series):
        raise NodeUnreachable(
            f"no node of {name} could be sampled: " + "; ".join(f"{node}: {why}" for node, why in lost.items()),
            remedy="see that the nodes can be reached (provision verify) and have Python 3.6 or later",
        )
    transport = _transport(series)
    for one in series:
        one.transport = transport
        one.foreign = {gpu: text for gpu, text in foreign.get(one.node, {}).items() if gpu not in one.given()}
    ended = _ended(engine, record)
    idle = None if lost or ended else idle_seconds(series)
    return JobAdvice(record, seconds, tuple(advise_from(series)), series, lost, idle, ended)


def _ended(engine: JobEngine, before: JobRecord) -> str:
    """Return how the job ended meanwhile, or that it began again; empty if it goes on or its state is unknown."""
    try:
        now = engine.get(before.spec.name)
    except ProvisionError:
        return ""
    if now.attempt != before.attempt or now.id != before.id:
        return "it was started again"
    return f"it is {now.status}" if now.status is not JobStatus.RUNNING else ""


def _insist_on_running(record: JobRecord) -> None:
    if record.status is JobStatus.RUNNING:
        return
    name = record.spec.name
    then = (
        f"start it again (provision restart {name}) and ask while it runs"
        if record.status.over
        else f"wait for it (provision wait {name} --for running) and ask again"
    )
    raise UsageError(
        f"{name} is {record.status}: only a running job can be sampled" + _because(record),
        remedy=f"{then[0].upper()}{then[1:]}; its script can be judged at any time: provision advise --script FILE",
    )


def _because(record: JobRecord) -> str:
    return f" ({record.reason})" if record.reason else ""


def _transport(job: Sequence[NodeSeries]) -> str | None:
    """Return what NCCL's own log proves about the network; the lines of one rank stand for all ranks."""
    from provision.checks.nccl_log import judge_nccl_log
    from provision.facts.nccl_log import read

    lines = [line.encode() for series in job for line in series.nccl]
    return judge_nccl_log(read([b"\n".join(lines) + b"\n"])).transport if lines else None


def _foreign(engine: JobEngine) -> dict[str, dict[str, str]]:
    """Return node -> GPU -> a process on it that no job explains."""
    return {node.name: {gpu.uuid: gpu.foreign for gpu in node.gpus if gpu.foreign} for node in engine.nodes().nodes}


@contextmanager
def _progress(seconds: float, nodes: int, report: Callable[[str], None]) -> Iterator[None]:
    """Report regularly how long the sampling still takes."""
    over, begun = threading.Event(), time.monotonic()

    def go() -> None:
        while not over.wait(_TELL_SECONDS):
            left = seconds - (time.monotonic() - begun)
            report(f"{elapsed(left)} left" if left > 0 else "waiting for the last nodes")

    report(f"sampling {nodes} node{'s' if nodes != 1 else ''} for {elapsed(seconds)}")
    threading.Thread(target=go, daemon=True, name="progress").start()
    try:
        yield
    finally:
        over.set()
