"""A stored benchmark result: command, nodes, time and runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provision.benchmarks.base import Run


@dataclass(frozen=True)
class NodeInfo:
    """One node at the time of the benchmark; unknown values are empty."""

    name: str
    ranks: int = 0
    gpus: str = ""
    """``8x NVIDIA A100-SXM4-80GB``; ``CPU`` for a node without GPUs."""
    driver: str = ""
    system: str = ""
    kernel: str = ""
    fabric: tuple[str, ...] = ()
    """Active ports, as ``mlx5_0 InfiniBand 200 Gb/sec (4X HDR)``."""
    image: str = ""
    image_id: str = ""
    simulated: tuple[str, ...] = ()
    """Simulated components of the node, as ``component: what it simulates``."""


@dataclass(frozen=True)
class Record:
    """One benchmark started by ``bench run`` or ``bench scale``."""

    id: str
    name: str
    started: str
    """In UTC: ``2026-11-22T10:03:11Z``."""
    seconds: float = 0.0
    user: str = ""
    host: str = ""
    inventory: str = ""
    command: str = ""
    """The command of each rank in shell syntax, without secrets."""
    options: str = ""
    """The options of ``provision run`` besides nodes and command, e.g. ``--preset taco --gdr``, without secrets."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """Variables set by the user; the value of a variable with a secret's name is None."""
    nodes: tuple[NodeInfo, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    """The benchmark's own report: torch, NCCL, device, and as ``environment`` the variables of its first rank."""
    exit_code: int = 0
    runs: tuple[Run, ...] = ()

    @property
    def simulated(self) -> tuple[str, ...]:
        """Return the distinct simulated components of all its nodes."""
        return tuple(dict.fromkeys(thing for node in self.nodes for thing in node.simulated))


def from_document(document: Any) -> Record | None:
    """Return a record from the form of ``dataclasses.asdict``; None if it is invalid. Nothing is raised."""
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
