"""Jobs and nodes as users see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from provision.model.job import Assignment, JobRecord
from provision.model.reason import NO_REASON, Reason


@dataclass(frozen=True)
class DryRun:
    """What would be started, and where."""

    assignments: tuple[Assignment, ...]
    reason: Reason
    """Why the job cannot start now; `NO_REASON` if it can."""
    environment: Mapping[str, Mapping[str, str]]
    """Instance -> variables, secrets as ``[secret]``."""
    commands: Mapping[str, Sequence[str]]
    """Instance -> the command that the engine would run."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Generated files by name, for example the host file."""
    notes: tuple[str, ...] = ()
    """Warnings, and nodes that are excluded."""


@dataclass(frozen=True)
class GpuView:
    """One GPU of a node."""

    index: int
    uuid: str
    name: str = ""
    job: str = ""
    """The job that it is allocated to."""
    instance: str = ""
    foreign: str = ""
    """A process on it that belongs to no known job."""


@dataclass(frozen=True)
class NodeView:
    """A node with its GPUs."""

    name: str
    address: str
    ready: bool
    reason: Reason = NO_REASON
    """Why it is not ready or is drained."""
    drained: bool = False
    head: bool = False
    """Whether the node manages the queue."""
    mode: str = "default"
    gpus: tuple[GpuView, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    simulated: bool = False


@dataclass(frozen=True)
class NodeList:
    """The nodes of a cluster."""

    nodes: tuple[NodeView, ...]
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Node -> why."""


@dataclass(frozen=True)
class JobPage:
    """A page of jobs, the newest first."""

    jobs: tuple[JobRecord, ...]
    next_cursor: str = ""
    """For the next page; empty on the last one."""
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Node that did not answer -> why."""
    problems: tuple[str, ...] = ()
    """Ignored parts of answers, ``NODE: PROBLEM``: malformed entries and contradictions."""
    incomplete: str = ""
    """Why finished jobs cannot be distinguished from others, because the records of jobs are missing; else empty."""
    older: int = 0
    """Jobs that have ended and are not in the page, because only recent ones were requested."""
