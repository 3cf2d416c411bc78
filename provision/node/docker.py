"""Requests to the Docker engine of this node, over its socket: the `docker` program takes longer to start."""

import errno
import functools
import json
import os
import signal
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from provision.node.files import PROC, Record, names_in, read_text, send_signal, start_of

if TYPE_CHECKING:
    import socket

DOCKER_SOCKET = os.environ.get("PROVISION_DOCKER_SOCKET") or "/run/docker.sock"
ENGINE_SECONDS = 20
ANSWER_BYTES = 1 << 26
"""The most that is read of one answer: images and containers determine a part of its contents."""
SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh", "docker-init", "tini", "docker-entrypoin")

AttemptKey = Tuple[str, str, str]
"""Job, job ID and attempt."""


class Stream(NamedTuple):
    """An answer of the engine of which the head was read."""

    connection: "socket.socket"
    rest: bytes


def engine(
    method: str,
    path: str,
    timeout: Optional[float] = ENGINE_SECONDS,
    content: bytes = b"",
    limit: int = ANSWER_BYTES,
    wait: "Optional[Callable[[socket.socket], None]]" = None,
) -> Tuple[int, bytes]:
    """Return the HTTP status and the body, up to a limit, of one request to the engine.

    Raises:
        OSError: the engine does not answer.
    """
    status, stream = engine_stream(method, path, timeout, content, wait)
    body = bytearray(stream.rest)
    try:
        while len(body) < limit:
            piece = stream.connection.recv(65536)
            if not piece:
                break
            body += piece
    except ConnectionResetError:  # the engine answered without reading all of the content
        if not content:
            raise
    finally:
        stream.connection.close()
    return status, bytes(body)


def engine_stream(
    method: str,
    path: str,
    timeout: Optional[float],
    content: bytes = b"",
    wait: "Optional[Callable[[socket.socket], None]]" = None,
) -> Tuple[int, Stream]:
    """Send a request to the engine; return the status and the rest of the answer."""
    import socket

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(DOCKER_SOCKET)
        lines = ["{} {} HTTP/1.0".format(method, path), "Host: docker", "Content-Length: {}".format(len(content))]
        lines += ["Content-Type: application/json"] if content and method == "POST" else []
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)
        if wait is not None:
            wait(connection)
        answer = b""
        piece = b" "
        while piece and b"\r\n\r\n" not in answer:
            piece = connection.recv(65536)
            answer += piece
        head, _, rest = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), Stream(connection, rest)
    except (ValueError, IndexError):
        connection.close()
        raise OSError(errno.EPROTO, "docker's engine broke off") from None
    except BaseException:
        connection.close()
        raise


def engine_json(path: str) -> Any:
    """Return the JSON document at a path of the engine, None if there is none.

    Raises:
        OSError: the engine does not answer.
    """
    status, body = engine("GET", path)
    if status == 404:
        return None
    if status != 200:
        raise OSError(errno.EIO, "docker's engine: {}".format(engine_words(body)))
    try:
        return json.loads(body.decode(errors="replace"))
    except ValueError:
        raise OSError(errno.EPROTO, "docker's engine broke off") from None


def inspect_container(container: str) -> Optional[Record]:
    """Return what the engine knows about a container, None if there is none; OSError if it does not answer."""
    document: Optional[Record] = engine_json("/containers/{}/json".format(container))
    return document


def engine_words(body: bytes) -> str:
    """Return the error message in an answer of the engine."""
    try:
        return str(json.loads(body.decode(errors="replace"))["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()[:400]


def quoted(text: str) -> str:
    """Return a text as a part of a URL."""
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/:@._-"
    return "".join(chr(byte) if byte in plain else "%{:02X}".format(byte) for byte in text.encode())


# Containers of jobs


def job_containers(label: str = "provision.job") -> Optional[List[Record]]:
    """Return all containers of jobs as the engine lists them, None if it does not answer."""
    filters = quoted(json.dumps({"label": [label]}))
    try:
        return engine_json("/containers/json?all=1&filters=" + filters) or []
    except OSError:
        return None


def labels_of(container: Record) -> AttemptKey:
    """Return the attempt to which a container belongs by its labels."""
    labels = container.get("Labels") or {}
    job, token, attempt = (str(labels.get("provision." + key, "")) for key in ("job", "id", "attempt"))
    return job, token, attempt


def running_attempts(containers: Iterable[Record]) -> Set[AttemptKey]:
    """Return the attempts that have a running container."""
    return {labels_of(item) for item in containers if item.get("State") in ("running", "paused", "restarting")}


def is_running(container: str) -> bool:
    """Return whether a container is running."""
    inspected = inspect_container(container)
    return bool(inspected and inspected["State"].get("Running"))


def terminate(container: str) -> List[int]:
    """Send SIGTERM to the programs that a container was started for; return their process IDs.

    Shells around them get no signal: the end of a shell would end all its programs at once.
    """
    inspected = inspect_container(container)
    if not inspected or not inspected["State"].get("Running"):
        return []
    pids = programs_below(int(inspected["State"].get("Pid") or 0))
    for pid, start in pids.items():
        send_signal(pid, signal.SIGTERM, functools.partial(has_started, pid, start))
    if not pids:
        terminate_all(container)
    return list(pids)


def has_started(pid: int, start: int) -> bool:
    """Return whether a process runs that started at that time."""
    return start_of(pid) == start


def terminate_all(container: str) -> None:
    """Send SIGTERM to a container's first process, as `docker stop` does: a shell with a loop survives its programs."""
    engine("POST", "/containers/{}/kill?signal=TERM".format(container))


def programs_below(first: int) -> Dict[int, int]:
    """Return the uppermost processes that are no shells, from a process down, with their start times.

    Such a program can end the processes that it started.
    """
    children: Dict[int, List[int]] = {}
    comm, starts = {}, {}
    for item in names_in(PROC) if first > 1 else ():
        if item.isdigit():
            head, _, rest = read_text("{}/{}/stat".format(PROC, item)).rpartition(")")
            words = rest.split()
            if len(words) > 19 and words[0] != "Z":
                comm[int(item)] = head.partition("(")[2]
                starts[int(item)] = int(words[19])
                children.setdefault(int(words[1]), []).append(int(item))
    programs, pending = {}, [first] if first in comm else []
    while pending:
        pid = pending.pop()
        below = children.get(pid, [])
        if comm[pid] in SHELLS and below:
            pending += below
        else:
            programs[pid] = starts[pid]
    return programs
