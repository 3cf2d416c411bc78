"""Installs python3 on nodes without it.

The node's lock needs python3, so it cannot be held here. If two operators install at the same time, the locks of the
package manager serialize them.
"""

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
    from provision.facts import proxies

    scripts = {node.name: install_script(proxies(node.variables)) for node in nodes}
    results = each(nodes, lambda connector: _install(connector, scripts[connector.name]))
    return {name: result for name, result in results.items() if isinstance(result, ProvisionError)}


def _install(connector: Connector, script: str) -> None:
    result = connector.run(script, timeout=INSTALL_SECONDS)
    if not result.ok:
        raise NodeError(
            "python3 cannot be installed",
            node=connector.name,
            output=result.last_lines(),
            remedy="Correct the node's package sources, or install python3 there, then apply again.",
        )
