"""One process that is the sshd of many SIMULATED nodes; `simulated_nodes` starts it."""

# ruff: noqa: ARG002 - paramiko calls the server's methods with names

from __future__ import annotations

import io
import json
import logging
import os
import re
import resource
import selectors
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.common import cMSG_CHANNEL_SUCCESS

from provision.commands.ssh import END_OF_SCRIPT
from provision.facts import ALL_FACTS, request
from tests.benchmarks.described_node import Description, answer, name_of, preflight_answer

__all__ = ["EXECUTED", "Nodes", "address_of", "serve"]

EXECUTED = "executed.txt"
"""Below the folder of the nodes: a line with the node's name for each command that a client started."""
_IDLE_SECONDS = 5.0
_HEAD = re.compile(rb"head -c (\d+)")
_PROGRAM = re.compile(r"\.pyz ([\w-]+)\s*$")


@dataclass(frozen=True)
class Nodes:
    """How many nodes there are, and how they behave."""

    count: int
    login_seconds: float = 0.0
    """How long a node thinks about a login (name service, PAM)."""
    smi_seconds: float = 0.0
    """How long its nvidia-smi takes, and so the probe."""
    hung: tuple[int, ...] = ()
    """Nodes (from 0) on which the probe never ends."""
    silent: tuple[int, ...] = ()
    """Nodes that take a connection and never say a word."""
    max_startups: int = 0
    """Connections beyond this many that are not logged in yet are dropped without a word; 0: none is."""
    cluster_keys: bool = True
    """Whether each node's containers know the keys of all others, so that a probe's output grows with the cluster."""
    applied: bool = False
    """Whether they carry the receipts of an apply after which nothing has changed: then a plan is empty."""
    port: int = 2022
    processes: int = 2


def address_of(number: int) -> str:
    """Where the sshd of node `number` answers."""
    return f"127.77.{number // 250}.{number % 250 + 1}"


class _Gate:
    """Counts connections that are not logged in yet, as sshd does for MaxStartups."""

    def __init__(self, most: int) -> None:
        self._most, self._lock, self._open = most, threading.Lock(), set[int]()

    def enter(self, connection: int) -> bool:
        with self._lock:
            if self._most and len(self._open) >= self._most:
                return False
            self._open.add(connection)
            return True

    def leave(self, connection: int) -> None:
        with self._lock:
            self._open.discard(connection)


class _Transport(paramiko.Transport):
    """Records when the client received the start of its command; a command does not end earlier."""

    def __init__(self, peer: socket.socket) -> None:
        super().__init__(peer)
        self.replied = threading.Event()

    def _send_user_message(self, data: paramiko.Message) -> None:
        super()._send_user_message(data)
        if data.asbytes()[:1] == cMSG_CHANNEL_SUCCESS:
            self.replied.set()


class _Node(paramiko.ServerInterface):
    """One connection to one node."""

    def __init__(
        self, folder: Path, nodes: Nodes, number: int, key: paramiko.PKey, gate: _Gate,
        outputs: Mapping[str, Mapping[str, str]],
    ) -> None:  # fmt: skip
        self._executed = folder / EXECUTED
        self._nodes, self._number, self._key, self._gate = nodes, number, key, gate
        self._outputs = outputs.get(name_of(number), {})

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        threading.Event().wait(self._nodes.login_seconds)
        self._gate.leave(id(self))
        return paramiko.AUTH_SUCCESSFUL if (username, key) == ("root", self._key) else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        transport = channel.get_transport()
        assert isinstance(transport, _Transport)
        with self._executed.open("a") as lines:
            lines.write(f"{name_of(self._number)}\n")
        transport.replied.clear()
        threading.Thread(target=self._run, args=(channel, command, transport.replied), daemon=True).start()
        return True

    def _run(self, channel: paramiko.Channel, command: bytes, replied: threading.Event) -> None:
        replied.wait()
        try:
            script, out = self._input(channel, command), ""
            program = _PROGRAM.search(script)
            if program and program[1] == "package-preflight":
                out = preflight_answer(self._request(channel))
            elif program and program[1] == "probe":
                total = self._nodes.count if self._nodes.cluster_keys else 0
                out = answer(Description(self._number, total, self._outputs), self._rest(channel))
                threading.Event().wait(None if self._number in self._nodes.hung else self._nodes.smi_seconds or 0.001)
            channel.sendall(out.encode())
            channel.send_exit_status(0)
            channel.shutdown_write()
            channel.close()
        except (OSError, EOFError, paramiko.SSHException):
            return

    @staticmethod
    def _input(channel: paramiko.Channel, command: bytes) -> str:
        """The script, of which the command says how long it is; any other command reads nothing."""
        head = _HEAD.search(command)
        wanted = int(head[1]) if head else 0
        data = b""
        while len(data) < wanted and (piece := channel.recv(min(65536, wanted - len(data)))):
            data += piece
        return data.decode(errors="replace").removesuffix(f"\n{END_OF_SCRIPT}")

    @staticmethod
    def _rest(channel: paramiko.Channel) -> bytes:
        """Return standard input up to its end."""
        data = b""
        while piece := channel.recv(65536):
            data += piece
        return data

    @staticmethod
    def _request(channel: paramiko.Channel) -> bytes:
        """The first line of standard input."""
        data = b""
        while b"\n" not in data and (piece := channel.recv(65536)):
            data += piece
        return data


def serve(folder: Path, part: int) -> None:
    """Serve one part of the nodes until the input ends."""
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    _raise_limit()
    threading.stack_size(512 * 1024)
    nodes = Nodes(**json.loads((folder / "nodes.json").read_text()))
    user = paramiko.PKey.from_path(folder / "id_ed25519")
    keys = json.loads((folder / "host_keys.json").read_text())
    outputs = json.loads((folder / "applied.json").read_text())
    gate, listeners, silent = _Gate(nodes.max_startups), selectors.DefaultSelector(), []
    for number in range(part, nodes.count, nodes.processes):
        listener = socket.create_server((address_of(number), nodes.port), backlog=128)
        listener.settimeout(0)
        listeners.register(listener, selectors.EVENT_READ, number)
    answer(Description(0, nodes.count), request(ALL_FACTS))  # what is the same on all nodes is made once, beforehand
    loaded: dict[int, paramiko.PKey] = {}
    threading.Thread(target=_end_with_input, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        for ready, _ in listeners.select():
            number = ready.data
            peer, _ = ready.fileobj.accept()  # type: ignore[union-attr]
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if number in nodes.silent:
                silent.append(peer)
                continue
            if number not in loaded:
                loaded[number] = paramiko.Ed25519Key(file_obj=io.StringIO(keys[number]))
            server = _Node(folder, nodes, number, user, gate, outputs)
            if not gate.enter(id(server)):
                peer.close()
                continue
            _begin(peer, loaded[number], server)


def _begin(peer: socket.socket, key: paramiko.PKey, server: _Node) -> None:
    transport = _Transport(peer)
    peer.settimeout(_IDLE_SECONDS)  # paramiko looks ten times a second otherwise, a thousand connections long
    transport.add_server_key(key)
    transport.start_server(server=server, event=threading.Event())


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


def _raise_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard) if soft < hard else (soft, hard))
