"""Waiting for changes that may let a job start, by one session to each node where they can occur."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from provision.connectors import RemoteProcess, connect
from provision.documents.jobs import Watched
from provision.errors import ProvisionError
from provision.jobs.connections import MANY
from provision.jobs.engines.common.node_probe import NodeProbe
from provision.jobs.node_ask import begin, first_line
from provision.model import Node

if TYPE_CHECKING:
    from provision.jobs.attempt import Attempt

SETTLING_SECONDS = 5.0
"""A change so shortly before a probe may not be part of the probe result."""
_TICK = 0.25


def watches(
    probes: Mapping[str, NodeProbe], head: str, started: Sequence[Attempt] = (), *, waits: bool
) -> dict[str, dict[str, Any]]:
    """Return what to watch after a scheduling pass: node -> fields of the request ``watch``.

    The queue host reports new jobs, and jobs that other commands have started. While a job `waits`, it may wait for any
    lease or attempt; otherwise only attempts matter that start again when they fail.
    """
    node_requests: dict[str, dict[str, Any]] = {}
    jobs = {job for probe in probes.values() for job, *_ in _attempts(probe, started)}
    for name, probe in probes.items():
        leases = sorted(probe.leases) if waits else []
        attempts = [
            {"name": job, "attempt": number} for job, number, again in _attempts(probe, started) if waits or again
        ]
        if leases or attempts:
            node_requests[name] = {"leases": leases, "attempts": attempts}
    if head in probes:
        since = probes[head].now - SETTLING_SECONDS
        node_requests[head] = {**node_requests.get(head, {}), "since": since, "known": sorted(jobs)}
    return node_requests


def _attempts(probe: NodeProbe, started: Sequence[Attempt]) -> Iterator[tuple[str, int, bool]]:
    """Yield job and number of the running attempts on a node, and whether another one follows when they fail."""
    for job in probe.jobs:
        if job.attempt and job.supervisor == "active" and not job.result:
            yield job.name, job.attempt, bool(job.spec.get("retry"))
    for attempt in started:
        if probe.node in attempt.nodes:
            yield attempt.spec.name, attempt.number, attempt.spec.retry > 0


def await_change(
    nodes: Mapping[str, Node], node_requests: Mapping[str, Mapping[str, Any]], seconds: float, stop: threading.Event
) -> bool:
    """Return whether a node reported a change before the time was over or `stop` was set.

    A node that does not answer reports none; the next pass includes it. Of very many nodes, only some are watched.
    """
    changed, over, end = threading.Event(), threading.Event(), time.monotonic() + seconds
    open_ones: list[RemoteProcess] = []

    def watch(name: str) -> None:
        with contextlib.suppress(ProvisionError), contextlib.closing(connect(nodes[name])) as connector:
            process = begin(connector, "watch", seconds=seconds, **node_requests[name])
            open_ones.append(process)
            if not over.is_set() and first_line(process, name, Watched).changed:
                changed.set()

    for name in list(node_requests)[:MANY]:
        threading.Thread(target=watch, args=(name,), daemon=True, name=f"watch {name}").start()
    try:
        while not stop.is_set() and (left := end - time.monotonic()) > 0:
            if changed.wait(min(_TICK, left)):
                return True
        return False
    finally:
        over.set()
        for process in open_ones:
            process.close()
