"""Starting the jobs for which a pass over the queue holds GPUs: many at once, each with the nodes kept informed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from provision.errors import ProvisionError
from provision.jobs.engines.base import Secrets
from provision.jobs.engines.direct import starting
from provision.jobs.engines.direct.attempt import Attempt
from provision.jobs.engines.direct.head import hand_over, write_failure, write_queue
from provision.jobs.engines.direct.ways import MANY, Ways
from provision.jobs.node_ask import ask_jobs
from provision.threads import outcomes

__all__ = ["secrets_of", "start_all"]

Say = Callable[[str], None]


def start_all(
    ways: Ways, head: str, attempts: Sequence[Attempt], extras: starting.Extras | None, say: Say, *, mine: str = ""
) -> None:
    """Start attempts whose leases are held; one that fails keeps none of the others back, and is written down.

    Raises:
        ProvisionError: the job `mine` failed.
    """
    for attempt in attempts:
        for note in attempt.notes:
            say(f"warning: {attempt.spec.name}: {note}")
    with _alive(ways, head, attempts) as over:
        found = outcomes(lambda one: _start(ways, head, one, extras, say, over), attempts, limit=MANY)
    for attempt, outcome in zip(attempts, found, strict=True):
        if isinstance(outcome, ProvisionError):
            write_failure(ways, head, attempt, outcome)
            if attempt.spec.name == mine:
                raise outcome
        elif isinstance(outcome, Exception):
            raise outcome


def secrets_of(found: Mapping[str, Any]) -> Secrets:
    """Return a job's secrets as the head keeps them."""
    return Secrets(**{kind.name: dict(found.get(kind.name) or {}) for kind in fields(Secrets)})


def _start(
    ways: Ways, head: str, attempt: Attempt, extras: starting.Extras | None, say: Say, over: Callable[[Attempt], None]
) -> None:
    try:
        whole = replace(attempt, secrets=_secrets_from(ways, head, attempt))
        starting.start(ways, whole, extras, say, lambda: hand_over(ways, head, attempt))
    finally:
        over(attempt)


def _secrets_from(ways: Ways, head: str, attempt: Attempt) -> Secrets:
    try:
        return secrets_of(ask_jobs(ways.to(head), "secrets", name=attempt.spec.name))
    except ProvisionError:
        starting.release(ways, attempt, attempt.nodes)
        raise


@contextlib.contextmanager
def _alive(ways: Ways, head: str, attempts: Sequence[Attempt]) -> Iterator[Callable[[Attempt], None]]:
    """Tell the nodes now and then that starts go on, or wait for their turn: pulling an image can take long.

    Yields what is told that one is over.
    """
    left = {attempt.id: attempt for attempt in attempts}
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(starting.BROKEN_SECONDS / 4):
            outcomes(lambda attempt: _tell(ways, head, attempt), list(left.values()), limit=MANY)

    def over(attempt: Attempt) -> None:
        left.pop(attempt.id, None)

    thread = threading.Thread(target=tell, daemon=True, name="alive")
    thread.start()
    try:
        yield over
    finally:
        ended.set()
        thread.join()


def _tell(ways: Ways, head: str, attempt: Attempt) -> None:
    """Renew what an attempt holds; what does not answer now is told again before it is too late."""
    with contextlib.suppress(ProvisionError):
        starting.renew(ways, attempt)
        write_queue(ways, head, attempt, {}, merge=True)
