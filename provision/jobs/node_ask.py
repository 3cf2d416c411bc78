"""Sends a program of ``files/`` to a node with one request, and reads its answer, or what it says as it comes.

`ask` is for any program with one answer; `ask_jobs` and `begin` are for ``node_jobs.py`` and its parts.
"""

from __future__ import annotations

import functools
import json
import shlex
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from provision.connectors import Connector, RemoteProcess
from provision.errors import ConnectionFailed, NodeError
from provision.jobs.node_programs import FILES, code_program, jobs_program

__all__ = ["ANSWER_SECONDS", "FILES", "ask", "ask_jobs", "begin", "first_line", "start_program"]

ANSWER_SECONDS = 60.0
FIRST_LINE_SECONDS = 180.0
"""How long the first line of an answer may take; for the queue's lock a node waits a minute."""
FIRST_LINE_LIMIT = 16 * 1024 * 1024
"""Bytes in which the first line of an answer has to end."""
_JOBS = "node_jobs.py"
_CODE = "code_sync.py"

# Isolated (-I, -S): else a file such as json.py in the login user's home would be imported, as root.
_LOADER = """
command -v {python} >/dev/null 2>&1 || {{ echo "there is no {python} on this node" >&2; exit 127; }}
exec {python} -I -S -c '
import os, sys
code = b""
while len(code) < {length}:
    piece = os.read(0, {length} - len(code))
    if not piece:
        sys.exit(1)
    code += piece
exec(compile(code, "{name}", "exec"))' provision-{name}
"""


def ask(
    connector: Connector,
    program: str,
    request: Mapping[str, Any],
    *,
    archive: Path | None = None,
    seconds: float = 60.0,
    python: str = "python3",
) -> dict[str, Any]:
    """Run `program` (a file of ``files/``) as root on a node and return its answer, which may be its ``error``.

    Args:
        connector: the way to the node.
        program: name of the file.
        request: what it is to do, as JSON can carry it; it travels by standard input alone.
        archive: a file whose bytes follow the request.
        seconds: how long it may take.
        python: the interpreter on the node.

    Raises:
        NodeError: it gave no answer, or none in time.
        ConnectionFailed: the node cannot be reached.
    """
    name = _name(program)
    process = connector.start(_script(program, python))
    late = threading.Event()

    def give_up() -> None:
        late.set()
        process.close()

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        with suppress(ConnectionFailed, OSError, ValueError):  # what ended before it read all of it says why
            for piece in (_input(program, request), *_chunks(archive)):
                process.write(piece)
            process.close_stdin()
        return _answer(connector.name, name, process, late, seconds)
    finally:
        timer.cancel()
        process.close()


def start_program(connector: Connector, code: bytes, name: str, *, python: str = "python3") -> RemoteProcess:
    """Start an interpreter as root on a node that waits for `code`, which is to be written first, and runs it."""
    return connector.start(_LOADER.format(python=shlex.quote(python), length=len(code), name=name))


def _answer(node: str, name: str, process: RemoteProcess, late: threading.Event, seconds: float) -> dict[str, Any]:
    out: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    try:
        for stream, chunk in process.output():
            out[stream].append(chunk)
        process.wait()
    except ConnectionFailed:
        if not late.is_set():
            raise
    if late.is_set():
        text = f"{name} did not end within {seconds:g} s"
        raise NodeError(text, node=node, remedy="its disk or its network may hang: look at it by hand (dmesg)")
    with suppress(ValueError, IndexError, RecursionError):
        found = json.loads(b"".join(out["stdout"]).strip().splitlines()[-1])
        if isinstance(found, dict):
            return found
    said = b"".join(out["stderr"]).decode(errors="replace").strip()
    remedy = "install python3 there (Debian: apt-get install python3)" if "there is no" in said else None
    raise NodeError(f"{name} gave no answer that makes sense", node=node, remedy=remedy, output=said)


def _chunks(archive: Path | None) -> Iterator[bytes]:
    if archive is not None:
        with archive.open("rb") as source:
            while piece := source.read(1 << 18):
                yield piece


@functools.cache
def _code(program: str) -> bytes:
    made = {_JOBS: jobs_program, _CODE: code_program}.get(program)
    return made() if made else (FILES / program).read_bytes()


def _name(program: str) -> str:
    return program.removesuffix(".py").replace("_", "-")


def _script(program: str, python: str = "python3") -> str:
    """Return the shell script that runs a program; the program itself and a request come on standard input."""
    return _LOADER.format(python=shlex.quote(python), length=len(_code(program)), name=_name(program))


def _input(program: str, request: Mapping[str, Any]) -> bytes:
    return _code(program) + json.dumps(request).encode() + b"\n"


def ask_jobs(connector: Connector, do: str, *, timeout: float = ANSWER_SECONDS, **request: Any) -> dict[str, Any]:
    """Ask a node's program for jobs, and return its answer.

    Raises:
        NodeError: the node was asked and could not.
        ConnectionFailed: it could not be asked.
    """
    text = _input(_JOBS, {"do": do, **request})
    result = connector.run(_script(_JOBS), stdin=text, timeout=timeout)
    return _judged(connector.name, do, result.stdout, result.stderr, result.exit_code)


def begin(connector: Connector, do: str, **request: Any) -> RemoteProcess:
    """Start a request for jobs that stays: its output comes as it is made, and it ends when its input does."""
    process = connector.start(_script(_JOBS), limit=None)
    process.write(_input(_JOBS, {"do": do, **request}))
    return process


def first_line(process: RemoteProcess, node: str) -> dict[str, Any]:
    """Return the first line of what `begin` has started, as JSON.

    Raises:
        NodeError: the node was asked and could not.
        ConnectionFailed: nothing came.
    """
    out, err = b"", b""
    process.deadline = time.monotonic() + FIRST_LINE_SECONDS
    for stream, chunk in process.output():
        if stream == "stderr":
            err = (err + chunk)[-2000:]
            continue
        out += chunk
        process.deadline = None if b"\n" in out else process.deadline
        if len(out) > FIRST_LINE_LIMIT:
            raise NodeError(f"its answer has no end after {FIRST_LINE_LIMIT} bytes", node=node)
        if b"\n" in out:
            return _judged(node, "begin", out.partition(b"\n")[0].decode(errors="replace"), "", 0)
    if out.strip():
        return _judged(node, "begin", out.decode(errors="replace"), err.decode(errors="replace"), 1)
    said = err.decode(errors="replace").strip()
    raise ConnectionFailed(f"nothing came back: {said or 'the connection ended'}", node=node)


def _judged(node: str, do: str, out: str, err: str, code: int) -> dict[str, Any]:
    """Return an answer for jobs, or raise what it says that went wrong."""
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
