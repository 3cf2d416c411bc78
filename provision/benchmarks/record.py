"""A kept result: what ran, on what, when, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provision.benchmarks.base import Run

__all__ = ["NodeInfo", "Record", "from_document"]


@dataclass(frozen=True)
class NodeInfo:
    """One node as it was when the benchmark ran; what nobody could tell is empty."""

    name: str
    ranks: int = 0
    gpus: str = ""
    """``8x NVIDIA A100-SXM4-80GB``; of a node without GPUs ``CPU``."""
    driver: str = ""
    system: str = ""
    kernel: str = ""
    fabric: tuple[str, ...] = ()
    """Active ports, as ``mlx5_0 InfiniBand 200 Gb/sec (4X HDR)``."""
    image: str = ""
    image_id: str = ""
    simulated: tuple[str, ...] = ()
    """Stand-ins that the node carried, as ``thing: what it stands in for``."""


@dataclass(frozen=True)
class Record:
    """One benchmark that ``bench run`` or ``bench scale`` started."""

    id: str
    name: str
    started: str
    """In UTC: ``2026-11-22T10:03:11Z``."""
    seconds: float = 0.0
    user: str = ""
    host: str = ""
    inventory: str = ""
    command: str = ""
    """What each rank ran, as a shell would take it, secrets removed."""
    options: str = ""
    """What ``provision run`` was given besides nodes and command, e.g. ``--preset taco --gdr``; secrets removed."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """Variables that were given by hand; the value of one that is a secret by its name is None."""
    nodes: tuple[NodeInfo, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    """What the benchmark says of itself: torch, NCCL, device, and as ``environment`` what its first rank was given."""
    exit_code: int = 0
    runs: tuple[Run, ...] = ()

    @property
    def simulated(self) -> tuple[str, ...]:
        """Return the stand-ins of all its nodes, each once."""
        return tuple(dict.fromkeys(thing for node in self.nodes for thing in node.simulated))


def from_document(document: Any) -> Record | None:
    """Read what ``dataclasses.asdict`` made of a record; None where it is none. Nothing is raised."""
    try:
        known = {key: document[key] for key in Record.__dataclass_fields__ if key in document}
        known["nodes"] = tuple(_node(node) for node in document.get("nodes", ()))
        known["runs"] = tuple(_run(run) for run in document.get("runs", ()))
        for key in ("environment", "about"):
            known[key] = dict(document.get(key, {}))
        for key in ("id", "name", "started"):
            known[key] = str(document[key])
        for key in ("user", "host", "inventory", "command", "options"):
            known[key] = str(document.get(key, ""))
        return Record(**known | {"seconds": float(document.get("seconds", 0)), "exit_code": int(document["exit_code"])})
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _node(document: Mapping[str, Any]) -> NodeInfo:
    known = {key: document[key] for key in NodeInfo.__dataclass_fields__ if key in document}
    return NodeInfo(**known | {key: tuple(map(str, document.get(key, ()))) for key in ("fabric", "simulated")})


def _run(document: Mapping[str, Any]) -> Run:
    known = {key: document[key] for key in Run.__dataclass_fields__ if key in document}
    numbers = {key: float(document[key]) for key in ("img_per_sec_per_gpu", "total")}
    iterations = tuple(map(float, document.get("iterations", ())))
    return Run(**known | numbers | {"gpus": max(1, int(document["gpus"])), "iterations": iterations})
