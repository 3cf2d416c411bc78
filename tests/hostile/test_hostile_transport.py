"""Nodes that speak SSH, or do not, and want to fill the memory or to hold up every command."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.connectors import connect, pool, ssh, ssh_transport
from provision.connectors.limits import Allowance
from provision.errors import ConnectionFailed
from provision.jobs import job_access, session
from provision.model import Connection, Node
from tests.support.hostile.honest import Answer
from tests.support.hostile.sshd import GARBAGE, HostileSshd
from tests.support.hostile.verbs import CASES
from tests.support.hostile.world import GOOD, World
from tests.support.ssh_keys import new_key, public

MOST = 1024 * 1024
"""Bytes that a command may print here."""
SOON = 0.3
"""How long a hostile node is waited for here, in seconds."""
LATER = 5.0
"""The same where the code does not distinguish the nodes: a good node on a busy machine answers in less."""


class Hasty(ssh.SshProcess):
    """A command whose time is short on nodes that are hostile."""

    @property
    def deadline(self) -> float | None:  # type: ignore[override]
        """When it has to have ended."""
        return self.__dict__.get("deadline")

    @deadline.setter
    def deadline(self, value: float | None) -> None:
        short = value is not None and self.__dict__.get("_node", GOOD) != GOOD
        self.__dict__["deadline"] = time.monotonic() + SOON if short else value

    def __init__(self, node: str, *rest: Any) -> None:
        self.__dict__["_node"] = node
        super().__init__(node, *rest)


class Small(Allowance):
    """What a node may send here."""

    def __init__(self, node: str, limit: int) -> None:
        super().__init__(node, min(limit, MOST))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let limits be small and times short."""
    timer = threading.Timer
    monkeypatch.setattr(ssh, "Allowance", Small)
    monkeypatch.setattr(job_access, "Allowance", Small)
    monkeypatch.setattr(ssh, "SshProcess", Hasty)
    monkeypatch.setattr(ssh, "SEND_SECONDS", LATER)
    monkeypatch.setattr(ssh, "EXIT_SECONDS", LATER)
    monkeypatch.setattr(ssh_transport, "_KNOCK_SECONDS", 0.0)
    monkeypatch.setattr(session, "_ANSWER_SECONDS", LATER)
    monkeypatch.setattr(session, "BEAT_SECONDS", 0.2)
    monkeypatch.setattr(threading, "Timer", lambda seconds, *rest: timer(min(seconds, 5.0), *rest))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[HostileSshd, Node]]:
    """One node at an SSH server."""
    host, user = new_key(), new_key()
    (tmp_path / "key").write_text(user)
    (tmp_path / "key").chmod(0o600)
    with HostileSshd({"gpu1": "127.77.1.1"}, host, lambda _name, _question: Answer((b"fine\n",))) as sshd:
        (tmp_path / "known_hosts").write_text(f"[127.77.1.1]:{sshd.port} {public(host)}\n")
        options = ("-o", f"UserKnownHostsFile={tmp_path / 'known_hosts'}", "-o", "StrictHostKeyChecking=yes")
        where = {"port": sshd.port, "user": "root", "key_file": tmp_path / "key", "ssh_args": options}
        yield sshd, Node("gpu1", Connection("127.77.1.1", **where))


def _really(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connections be made: other tests have nodes in memory."""
    from provision.connectors.ssh import SshConnector
    from provision.connectors.ssh_config import SshConfig

    monkeypatch.setattr(pool, "SshConnector", SshConnector)
    monkeypatch.setattr(pool, "SshConfig", SshConfig)


def test_an_honest_node_can_be_connected_to(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests below would prove nothing."""
    _really(monkeypatch)
    assert connect(node[1]).run("true").stdout == "fine\n"


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("endless", "it sent more than the limit of 1 MiB"),
        ("flood", "the connection to 127.77.1.1 was lost|it sent more than the limit of 1 MiB"),
        ("mute", "starting a command"),
        ("silent", "did not end within its time limit"),
        ("no exit", "did not end within its time limit"),
        ("deaf", "sending data that it does not accept"),
    ],
)
def test_output_and_time_of_a_command_are_limited(
    node: Any, monkeypatch: pytest.MonkeyPatch, behaviour: str, said: str
) -> None:
    """What does not end, or does not begin, is the error of its node; little more than the limit is received."""
    _really(monkeypatch)
    sshd, where = node
    sshd.behaviours["gpu1"] = behaviour
    with pytest.raises(ConnectionFailed, match=said) as failed:
        connect(where).run("true" + " " * 100_000, timeout=60)

    assert failed.value.node == "gpu1"
    assert sshd.sent["gpu1"] < 16 * MOST


def test_data_beyond_the_window_closes_the_connection(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller reads the output of this command; paramiko would keep all of it."""
    _really(monkeypatch)
    sshd, where = node
    sshd.behaviours["gpu1"] = "flood"
    process = connect(where).start("true", limit=None)
    end = time.monotonic() + 60
    while not process.ended():
        assert time.monotonic() < end
        threading.Event().wait(0.01)

    assert sshd.sent["gpu1"] < 16 * MOST


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_server_without_ssh_is_an_error_of_its_node(node: Any, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Whatever it sends and however much."""
    _really(monkeypatch)
    sshd, where = node
    sshd.behaviours["gpu1"] = kind
    with pytest.raises(ConnectionFailed, match=r"failed the SSH handshake|no answer|does not answer") as failed:
        connect(where)

    assert failed.value.node == "gpu1"


@pytest.fixture(scope="module")
def servers(world: World) -> Iterator[HostileSshd]:
    """The world's nodes at SSH servers."""
    addresses = {name: f"127.77.0.{number}" for number, name in enumerate(world.names, 1)}
    with HostileSshd(addresses, world.host_key, world.cluster.answer) as sshd:
        world.move_to(sshd.port)
        yield sshd
        world.move_to(22)


@pytest.mark.parametrize("behaviour", ["endless", "silent"])
@pytest.mark.parametrize("verb", CASES)
def test_a_hanging_node_does_not_delay_the_other_nodes(
    world: World, servers: HostileSshd, monkeypatch: pytest.MonkeyPatch, verb: str, behaviour: str
) -> None:
    """One node sends without end, or nothing, another one what is no SSH; the third one's part is done."""
    _really(monkeypatch)
    number = sorted(CASES).index(verb)
    hostile = [behaviour, GARBAGE[number % len(GARBAGE)]]
    servers.behaviours.update(zip([name for name in world.names if name != GOOD], hostile, strict=True))
    done = world.try_line(CASES[verb].lines[0])

    assert not done.problem, done.problem
    assert done.code is not None
    assert CASES[verb].anycode or done.code <= 7 or done.code in {125, 130}
    if CASES[verb].good is not None:
        assert CASES[verb].good(done), done.out + done.err  # type: ignore[misc] # it was just asked
