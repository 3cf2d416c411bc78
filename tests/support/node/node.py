"""A node for batch jobs: the real programs as processes, in a folder of their own, docker and systemd as STAND-INS."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from provision.node.supervisor.handshake import node_secret
from tests.support.node.program import NodeProgram

HERE = Path(__file__).parent
GPUS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")


class Engine:
    """The stand-in of docker's engine on a socket."""

    def __init__(self, path: Path) -> None:
        self.socket = path
        self._process = subprocess.Popen([sys.executable, "-I", str(HERE / "docker_standin.py"), "engine", str(path)])
        until(self._listens, "the engine's socket")

    def _listens(self) -> bool:
        """Return whether it takes connections: the socket is there a moment before."""
        with socket.socket(socket.AF_UNIX) as connection:
            return connection.connect_ex(str(self.socket)) == 0

    def ask(self, method: str, path: str) -> tuple[int, bytes]:
        """Return the status and the body of an answer."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.socket))
            connection.sendall(f"{method} {path} HTTP/1.0\r\n\r\n".encode())
            head, _, body = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    def reset(self) -> None:
        """Remove all containers."""
        self.ask("POST", "/reset")

    def end(self) -> None:
        """End it and all its containers."""
        self._process.terminate()
        self._process.wait()
        self.socket.unlink(missing_ok=True)


class FakeNode:
    """One node; `ask` is a request to the program for jobs, as it comes over SSH."""

    def __init__(self, folder: Path, name: str = "a", *, smi: str | None = None) -> None:
        self.folder, self.name = folder, name
        self.root, self.run, self.units = folder / "jobs", folder / "run", folder / "units"
        tools = folder / "bin"
        for path in (self.units, tools):
            path.mkdir(parents=True, exist_ok=True)
        self.socket = folder / "docker.sock"
        _script(tools / "docker", f'exec {sys.executable} -I -S {HERE}/docker_standin.py "$@"')
        for tool, word in (("systemd-run", "run"), ("systemctl", "control")):
            _script(tools / tool, f'exec {sys.executable} -I -S {HERE}/systemd_standin.py {word} "$@"')
        if smi is None:
            rows = "\\n".join(f"{index}, {uuid}, SIMULATED, 32510" for index, uuid in enumerate(GPUS))
            smi = (
                f"case $1 in --query-gpu*) printf '{rows}\\n';; --query-compute*) cat {folder}/uses 2>/dev/null;; esac"
            )
        _script(tools / "nvidia-smi", f"{smi}\ntrue")
        self.environment = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PROVISION_JOBS_ROOT": str(self.root),
            "PROVISION_JOBS_RUN": str(self.run),
            "PROVISION_DOCKER_SOCKET": str(self.socket),
            "STANDIN_UNITS": str(self.units),
        }
        self.engine: Engine | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for unit in self.units.iterdir():
            with contextlib.suppress(ValueError, OSError):
                pid = int(unit.read_text())
                with contextlib.suppress(OSError):
                    os.kill(_parent(pid), signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
        self.end_engine()

    def with_docker(self, engine: Engine | None = None) -> FakeNode:
        """Have a stand-in engine: one of several tests, or one of its own that it can end."""
        if engine is None:
            self.engine = engine = Engine(self.socket)
        self.environment["PROVISION_DOCKER_SOCKET"] = str(engine.socket)
        self.socket = engine.socket
        return self

    def end_engine(self) -> None:
        """End its own engine and all its containers."""
        if self.engine is not None:
            self.engine.end()
            self.engine = None

    def begin(self, do: str, **request: Any) -> NodeProgram:
        """Start a request and leave its input open."""
        child = self.program()
        child.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
        child.stdin.flush()
        return child

    def program(self, errors: int | None = None) -> NodeProgram:
        """Start the program for jobs, which waits for a request."""
        return NodeProgram(self.environment, errors)

    def raw(self, do: str, **request: Any) -> bytes:
        """Return what a request prints."""
        return self.begin(do, **request).communicate(timeout=30)[0]

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Return the answer to a request."""
        answer: dict[str, Any] = json.loads(self.raw(do, **request))
        return answer

    def ok(self, do: str, **request: Any) -> dict[str, Any]:
        """Return the answer to a request that is not refused."""
        answer = self.ask(do, **request)
        assert "error" not in answer, answer
        return answer

    def attempt(self, job: str = "j", number: int = 1) -> Path:
        """Where an attempt is kept."""
        return self.root / job / "attempts" / str(number)

    def record(self, name: str, job: str = "j", number: int = 1) -> dict[str, Any]:
        """Return a JSON file of an attempt; empty while it is not there."""
        try:
            document: dict[str, Any] = json.loads((self.attempt(job, number) / f"{name}.json").read_text())
        except OSError:
            return {}
        return document

    def result(self, seconds: float = 15, **which: Any) -> dict[str, Any]:
        """Wait for the end of an attempt here."""
        until(lambda: self.record("result", **which), f"an end on {self.name}", seconds, self.attempt(**which))
        until(lambda: not list(self.units.iterdir()), "the supervisor's end")
        return self.record("result", **which)

    def supervisor(self) -> int:
        """Return the PID of the only job supervisor."""
        return int(until(lambda: [int(unit.read_text()) for unit in self.units.glob("*.service")], "a supervisor")[0])


def assignment(instance: str, node: str, rank: int, *, is_leader: bool | None = None, **more: Any) -> dict[str, Any]:
    """Return the document of an assignment; rank 0 is the leader by default."""
    role = instance.split("-")[1]
    return {
        "instance": instance,
        "role": role,
        "index": 0,
        "node": node,
        "address": "127.0.0.1",
        "rank": rank,
        "chief": rank == 0 if is_leader is None else is_leader,
        "uuids": [],
        "container": instance,
        **more,
    }


def job(name: str = "j", ident: str = "t1", **spec: Any) -> dict[str, Any]:
    """Return a job.json."""
    kind = {"name": name, "kind": "run", "command": ["true"], "gpus": 0, "workers": 1, "labels": {}, "priority": 0}
    return {"id": ident, "owner": "u@h", "submitted": 1.0, "spec": {**kind, **spec}}


def container(instance: str, *command: str, **more: Any) -> dict[str, Any]:
    """Return a container's entry of the request to the job supervisor."""
    return {
        "name": instance,
        "phase": 2,
        "create": ["--init", "image", *command],
        "env": {},
        "ready_port": 0,
        "log_instance": instance,
        "instances": [instance],
        **more,
    }


def prepare(
    node: FakeNode, assignments: list[dict[str, Any]], name: str = "j", ident: str = "t1", **more: Any
) -> dict[str, Any]:
    """Prepare the first attempt of a job on a node."""
    record = {"attempt": 1, "id": ident, "seats": assignments, "node": node.name}
    request = {"name": name, "job": job(name, ident), "attempt": 1, "attempt_record": record, "images": {}, **more}
    return node.ok("prepare", **request)


def start(
    node: FakeNode,
    containers: list[dict[str, Any]],
    name: str = "j",
    ident: str = "t1",
    *,
    is_leader: bool = True,
    **changes: Any,
) -> None:
    """Start the first attempt of a job on a node."""
    supervisor = {
        "id": ident,
        "node": node.name,
        "chief": is_leader,
        "chief_address": "127.0.0.1",
        "control_port": 0,
        "secret": "00" * 32,
        "nodes": [node.name],
        "ends": "all",
        "grace_seconds": 2,
        "beat_seconds": 0.2,
        "lost_seconds": 10,
        "starting_timeout": 20,
        "running_timeout": 0,
        "clean": "None",
        "containers": containers,
        "leases": [],
        **changes,
    }
    if not is_leader:
        supervisor["secret"] = node_secret(bytes.fromhex(supervisor["secret"]), node.name).hex()
    request = {"name": name, "attempt": 1, "keeper": supervisor}
    node.ok("start", **request)


def run(node: FakeNode, *command: str, **changes: Any) -> None:
    """Run a job of one instance on one node."""
    prepare(node, [assignment("j-worker-0", node.name, 0)])
    start(node, [container("j-worker-0", *command)], **changes)


def until(condition: Any, what: str, seconds: float = 60, folder: Path | None = None) -> Any:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        output = (folder / "keeper.out").read_text() if folder and (folder / "keeper.out").exists() else ""
        assert time.monotonic() < end, f"not within {seconds} s: {what}\n{output}"
        time.sleep(0.02)


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
