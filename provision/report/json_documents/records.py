"""Documents of the verbs about past applies and their locks."""

from __future__ import annotations

from typing import Literal, TypedDict

from provision.report.json_documents.base import NodeResult


class ApplyHead(TypedDict):
    """An apply."""

    id: str
    """The ID of the apply."""
    started: str
    """Start time in UTC: `2026-11-22T10:03:11Z`."""
    ended: str | None
    """End time in UTC."""
    user: str
    """The operator."""
    host: str
    """The controller."""
    command: str
    """The command line."""
    status: str
    """`running`, the result, `died` if it ended without one, or `unlocked` if it was killed."""


class PastNode(TypedDict):
    """A node in a recorded apply."""

    name: str
    """Its name in the inventory."""
    status: str | None
    """Its result; null until the apply has ended."""
    roles: list[str]
    """The roles that changed something."""
    message: str
    """What failed."""


class PastApply(ApplyHead):
    """A recorded apply."""

    source: Literal["nodes", "controller"]
    """Which records have it. Records of nodes contain what operators claimed there."""
    seconds: float | None
    """Duration."""
    nodes: list[PastNode]
    """The nodes."""


class History(TypedDict):
    """Recorded applies."""

    unreachable: list[NodeResult]
    """Nodes whose records could not be read."""
    entries: list[PastApply]
    """The applies, oldest first."""


class RecordedApply(ApplyHead):
    """An apply in the records of a node."""

    roles: list[str]
    """The roles that changed something."""
    notes: list[str]
    """The steps, in order."""
    message: str
    """What failed, or how the apply ended."""


class NodeHistory(NodeResult):
    """The records of a node."""

    entries: list[RecordedApply]
    """The applies, oldest first."""


class NodeHistories(TypedDict):
    """The records of each node (`--nodes`)."""

    ok: bool
    """Whether the records of all nodes could be read."""
    nodes: list[NodeHistory]
    """The nodes."""


class AuditRecord(TypedDict):
    """An action that a node recorded."""

    time: float
    """Seconds since the epoch."""
    action: str
    """The action."""
    caller: str
    """A name of the inventory if `verified`, else the `user@host` that the caller claimed."""
    verified: bool
    """Whether the SSH key of the caller identified it."""
    address: str
    """The source of the SSH session of the caller."""
    result: str
    """`ok`, or why the action was refused or failed."""
    job: str
    """The job."""
    id: str
    """The ID of the job."""
    owner: str
    """The owner of the job, as its submitter claimed it."""
    instance: str
    """The instance of the job."""
    request: str
    """The request of the job agent."""
    reason: str
    """Why a node was drained."""
    command: str
    """The command line."""
    secrets: list[str]
    """The names of the secrets."""


class NodeAudit(NodeResult):
    """The audit records of a node."""

    invalid: int
    """The number of invalid records."""
    records: list[AuditRecord]
    """The records, oldest first."""


class Audit(TypedDict):
    """The audit records of each node (`--audit`)."""

    ok: bool
    """Whether the records of all nodes could be read."""
    nodes: list[NodeAudit]
    """The nodes."""


class LockHolder(TypedDict):
    """The apply that holds the lock of a node."""

    user: str
    """The operator."""
    host: str
    """The controller."""
    pid: int
    """The process on the controller."""
    command: str
    """The command line."""
    since: str
    """Since when, in UTC."""
    gone: str | None
    """When the connection to the controller was lost, if it was."""


class UnlockedNode(TypedDict):
    """The lock of a node."""

    name: str
    """Its name in the inventory."""
    result: str
    """`free` (there was no lock), `unlocked`, `refused`, `failed` or `unreachable`."""
    reason: str
    """Why."""
    remedy: str | None
    """What to do."""
    holder: LockHolder | None
    """The apply that holds or held the lock."""


class Unlock(TypedDict):
    """Released locks."""

    ok: bool
    """Whether no node has a lock."""
    nodes: list[UnlockedNode]
    """The nodes."""
