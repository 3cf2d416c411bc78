"""Jobs of other people: a question before they are stopped, restarted or deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.common import confirm, interactive
from provision.errors import NotFound, UsageError

if TYPE_CHECKING:
    from provision.jobs.engines.base import Engine

__all__ = ["ask_about_owner"]


def ask_about_owner(runner: Engine, name: str, action: str, *, yes: bool) -> None:
    """Ask before a job of another owner that is not over is ended; its own owner is never asked.

    Args:
        runner: the engine.
        name: the job; one that does not exist is left to the engine.
        action: what is about to happen, e.g. ``Stop``.
        yes: the answer, where it was given in advance.

    Raises:
        UsageError: the answer is no, or there is no terminal to ask on.
    """
    if yes:
        return
    try:
        job = runner.get(name, hurry=True)
    except NotFound:
        return
    if job.status.over or runner.owns(job):
        return
    problem = f"{name} is {job.status} and owned by {job.owner or 'another user'}"
    if not interactive():
        raise UsageError(problem, remedy=f"To {action.lower()} it all the same, add --yes.")
    confirm(f"{problem}. {action} it?", yes=False)
