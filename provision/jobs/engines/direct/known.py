"""What the engine is told of nodes by those who look at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from provision.batch.containers import NodeHardware
from provision.facts import NodeFacts
from provision.model import Cluster
from provision.profiles import NodeNetwork
from provision.topology.candidates import Candidate

__all__ = ["Eyes", "Known"]


@dataclass(frozen=True)
class Known:
    """Nodes as places for a job, as they are at this moment."""

    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    """Those with GPUs, with their mode; which GPUs are in use is not told here, leases say that."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Nodes that take no job now, and why."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Data addresses."""
    interfaces: Mapping[str, str] = field(default_factory=dict)
    """The interfaces that carry them, where they are known."""
    networks: Mapping[str, NodeNetwork] = field(default_factory=dict)
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    hardware: Mapping[str, NodeHardware] = field(default_factory=dict)
    cpus: Mapping[str, int] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    simulated: Sequence[str] = ()
    """Nodes whose GPUs are stand-ins of the lab."""


class Eyes(Protocol):
    """Looks at nodes."""

    def look(self, cluster: Cluster, names: Sequence[str]) -> Known:
        """Probe the nodes, one SSH session each; a node that does not answer is left out, with the reason."""
