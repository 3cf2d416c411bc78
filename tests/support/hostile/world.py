"""A cluster in memory and the command, in one process: three nodes of which two may be hostile."""

from __future__ import annotations

import atexit
import base64
import copy
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from provision import inventory
from provision.cli import main as command
from provision.connectors import pool
from provision.connectors.files import put_through
from provision.connectors.ssh_config import SshConfig
from provision.errors import ConnectionFailed
from provision.inventory import listing, role_files, specs, templates
from provision.model import CommandResult, Node
from tests.benchmarks import applied
from tests.benchmarks.described_node import DIGEST, IMAGE, data_address
from tests.support import ansible_inventory
from tests.support.hostile.ansible import StandInRunner
from tests.support.hostile.guard import Guard
from tests.support.hostile.honest import Answer, Cluster, Question, uuids
from tests.support.hostile.mutation import Change, mutated
from tests.support.node.node import Engine, FakeNode
from tests.support.ssh_keys import new_key, public

__all__ = ["GOOD", "NODES", "Outcome", "World"]

NODES = ("gpu0001", "gpu0002", "gpu0003")
GOOD = "gpu0002"
"""The node that always behaves; gpu0001 keeps the queue of batch jobs."""


CPU_SECONDS = 20
"""What a command may compute; they take a few hundredths of a second."""


@dataclass(frozen=True)
class Outcome:
    """What came of a command."""

    code: int | None
    out: str
    err: str
    problem: str = ""
    """A traceback: it was not one of our errors."""


@dataclass
class Malice:
    """What hostile nodes do in one run."""

    todo: Sequence[Change] = ()
    asked: int = 0
    spoiled: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self) -> tuple[Change, ...]:
        """Return the changes for the next answer of a hostile node: some, or none, so that others are reached."""
        with self.lock:
            number = self.asked
            self.asked += 1
            if not self.todo:
                return ()
            first = self.todo[number % len(self.todo)]
            if first.place % 4 == 0 and number >= len(self.todo):
                return ()
            self.spoiled += 1
            return tuple(self.todo[(number + step) % len(self.todo)] for step in range(1 + first.value % 3))


class World:
    """Nodes, an inventory, a home, and the command."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.malice = folder, Malice()
        self.home, self.inventory, self.away = folder / "home", folder / "inventory", folder / "away"
        self.names, self.host_key = NODES, new_key()
        self.key, self.known_hosts = folder / "id_ed25519", folder / "known_hosts"
        self.spoiled = 0
        self.runner = StandInRunner(self)
        self._engine: Engine | None = None
        self._write()
        self._environment(monkeypatch)
        self._replace(monkeypatch)
        self.guard = Guard(self.home, folder / "inventory", folder / "tmp", Path("/dev/shm"))
        from provision.inventory import load

        load(self.inventory)
        outputs = applied.answers(self.inventory)
        self.cluster = Cluster(folder, outputs)

    def _write(self) -> None:
        for path in (self.home, self.inventory / "group_vars", self.away, self.folder / "tmp", self.folder / "bin"):
            path.mkdir(parents=True)
        hosts = [
            line
            for number, name in enumerate(NODES)
            for line in (
                f"    {name}:",
                f"      ansible_host: 127.77.0.{number + 1}",
                f"      cluster_data_address: {data_address(number)}",
            )
        ]
        (self.inventory / "hosts.yml").write_text("\n".join(["---", "gpu_nodes:", "  hosts:", *hosts, ""]))
        self.key.write_text(new_key())
        self.key.chmod(0o600)
        self.move_to(22)
        fake = self.folder / "bin" / "ssh"
        fake.write_text(f'#!/bin/sh\ncase " $* " in *" -G "*) exec {shutil.which("ssh")} "$@";; esac\nexit 0\n')
        fake.chmod(0o755)
        scan = self.folder / "bin" / "ssh-keyscan"
        scan.write_text(f"#!/bin/sh\nexec cat {self.folder}/host_keys\n")
        scan.chmod(0o755)

    def move_to(self, port: int) -> None:
        """Let the inventory reach the nodes at this port."""
        (self.inventory / "group_vars/all.yml").write_text(
            "---\nansible_user: root\ncluster_name: hostile\ncluster_head: gpu0001\n"
            f"cluster_data_networks: [10.77.0.0/16]\nansible_port: {port}\n"
            f"ansible_ssh_private_key_file: {self.key}\n"
            f"ansible_ssh_common_args: -o UserKnownHostsFile={self.known_hosts} -o StrictHostKeyChecking=yes\n"
            f"training_image_reference: {IMAGE}\ntraining_image_digest: {DIGEST}\n"
            "cluster_data:\n  shared: {kind: nfs, source: 'storage:/data', path: /data}\n"
        )
        known = public(self.host_key)
        self.known_hosts.write_text(
            "".join(
                (f"127.77.0.{number}" if port == 22 else f"[127.77.0.{number}]:{port}") + f" {known}\n"
                for number, _ in enumerate(self.names, 1)
            )
        )

    def _environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {
            "HOME": self.home,
            "XDG_STATE_HOME": self.home / "state",
            "XDG_CACHE_HOME": self.home / "cache",
            "TMPDIR": self.folder / "tmp",
            "NO_COLOR": "1",
            "PROVISION_INVENTORY": self.inventory,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "COLUMNS": "120",
        }.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        monkeypatch.chdir(self.home)

    def _replace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put nodes in memory where SSH connections are made, and a stand-in where ansible-runner is called."""
        import ansible_runner

        config = SshConfig()
        monkeypatch.setattr(pool, "SshConfig", lambda: config)
        monkeypatch.setattr(pool, "SshConnector", lambda node, _hops: _Connector(self, node))
        monkeypatch.setattr(pool, "LocalConnector", lambda node: _Connector(self, node))
        monkeypatch.setattr(
            listing, "subprocess", SimpleNamespace(**{**vars(subprocess), "run": ansible_inventory.run})
        )
        load, again = inventory.load, cache(inventory.load)

        def loaded(path: Path, **more: Any) -> Any:
            """Read an inventory; that of `bootstrap`, which is in another folder each time, once."""
            return load(path, **more) if path == self.inventory else again(self._known(path), **more)

        monkeypatch.setattr(inventory, "load", loaded)
        for module, name in ((role_files, "defaults"), (role_files, "code_of_roles"), (specs, "argument_specs")):
            monkeypatch.setattr(module, name, cache(getattr(module, name)))  # the roles do not change meanwhile
        monkeypatch.setattr(command, "build_app", cache(command.build_app))
        monkeypatch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        monkeypatch.setattr(ansible_runner, "run", self.runner.run)
        monkeypatch.setattr(templates, "_ask_ansible", _asked_once(templates._ask_ansible))
        monkeypatch.setattr(atexit, "register", lambda function, *_, **__: function)

    def _known(self, path: Path) -> Path:
        """Return a path that is not new."""
        known = self.folder / "tmp" / "this-machine"
        if not known.exists():
            shutil.copytree(path, known)
        return known

    def start_recording(self) -> None:
        """Let the real programs of batch jobs answer, on nodes in folders with a STAND-IN of docker."""
        self._engine = Engine(self.folder / "docker.sock")
        rows = "\\n".join(f"{number}, {uuid}, SIMULATED, 81559" for number, uuid in enumerate(uuids()))
        smi = f"case $1 in --query-gpu*) printf '{rows}\\n';; esac"
        for name in NODES:
            node = FakeNode(self.folder / name, name, smi=smi)
            node.environment["PATH"] = node.environment["PATH"].replace(f"{self.folder / 'bin'}:", "")
            self.cluster.nodes[name] = node.with_docker(self._engine)
        self.cluster.recording = True

    def end_recording(self) -> None:
        """From now on answers are those that were recorded."""
        self.cluster.recording = False
        for node in self.cluster.nodes.values():
            node.__exit__()
        if self._engine is not None:
            self._engine.end()

    @staticmethod
    def skip_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
        """Let time pass at once where the command sleeps, and where it waits for a lock or a silent node."""
        from provision.cli import following
        from provision.commands import node_lock
        from provision.jobs import node_contact
        from provision.jobs.engines.common import engine, job_end
        from provision.report.redaction import Redactor
        from provision.workflow import job_watch, node_locks

        passed = [0.0]

        def sleep(seconds: float) -> None:
            passed[0] += seconds

        clock = SimpleNamespace(sleep=sleep, monotonic=lambda: time.monotonic() + passed[0], time=time.time)
        for module in (job_end, engine, following, job_watch):
            monkeypatch.setattr(module, "time", clock)
        monkeypatch.setitem(job_watch.wait_for.__kwdefaults__, "sleep", sleep)
        monkeypatch.setattr(node_contact, "takes_connections", lambda *_: True)
        monkeypatch.setitem(node_lock.TIMES, "linger", -100)
        monkeypatch.setattr(node_locks, "_LAST_SECONDS", 0)
        for name in ("text", "data"):  # they have tests of their own, and take long
            monkeypatch.setattr(Redactor, name, lambda _self, content: content)

    def answer(self, node: str, question: Question) -> Answer:
        """Return what a node answers, honest or not."""
        made = self.cluster.answer(node, question)
        if node == GOOD or not self.malice.todo:
            return made
        todo = self.malice.next()
        if any(change.kind == 1 and change.value % 7 == 0 for change in todo):
            raise ConnectionFailed("the connection was lost", node=node)
        return mutated(made, todo)

    def spoiled_bytes(self, node: str, data: bytes) -> bytes:
        """Return what a node hands over as a file."""
        if node == GOOD or not self.malice.todo:
            return data
        return b"".join(mutated(Answer((data,)), self.malice.next()).chunks)

    def spoiled_document(self, node: str, document: dict[str, Any]) -> dict[str, Any] | None:
        """Return the result of a task of Ansible; None where it is no mapping: Ansible would not take it."""
        try:
            changed = json.loads(self.spoiled_bytes(node, json.dumps(document).encode()))
        except (ValueError, RecursionError):
            return None
        return changed if isinstance(changed, dict) else None

    def try_line(self, line: str, todo: Sequence[Change] = ()) -> Outcome:
        """Run a command line of `verbs`, with an empty folder for what it writes."""
        folder = self.home / "given"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "train.py").write_text("print()\n")
        words = line.format(folder=folder, fingerprint=_fingerprint(self.host_key)).split(" ")
        return self.run(*words, todo=todo)

    def run(self, *words: str, todo: Sequence[Change] = ()) -> Outcome:
        """Run the command with hostile nodes that do these changes."""
        self.malice = Malice(todo)
        if words[0] == "init":  # ssh-keyscan prints what a node, or a jump host, sends
            shown = f"127.77.0.1 {public(self.host_key)}\n".encode()
            (self.folder / "host_keys").write_bytes(self.spoiled_bytes(NODES[0], shown))
        with self.guard.watch(), _captured() as (out, err), _cpu_limit():
            code, problem = _called(lambda: command.main(list(words)))
        self.spoiled += self.malice.spoiled
        return Outcome(code, *(stream.getvalue().decode(errors="replace") for stream in (out, err)), problem)


def _fingerprint(key: str) -> str:
    digest = hashlib.sha256(base64.b64decode(public(key).split(" ")[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _called(function: Callable[[], Any]) -> tuple[int | None, str]:
    try:
        function()
    except SystemExit as stopped:
        code = stopped.code
        return (code if isinstance(code, int) else 0 if code is None else 1), ""
    except BaseException:  # noqa: BLE001 - that is what is looked for
        return None, traceback.format_exc()
    return 0, ""


@contextmanager
def _cpu_limit() -> Iterator[None]:
    """Raise where a command computes for very long, however slow this machine is."""

    def late(_number: int, _frame: object) -> None:
        raise RuntimeError(f"it has computed for {CPU_SECONDS} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _captured() -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    out, err = io.BytesIO(), io.BytesIO()
    before = sys.stdout, sys.stderr, sys.stdin
    sys.stdout = io.TextIOWrapper(out, encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(err, encoding="utf-8", write_through=True)
    sys.stdin = io.TextIOWrapper(io.BytesIO())
    try:
        yield out, err
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in (sys.stdout, sys.stderr):
            stream.detach()
        sys.stdout, sys.stderr, sys.stdin = before


class _Connector:
    """The way to a node in memory."""

    reason = "a node in memory"
    agent = False
    python = "python3"

    def __init__(self, world: World, node: Node) -> None:
        self.name, self._world = node.name, world

    def run(
        self, script: str, *, stdin: bytes = b"", timeout: float | None = None, become: bool = True, **_: Any
    ) -> CommandResult:
        del timeout, become
        made = self._world.answer(self.name, Question(script, stdin))
        return CommandResult(
            b"".join(made.chunks).decode(errors="replace"), made.errors.decode(errors="replace"), made.code
        )

    def start(self, script: str, **_: Any) -> _Process:
        return _Process(self._world, self.name, script)

    def put(self, local: Path, remote: str) -> None:
        put_through(self, local, remote)

    def get(self, remote: str, local: Path) -> None:
        del remote
        local.write_bytes(b"")

    def close(self) -> None:
        """Nothing is open."""


class _Process:
    """A command whose output follows from what was written to it so far."""

    def __init__(self, world: World, node: str, script: str) -> None:
        self._world, self._node, self._script = world, node, script
        self.deadline: float | None = None
        self._stdin, self._given = b"", 0
        self._answer = Answer()

    def write(self, data: bytes) -> None:
        self._stdin += data

    def close_stdin(self) -> None:
        """Nothing waits for it."""

    def output(self) -> Iterator[tuple[str, bytes]]:
        while True:
            self._answer = self._world.answer(self._node, Question(self._script, self._stdin))
            fresh = self._answer.chunks[self._given :]
            self._given = len(self._answer.chunks)
            if self._answer.errors:
                yield "stderr", self._answer.errors
            for chunk in fresh:
                yield "stdout", chunk
            if not fresh or b"".join(fresh).count(b"\n") != 1:
                return

    def ended(self) -> bool:
        return False

    def wait(self) -> int:
        return self._answer.code

    def close(self) -> None:
        """Nothing is open."""


def _asked_once(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Return what starts Ansible once for each inventory, hosts and variables: it takes a second each time."""
    answers: dict[Any, Any] = {}

    def asked(path: Path, hosts: Sequence[str], keys: Sequence[str]) -> Any:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        content = tuple(file.read_bytes() for file in files if file.is_file())
        key = (content, tuple(hosts), tuple(keys))
        if key not in answers:
            answers[key] = ask(path, hosts, keys)
        return copy.deepcopy(answers[key])

    return asked
