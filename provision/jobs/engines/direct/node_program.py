"""Asking a node's program for jobs (``files/node_jobs.py``): a request goes there, an answer comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from provision.connectors import Connector, RemoteProcess
from provision.errors import ConnectionFailed, NodeError
from provision.jobs.session import FILES

__all__ = ["ask", "begin", "script"]

ANSWER_SECONDS = 60.0

# Isolated (-I): else a file such as json.py in the login user's home would be imported, as root.
_LOADER = """
command -v python3 >/dev/null 2>&1 || {{ echo "there is no python3 on this node" >&2; exit 127; }}
exec python3 -I -S -c '
import os
code = b""
while len(code) < {length}:
    piece = os.read(0, {length} - len(code))
    if not piece:
        raise SystemExit(1)
    code += piece
exec(compile(code, "node_jobs.py", "exec"), {{"__name__": "__main__"}})'
"""


@cache
def _program() -> bytes:
    return (FILES / "node_jobs.py").read_bytes()


def script() -> str:
    """Return the shell script that runs the program; the program itself and a request come on standard input."""
    return _LOADER.format(length=len(_program()))


def ask(connector: Connector, do: str, *, timeout: float = ANSWER_SECONDS, **request: Any) -> dict[str, Any]:
    """Ask one node, and return its answer.

    Raises:
        NodeError: the node was asked and could not; ConnectionFailed: it could not be asked.
    """
    text = _program() + json.dumps({"do": do, **request}).encode()
    result = connector.run(script(), stdin=text, timeout=timeout)
    return _answer(connector.name, do, result.stdout, result.stderr, result.exit_code)


def begin(connector: Connector, do: str, **request: Any) -> RemoteProcess:
    """Start a request that stays: its output comes as it is made, and it ends when its input does."""
    process = connector.start(script())
    process.write(_program() + json.dumps({"do": do, **request}).encode() + b"\n")
    return process


def _answer(node: str, do: str, out: str, err: str, code: int) -> dict[str, Any]:
    try:
        found = json.loads(out) if out.strip() else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        found = {"error": {"message": f"the node's answer to `{do}` makes no sense", "output": out[-400:]}}
    if code and "error" not in found:
        words = err.strip().splitlines()
        raise NodeError(
            f"`{do}` could not run on the node: {words[-1] if words else f'exit {code}'}",
            node=node,
            remedy="the node needs python3 and docker; `provision verify` checks both",
            output="\n".join(words[-6:]),
        )
    error = found.get("error")
    if isinstance(error, Mapping):
        raise NodeError(
            str(error.get("message", "failed")),
            node=node,
            remedy=str(error["remedy"]) if error.get("remedy") else None,
            output=str(error.get("output") or ""),
        )
    return found


def first_line(process: RemoteProcess, node: str) -> dict[str, Any]:
    """Return the first line of what `begin` has started, as JSON."""
    out, err = b"", b""
    for stream, chunk in process.output():
        if stream == "stderr":
            err = (err + chunk)[-2000:]
            continue
        out += chunk
        if b"\n" in out:
            return _answer(node, "begin", out.partition(b"\n")[0].decode(errors="replace"), "", 0)
    if out.strip():
        return _answer(node, "begin", out.decode(errors="replace"), err.decode(errors="replace"), 1)
    said = err.decode(errors="replace").strip()
    raise ConnectionFailed(f"nothing came back: {said or 'the connection ended'}", node=node)
