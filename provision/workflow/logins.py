"""Try the SSH login to nodes."""

from __future__ import annotations

from collections.abc import Sequence

from provision.errors import NodeError, ProvisionError
from provision.model import Node

_SECONDS = 60


def failed_logins(nodes: Sequence[Node]) -> dict[str, ProvisionError]:
    """Log in to all nodes in parallel and become root there; return the errors of those where that fails."""
    from provision.connectors import Connector, each

    def log_in(connector: Connector) -> None:
        result = connector.run("exit 0", timeout=_SECONDS)
        if not result.ok:
            raise NodeError(f"its shell ended with exit code {result.exit_code}", output=result.last_lines())

    return {name: error for name, error in each(nodes, log_in).items() if error is not None}
