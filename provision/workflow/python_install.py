"""Installs python3 on nodes without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.commands.python_install import INSTALL_SECONDS, install_script
from provision.errors import NodeError, ProvisionError
from provision.model import Node

if TYPE_CHECKING:
    from provision.connectors.base import Connector


def install_python(nodes: Sequence[Node]) -> dict[str, ProvisionError]:
    """Install python3 on all `nodes` in parallel, and return the errors of those where that failed."""
    from provision.connectors import each

    results = each(nodes, _install)
    return {name: result for name, result in results.items() if isinstance(result, ProvisionError)}


def _install(connector: Connector) -> None:
    result = connector.run(install_script(), timeout=INSTALL_SECONDS)
    if not result.ok:
        raise NodeError(
            "python3 cannot be installed",
            node=connector.name,
            output=result.last_lines(),
            remedy="Correct the node's package sources, or install python3 there, then apply again.",
        )
