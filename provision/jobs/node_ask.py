"""Sends a request to one of our programs on a node, and reads its answer, or its output as it arrives.

`ask` is for any program with one answer; `ask_jobs` and `begin` are for the program ``jobs``.
"""

from __future__ import annotations

import getpass
import json
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
from provision.connectors.limits import OUTPUT_LIMIT
from provision.connectors.programs import run_program, start_program
from provision.documents import decode, decode_last_line
from provision.documents.jobs import NodeProblem
from provision.errors import ConnectionFailed, InvalidDocument, NodeError, NotAllowed

T = TypeVar("T")

ANSWER_SECONDS = 60.0
FIRST_LINE_SECONDS = 180.0
"""How long the first line of an answer may take; for the queue's lock a node waits a minute."""
FIRST_LINE_LIMIT = 16 * 1024 * 1024
"""Bytes in which the first line of an answer has to end."""
JOBS = "jobs"
"""The program that answers requests about jobs."""


def ask(
    connector: Connector,
    program: str,
    request: Mapping[str, Any],
    kind: type[T],
    *,
    archive: Path | None = None,
    seconds: float = 60.0,
) -> T:
    """Run `program` as root on a node and return its answer.

    Raises:
        NodeError: it gave no answer, or none in time.
        ConnectionFailed: the node cannot be reached.
    """
    process, text = _started(connector, program, request)
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
        out, err = _outputs(connector.name, program, process, late, seconds)
    finally:
        timer.cancel()
        process.close()
    problem = refusal(out, connector.name) if program == JOBS else None
    if problem is not None:
        raise as_error(problem, connector.name)
    try:
        return decode_last_line(out, kind, node=connector.name, what=f"answer of {program}")
    except InvalidDocument as error:
        error.output = err.decode(errors="replace").strip() or error.output
        raise


def _outputs(
    node: str, program: str, process: RemoteProcess, late: threading.Event, seconds: float
) -> tuple[bytes, bytes]:
    """Return the output and the messages of a program."""
    out: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    try:
        for stream, chunk in process.output():
            out[stream].append(chunk)
        process.wait()
    except ConnectionFailed:
        if not late.is_set():
            raise
    if late.is_set():
        text = f"{program} did not end within {seconds:g} s"
        raise NodeError(text, node=node, remedy="Its disk or its network may hang: check it manually (dmesg).")
    return b"".join(out["stdout"]), b"".join(out["stderr"])


def _chunks(archive: Path | None) -> Iterator[bytes]:
    if archive is not None:
        with archive.open("rb") as source:
            while piece := source.read(1 << 18):
                yield piece


def ask_jobs(connector: Connector, do: str, kind: type[T], *, timeout: float = ANSWER_SECONDS, **request: Any) -> T:
    """Send a request to a node's program for jobs, and return its answer, of a type of `provision.documents.jobs`.

    Raises:
        NodeError: the node was asked and could not, or its answer is not valid.
        ConnectionFailed: it could not be asked.
    """
    text = _line({"by": owner(), "do": do, **request})
    if connector.agent:
        result = connector.run(JOB_AGENT, stdin=text, timeout=timeout)
    else:
        result = run_program(connector, JOBS, stdin=text, timeout=timeout)
    return _parsed(connector.name, do, kind, result.stdout, result.stderr, result.exit_code)


def _started(
    connector: Connector,
    program: str,
    request: Mapping[str, Any],
    *,
    limit: int | None = OUTPUT_LIMIT,
) -> tuple[RemoteProcess, bytes]:
    """Start a program and return it with its input; the node agent has the program for jobs, and is asked instead."""
    if program != JOBS:
        return start_program(connector, program, limit=limit), _line(request)
    text = _line({"by": owner(), **request})
    if connector.agent:
        return connector.start(JOB_AGENT, limit=limit), text
    return start_program(connector, program, limit=limit), text


def _line(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request).encode() + b"\n"


def owner() -> str:
    """Return who we are: ``user@machine``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def begin(connector: Connector, do: str, **request: Any) -> RemoteProcess:
    """Start a request for jobs that stays: its output comes as it is made, and it ends when its input does."""
    process, text = _started(connector, JOBS, {"do": do, **request}, limit=None)
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


def as_error(problem: NodeProblem, node: str) -> NodeError:
    """Return the error for what a node answered."""
    if problem.code:
        return NotAllowed(problem.message, problem.code, node=node, remedy=problem.remedy or None)
    return NodeError(problem.message, node=node, remedy=problem.remedy or None, output=problem.output or "")


def _parsed(node: str, do: str, kind: type[T], out: str | bytes, err: str, code: int) -> T:
    """Return an answer, or raise what it says that went wrong."""
    problem = refusal(out, node)
    if problem is not None:
        raise as_error(problem, node)
    if code:
        words = err.strip().splitlines()
        raise NodeError(
            f"`{do}` could not run on the node: {words[-1] if words else f'exit {code}'}",
            node=node,
            remedy="the node needs python3 and docker; `provision verify` checks both",
            output="\n".join(words[-6:]),
        )
    return decode(out, kind, node=node, what=f"answer to `{do}`")
