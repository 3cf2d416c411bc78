"""The request that creates a job's container: nothing of the job decides what a program of root does."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import socketserver
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from provision.batch.containers import NodeHardware, create_words
from provision.model.job import Assignment, JobSpec, Kind
from provision.node import docker as node_docker
from provision.node.supervisor import containers, create
from tests.support.node.node import Engine

LONG = "x" * 100_000
VARIABLES = ("PATH", "LD_PRELOAD", "DOCKER_HOST", "CONTAINERS_CONF", "CONTAINER_HOST", "BASH_ENV", "ZONEINFO", "TZ")


def make_container(folder: Path, **env: str) -> containers.Container:
    """Return a container of a job supervisor with these variables."""
    config = {"name": "j-worker-0", "instances": ["j-worker-0"], "create": ["image", "true"], "env": env}
    request = {"name": "j", "id": "1", "attempt": 1}
    return containers.Container(config, request, str(folder), lambda *_: None)


@pytest.mark.parametrize("name", VARIABLES)
def test_no_variable_of_a_job_reaches_a_program_that_creates_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Neither the docker client of the node nor one that a variable names is started; the container has them all."""
    (tmp_path / "bin").mkdir()
    for program in ("docker", "podman", "sh"):
        (tmp_path / "bin" / program).write_text(f"#!{sys.executable}\nopen({str(tmp_path / 'started')!r}, 'w')\n")
        (tmp_path / "bin" / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    engine = Engine(tmp_path / "docker.sock")
    monkeypatch.setattr(node_docker, "DOCKER_SOCKET", str(engine.socket))
    given = {name: f"{tmp_path}/bin\n", "LONG": LONG, "WORDS": "--privileged\r\n-v /:/h"}
    try:
        made = make_container(tmp_path, **given)._create(threading.Event())
        created = json.loads(engine.ask("GET", f"/containers/{made}/json")[1])["Config"]
    finally:
        engine.end()

    assert dict(item.split("=", 1) for item in created["Env"]) == given
    assert created["Labels"] == {
        "provision.job": "j",
        "provision.id": "1",
        "provision.attempt": "1",
        "provision.instance": "j-worker-0",
    }
    assert not (tmp_path / "started").exists()
    assert not list(tmp_path.glob("env-*"))


@pytest.mark.parametrize(
    ("words", "variables", "problem"),
    [
        (["image"], {"A": "\udcff"}, "the variable 'A' is not UTF-8 text"),
        (["--pid", "host", "image"], {}, "--pid is not an option of a job's container"),
    ],
)
def test_what_cannot_be_requested_is_refused(words: list[str], variables: dict[str, str], problem: str) -> None:
    """An option that is not known is never passed on."""
    with pytest.raises(ValueError, match=problem):
        create.container_request(words, variables, {})


ASSIGNMENTS = [
    Assignment("j-worker-0", "worker", 0, "a", "10.0.0.1", 0, is_leader=True, uuids=("GPU-a", "GPU-b"), container="j-0")
]
HARDWARE = NodeHardware(("/dev/infiniband/uverbs0",), {"memlock": 1 << 20})
SPECS = [
    JobSpec("j", Kind.RUN, ("true",), image="i"),
    JobSpec("j", Kind.MPI, ("true",), image="i", user="1000:1001,44,27", share_memory="512m"),
    JobSpec("j", Kind.RUN, ("true",), image="i", privileged=True, ulimits={"nofile": "10:20"}, share_memory="4096"),
    JobSpec("j", Kind.RUN, ("true",), image="i", mounts=("/a:/b:ro", "/c:/d"), working_dir="/w"),
]


class Recorder(http.server.BaseHTTPRequestHandler):
    """Answers the docker client, and keeps what it asks to create."""

    requests: ClassVar[list[dict[str, Any]]] = []

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""

    def address_string(self) -> str:
        """The client has no address."""
        return "local"

    def answer(self, value: object) -> None:
        """Answer in the form of the engine."""
        body = json.dumps(value).encode()
        self.send_response(201 if self.command == "POST" else 200)
        for name, text in {"Api-Version": "1.40", "OSType": "linux", "Content-Length": len(body)}.items():
            self.send_header(name, str(text))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):  # a client that needs no more
            self.wfile.write(body if self.command != "HEAD" else b"")

    def do_HEAD(self) -> None:
        """Answer to a ping."""
        self.answer("OK")

    def do_GET(self) -> None:
        """Answer to a ping, or to a question about the engine."""
        self.answer({})

    def do_POST(self) -> None:
        """Keep the request."""
        self.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.answer({"Id": "0" * 64, "Warnings": []})


@pytest.mark.skipif(shutil.which("docker") is None, reason="the docker client is not installed")
@pytest.mark.parametrize("spec", SPECS)
def test_the_request_is_that_of_the_docker_client_for_the_same_words(tmp_path: Path, spec: JobSpec) -> None:
    """A dry run shows the words, and the container is created as the client would create it."""
    words = create_words(
        spec, ASSIGNMENTS, "sha256:1", labels={"a": "b=c"}, hardware=HARDWARE, folder="/f", entry=("sh", "-c", "true")
    )
    server = socketserver.ThreadingUnixStreamServer(str(tmp_path / "s"), Recorder)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        argv = ["docker", "--host", f"unix://{tmp_path}/s", "create", "--env", "A=b", *words]
        subprocess.run(argv, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, check=True, capture_output=True)
    finally:
        server.shutdown()
        server.server_close()
    client = _comparable(Recorder.requests.pop())
    assert _comparable(create.container_request(words, {"A": "b"}, {})) == client


_OF_CLIENT = {"AttachStdout", "AttachStderr", "ConsoleSize", "MemorySwappiness", "NetworkingConfig", "StdinOnce"}
"""Fields that the client fills in for itself, or with the engine's default."""


_IN_ORDER = {"Cmd", "Entrypoint"}


def _comparable(value: Any) -> Any:
    """Return a request without empty fields, fields that the client always sends, prefixes and order."""
    if isinstance(value, dict):
        parts = {key: _comparable(part) for key, part in value.items() if key not in _OF_CLIENT}
        lists = {key for key, part in parts.items() if isinstance(part, list)} - _IN_ORDER
        parts |= {key: sorted(parts[key], key=json.dumps) for key in lists}
        return {key: part for key, part in parts.items() if part not in (None, "", 0, [], {}, False)}
    if isinstance(value, list):
        return [_comparable(part) for part in value]
    return value.removeprefix("CAP_") if isinstance(value, str) else value
