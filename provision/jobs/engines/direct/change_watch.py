"""Waiting for what may let a job start: by one session to each node where it can happen."""

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
from provision.jobs.engines.direct.node_probe import NodeLook
from provision.jobs.node_ask import begin, first_line
from provision.model import Node

if TYPE_CHECKING:
    from provision.jobs.attempt import Attempt

__all__ = ["await_change", "watches"]

SETTLING_SECONDS = 5.0
"""What came so shortly before a node was looked at may not have been seen."""
_TICK = 0.25


def watches(
    looks: Mapping[str, NodeLook], head: str, started: Sequence[Attempt] = (), *, waits: bool
) -> dict[str, dict[str, Any]]:
    """Return what is to be watched after a pass over the queue: node -> more of the request ``watch``.

    The head tells of jobs that are new, or that others have started. While a job `waits` all leases and attempts may
    be what it waits for; else only attempts matter that are to be tried again when they fail.
    """
    found: dict[str, dict[str, Any]] = {}
    known = {job for look in looks.values() for job, *_ in _attempts(look, started)}
    for name, look in looks.items():
        leases = sorted(look.leases) if waits else []
        attempts = [
            {"name": job, "attempt": number} for job, number, again in _attempts(look, started) if waits or again
        ]
        if leases or attempts:
            found[name] = {"leases": leases, "attempts": attempts}
    if head in looks:
        since = looks[head].now - SETTLING_SECONDS
        found[head] = {**found.get(head, {}), "since": since, "known": sorted(known)}
    return found


def _attempts(look: NodeLook, started: Sequence[Attempt]) -> Iterator[tuple[str, int, bool]]:
    """Yield job and number of the attempts that go on on a node, and whether others may follow when they fail."""
    for job in look.jobs:
        if job.attempt and job.keeper == "active" and not job.result:
            yield job.name, job.attempt, bool(job.spec.get("retry"))
    for attempt in started:
        if look.node in attempt.nodes:
            yield attempt.spec.name, attempt.number, attempt.spec.retry > 0


def await_change(
    nodes: Mapping[str, Node], requests: Mapping[str, Mapping[str, Any]], seconds: float, stop: threading.Event
) -> bool:
    """Return whether a node told of a change before the time was over, or `stop` was set.

    A node that does not answer tells of none: the next pass sees it. Of very many nodes only some are watched.
    """
    changed, over, end = threading.Event(), threading.Event(), time.monotonic() + seconds
    open_ones: list[RemoteProcess] = []

    def watch(name: str) -> None:
        with contextlib.suppress(ProvisionError), contextlib.closing(connect(nodes[name])) as way:
            process = begin(way, "watch", seconds=seconds, **requests[name])
            open_ones.append(process)
            if not over.is_set() and first_line(process, name, Watched).changed:
                changed.set()

    for name in list(requests)[:MANY]:
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
