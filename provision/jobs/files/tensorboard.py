"""Starts, looks at and ends the TensorBoard of a batch job on this node.

It arrives over SSH on standard input as root, followed by one line of JSON, and needs Python 3.6 and docker. Answers:
``start``: ``{"running": true, "answers": bool, "port": N}`` or ``{"running": false, "output", "code"}``; ``events``:
``{"found": true, false or null}``; ``stop``: ``{"stopped": bool}``.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List, Tuple

FIRST_PORT, LAST_PORT = 6006, 6105
"""Where we look for a free one: below those that jobs lease."""
LOG_LINES = "12"


def main() -> None:
    """Do what the first line of standard input says."""
    request = json.loads(sys.stdin.readline())
    found = {"start": start, "stop": stop, "events": events}[request["do"]](request)
    print(json.dumps(found))  # noqa: T201


def start(request: Dict[str, Any]) -> Dict[str, Any]:
    """Make the container anew and wait until it answers or has ended; on a slow node it may answer later."""
    name, address = request["container"], request["address"]
    docker(["rm", "--force", "--volumes", name])
    if request.get("folder"):
        make_folder(request["folder"], request.get("user") or "")
    port = request.get("port") or free_port(address)
    for step in (["create", *request["create"], str(port)], ["start", name]):
        code, said = docker(step, request["seconds"])
        if code:
            docker(["rm", "--force", "--volumes", name])
            return {"running": False, "output": said}
    deadline = time.monotonic() + request["wait"]
    while time.monotonic() < deadline:
        state, said = docker(["inspect", "--format", "{{.State.Running}} {{.State.ExitCode}}", name])
        if state or not said.startswith("true"):
            output = docker(["logs", "--tail", LOG_LINES, name])[1]
            docker(["rm", "--force", "--volumes", name])
            return {"running": False, "output": output, "code": said.split()[-1] if said.split() else ""}
        if answers(address, port):
            return {"running": True, "answers": True, "port": port}
        time.sleep(0.2)
    return {"running": True, "answers": False, "port": port}


def stop(request: Dict[str, Any]) -> Dict[str, Any]:
    """Remove the container; one that is gone is fine."""
    code, said = docker(["rm", "--force", "--volumes", request["container"]])
    return {"stopped": not code or "No such container" in said}


def events(request: Dict[str, Any]) -> Dict[str, Any]:
    """Say whether there is any file of events; a file system that hangs is not waited for."""
    argv = ["find", request["folder"], "-name", "events.out.tfevents*", "-print", "-quit"]
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        out = child.communicate(timeout=request["seconds"])[0]
    except subprocess.TimeoutExpired:
        child.kill()
        return {"found": None}
    return {"found": True if out.strip() else None if not os.path.isdir(request["folder"]) else False}


def docker(words: List[str], seconds: float = 60) -> Tuple[int, str]:
    """Run docker; return its exit status and what it said."""
    try:
        done = subprocess.run(
            ["docker", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        return 127, "there is no docker program"
    except subprocess.TimeoutExpired:
        return 124, "docker %s did not end within %d s" % (words[0], seconds)
    return done.returncode, done.stdout.decode(errors="replace").strip()


def answers(address: str, port: int) -> bool:
    """Whether a server of HTTP answers there."""
    try:
        with contextlib.closing(socket.create_connection((address, port), timeout=2)) as talk:
            talk.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
            return talk.recv(5) == b"HTTP/"
    except OSError:
        return False


def free_port(address: str) -> int:
    """Return a port on which nobody listens."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in range(FIRST_PORT, LAST_PORT + 1):
        with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    return 0


def make_folder(folder: str, user: str) -> None:
    """Make the log folder of the job, for whoever its containers run as."""
    os.makedirs(folder, 0o755, exist_ok=True)
    numbers = re.match(r"(\d+):(\d+)", user)
    if numbers:
        os.chown(folder, int(numbers.group(1)), int(numbers.group(2)))


if __name__ == "__main__":
    main()
