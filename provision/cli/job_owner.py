"""Jobs of other users: the confirmation before they are stopped, restarted or deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.common import confirm
from provision.cli.job_options import SHORT_TIME_LIMIT
from provision.errors import InvalidRecord, NotFound

if TYPE_CHECKING:
    from provision.jobs.engines.base import JobEngine


def ask_about_owner(engine: JobEngine, name: str, action: str, *, yes: bool) -> None:
    """Ask for confirmation before an unfinished job of another user is ended.

    A job without a valid record has no signature: then the recorded owner decides. The nodes refuse and record changes
    that are not allowed.

    Raises:
        UsageError: It is not confirmed.
    """
    if yes:
        return
    try:
        job = engine.get(name, time_limit=SHORT_TIME_LIMIT)
    except NotFound:
        return
    except InvalidRecord as error:
        if action != "Delete":  # the engine refuses it, with the remedy
            raise
        if error.other_owner:
            confirm(f"The record of {name} is not valid, and its owner is {error.other_owner}. {action} it?", yes=False)
        return
    if not (job.status.over or engine.owns(job) or engine.refuses(job)):
        confirm(f"{name} is {job.status} and owned by {job.owner or 'another user'}. {action} it?", yes=False)
