"""The keepers' port: what strangers, and nodes of the job that lie, can do to it. Real sockets on loopback."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from provision.node.supervisor import channel as keeper_channel
from provision.node.supervisor import greeting as keeper_greeting
from provision.node.supervisor import messages as keeper_messages
from tests.support.node.node import until

SECRET = bytes(range(32))


class Peers:
    """A chief, and the nodes that reach it."""

    def __init__(self, *nodes: str) -> None:
        self.heard: list[tuple[str, dict]] = []
        self.told: list[tuple[str, dict]] = []
        self.chief = keeper_channel.Chief("127.0.0.1", 0, SECRET, nodes, lambda *told: self.heard.append(told))
        self.place = self.chief.listener.getsockname()

    def member(self, node: str, secret: bytes | None = None, connected: Callable[[], None] = lambda: None) -> object:
        return keeper_channel.Member(
            *self.place,
            secret or keeper_greeting.node_secret(SECRET, node),
            node,
            lambda told: self.told.append((node, told)),
            connected,
        )


class Strangers:
    """Connections that prove nothing and are opened again whenever they are closed; some send a byte now and then."""

    def __init__(self, place: tuple[str, int], sources: dict[str, int], drip: bool) -> None:  # noqa: FBT001
        self.place, self.drip = place, drip
        self.selector = selectors.DefaultSelector()
        self.stop = threading.Event()
        self.opened = 0
        self.wanted = [source for source, count in sources.items() for _ in range(count)]
        for source in self.wanted:
            self.open(source)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def open(self, source: str) -> None:
        with contextlib.suppress(OSError):
            connection = socket.create_connection(self.place, timeout=5, source_address=(source, 0))
            connection.settimeout(0)
            self.selector.register(connection, selectors.EVENT_READ, source)
            self.opened += 1

    def run(self) -> None:
        while not self.stop.is_set():
            for key, _ in self.selector.select(0.01):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    if connection.recv(100):
                        continue
                self.selector.unregister(connection)
                connection.close()
                self.open(key.data)
            if self.drip:
                for key in list(self.selector.get_map().values()):
                    with contextlib.suppress(OSError):
                        key.fileobj.send(b"b")  # type: ignore[union-attr]

    def end(self) -> None:
        self.stop.set()
        self.thread.join(10)
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]


@pytest.fixture
def strangers() -> Iterator[Callable[..., Strangers]]:
    made: list[Strangers] = []

    def make(*given: object) -> Strangers:
        made.append(Strangers(*given))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_strangers_delay_no_node_of_the_job(strangers, monkeypatch) -> None:
    """500 idle connections from one address and 40 slow ones from others, all of which come back: nodes pass at once.

    No node waits for a stranger's time to run out: that would be ten minutes here.
    """
    monkeypatch.setattr(keeper_greeting, "SECONDS", 600)
    peers = Peers("b", "c", "d")
    early = peers.member("b")
    until(lambda: early.tell({"asked": 0}) and peers.heard, "the node that came before the strangers")
    idle = strangers(peers.place, {"127.0.0.9": 500}, False)  # noqa: FBT003
    strangers(peers.place, {f"127.0.0.{n}": 4 for n in range(10, 20)}, True)  # noqa: FBT003
    assert idle.opened >= 400

    for number in range(1, 21):
        assert early.tell({"asked": number})
    until(lambda: ("b", {"asked": 20}) in peers.heard, "messages of the node that came before")
    late = [peers.member(node) for node in ("c", "d")]
    for node, member in zip(("c", "d"), late, strict=True):
        until(lambda member=member: member.tell({"up": True}), f"node {node}", 30)
        until(lambda node=node: (node, {"up": True}) in peers.heard, f"what node {node} tells", 30)
    peers.chief.tell({"go": True})
    until(lambda: {node for node, _ in peers.told} == {"b", "c", "d"}, "what the chief tells", 30)


def test_a_node_passes_strangers_of_its_own_address(strangers) -> None:
    """An ordinary account of the same node keeps 100 connections open: the oldest gives way to the keeper's."""
    peers = Peers("b")
    strangers(peers.place, {"127.0.0.1": 100}, False)  # noqa: FBT003
    member = peers.member("b")

    until(lambda: member.tell({"up": True}), "the node", 30)
    until(lambda: peers.heard == [("b", {"up": True})], "what it tells", 30)


def test_strangers_cost_no_threads(strangers) -> None:
    """However many connect, one thread serves them, and their number is limited."""
    peers = Peers("b")
    before = threading.active_count()
    made = strangers(peers.place, {f"127.0.1.{n}": 20 for n in range(1, 26)}, False)  # noqa: FBT003

    assert made.opened >= 400
    until(lambda: len(peers.chief.door.pending) > 100, "strangers")
    assert threading.active_count() == before + 1, "that of the test"
    assert len(peers.chief.door.pending) <= keeper_greeting.PENDING


def closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1000) == b""
    except ConnectionError:
        return True


def sent(connection: socket.socket) -> bool:
    try:
        return connection.send(b"b") == 1
    except ConnectionError:
        return False


def test_a_connection_that_proves_nothing_in_time_is_closed(monkeypatch) -> None:
    """Its time counts from the beginning, however often it sends something."""
    monkeypatch.setattr(keeper_greeting, "SECONDS", 0.3)
    peers = Peers("b")
    with socket.create_connection(peers.place, timeout=20) as idle, socket.create_connection(peers.place) as slow:
        assert len(idle.recv(100)) == 33
        assert closed(idle)
        slow.recv(100)
        until(lambda: not sent(slow), "the end of the slow one", 20)
    until(lambda: not peers.chief.door.pending, "the end of both")


@pytest.mark.parametrize(
    "greeting",
    [
        b"b" * 600,
        b"\n",
        b"\xff\xfe\n",
        b"b\n",
        b"nobody " + b"0" * 32 + b" " + b"0" * 64 + b"\n",
        b"b " + b"0" * 32 + b" " + b"0" * 64 + b"\n",
        b"b |" + b"0" * 31 + b" " + b"0" * 64 + b"\n",
        b"b " + b"0" * 32 + b" \xc3\xa9\n",
        b"b " + b"0" * 32 + b" " + b"0" * 64 + b"\n" + b"more",
    ],
)
def test_a_greeting_without_proof_ends_the_connection_and_nothing_else(greeting: bytes) -> None:
    """Too long, not text, an unknown node, a wrong proof: it is closed, and the node still passes."""
    peers = Peers("b")
    with socket.create_connection(peers.place, timeout=20) as stranger:
        stranger.recv(100)
        with contextlib.suppress(ConnectionError):
            stranger.sendall(greeting)
        assert closed(stranger)
    member = peers.member("b")
    until(lambda: member.tell({"up": True}) and peers.heard, "the node")


class Relay:
    """Sits between a node and the chief and records what both send."""

    def __init__(self, place: tuple[str, int]) -> None:
        self.place = place
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.sent: dict[str, bytes] = {"chief": b"", "node": b""}
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        node = self.listener.accept()[0]
        chief = socket.create_connection(self.place)
        for name, source, target in (("chief", chief, node), ("node", node, chief)):
            threading.Thread(target=self.copy, args=(name, source, target), daemon=True).start()

    def copy(self, name: str, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                self.sent[name] += piece
                target.sendall(piece)


def test_what_was_recorded_is_refused_on_another_connection() -> None:
    """Neither a node's greeting nor its lines are accepted a second time, and the chief's own lines never."""
    peers = Peers("b")
    relay = Relay(peers.place)
    peers.place, real = relay.listener.getsockname(), peers.place
    member = peers.member("b")
    until(lambda: member.tell({"stop": {"reason": "r"}}), "the node, by way of the relay")
    until(lambda: peers.heard, "what it tells")
    peers.chief.tell({"go": True})
    until(lambda: peers.told, "the chief, by way of the relay")
    before = list(peers.heard)

    for recorded in (relay.sent["node"], relay.sent["chief"]):
        with socket.create_connection(real, timeout=20) as stranger:
            stranger.recv(100)
            with contextlib.suppress(ConnectionError):
                stranger.sendall(recorded)
            assert closed(stranger)
    assert peers.heard == before
    assert list(peers.chief.links) == ["b"], "the node's own connection stays"


def test_a_node_cannot_speak_in_anothers_name() -> None:
    """Each node has a secret of its own: with that of b nobody passes as c, nor as the chief."""
    peers = Peers("b", "c")
    own = keeper_greeting.node_secret(SECRET, "b")
    with socket.create_connection(peers.place, timeout=20) as forger:
        line, _ = keeper_greeting.answer(own, "c", forger.recv(33).rstrip())
        forger.sendall(line)
        assert closed(forger)

    forged = keeper_channel.Chief("127.0.0.1", 0, own, ["c"], lambda *_: None)
    attempts, judge = [], forged.door.proved
    forged.door.proved = lambda *greeting: (attempts.append(greeting), judge(*greeting))[1]
    peers.place = forged.listener.getsockname()
    connected = threading.Event()
    peers.member("c", connected=connected.set)
    until(lambda: len(attempts) > 1, "two attempts of c")
    assert not connected.is_set()
    assert not peers.heard


def test_a_chief_that_proves_nothing_is_left() -> None:
    """Whoever answers at the chief's address without the secret is told nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)
    peers = Peers("b")
    peers.place = listener.getsockname()
    connected = threading.Event()
    member = peers.member("b", connected=connected.set)
    for answer in (b"0" * 64, b"x" * 600, b"\xff"):
        connection = listener.accept()[0]
        connection.settimeout(20)
        connection.sendall(b"0" * 32 + b"\n")
        connection.recv(1000)
        connection.sendall(answer + b"\n")
        assert closed(connection)
    assert not connected.is_set()
    assert not member.tell({"up": True})


ENDED = {"code": 1, "signal": None, "reason": "r", "time": 1.5, "stopped": False}
NODE = {
    "up": True,
    "doing": "",
    "ended": {"j-worker-0": ENDED},
    "over": False,
    "trouble": "",
    "stop": None,
    "done": False,
}
END = {"status": "FAILED", "reason": "r", "exit_code": 1, "first_failure": "", "first_rank": None, "grace": None}
CHIEF = {"go": True, "end": {**END, "begun": 1.0, "lines": ["x"]}, "done": ["b"], "asks": 0.0, "now": 1.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"ended": []}, {"ended": {"x": 1}}, {"ended": {"x": {**ENDED, "time": "soon"}}}, {"stop": {}}, {"stop": "now"},
        {"ended": {"x": {**ENDED, "time": float("nan")}}}, {"stop": {"reason": "r", "grace": 1e300}}, {"other": 1},
        {"stop": {"reason": ["r"]}}, {"trouble": {}}, {"doing": "x" * 70000}, {"asked": {}}, {"asked": 10**400},
        {"now": float("inf")},
    ],
)  # fmt: skip
def test_a_node_of_the_job_that_sends_anything_else_is_not_heard(changes: dict) -> None:
    """Its connection ends, the keeper of the first node goes on, and a proper message is heard after it."""
    assert keeper_messages.from_node({**NODE, "asked": 0.0, "now": 1.0})
    peers = Peers("b")
    member = peers.member("b")
    until(lambda: member.tell({**NODE, **changes}), "the message")
    until(lambda: member.link is None, "the end of its connection")
    until(lambda: member.tell({"up": True}), "another message")
    until(lambda: peers.heard, "what is heard")

    assert peers.heard[0] == ("b", {"up": True})


@pytest.mark.parametrize(
    "changes",
    [
        {"end": {}}, {"end": []}, {"end": {**END, "status": "GONE"}}, {"end": {**END, "reason": None}}, {"done": "b"},
        {"end": {**END, "grace": 1e300}}, {"end": {**END, "grace": float("nan")}}, {"end": {**END, "more": {}}},
        {"end": {**END, "lines": [1]}}, {"done": [[]]}, {"asks": []}, {"go": 1}, {"more": 1},
    ],
)  # fmt: skip
def test_what_a_chief_orders_has_the_form_of_an_order(changes: dict) -> None:
    """Otherwise it would be written down on the other nodes and keep their GPUs."""
    assert keeper_messages.from_chief(CHIEF)
    assert not keeper_messages.from_chief({**CHIEF, **changes})
