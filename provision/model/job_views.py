"""Jobs and nodes as people look at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from provision.model.job import JobRecord, Seat

__all__ = ["DryRun", "GpuView", "JobSurvey", "NodeView"]


@dataclass(frozen=True)
class DryRun:
    """What a job would be, were it started now."""

    seats: tuple[Seat, ...]
    reason: str
    """Why it cannot start now; empty when it can."""
    environment: Mapping[str, Mapping[str, str]]
    """Instance -> variables, secrets as ``[secret]``."""
    commands: Mapping[str, Sequence[str]]
    """Instance -> the docker command."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Such as the host file."""
    notes: tuple[str, ...] = ()
    """What is odd about it, and who is left out."""


@dataclass(frozen=True)
class GpuView:
    """One GPU of a node."""

    index: int
    uuid: str
    name: str = ""
    job: str = ""
    """Who holds its lease."""
    instance: str = ""
    foreign: str = ""
    """A process on it that no job of ours explains."""


@dataclass(frozen=True)
class NodeView:
    """A node as jobs see it."""

    name: str
    address: str
    ready: bool
    reason: str = ""
    """Why it is not ready, or drained."""
    drained: bool = False
    head: bool = False
    mode: str = "default"
    gpus: tuple[GpuView, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    simulated: bool = False


@dataclass(frozen=True)
class JobSurvey:
    """All jobs that the nodes know of, and who did not answer."""

    jobs: tuple[JobRecord, ...]
    nodes: tuple[NodeView, ...] = ()
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Node -> why."""
    problems: tuple[str, ...] = ()
    """What nodes reported and was ignored: malformed entries, and contradictions to the head."""
