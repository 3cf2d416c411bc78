"""What the engine is told of nodes by those who look at them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from provision.batch.containers import NodeHardware
    from provision.facts import NodeFacts
    from provision.model import Cluster
    from provision.profiles import NodeNetwork
    from provision.topology.candidates import Candidate

__all__ = ["Eyes", "Known", "Sight"]

FRESH_SECONDS = 15.0
"""What was seen longer ago is looked at again."""


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
    gpus_out: Mapping[str, str] = field(default_factory=dict)
    """Nodes whose GPUs cannot be placed on now, and why; they take jobs without GPUs."""


class Eyes(Protocol):
    """Looks at nodes."""

    def look(self, cluster: Cluster, names: Sequence[str]) -> Known:
        """Probe the nodes, one SSH session each; a node that does not answer is left out, with the reason."""


class Sight:
    """One look at all nodes of a cluster: begun beside other work by who will need it, else when it is needed."""

    def __init__(
        self,
        eyes: Eyes,
        cluster: Cluster,
        present: Callable[[], tuple[Sequence[str], Mapping[str, str]]] | None = None,
    ) -> None:
        self._eyes, self._cluster, self._present = eyes, cluster, present
        self._thread: threading.Thread | None = None
        self._found: Known | Exception | None = None
        self._begun, self._used = 0.0, False

    def begin(self) -> None:
        """Look in a thread of its own."""
        self._begun, self._found = time.monotonic(), None
        self._thread = threading.Thread(target=self._look, daemon=True, name="sight")
        self._thread.start()

    def _look(self) -> None:
        try:
            names, absent = self._present() if self._present else ([node.name for node in self._cluster.nodes], {})
            known = self._eyes.look(self._cluster, names)
            self._found = replace(known, left_out={**known.left_out, **absent}) if absent else known
        except Exception as error:  # noqa: BLE001 - raised where the look is needed
            self._found = error

    def known(self) -> Known:
        """Return what was seen; it is looked at anew when that was long before it is needed for the first time."""
        if self._thread is None or (not self._used and time.monotonic() - self._begun > FRESH_SECONDS):
            self.begin()
        self._used = True
        assert self._thread is not None  # noqa: S101 # nosec B101 # begun above
        self._thread.join()
        if isinstance(self._found, Known):
            return self._found
        raise self._found or RuntimeError("nothing was seen")
