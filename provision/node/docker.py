"""Asks docker's engine on this node, by its socket: starting its client would take longer than all else."""

import errno
import json
import os
import signal

from provision.node.files import PROC, names_in, read_text, send_signal, start_of

DOCKER_SOCKET = os.environ.get("PROVISION_DOCKER_SOCKET") or "/run/docker.sock"
ENGINE_SECONDS = 20
MOST = 1 << 26
"""Bytes of one answer of the engine; images and containers choose a part of what it says."""
SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh", "docker-init", "tini", "docker-entrypoin")


def engine(method, path, timeout=ENGINE_SECONDS, content=b"", limit=MOST, wait=None):
    """Return (HTTP status, body up to a limit) of one question to docker's engine; OSError when it does not answer."""
    head, stream = engine_stream(method, path, timeout, content, wait)
    body = bytearray(stream.rest)
    try:
        while len(body) < limit:
            piece = stream.connection.recv(65536)
            if not piece:
                break
            body += piece
    except ConnectionResetError:  # how the kernel tells, after the answer, that the engine left some content unread
        if not content:
            raise
    finally:
        stream.connection.close()
    return head, bytes(body)


class Stream:
    """An answer of the engine of which the head was read."""

    def __init__(self, connection, rest):
        self.connection, self.rest = connection, rest


def engine_stream(method, path, timeout, content=b"", wait=None):
    """Ask the engine, and return the status and the answer to come; `timeout` is for each piece of it.

    Content is JSON for POST, else an archive. `wait` is called with the connection before the answer is read.
    """
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


def engine_json(path):
    """Return an object of the engine, None where it has none; OSError when it does not answer."""
    status, body = engine("GET", path)
    if status == 404:
        return None
    if status != 200:
        raise OSError(errno.EIO, "docker's engine: {}".format(engine_words(body)))
    try:
        return json.loads(body.decode(errors="replace"))
    except ValueError:
        raise OSError(errno.EPROTO, "docker's engine broke off") from None


def engine_words(body):
    """Return what an answer of the engine says that it refused."""
    try:
        return str(json.loads(body.decode(errors="replace"))["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()[:400]


def quoted(text):
    """Return a text as a part of an address."""
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/:@._-"
    return "".join(chr(byte) if byte in plain else "%{:02X}".format(byte) for byte in text.encode())


# Containers of jobs


def job_containers(label="provision.job"):
    """Return all containers of jobs as the engine lists them; None when it does not answer."""
    filters = quoted(json.dumps({"label": [label]}))
    try:
        return engine_json("/containers/json?all=1&filters=" + filters) or []
    except OSError:
        return None


def labels_of(container):
    """Return (job, id, attempt) of a container by its labels."""
    labels = container.get("Labels") or {}
    return tuple(str(labels.get("provision." + key, "")) for key in ("job", "id", "attempt"))


def running_attempts(containers):
    """Return the (job, id, attempt) that have a running container."""
    return {labels_of(item) for item in containers if item.get("State") in ("running", "paused", "restarting")}


def is_running(container):
    """Return whether a container runs."""
    found = engine_json("/containers/{}/json".format(container))
    return bool(found and found["State"].get("Running"))


def terminate(container):
    """Send SIGTERM to what a container was started for: not to the shells around it, whose end would be all's.

    Returns the processes that were asked.
    """
    found = engine_json("/containers/{}/json".format(container))
    if not found or not found["State"].get("Running"):
        return []
    pids = programs_below(int(found["State"].get("Pid") or 0))
    for pid, start in pids.items():
        send_signal(pid, signal.SIGTERM, lambda pid=pid, start=start: start_of(pid) == start)
    if not pids:
        terminate_all(container)
    return pids


def terminate_all(container):
    """Send SIGTERM to a container's first process, as docker does: a shell in a loop outlives what it started."""
    engine("POST", "/containers/{}/kill?signal=TERM".format(container))


def programs_below(first):
    """Return the uppermost processes of a container that are no shells: they know how to end what they started.

    Each with the time of its start.
    """
    children, comm, starts = {}, {}, {}
    for item in names_in(PROC) if first > 1 else ():
        if item.isdigit():
            head, _, rest = read_text("{}/{}/stat".format(PROC, item)).rpartition(")")
            words = rest.split()
            if len(words) > 19 and words[0] != "Z":
                comm[int(item)] = head.partition("(")[2]
                starts[int(item)] = int(words[19])
                children.setdefault(int(words[1]), []).append(int(item))
    found, rest = {}, [first] if first in comm else []
    while rest:
        pid = rest.pop()
        below = children.get(pid, [])
        if comm[pid] in SHELLS and below:
            rest += below
        else:
            found[pid] = starts[pid]
    return found
