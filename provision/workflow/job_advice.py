"""Why a running job does not use its GPUs: its nodes are looked at for a while, and what they tell is judged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from posixpath import normpath
from typing import TYPE_CHECKING, Any

from provision.advisor.advice import advise_from
from provision.advisor.base import Finding, Verdict
from provision.advisor.gpu_advice import idle_seconds
from provision.advisor.series import NodeSeries
from provision.batch.names import attempt_folder
from provision.connectors import Connector, each
from provision.errors import NodeUnreachable, ProvisionError, UsageError
from provision.jobs.sampling import sample_node
from provision.model.job import JobRecord, JobStatus, Seat

if TYPE_CHECKING:
    from provision.jobs.engines.base import Engine
    from provision.model import Cluster

__all__ = ["JobAdvice", "advise_job", "containers_of"]

_TELL_SECONDS = 20.0


@dataclass(frozen=True)
class JobAdvice:
    """What a look at a job came to."""

    job: JobRecord
    seconds: float
    """The window."""
    findings: tuple[Finding, ...]
    nodes: tuple[NodeSeries, ...]
    """All nodes of the job in the order of its ranks; one that told nothing is empty."""
    lost: Mapping[str, str]
    """Node -> why it told nothing, or not all."""
    idle: float | None = None
    """For how many seconds no GPU of the job did anything; None where one did, or where that is not known."""

    ended: str = ""
    """How the job ended within the window; empty where it went on."""

    @property
    def ok(self) -> bool:
        """Whether all nodes told what they know, and nothing was found."""
        return not self.lost and all(finding.verdict is not Verdict.PROBLEM for finding in self.findings)


def advise_job(
    cluster: Cluster,
    engine: Engine,
    name: str,
    *,
    seconds: float,
    tell: Callable[[str], None],
    interval: float = 1.0,
) -> JobAdvice:
    """Look at all nodes of a running job at the same time, by one SSH session each, and judge what they show.

    Args:
        cluster: its nodes.
        engine: what knows the job.
        name: the job's.
        seconds: for how long.
        tell: takes lines of progress.
        interval: seconds between two samples.

    Raises:
        UsageError: the job does not run.
        NotFound: there is no such job.
        NodeUnreachable: none of its nodes can be reached.
    """
    record = engine.get(name)
    _insist_on_running(record)
    foreign = _foreign(engine)
    asked = {node: list(containers_of(record, node)) for node in dict.fromkeys(seat.node for seat in record.seats)}
    nodes = [node for node in cluster.nodes if node.name in asked]

    def look(way: Connector) -> tuple[NodeSeries, str]:
        return sample_node(way, asked[way.name], seconds=seconds, interval=interval)

    with _progress(seconds, len(nodes), tell):
        results = each(nodes, look)
    lost = dict.fromkeys(asked.keys() - results.keys(), "it is not in the inventory")
    lost |= {node: one.message for node, one in results.items() if isinstance(one, ProvisionError)}
    sampled = {node: one for node, one in results.items() if not isinstance(one, ProvisionError)}
    lost |= {node: why for node, (_, why) in sampled.items() if why}
    series = tuple(sampled[node][0] if node in sampled else NodeSeries(node) for node in asked)
    if not any(one.samples for one in series):
        raise NodeUnreachable(
            f"no node of {name} could be looked at: " + "; ".join(f"{node}: {why}" for node, why in lost.items()),
            remedy="see that the nodes can be reached (provision verify) and have Python 3.8 or later",
        )
    transport = _transport(series)
    for one in series:
        one.transport = transport
        one.foreign = {gpu: text for gpu, text in foreign.get(one.node, {}).items() if gpu not in one.given()}
    ended = _ended(engine, record)
    idle = None if lost or ended else idle_seconds(series)
    return JobAdvice(record, seconds, tuple(advise_from(series)), series, lost, idle, ended)


def _ended(engine: Engine, before: JobRecord) -> str:
    """Return how the job ended since, or that it began again; empty where it goes on, or nobody can tell."""
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
        f"{name} is {record.status}: only a job that runs can be looked at" + _because(record),
        remedy=f"{then[0].upper()}{then[1:]}; its script can be judged at any time: provision advise --script FILE",
    )


def _because(record: JobRecord) -> str:
    return f" ({record.reason})" if record.reason else ""


def _transport(job: Sequence[NodeSeries]) -> str | None:
    """Return what NCCL's own log proves of the network; one rank's lines tell of all ranks."""
    from provision.checks.nccl_log import judge_nccl_log
    from provision.facts.nccl_log import read

    lines = [line.encode() for series in job for line in series.nccl]
    return judge_nccl_log(read([b"\n".join(lines) + b"\n"])).transport if lines else None


def _foreign(engine: Engine) -> dict[str, dict[str, str]]:
    """Return node -> GPU -> a process on it that no job explains."""
    return {
        node.name: {gpu.uuid: gpu.foreign for gpu in node.gpus if gpu.foreign} for node in engine.jobs(nodes=True).nodes
    }


def containers_of(record: JobRecord, node: str) -> Iterator[dict[str, Any]]:
    """Return what the sampler is to know of each container on a node; its first instance stands for all in it."""
    spec = record.spec
    folder = attempt_folder(spec.name, record.attempt)
    together: dict[str, list[Seat]] = {}
    for seat in record.seats:
        if seat.node == node:
            together.setdefault(seat.container or seat.instance, []).append(seat)
    for seats in together.values():
        first = seats[0].instance
        known = record.instances.get(first)
        yield {
            "id": known.container_id if known else "",
            "instance": first,
            "gpus": [uuid for seat in seats for uuid in seat.uuids],
            "log": f"{folder}/{first}.log",
            "speaks_for_all": any(seat.role == "launcher" for seat in seats),
            "watch": [normpath(spec.logdir)] if spec.tensorboard else [],
        }


@contextmanager
def _progress(seconds: float, nodes: int, tell: Callable[[str], None]) -> Iterator[None]:
    """Say now and then for how long it still looks."""
    over, begun = threading.Event(), time.monotonic()

    def go() -> None:
        while not over.wait(_TELL_SECONDS):
            left = seconds - (time.monotonic() - begun)
            tell(f"{left:.0f} s left" if left > 0 else "waiting for the last nodes")

    tell(f"looking at {nodes} node{'s' if nodes != 1 else ''} for {seconds:g} s")
    threading.Thread(target=go, daemon=True, name="progress").start()
    try:
        yield
    finally:
        over.set()
