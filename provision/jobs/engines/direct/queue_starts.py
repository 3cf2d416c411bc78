"""Starting the jobs for which a pass over the queue holds GPUs: many at once, each with the nodes kept informed."""

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
from provision.jobs.connections import MANY, Ways
from provision.jobs.engines.base import Secrets
from provision.jobs.engines.direct.queue_host import hand_over, write_failure, write_queue
from provision.jobs.node_ask import ask_jobs
from provision.threads import outcomes

__all__ = ["secrets_of", "start_all"]

Say = Callable[[str], None]


def start_all(
    ways: Ways,
    head: str,
    attempts: Sequence[Attempt],
    extras: attempt_start.Extras | None,
    say: Say,
    *,
    mine: str = "",
    own: Mapping[str, Archive] | None = None,
) -> set[str]:
    """Start attempts whose leases are held; one that fails keeps none of the others back, and is written down.

    `own` has the code that this process has just packed, by the job's id.

    Returns:
        The names of the jobs whose start failed.

    Raises:
        ProvisionError: the job `mine` failed.
    """
    for attempt in attempts:
        for note in attempt.notes:
            say(f"warning: {attempt.spec.name}: {note}")
    with _alive(ways, head, attempts) as over:
        found = outcomes(lambda one: _start(ways, head, one, extras, say, over, own or {}), attempts, limit=MANY)
    for attempt, outcome in zip(attempts, found, strict=True):
        if isinstance(outcome, ProvisionError):
            write_failure(ways, head, attempt, outcome)
            if attempt.spec.name == mine:
                raise outcome
            where = f"{outcome.node}: " if outcome.node else ""
            say(f"warning: {attempt.spec.name}: its start failed: {where}{outcome.message}")
        elif isinstance(outcome, Exception):
            write_failure(ways, head, attempt, ProvisionError(f"its start failed: {outcome!r:.300}"))
            if attempt.spec.name == mine:
                raise outcome
            say(f"warning: {attempt.spec.name}: its start failed: {outcome!r:.300}")
    pairs = zip(attempts, found, strict=True)
    return {attempt.spec.name for attempt, outcome in pairs if isinstance(outcome, Exception)}


def secrets_of(document: SecretsDocument) -> Secrets:
    """Return a job's secrets as the head keeps them."""
    files = {path: content.decode("utf-8", "surrogateescape") for path, content in document.files.items()}
    return Secrets(document.env, document.sync, files, document.registry)


def _start(
    ways: Ways,
    head: str,
    attempt: Attempt,
    extras: attempt_start.Extras | None,
    say: Say,
    over: Callable[[Attempt], None],
    own: Mapping[str, Archive],
) -> None:
    try:
        with _from_head(ways, head, attempt, own.get(attempt.id)) as (secrets, code):
            whole = replace(attempt, secrets=secrets)
            attempt_start.start(ways, whole, extras, say, lambda: hand_over(ways, head, attempt), code)
    finally:
        over(attempt)


@contextlib.contextmanager
def _from_head(
    ways: Ways, head: str, attempt: Attempt, own: Archive | None
) -> Iterator[tuple[Secrets, Archive | None]]:
    """Yield the secrets and the packed code that were signed; what this process has just packed is used as it is."""
    assert attempt.signed is not None  # noqa: S101 # nosec B101 # only a dry run has none
    with contextlib.ExitStack() as stack:
        try:
            document = ask_jobs(ways.to(head), "secrets", SecretsDocument, name=attempt.spec.name)
            check_secrets(attempt.signed, document, head)
            code = own or stack.enter_context(fetch_archive(ways.to(head), attempt.signed))
        except ProvisionError:
            attempt_start.release(ways, attempt, attempt.nodes)
            raise
        yield secrets_of(document), code


@contextlib.contextmanager
def _alive(ways: Ways, head: str, attempts: Sequence[Attempt]) -> Iterator[Callable[[Attempt], None]]:
    """Tell the nodes now and then that starts go on, or wait for their turn: pulling an image can take long.

    Yields what is told that one is over.
    """
    left = {attempt.id: attempt for attempt in attempts}
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(attempt_start.BROKEN_SECONDS / 4):
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
        attempt_start.renew(ways, attempt)
        write_queue(ways, head, attempt, {}, merge=True)
