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
"""The range of its ports, below those that jobs lease."""
RUN = os.environ.get("PROVISION_JOBS_RUN") or "/run/provision"
"""The folder of leases, see README.md of `provision/jobs`: the lease of this port lasts as long as the container."""
LOCK_SECONDS = 30
ROLE = "tensorboard"
LOG_LINES = "12"


def main() -> None:
    """Start the TensorBoard that the first line of standard input describes."""
    request = json.loads(sys.stdin.readline())
    print(json.dumps(start(request)))


def start(request: Dict[str, Any]) -> Dict[str, Any]:
    """Create a new container and wait until it answers or has ended; on a slow node it may answer later."""
    name, address = request["container"], request["address"]
    others = remove_container(name)
    if others:
        return {"running": False, "output": others}
    if request.get("folder"):
        make_folder(request["folder"], request.get("user") or "")
    port = lease_port(address, label(request["create"], "id"), job_of(name))
    if not port:
        release_ports(job_of(name))
        return {"running": False, "output": "no port for it is free"}
    answer = run(name, address, port, request)
    if not answer["running"]:
        release_ports(job_of(name))
    return answer


def run(name: str, address: str, port: int, request: Dict[str, Any]) -> Dict[str, Any]:
    """Create and start the container; remove one that does not run."""
    code, output = docker(["create", *request["create"], str(port)], request["seconds"])
    if code:
        return {"running": False, "output": output}
    code, output = docker(["start", name], request["seconds"])
    if code:
        docker(["rm", "--force", "--volumes", name])
        return {"running": False, "output": output}
    deadline = time.monotonic() + request["wait"]
    while time.monotonic() < deadline:
        state, output = docker(["inspect", "--format", "{{.State.Running}} {{.State.ExitCode}}", name])
        if state or not output.startswith("true"):
            log = docker(["logs", "--tail", LOG_LINES, name])[1]
            docker(["rm", "--force", "--volumes", name])
            return {"running": False, "output": log, "code": output.split()[-1] if output.split() else ""}
        if answers(address, port):
            return {"running": True, "answers": True, "port": port}
        time.sleep(0.2)
    return {"running": True, "answers": False, "port": port}


def remove_container(name: str) -> str:
    """Remove a job's container; return why it is not removed: the name may belong to another container."""
    code, owner = docker(
        ["inspect", "--type", "container", "--format", '{{index .Config.Labels "provision.job"}}', name]
    )
    if code:
        return "" if "No such" in owner else owner
    if owner != job_of(name):
        return "another container has the name %s; it does not belong to the job %s" % (name, job_of(name))
    code, output = docker(["rm", "--force", "--volumes", name])
    return output if code and "No such container" not in output else ""


def job_of(container: str) -> str:
    """Return the job in the name of a container."""
    return container[: -len("-" + ROLE)]


def label(words: List[str], name: str) -> str:
    """Return the value of a label in the words of ``docker create``."""
    start = "provision.%s=" % name
    return next((word[len(start) :] for word in words if word.startswith(start)), "")


def docker(words: List[str], seconds: float = 60) -> Tuple[int, str]:
    """Run docker; return its exit status and output."""
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
    """Return whether an HTTP server answers."""
    try:
        with contextlib.closing(socket.create_connection((address, port), timeout=2)) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False


def lease_port(address: str, token: str, job: str) -> int:
    """Lease a free port and return it; return 0 if none is free."""
    with leases() as folder:
        for one in range(FIRST_PORT, LAST_PORT + 1):
            path = os.path.join(folder, "port-%d" % one)
            lease = read_lease(path)
            if (lease and (lease.get("job"), lease.get("id")) != (job, token)) or not is_free(address, one):
                continue
            if not lease:
                lease = {"job": job, "id": token, "attempt": "", "instance": ROLE}
                lease.update(time=time.time(), monotonic=time.monotonic())
                with open(path + ".new", "w") as out:
                    json.dump(lease, out)
                os.rename(path + ".new", path)
            return one
    return 0


def release_ports(job: str) -> None:
    """Release the lease of a job's TensorBoard."""
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
    """Return a lease, empty without one."""
    try:
        with open(path) as stream:
            lease = json.load(stream)
    except (OSError, ValueError):
        return {}
    return lease if isinstance(lease, dict) else {}


def is_free(address: str, port: int) -> bool:
    """Return whether no process listens on a port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def make_folder(folder: str, user: str) -> None:
    """Create the log folder of the job for the account of its containers."""
    os.makedirs(folder, 0o755, exist_ok=True)
    numbers = re.match(r"(\d+):(\d+)", user)
    if numbers:
        os.chown(folder, int(numbers.group(1)), int(numbers.group(2)))
