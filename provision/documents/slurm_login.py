"""Documents of the job engine on a login node of Slurm: answers of the program ``slurm-login``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from provision.documents.jobs import Count, Nodes
from provision.documents.slurm_jobs import JobNumber, Output
from provision.model.bounds import Identifier, JobName, Line, ShortText, Text, Time
from provision.model.job import JobSpec

ExitCode = Annotated[int, Meta(ge=0, le=255)]


class LoginJob(Struct, frozen=True):
    """The record of a job, and what the files of its current attempt say."""

    name: JobName
    id: Identifier
    owner: ShortText
    submitted: Time
    spec: JobSpec
    attempt: Count
    """The attempt that was submitted last; 0 before the first."""
    number: JobNumber
    """Its number in Slurm; 0 if it is not known."""
    earlier: Annotated[list[JobNumber], Meta(max_length=100_000)] = field(default_factory=list)
    """The numbers of earlier attempts."""
    stopped: bool = False
    """Whether a user requested its end."""
    started: Time = 0.0
    nodes: Nodes = field(default_factory=list)
    """Its nodes in Slurm, in the order of its tasks; empty before its start."""
    ended: Time = 0.0
    exit_code: ExitCode | None = None
    """Of the task that failed first, else of the batch script; None if the script has not recorded its end."""
    task: Annotated[int, Meta(ge=-1, le=1_000_000)] = -1
    """The task that failed first; -1 if it is not known."""
    last: Line = ""
    """The last line of the messages of a failed batch script."""


class LoginReserved(Struct, frozen=True):
    """The answer to ``reserve``."""

    reserved: bool
    home: Line


class LoginCheck(Struct, frozen=True):
    """The answer to ``check``."""

    home: Line
    refused: Text = ""


class LoginReport(Struct, frozen=True):
    """The answer to ``report``."""

    user: Annotated[str, Meta(pattern=r"^[0-9]{1,10}\Z")]
    """The UID of the account."""
    home: Line
    jobs: Annotated[list[LoginJob], Meta(max_length=100_000)]
    queue: Output
    """The lines of squeue."""
    accounting: Output = ""
    """The lines of sacct, of jobs that slurmctld does not know any more."""


class LogPiece(Struct, frozen=True):
    """Output of a task."""

    task: Count
    offset: Annotated[int, Meta(ge=0, le=1 << 62)]
    """Where the next piece begins."""
    data: bytes
    """As base64."""


class LoginLogs(Struct, frozen=True):
    """The answer to ``logs``."""

    pieces: Annotated[list[LogPiece], Meta(max_length=100_000)]
