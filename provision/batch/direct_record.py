"""The record of a job of the engine `direct`: what the queue host and the nodes of the job report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provision.model.job import JobRecord
from provision.model.reason import NO_REASON, Reason


@dataclass(frozen=True)
class DirectRecord(JobRecord):
    """A job of the engine `direct`."""

    unsupervised: tuple[str, ...] = ()
    """Nodes on which the job supervisor of a running job does not run."""
    unrecorded: bool = False
    """Whether the job has ended, and the queue host has not recorded its result."""
    failure: Reason = NO_REASON
    """Why the last attempt failed, if another one follows."""
    starting_engine: str = ""
    """The only job engine that may start the job; empty if the queue host does not know the job."""
    failed_nodes: tuple[str, ...] = ()
    """Nodes that made the last attempt fail; a retry does not use them."""
    signed: str = field(default="", repr=False)
    """The text that its owner signed; empty in lists of jobs."""
    signature: str = field(default="", repr=False)

    @property
    def engine_details(self) -> Mapping[str, Any]:
        """Leases of GPUs, and nodes without a job supervisor."""
        return {
            "leases": {node: list(uuids) for node, uuids in self.allocations.items()},
            "unsupervisedNodes": list(self.unsupervised),
        }
