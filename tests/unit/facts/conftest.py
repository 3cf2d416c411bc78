"""A node for the program that the probe sends: its files, its programs, and a Docker engine."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.facts import RawOutput
from provision.facts.managed import Managed, ManagedFact
from tests.support.node.probe import managed_command

KEY = b"0" * 64


class Node:
    """A folder with receipts, and replacements for the programs that the probe runs."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder, self.programs = root, root / "receipts", root / "bin"
        self.asked: list[str] = []
        self.folder.mkdir()
        self.programs.mkdir()
        (self.folder / "key").write_bytes(KEY)

    def receipt(self, role: str, **content: object) -> None:
        text = json.dumps({"role": role, **content}).encode()
        (self.folder / f"{role}.json").write_bytes(text)
        (self.folder / f"{role}.seal").write_text(hashlib.sha256(KEY + text).hexdigest())

    def file(self, name: str, text: str, mode: int = 0o644) -> str:
        path = self.root / name
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.programs / name).chmod(0o755)

    def look(self, change: str = "") -> Managed:
        """Run the probe's program, and return the state of managed objects."""
        managed = ManagedFact().parse(self.run(change))
        assert isinstance(managed, Managed), managed
        return managed

    def run(self, change: str = "", **variables: str) -> RawOutput:
        """Run the probe's program; `change` is a sed program for it."""
        own = f's,^SYSTEMD = .*,SYSTEMD = "{self.root}/systemd",;{change}'
        command = managed_command(self.root / "program", self.folder, own)
        environment = {**os.environ, **variables, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        return RawOutput(done.stdout, done.returncode, done.stderr)

    def seen(self, section: str, **content: object) -> object:
        """Return the observed section of one receipt."""
        self.receipt("some", **content)
        return self.look().observed["some"].get(section)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node with a key and no receipts."""
    return Node(tmp_path)


@pytest.fixture
def engine(node: Node) -> Iterator[dict[str, object]]:
    """Return an engine on a socket: path -> answer, b'' for no answer, text for a raw answer."""
    answers: dict[str, object] = {}
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(node.root / "docker.sock"))
    server.listen()
    connections = []

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            path = connection.recv(4096).split()[1].decode()
            node.asked.append(path)
            answer = answers.get(path.partition("?")[0])
            if answer == b"":
                connections.append(connection)
                continue
            text = answer if isinstance(answer, str) else json.dumps(answer or {"message": "no"})
            head, body = "404 Not Found" if answer is None else "200 OK", text
            connection.sendall(f"HTTP/1.0 {head}\r\nServer: x\r\n\r\n{body}".encode())
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    yield answers
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    for connection in connections:
        connection.close()
