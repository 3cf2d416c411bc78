"""Job engines. An engine is a package with a function `create`, and one line in `ENGINES`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provision.jobs.cluster_snapshot import ClusterProbe
    from provision.jobs.engines.base import JobEngine
    from provision.model import Cluster

__all__ = ["DEFAULT_ENGINE", "ENGINES", "EngineContext", "create_engine", "engine_name"]

ENGINES: dict[str, str] = {
    "direct": "provision.jobs.engines.direct",
    "slurm": "provision.jobs.engines.slurm",
}
"""Name -> package, whose function ``create(context)`` returns the engine or raises `EngineUnavailable`."""
DEFAULT_ENGINE = "direct"
VARIABLE = "cluster_engine"
"""The inventory variable that chooses the engine."""


@dataclass(frozen=True)
class EngineContext:
    """What an engine is created from."""

    cluster: Cluster
    """With the defaults of the roles."""
    cluster_probe: ClusterProbe
    """Probes nodes as targets of jobs."""


def engine_name(cluster: Cluster, requested: str = "") -> str:
    """Return the name of the cluster's engine: the requested one, else that of the inventory, else the default."""
    variables = cluster.nodes[0].variables if cluster.nodes else {}
    name = next((one for one in (requested, str(variables.get(VARIABLE) or "")) if one not in {"", "auto"}), "")
    return name or DEFAULT_ENGINE


def create_engine(name: str, context: EngineContext) -> JobEngine:
    """Return an engine for a cluster.

    Raises:
        EngineUnavailable: there is no such engine, or it cannot be used on this cluster.
    """
    if name not in ENGINES:
        from provision.jobs.engines.base import EngineUnavailable

        raise EngineUnavailable(
            f"unknown job engine '{name}'",
            remedy=f"Choose one of {', '.join(sorted(ENGINES))}: --engine NAME, or {VARIABLE} in the inventory.",
        )
    create: Callable[[EngineContext], JobEngine] = importlib.import_module(ENGINES[name]).create
    return create(context)
