"""Sends a program of ``files/`` to a node with one request, and reads its one answer."""

from __future__ import annotations

import functools
import json
import shlex
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from provision.connectors import Connector, RemoteProcess
from provision.errors import ConnectionFailed, NodeError

__all__ = ["ask", "start_program"]

FILES = Path(__file__).with_name("files")

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
    code = _code(program)
    name = program.removesuffix(".py").replace("_", "-")
    process = start_program(connector, code, name, python=python)
    late = threading.Event()

    def give_up() -> None:
        late.set()
        process.close()

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        with suppress(ConnectionFailed, OSError, ValueError):  # what ended before it read all of it says why
            for piece in (code, json.dumps(request).encode() + b"\n", *_chunks(archive)):
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
    return (FILES / program).read_bytes()
