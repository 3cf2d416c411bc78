"""Requests to the queue host: the lock of the queue, and the state of each job in it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from provision.documents.jobs import Held, QueueEntry, Written, WrittenMany, recorded_reason
from provision.errors import LockedError, NodeError, ProvisionError
from provision.jobs.node_ask import ANSWER_SECONDS, ask_jobs, begin, first_line, owner
from provision.model.reason import reason
from provision.report.reasons import message

if TYPE_CHECKING:
    from provision.jobs.attempt import Attempt
    from provision.jobs.connections import Connections
    from provision.model.job import JobRecord

__all__ = [
    "hand_over",
    "mark",
    "mark_all",
    "marking",
    "owner",
    "queue_held",
    "write_failure",
    "write_queue",
]

QUEUE_SECONDS = 60.0
"""The time that a command waits for another one that starts jobs."""
WRITE_SECONDS = 0.1
"""The time of a slow disk for the entry of one job."""
BEAT_SECONDS = 15.0
"""The node releases the lock if it receives nothing for a minute."""


def mark(
    connections: Connections, head: str, record: JobRecord, queue: QueueEntry, *, over: bool = False, **changes: Any
) -> bool:
    """Record the state of a job in the queue, and an event with the reason if the job waits.

    Returns whether it was recorded: not if the state differs from `queue` by now, or the name belongs to another job.
    The node adds the time of its own clock. With `over`, the secrets of the job are deleted.
    """
    return ask_jobs(connections.to(head), "queue", Written, **marking(record, queue, over=over, **changes)).written


def mark_all(connections: Connections, head: str, markings: Sequence[Mapping[str, Any]]) -> None:
    """Record the states of several jobs as `mark` does, by one request; without jobs, send none."""
    if markings:
        seconds = ANSWER_SECONDS + WRITE_SECONDS * len(markings)
        ask_jobs(connections.to(head), "queues", WrittenMany, timeout=seconds, many=list(markings))


def marking(record: JobRecord, queue: QueueEntry, *, over: bool = False, **changes: Any) -> dict[str, Any]:
    """Return the fields of the request ``queue`` that change the state of a job from `queue`."""
    uncoded = {"code": "", "params": {}} if "reason" in changes else {}
    now = {**msgspec.to_builtins(queue), **uncoded, **changes}
    event = None
    if changes.get("reason") and changes["reason"] != queue.reason:
        event = {"time": time.time(), "source": "queue", "type": "Warning", "message": changes["reason"]}
    seen = [queue.state] if queue.state else None
    name = record.spec.name
    return {"name": name, "queue": now, "event": event, "over": over, "if_id": record.id, "if_state": seen}


def hand_over(connections: Connections, head: str, attempt: Attempt) -> None:
    """Record that the nodes of the job have it now, so that it is not started a second time.

    Raises:
        NodeError: it was stopped, deleted or started by another command meanwhile.
    """
    if not write_queue(connections, head, attempt, {"handed": True}, merge=True):
        raise NodeError(f"{attempt.spec.name} was stopped, deleted or started by another command meanwhile")


def write_queue(
    connections: Connections,
    head: str,
    attempt: Attempt,
    queue: Mapping[str, Any],
    *,
    merge: bool = False,
    event: Mapping[str, Any] | None = None,
    over: bool = False,
) -> bool:
    """Change the entry of a job in the queue, as long as it has this attempt."""
    answer = ask_jobs(
        connections.to(head),
        "queue",
        Written,
        name=attempt.spec.name,
        queue=dict(queue),
        merge=merge,
        event=event,
        over=over,
        if_id=attempt.id,
        if_state=["started"],
        if_attempt=attempt.number,
    )
    return answer.written


def write_failure(connections: Connections, head: str, attempt: Attempt, error: ProvisionError) -> None:
    """Record that a start failed: nothing of it runs, and its GPUs are free."""
    why = error.reason or error.message
    cause = reason("job.start_failed", error=error.code, node_name=error.node, cause=why)
    queue = {"state": "failed", "attempt": attempt.number, **recorded_reason(cause, message(cause))}
    event = {"time": time.time(), "source": "start", "type": "Warning", "message": queue["reason"]}
    with contextlib.suppress(ProvisionError):
        write_queue(connections, head, attempt, queue, event=event, over=True)


@contextlib.contextmanager
def queue_held(connections: Connections, head: str) -> Iterator[Callable[[], None]]:
    """Hold the lock of the queue; it ends with the connection.

    Yields a function that records that all waiting jobs were tried, so that their reasons are up to date.
    """
    process = begin(connections.to(head), "hold_queue", seconds=QUEUE_SECONDS, who=owner(), beats=True)
    over = threading.Event()

    def write(line: bytes) -> None:
        with contextlib.suppress(ProvisionError):
            process.write(line)

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            write(b"\n")

    try:
        threading.Thread(target=beat, daemon=True, name="beat").start()
        answer = first_line(process, head, Held)
        if not answer.held:
            seconds = "?" if answer.by.seconds is None else answer.by.seconds
            raise LockedError(
                f"another command is starting jobs ({answer.by.who or 'unknown'}, for {seconds} s)",
                node=head,
                remedy="Waiting jobs are started by any later command, or by: provision queue run",
            )
        yield lambda: write(b"tried\n")
    finally:
        over.set()
        process.close()
