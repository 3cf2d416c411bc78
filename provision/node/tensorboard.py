"""Starts the TensorBoard of a batch job on this node; `delete` of the job removes its container.

It reads its request, one line of JSON, from standard input, runs as root, and needs Python 3.6 and docker. Answer:
``{"running": true, "answers": bool, "port": N}`` or ``{"running": false, "output", "code"}``.
"""

import contextlib
import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, List, Tuple

FIRST_PORT, LAST_PORT = 6006, 6105
"""Where we look for a free one: below those that jobs lease."""
RUN = os.environ.get("PROVISION_JOBS_RUN") or "/run/provision"
"""Where leases are (README.md of `provision/jobs`): ours is of no attempt, and stays as long as the container runs."""
LOCK_SECONDS = 30
ROLE = "tensorboard"
LOG_LINES = "12"


def main() -> None:
    """Start the TensorBoard that the first line of standard input describes."""
    request = json.loads(sys.stdin.readline())
    print(json.dumps(start(request)))


def start(request: Dict[str, Any]) -> Dict[str, Any]:
    """Make the container anew and wait until it answers or has ended; on a slow node it may answer later."""
    name, address = request["container"], request["address"]
    others = take_away(name)
    if others:
        return {"running": False, "output": others}
    if request.get("folder"):
        make_folder(request["folder"], request.get("user") or "")
    port = lease_port(address, request.get("port") or 0, label(request["create"], "id"), job_of(name))
    if not port:
        release_ports(job_of(name))
        return {"running": False, "output": "no port for it is free"}
    answer = run(name, address, port, request)
    if not answer["running"]:
        release_ports(job_of(name))
    return answer


def run(name: str, address: str, port: int, request: Dict[str, Any]) -> Dict[str, Any]:
    """Make and start the container; what does not run is taken away."""
    code, said = docker(["create", *request["create"], str(port)], request["seconds"])
    if code:
        return {"running": False, "output": said}
    code, said = docker(["start", name], request["seconds"])
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


def take_away(name: str) -> str:
    """Remove a job's container, if it is there; return why it is not removed: others may have made one of that name."""
    code, owner = docker(
        ["inspect", "--type", "container", "--format", '{{index .Config.Labels "provision.job"}}', name]
    )
    if code:
        return "" if "No such" in owner else owner
    if owner != job_of(name):
        return "there is another container %s, which is not of the job %s" % (name, job_of(name))
    code, said = docker(["rm", "--force", "--volumes", name])
    return said if code and "No such container" not in said else ""


def job_of(container: str) -> str:
    """Return the job that a container of ours is named after."""
    return container[: -len("-" + ROLE)]


def label(words: List[str], name: str) -> str:
    """Return a label of ours among the words of ``docker create``."""
    start = "provision.%s=" % name
    return next((word[len(start) :] for word in words if word.startswith(start)), "")


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


def lease_port(address: str, port: int, token: str, job: str) -> int:
    """Lease a port on which nobody listens and that is nobody's, `port` alone if it is one; return 0 for none."""
    with leases() as folder:
        for one in [port] if port else range(FIRST_PORT, LAST_PORT + 1):
            path = os.path.join(folder, "port-%d" % one)
            held = read_lease(path)
            if (held and (held.get("job"), held.get("id")) != (job, token)) or not (port or is_free(address, one)):
                continue
            if not held:
                lease = {"job": job, "id": token, "attempt": "", "instance": ROLE}  # type: Dict[str, Any]
                lease.update(time=time.time(), monotonic=time.monotonic())
                with open(path + ".new", "w") as out:
                    json.dump(lease, out)
                os.rename(path + ".new", path)
            return one
    return 0


def release_ports(job: str) -> None:
    """Give back what was leased for a job's TensorBoard."""
    with leases() as folder:
        for item in os.listdir(folder):
            held = read_lease(os.path.join(folder, item)) if item.startswith("port-") else {}
            if (held.get("job"), held.get("instance")) == (job, ROLE):
                os.unlink(os.path.join(folder, item))


@contextlib.contextmanager
def leases() -> Iterator[str]:
    """Hold the lock of the node's leases; yield their folder."""
    folder = os.path.join(RUN, "leases")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with open(os.path.join(RUN, "jobs.lock"), "a") as lock:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield folder


def read_lease(path: str) -> Dict[str, Any]:
    """Return a lease, empty where there is none."""
    try:
        with open(path) as stream:
            found = json.load(stream)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_free(address: str, port: int) -> bool:
    """Whether nobody listens on a port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def make_folder(folder: str, user: str) -> None:
    """Make the log folder of the job, for whoever its containers run as."""
    os.makedirs(folder, 0o755, exist_ok=True)
    numbers = re.match(r"(\d+):(\d+)", user)
    if numbers:
        os.chown(folder, int(numbers.group(1)), int(numbers.group(2)))
