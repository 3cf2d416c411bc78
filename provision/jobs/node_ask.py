"""Sends a program of ``files/`` to a node with one request, and reads its answer, or what it says as it comes.

`ask` is for any program with one answer; `ask_jobs` and `begin` are for ``node_jobs.py`` and its parts.
"""

from __future__ import annotations

import functools
import getpass
import json
import shlex
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from provision.commands.ssh import JOB_AGENT
from provision.connectors import Connector, RemoteProcess
from provision.documents import decode, decode_last_line
from provision.documents.jobs import NodeProblem
from provision.errors import ConnectionFailed, InvalidDocument, NodeError, NotAllowed
from provision.jobs.node_programs import FILES, code_program, jobs_program

__all__ = [
    "ANSWER_SECONDS",
    "FILES",
    "JOBS",
    "ask",
    "ask_jobs",
    "begin",
    "first_line",
    "owner",
    "refusal",
    "start_program",
]

T = TypeVar("T")

ANSWER_SECONDS = 60.0
FIRST_LINE_SECONDS = 180.0
"""How long the first line of an answer may take; for the queue's lock a node waits a minute."""
FIRST_LINE_LIMIT = 16 * 1024 * 1024
"""Bytes in which the first line of an answer has to end."""
JOBS = "node_jobs.py"
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
    kind: type[T],
    *,
    archive: Path | None = None,
    seconds: float = 60.0,
    python: str = "python3",
) -> T:
    """Run `program` (a file of ``files/``) as root on a node and return its answer.

    Args:
        connector: the way to the node.
        program: name of the file.
        request: what it is to do, as JSON can carry it; it travels by standard input alone.
        kind: the type of its answer, of `provision.documents`.
        archive: a file whose bytes follow the request.
        seconds: how long it may take.
        python: the interpreter on the node.

    Raises:
        NodeError: it gave no answer, or none in time.
        ConnectionFailed: the node cannot be reached.
    """
    name = _name(program)
    script, text = _sent(connector, program, request, python)
    process = connector.start(script)
    late = threading.Event()

    def give_up() -> None:
        late.set()
        process.close()

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        with suppress(ConnectionFailed, OSError, ValueError):  # what ended before it read all of it says why
            for piece in (text, *_chunks(archive)):
                process.write(piece)
            process.close_stdin()
        out, err = _outputs(connector.name, name, process, late, seconds)
    finally:
        timer.cancel()
        process.close()
    problem = refusal(out, connector.name) if program == JOBS else None
    if problem is not None:
        raise _refused(problem, connector.name)
    try:
        return decode_last_line(out, kind, node=connector.name, what=f"answer of {name}")
    except InvalidDocument as error:
        said = err.decode(errors="replace").strip()
        if "there is no" in said:
            error.remedy = "install python3 there (Debian: apt-get install python3)"
        error.output = said or error.output
        raise


def start_program(connector: Connector, code: bytes, name: str, *, python: str = "python3") -> RemoteProcess:
    """Start an interpreter as root on a node that waits for `code`, which is to be written first, and runs it."""
    return connector.start(_LOADER.format(python=shlex.quote(python), length=len(code), name=name))


def _outputs(
    node: str, name: str, process: RemoteProcess, late: threading.Event, seconds: float
) -> tuple[bytes, bytes]:
    """Return what a program printed, and its messages."""
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
    return b"".join(out["stdout"]), b"".join(out["stderr"])


def _chunks(archive: Path | None) -> Iterator[bytes]:
    if archive is not None:
        with archive.open("rb") as source:
            while piece := source.read(1 << 18):
                yield piece


@functools.cache
def _code(program: str) -> bytes:
    made = {JOBS: jobs_program, _CODE: code_program}.get(program)
    return made() if made else (FILES / program).read_bytes()


def _name(program: str) -> str:
    return program.removesuffix(".py").replace("_", "-")


def _script(program: str, python: str = "python3") -> str:
    """Return the shell script that runs a program; the program itself and a request come on standard input."""
    return _LOADER.format(python=shlex.quote(python), length=len(_code(program)), name=_name(program))


def _input(program: str, request: Mapping[str, Any]) -> bytes:
    return _code(program) + json.dumps(request).encode() + b"\n"


def ask_jobs(connector: Connector, do: str, kind: type[T], *, timeout: float = ANSWER_SECONDS, **request: Any) -> T:
    """Send a request to a node's program for jobs, and return its answer, of a type of `provision.documents.jobs`.

    Raises:
        NodeError: the node was asked and could not, or its answer is not valid.
        ConnectionFailed: it could not be asked.
    """
    script, text = _sent(connector, JOBS, {"do": do, **request})
    result = connector.run(script, stdin=text, timeout=timeout)
    return _parsed(connector.name, do, kind, result.stdout, result.stderr, result.exit_code)


def _sent(connector: Connector, program: str, request: Mapping[str, Any], python: str = "python3") -> tuple[str, bytes]:
    """Return a program's script and its input; the job agent has the program for jobs, and takes the request alone."""
    request = {"by": owner(), **request} if program == JOBS else request
    if program == JOBS and getattr(connector, "agent", False):
        return JOB_AGENT, json.dumps(request).encode() + b"\n"
    return _script(program, python), _input(program, request)


def owner() -> str:
    """Return who we are: ``user@machine``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def begin(connector: Connector, do: str, **request: Any) -> RemoteProcess:
    """Start a request for jobs that stays: its output comes as it is made, and it ends when its input does."""
    script, text = _sent(connector, JOBS, {"do": do, **request})
    process = connector.start(script, limit=None)
    process.write(text)
    return process


def first_line(process: RemoteProcess, node: str, kind: type[T]) -> T:
    """Return the first line of what `begin` has started, as a value of `kind`.

    Raises:
        NodeError: the node was asked and could not, or its answer is not valid.
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
            return _parsed(node, "begin", kind, out.partition(b"\n")[0], "", 0)
    if out.strip():
        return _parsed(node, "begin", kind, out, err.decode(errors="replace"), 1)
    said = err.decode(errors="replace").strip()
    raise ConnectionFailed(f"nothing came back: {said or 'the connection ended'}", node=node)


class _Refusal(Struct):
    error: NodeProblem | None = None


def refusal(text: str | bytes, node: str) -> NodeProblem | None:
    """Return why the program for jobs refused a request, None where its output is not a refusal."""
    with suppress(InvalidDocument):
        return decode(text, _Refusal, node=node, what="answer").error
    return None


def _refused(problem: NodeProblem, node: str) -> NodeError:
    if problem.code:
        return NotAllowed(problem.message, problem.code, node=node, remedy=problem.remedy or None)
    return NodeError(problem.message, node=node, remedy=problem.remedy or None, output=problem.output or "")


def _parsed(node: str, do: str, kind: type[T], out: str | bytes, err: str, code: int) -> T:
    """Return an answer, or raise what it says that went wrong."""
    problem = refusal(out, node)
    if problem is not None:
        raise _refused(problem, node)
    if code:
        words = err.strip().splitlines()
        raise NodeError(
            f"`{do}` could not run on the node: {words[-1] if words else f'exit {code}'}",
            node=node,
            remedy="the node needs python3 and docker; `provision verify` checks both",
            output="\n".join(words[-6:]),
        )
    return decode(out, kind, node=node, what=f"answer to `{do}`")
