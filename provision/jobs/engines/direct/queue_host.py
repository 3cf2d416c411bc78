"""What the node that keeps the queue is told: who starts jobs now, and how each job stands."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from provision.documents.jobs import Held, QueueEntry, Written, WrittenMany
from provision.errors import LockedError, NodeError, ProvisionError
from provision.jobs.node_ask import ANSWER_SECONDS, ask_jobs, begin, first_line, owner

if TYPE_CHECKING:
    from provision.jobs.attempt import Attempt
    from provision.jobs.connections import Ways
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
"""So long a command waits for another one that starts jobs."""
WRITE_SECONDS = 0.1
"""So long a slow disk may take for one job's place in the queue."""
BEAT_SECONDS = 15.0
"""The node lets the queue go when it hears nothing of us for a minute."""


def mark(ways: Ways, head: str, record: JobRecord, queue: QueueEntry, *, over: bool = False, **changes: Any) -> bool:
    """Write down how a job stands in the queue, and as an event why it waits.

    Returns whether it was written: not when it stands otherwise than in `queue` by now, or is another job. The node
    puts the time to it, by its own clock. With `over` the job's secrets go.
    """
    return ask_jobs(ways.to(head), "queue", Written, **marking(record, queue, over=over, **changes)).written


def mark_all(ways: Ways, head: str, markings: Sequence[Mapping[str, Any]]) -> None:
    """Write down how several jobs stand in the queue, each as `mark` does, by one request; nothing where none is."""
    if markings:
        seconds = ANSWER_SECONDS + WRITE_SECONDS * len(markings)
        ask_jobs(ways.to(head), "queues", WrittenMany, timeout=seconds, many=list(markings))


def marking(record: JobRecord, queue: QueueEntry, *, over: bool = False, **changes: Any) -> dict[str, Any]:
    """Return what the request ``queue`` is told of a job whose place is to change from what it is in `queue`."""
    now = {**msgspec.to_builtins(queue), **changes}
    event = None
    if changes.get("reason") and changes["reason"] != queue.reason:
        event = {"time": time.time(), "source": "queue", "type": "Warning", "message": changes["reason"]}
    seen = [queue.state] if queue.state else None
    name = record.spec.name
    return {"name": name, "queue": now, "event": event, "over": over, "if_id": record.id, "if_state": seen}


def hand_over(ways: Ways, head: str, attempt: Attempt) -> None:
    """Write down that the job is its nodes' from now on, so that nobody starts it a second time.

    Raises:
        NodeError: it was stopped, forgotten or started by somebody else meanwhile.
    """
    if not write_queue(ways, head, attempt, {"handed": True}, merge=True):
        raise NodeError(f"{attempt.spec.name} was stopped, deleted or started by somebody else meanwhile")


def write_queue(
    ways: Ways,
    head: str,
    attempt: Attempt,
    queue: Mapping[str, Any],
    *,
    merge: bool = False,
    event: Mapping[str, Any] | None = None,
    over: bool = False,
) -> bool:
    """Write to a job's place in the queue, as long as it is there for this very attempt."""
    answer = ask_jobs(
        ways.to(head),
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


def write_failure(ways: Ways, head: str, attempt: Attempt, error: ProvisionError) -> None:
    """Write down that a start failed: nothing of it runs, and its GPUs are free."""
    queue = {
        "state": "failed",
        "attempt": attempt.number,
        "reason": f"{error.node}: {error.message}" if error.node else error.message,
    }
    event = {"time": time.time(), "source": "start", "type": "Warning", "message": queue["reason"]}
    with contextlib.suppress(ProvisionError):
        write_queue(ways, head, attempt, queue, event=event, over=True)


@contextlib.contextmanager
def queue_held(ways: Ways, head: str) -> Iterator[Callable[[], None]]:
    """Be the only one that starts jobs; the lock goes with our connection.

    Yields what tells the head that all that waits was tried, so that the reasons there are as new as this look.
    """
    process = begin(ways.to(head), "hold_queue", seconds=QUEUE_SECONDS, who=owner(), beats=True)
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
                f"somebody else is starting jobs ({answer.by.who or 'unknown'}, for {seconds} s)",
                node=head,
                remedy="what waits is started by any later command, or by: provision queue run",
            )
        yield lambda: write(b"tried\n")
    finally:
        over.set()
        process.close()
