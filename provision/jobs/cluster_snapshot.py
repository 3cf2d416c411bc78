"""Snapshots of the nodes as targets of jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from provision.model.reason import reason

if TYPE_CHECKING:
    from provision.batch.containers import NodeHardware
    from provision.facts import NodeFacts
    from provision.model import Cluster
    from provision.model.reason import Reason
    from provision.profiles import NodeNetwork
    from provision.topology.candidates import Candidate

FRESH_SECONDS = 15.0
"""An older snapshot is taken again."""


@dataclass(frozen=True)
class ClusterSnapshot:
    """The nodes as targets of a job, at one moment."""

    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    """Nodes with GPUs, with their mode; leases, not candidates, contain the GPUs in use."""
    left_out: Mapping[str, Reason] = field(default_factory=dict)
    """Nodes that accept no job now, and why."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Data addresses."""
    interfaces: Mapping[str, str] = field(default_factory=dict)
    """Interfaces of the data addresses, where they are known."""
    networks: Mapping[str, NodeNetwork] = field(default_factory=dict)
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    hardware: Mapping[str, NodeHardware] = field(default_factory=dict)
    cpus: Mapping[str, int] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    simulated: Sequence[str] = ()
    """Nodes with simulated GPUs (of a lab)."""
    gpus_out: Mapping[str, Reason] = field(default_factory=dict)
    """Nodes whose GPUs cannot be used now, and why; they accept jobs without GPUs."""


class ClusterProbe(Protocol):
    """Probes nodes."""

    def probe(self, cluster: Cluster, names: Sequence[str]) -> ClusterSnapshot:
        """Probe the nodes in parallel; a node that does not answer is excluded with the reason."""


class BackgroundProbe:
    """One snapshot of a cluster, taken in the background or when it is needed."""

    def __init__(
        self,
        cluster_probe: ClusterProbe,
        cluster: Cluster,
        present: Callable[[], tuple[Sequence[str], Mapping[str, str]]] | None = None,
    ) -> None:
        self._cluster_probe, self._cluster, self._present = cluster_probe, cluster, present
        self._thread: threading.Thread | None = None
        self._result: ClusterSnapshot | Exception | None = None
        self._begun, self._used = 0.0, False

    def begin(self) -> None:
        """Start the probe in a thread."""
        self._begun, self._result = time.monotonic(), None
        self._thread = threading.Thread(target=self._probe, daemon=True, name="cluster probe")
        self._thread.start()

    def _probe(self) -> None:
        try:
            names, absent = self._present() if self._present else ([node.name for node in self._cluster.nodes], {})
            snapshot = self._cluster_probe.probe(self._cluster, names)
            silent = {name: reason("placement.node_unreachable", cause=text) for name, text in absent.items()}
            self._result = replace(snapshot, left_out={**snapshot.left_out, **silent}) if silent else snapshot
        except Exception as error:  # noqa: BLE001 - raised by `snapshot`
            self._result = error

    def snapshot(self) -> ClusterSnapshot:
        """Return the snapshot; take it again if it is too old when it is first needed."""
        if self._thread is None or (not self._used and time.monotonic() - self._begun > FRESH_SECONDS):
            self.begin()
        self._used = True
        assert self._thread is not None  # noqa: S101 # nosec B101 # begun above
        self._thread.join()
        if isinstance(self._result, ClusterSnapshot):
            return self._result
        raise self._result or RuntimeError("no snapshot was taken")
