"""Requests to job engines: secrets of a job, lines of output and GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Secrets:
    """The secrets of a job; `repr` shows none of them."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables of the job's processes."""
    sync: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables for fetching code only (GIT_SYNC_USERNAME, GIT_SYNC_PASSWORD, ...)."""
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Contents of the spec's ``config_files`` by path in the container; bytes that are not text as surrogates."""
    registry: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For pulling the image: ``username``, ``password``, and the only ``server`` that receives them."""


@dataclass(frozen=True)
class LogRequest:
    """The requested lines of output."""

    instances: tuple[str, ...] = ()
    """Empty: the leader, or all with `every`."""
    every: bool = False
    follow: bool = False
    tail: int = -1
    """Last lines of each instance; -1: all."""
    since: float = 0.0
    """Seconds since the epoch."""
    timestamps: bool = False
    attempt: int = 0
    """0: the last one."""


@dataclass(frozen=True)
class GpuRequest:
    """GPUs of one node for a program that is not a batch job."""

    node: str
    count: int
    uuids: tuple[str, ...] = ()
    """Exactly these GPUs; empty: the first `count` of the node."""
