"""The interface of what runs batch jobs. Everything above it is the same for every engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from provision.model.job import JobRecord, JobSpec
from provision.model.job_views import DryRun, JobSurvey

__all__ = ["Engine", "LogRequest", "Secrets", "Tried"]

Say = Callable[[str], None]
"""Takes a line of progress."""
WriteLine = Callable[[str, bytes], None]
"""Takes the instance and a line of its output, with its newline."""


@dataclass(frozen=True)
class Secrets:
    """What a job needs and nobody may see; `repr` shows nothing of it."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For the training's own processes."""
    sync: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For fetching code alone (GIT_SYNC_USERNAME, GIT_SYNC_PASSWORD, ...)."""
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Contents of the spec's ``config_files`` by their path in the container; bytes that are no text as surrogates."""
    registry: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For pulling the image: ``username``, ``password``, and the ``server`` that alone gets them."""


@dataclass(frozen=True)
class LogRequest:
    """Which lines of which instances."""

    instances: tuple[str, ...] = ()
    """Empty: the chief's; all of them with `every`."""
    every: bool = False
    follow: bool = False
    tail: int = -1
    """Last lines of each; -1: all."""
    since: float = 0.0
    """Seconds since the epoch."""
    timestamps: bool = False
    attempt: int = 0
    """0: the last."""


@dataclass(frozen=True)
class Tried:
    """What one look at the queue came to."""

    started: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    """Those that were tried and wait on."""


class Engine(Protocol):
    """Runs jobs on the nodes of one cluster. Errors are those of `provision.errors`.

    A name is unique among live and finished jobs. NotFound (exit 3) for a job that no node knows, NameTaken (exit 4)
    for a name that is used, NeverFits (exit 5) for what could not start on idle nodes either.
    """

    name: str

    def submit(self, spec: JobSpec, secrets: Secrets, say: Say) -> JobRecord:
        """Reserve the name, record the job, start it where it fits now; else it is PENDING with the reason."""

    def dry_run(self, spec: JobSpec) -> DryRun:
        """Say where it would go and what would be started; nothing is written on any node."""

    def jobs(self, *, nodes: bool = False) -> JobSurvey:
        """Return all jobs, and with `nodes` the nodes too, by one SSH session each."""

    def get(self, name: str, *, hurry: bool = False) -> JobRecord:
        """Return all that is known of one job, with its events; in a `hurry` nodes that are late are left out."""

    def logs(self, name: str, request: LogRequest, write: WriteLine) -> JobRecord:
        """Write out lines; with ``follow`` until the job has ended. Returns the job as it is then."""

    def stop(self, name: str, say: Say, *, grace: float = 15.0) -> JobRecord:
        """End a job in good order; its record stays. A job that is over stays as it is.

        Returns:
            The job; STOPPING as long as a node has not confirmed the end.
        """

    def delete(self, name: str, say: Say, *, lost: Sequence[str] = ()) -> None:
        """Stop a job and forget it; its name is free when all of its nodes have confirmed that.

        Args:
            name: the job's, or its ID.
            say: takes lines of progress.
            lost: nodes that never come back, and so cannot confirm.

        Raises:
            NotFound: there is no such job.
            NodeUnreachable: a node has not confirmed; the job is STOPPING until it does.
        """

    def restart(
        self, name: str, say: Say, *, supply: Callable[[JobSpec], Secrets] | None = None, renew: bool = False
    ) -> JobRecord:
        """Start a job that is over (or stop it first) as its next attempt.

        Args:
            name: the job's.
            say: takes lines of progress.
            supply: returns the secrets of one's own job again, which are removed when it ends.
            renew: whether to use `supply` also where the secrets are still stored.
        """

    def release(self, name: str, say: Say) -> JobRecord:
        """Let a job go that is held (QUEUING): it starts where it fits; any other job stays as it is."""

    def owns(self, job: JobRecord) -> bool:
        """Return whether a job (of `get`) is this user's own, by the key that signed it."""

    def owned(self, jobs: Sequence[JobRecord]) -> list[str]:
        """Return the ids of those of these jobs (of `jobs`) that are this user's own, as `owns` decides."""

    def refuses(self, job: JobRecord) -> bool:
        """Return whether the nodes refuse and record every change of a job (of `get`) by this user."""

    def start_pending(self, say: Say, *, patience: float | None = None) -> Tried:
        """Start what waits and fits, and what is to be tried again; forget what is over for as long as it asked.

        With `patience`, starts that take longer than so many seconds continue after the return.
        """

    def await_starts(self) -> None:
        """Return when all starts that continued after `start_pending` have ended."""

    def watch(self, seconds: float, stop: threading.Event) -> bool:
        """Wait until something happened that may let a job start since `start_pending` last looked.

        Returns:
            Whether something did, before `seconds` were over or `stop` was set.
        """

    def exec_argv(self, name: str, instance: str, argv: Sequence[str], *, terminal: bool) -> tuple[str, ...]:
        """Return the command (of this machine) that runs `argv` inside an instance."""

    def forward_argv(self, name: str, local: int, target: str) -> tuple[str, ...]:
        """Return the command (of this machine) that forwards 127.0.0.1:`local` to a port (or ``tensorboard``)."""
