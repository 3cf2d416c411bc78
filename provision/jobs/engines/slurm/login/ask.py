"""Requests to the program of ordinary users on the login node."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from provision.connectors import Connector
from provision.connectors.programs import run_program
from provision.documents import decode_last_line
from provision.documents.jobs import NodeProblem
from provision.errors import NodeError
from provision.jobs.node_ask import refusal

T = TypeVar("T")

SECONDS = 120.0
PROGRAM = "slurm-login"


def ask_login(connector: Connector, do: str, kind: type[T], **request: Any) -> T:
    """Send a request as the user of the login, never as root, and return its answer.

    Raises:
        NodeError: the node was asked and could not, or its answer is not valid.
        ConnectionFailed: it could not be asked.
    """
    text = json.dumps({"do": do, **request}).encode() + b"\n"
    result = run_program(connector, PROGRAM, stdin=text, timeout=SECONDS, become=False)
    last = result.stdout.rstrip().rpartition("\n")[2]
    problem: NodeProblem | None = refusal(last, connector.name)
    if problem is not None:
        raise NodeError(problem.message, node=connector.name, remedy=problem.remedy, output=problem.output or "")
    if result.exit_code:
        why = result.last_lines(1) or f"exit {result.exit_code}"
        raise NodeError(
            f"`{do}` could not run on the login node: {why}",
            node=connector.name,
            remedy="Check that the account can run python3 there.",
        )
    return decode_last_line(result.stdout, kind, node=connector.name, what=f"answer to `{do}`")
