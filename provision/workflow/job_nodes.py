"""Utilisation of the GPUs of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from provision.errors import ProvisionError

if TYPE_CHECKING:
    from provision.facts.gpu_usage import GpuUsage
    from provision.model import Cluster

_SECONDS = 60.0


@dataclass(frozen=True)
class Usage:
    """The GPUs of nodes now."""

    gpus: Mapping[str, Sequence[GpuUsage]]
    """Node -> its GPUs."""
    simulated: tuple[str, ...] = ()
    """Nodes whose nvidia-smi says that it is a stand-in."""
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Node -> why it did not answer."""


def usage(cluster: Cluster, names: Sequence[str]) -> Usage:
    """Ask nodes how busy and how full their GPUs are, by one SSH session each."""
    from provision.connectors import each
    from provision.facts.gpu_usage import SCRIPT, gpu_usage

    nodes = [node for node in cluster.nodes if node.name in names]
    results = each(nodes, lambda way: way.run(SCRIPT, timeout=_SECONDS))
    answers = {name: one for name, one in results.items() if not isinstance(one, ProvisionError)}
    lost = {name: one.message for name, one in results.items() if isinstance(one, ProvisionError)}
    lost |= {name: one.last_lines(1) or "nvidia-smi failed" for name, one in answers.items() if not one.ok}
    return Usage(
        {name: gpu_usage(one.stdout) for name, one in answers.items() if one.ok},
        tuple(name for name, one in answers.items() if "SIMULATED" in one.stderr),
        lost,
    )
