"""Requests to the program of the role kernel on a node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from provision.components.kernel import ROLE
from provision.errors import NodeError
from provision.facts.kernel_upgrade import PROGRAM
from provision.model import Node
from provision.model.reason import Reason, reason
from provision.report.reasons import error_of

if TYPE_CHECKING:
    from provision.documents.records import KernelStatus

REFUSED = "kernel.upgrade.refused"
"""The code of an error with which the program refused a request: it changed nothing."""
_ANSWER_SECONDS = 60.0


def call(node: Node, action: str, **request: Any) -> KernelStatus:
    """Send a request to the node's program over a new connection, and return its answer.

    Raises:
        NodeError: the program refused it.
        ConnectionFailed: the node cannot be reached.
    """
    from provision.connectors import connect
    from provision.documents import decode_last_line
    from provision.documents.records import KernelStatus

    connector = connect(node)
    try:
        text = json.dumps(request).encode()
        result = connector.run(f"{PROGRAM} {action}", stdin=text, timeout=_ANSWER_SECONDS)
    finally:
        connector.close()
    if not result.stdout.strip():
        raise NodeError(
            f"{PROGRAM} {action} gave no answer",
            node=node.name,
            output=result.last_lines(),
            remedy=f"Run: provision apply --limit {node.name} --force {ROLE}",
        )
    answer = decode_last_line(result.stdout, KernelStatus, node=node.name, what=f"answer of {PROGRAM}")
    if answer.code:
        why = reason("kernel.upgrade.refused", action=action, problem=str(answer.problem), cause=answer.code)
        raise node_error(node, why)
    return answer


def node_error(node: Node, why: Reason) -> NodeError:
    """Return the error of a node with this reason."""
    return error_of(NodeError, why, node=node.name)
