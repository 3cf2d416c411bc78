"""Parallel starts of the jobs for which a scheduling pass has leased GPUs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from provision.batch.signed import check_secrets
from provision.documents.jobs import SecretsDocument
from provision.errors import ProvisionError
from provision.jobs import attempt_start
from provision.jobs.attempt import Attempt
from provision.jobs.code import Archive
from provision.jobs.code_archives import fetch_archive
from provision.jobs.connections import MANY, Connections
from provision.jobs.engines.base import Secrets
from provision.jobs.engines.common.queue_host import hand_over, write_failure, write_queue
from provision.jobs.extras import JobExtras
from provision.jobs.node_ask import ask_jobs
from provision.threads import outcomes

Say = Callable[[str], None]


def start_all(
    connections: Connections,
    head: str,
    attempts: Sequence[Attempt],
    extras: JobExtras | None,
    say: Say,
    *,
    mine: str = "",
    own: Mapping[str, Archive] | None = None,
) -> set[str]:
    """Start attempts with leases; a failure is recorded and does not affect the others.

    `own` has the code that this process has just packed, by the ID of the job.

    Returns:
        The names of the jobs whose start failed.

    Raises:
        ProvisionError: the job `mine` failed.
    """
    for attempt in attempts:
        for note in attempt.notes:
            say(f"warning: {attempt.spec.name}: {note}")
    with _alive(connections, head, attempts) as over:
        results = outcomes(
            lambda one: _start(connections, head, one, extras, say, over, own or {}), attempts, limit=MANY
        )
    for attempt, outcome in zip(attempts, results, strict=True):
        if isinstance(outcome, ProvisionError):
            write_failure(connections, head, attempt, outcome)
            if attempt.spec.name == mine:
                raise outcome
            where = f"{outcome.node}: " if outcome.node else ""
            say(f"warning: {attempt.spec.name}: its start failed: {where}{outcome.message}")
        elif isinstance(outcome, Exception):
            write_failure(connections, head, attempt, ProvisionError(f"its start failed: {outcome!r:.300}"))
            if attempt.spec.name == mine:
                raise outcome
            say(f"warning: {attempt.spec.name}: its start failed: {outcome!r:.300}")
    pairs = zip(attempts, results, strict=True)
    return {attempt.spec.name for attempt, outcome in pairs if isinstance(outcome, Exception)}


def secrets_of(document: SecretsDocument) -> Secrets:
    """Return the secrets of a job as the queue host stores them."""
    files = {path: content.decode("utf-8", "surrogateescape") for path, content in document.files.items()}
    return Secrets(document.env, document.sync, files, document.registry)


def _start(
    connections: Connections,
    head: str,
    attempt: Attempt,
    extras: JobExtras | None,
    say: Say,
    over: Callable[[Attempt], None],
    own: Mapping[str, Archive],
) -> None:
    try:
        with _from_head(connections, head, attempt, own.get(attempt.id)) as (secrets, code):
            ready = replace(attempt, secrets=secrets)
            attempt_start.start(connections, ready, extras, say, lambda: hand_over(connections, head, attempt), code)
    finally:
        over(attempt)


@contextlib.contextmanager
def _from_head(
    connections: Connections, head: str, attempt: Attempt, own: Archive | None
) -> Iterator[tuple[Secrets, Archive | None]]:
    """Yield the signed secrets and the signed packed code; code that this process has just packed is used directly."""
    assert attempt.signed is not None  # noqa: S101 # nosec B101 # only a dry run has none
    with contextlib.ExitStack() as stack:
        try:
            document = ask_jobs(connections.to(head), "secrets", SecretsDocument, name=attempt.spec.name)
            check_secrets(attempt.signed, document, head)
            code = own or stack.enter_context(fetch_archive(connections.to(head), attempt.signed))
        except ProvisionError:
            attempt_start.release(connections, attempt, attempt.nodes)
            raise
        yield secrets_of(document), code


@contextlib.contextmanager
def _alive(connections: Connections, head: str, attempts: Sequence[Attempt]) -> Iterator[Callable[[Attempt], None]]:
    """Renew the leases of starts that run or wait for their turn, because pulling an image can take long.

    Yields a function that takes each finished start.
    """
    left = {attempt.id: attempt for attempt in attempts}
    ended = threading.Event()

    def renew_all() -> None:
        while not ended.wait(attempt_start.BROKEN_SECONDS / 4):
            outcomes(lambda attempt: _renew(connections, head, attempt), list(left.values()), limit=MANY)

    def over(attempt: Attempt) -> None:
        left.pop(attempt.id, None)

    thread = threading.Thread(target=renew_all, daemon=True, name="alive")
    thread.start()
    try:
        yield over
    finally:
        ended.set()
        thread.join()


def _renew(connections: Connections, head: str, attempt: Attempt) -> None:
    """Renew the leases of an attempt; a node that does not answer is asked again before they expire."""
    with contextlib.suppress(ProvisionError):
        attempt_start.renew(connections, attempt)
        write_queue(connections, head, attempt, {}, merge=True)
