"""Looking at data volumes on the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from provision.errors import ProvisionError
from provision.model import Node

if TYPE_CHECKING:
    from provision.batch.data import Volume

__all__ = ["look"]


def look(nodes: Sequence[Node], volumes: Sequence[Volume]) -> dict[str, dict[str, Any]]:
    """Return volume -> node -> what the node said of it, or its error; one SSH session per node, none for nothing."""
    from provision.connectors import each
    from provision.jobs.data import look_at

    found = each(nodes, lambda connector: look_at(connector, volumes)) if volumes else {}
    return {
        volume.name: {
            node: outcome if isinstance(outcome, ProvisionError) else outcome.get(volume.name)
            for node, outcome in found.items()
        }
        for volume in volumes
    }
