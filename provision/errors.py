"""Every error that a user can cause, as one tree.

ProvisionError                exit 1
├── UsageError                exit 2   wrong words on the command line, or a refusal
│   └── InventoryError        exit 2   the inventory cannot be used (file and key named)
│       └── VaultPasswordMissing  exit 2   a value cannot be decrypted
├── ConnectionFailed          exit 1   a node cannot be reached or authenticated
│   ├── HostNotTrusted        exit 1   a node shows a host key that is unknown, changed or revoked
│   └── NotStarted            exit 1   a command or copy was never started on a node
├── NodeError                 exit 1   a node was reached and something there failed
│   ├── NotAllowed            exit 2   a node refuses what this user may not do
│   ├── InvalidRecord         exit 1   the record of a job on a node is not valid
│   └── InvalidDocument       exit 1   a node sent something that is not a valid document
├── LabError                  exit 1   the lab on this machine cannot do what was asked
├── LockedError               exit 4   somebody else holds the lock
├── NotFound                  exit 3   there is no such job
├── NameTaken                 exit 4   a job of that name is there already
├── NeverFits                 exit 5   no set of nodes could ever take the job, not even idle ones
├── TimedOut                  exit 6   what was waited for did not come in time
├── NodeUnreachable           exit 7   a node could not be reached: the answer needs it, or it has not confirmed an end
├── LaunchError               exit 125 a job could not be started
├── NoResult                  its job's exit code, or 1: a benchmark's job has ended without a result
└── Interrupted               exit 130 Ctrl-C

An error says what happened, on which node, and what to do about it. Errors never log or print:
``provision.cli`` alone turns them into text and an exit code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provision.model.reason import Reason


class ProvisionError(Exception):
    """An error of which the message names object, problem and cause, and the remedy the fix.

    Args:
        message: one sentence: what was tried and why it failed.
        node: the inventory name of the node it happened on, if any.
        remedy: what the user can do, as a sentence or a command.
        output: the last lines of what the failing program printed.
        reason: the decision that the error reports, if any; see `provision.report.reasons.error_of`.
    """

    exit_code = 1
    code = "error"
    """What went wrong, for programs; a more specific error has a more specific code, e.g. ``job.not_owner``."""
    one_line = False
    """Whether message and remedy are one line each: they may hold words of a node, which must not look like ours."""

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        remedy: str | None = None,
        output: str = "",
        reason: Reason | None = None,
    ) -> None:
        super().__init__(message)
        self.message = _one_line(message) if self.one_line else message
        self.node = node
        self.remedy = _one_line(remedy) if self.one_line and remedy else remedy
        self.output = output
        self.reason = reason
        if reason is not None:
            self.code = reason.code

    def __str__(self) -> str:
        return f"{self.node}: {self.message}" if self.node else self.message


def _one_line(text: str) -> str:
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)


class UsageError(ProvisionError):
    """The command line is wrong, or the request is refused."""

    code = "usage"
    exit_code = 2


class InventoryError(UsageError):
    """The inventory cannot be used; the message names the file (or host) and the key."""

    code = "inventory.invalid"


class VaultPasswordMissing(InventoryError):
    """A value of the inventory is encrypted, and no vault password decrypts it."""

    code = "inventory.vault_password"


class ConnectionFailed(ProvisionError):
    """A node cannot be reached, does not let us in, or shows a host key that is not trusted."""

    code = "connection.failed"
    one_line = True


class HostNotTrusted(ConnectionFailed):
    """A node shows a host key that is unknown, changed or revoked."""

    code = "connection.host_key"


class NotStarted(ConnectionFailed):
    """A command or copy was never started on a node, because the login or sudo failed before."""

    code = "connection.not_started"


class NodeError(ProvisionError):
    """A node was reached, and the request failed there."""

    code = "node.failed"
    one_line = True


class NotAllowed(NodeError):
    """A node refuses what this user may not do."""

    code = "node.not_allowed"
    exit_code = 2

    def __init__(self, message: str, code: str, *, node: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message, node=node, remedy=remedy)
        self.code = code


class InvalidRecord(NodeError):
    """The record of a job on a node is not valid."""

    code = "job.invalid_record"
    other_owner = ""
    """The recorded owner where it is another user; no signature confirms it."""


class InvalidDocument(NodeError):
    """A node sent a document that is too large, malformed or of the wrong type."""

    code = "node.invalid_document"


class LabError(ProvisionError):
    """The lab on the controller cannot do what was requested."""

    code = "lab.failed"


class LockedError(ProvisionError):
    """Another process holds the lock; the message says who, since when and for what."""

    code = "lock.held"
    one_line = True
    exit_code = 4
    passing = False
    """Whether the holder's side is gone, so that the lock goes with the last task that it left at work."""


class NotFound(ProvisionError):
    """There is no job (or instance) of that name."""

    code = "job.not_found"
    one_line = True
    exit_code = 3


class NameTaken(ProvisionError):
    """A job of that name exists already, running or finished."""

    code = "job.name_taken"
    exit_code = 4


class NeverFits(ProvisionError):
    """The job requires more than the cluster has, or contradicts itself; waiting would not help."""

    code = "job.insufficient_resources"
    exit_code = 5


class TimedOut(ProvisionError):
    """A condition was not met in time; it may still be met."""

    code = "timeout"
    exit_code = 6


class NodeUnreachable(ProvisionError):
    """A node that the answer needs could not be reached."""

    code = "node.unreachable"
    one_line = True
    exit_code = 7


class LaunchError(ProvisionError):
    """A job could not be started; nothing of it is left running."""

    code = "job.not_started"
    exit_code = 125


class NoResult(ProvisionError):
    """A benchmark's job has ended without a result; the exit code is the job's where that is not 0."""

    code = "benchmark.no_result"

    def __init__(self, message: str, job_code: int, *, remedy: str, output: str) -> None:
        super().__init__(message, remedy=remedy, output=output)
        self.exit_code = job_code or 1


class Interrupted(ProvisionError):
    """The user pressed Ctrl-C; completed changes remain."""

    code = "interrupted"
    exit_code = 130
