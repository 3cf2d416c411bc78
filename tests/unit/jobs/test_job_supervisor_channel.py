"""The port of job supervisors: unauthenticated connections and invalid messages. Real sockets on loopback."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from provision.node.supervisor import channel, handshake, messages
from tests.support.node.node import until

SECRET = bytes(range(32))


class Peers:
    """A leader and the nodes that connect to it."""

    def __init__(self, *nodes: str) -> None:
        self.heard: list[tuple[str, dict]] = []
        self.orders: list[tuple[str, dict]] = []
        self.leader = channel.LeaderChannel("127.0.0.1", 0, SECRET, nodes, lambda *report: self.heard.append(report))
        self.address = self.leader.listener.getsockname()

    def member(
        self, node: str, secret: bytes | None = None, connected: Callable[[], None] = lambda: None
    ) -> channel.MemberChannel:
        return channel.MemberChannel(
            *self.address,
            secret or handshake.node_secret(SECRET, node),
            node,
            lambda order: self.orders.append((node, order)),
            connected,
        )


class Strangers:
    """Unauthenticated connections that are opened again whenever they are closed; some send a byte now and then."""

    def __init__(self, address: tuple[str, int], sources: dict[str, int], drip: bool) -> None:  # noqa: FBT001
        self.address, self.drip = address, drip
        self.selector = selectors.DefaultSelector()
        self.stop = threading.Event()
        self.opened = 0
        self.sources = [source for source, count in sources.items() for _ in range(count)]
        for source in self.sources:
            self.open(source)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def open(self, source: str) -> None:
        with contextlib.suppress(OSError):
            connection = socket.create_connection(self.address, timeout=5, source_address=(source, 0))
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


def test_unauthenticated_connections_delay_no_node(strangers, monkeypatch) -> None:
    """500 idle connections from one address and 40 slow ones from others, all of which are opened again.

    No node waits for the time limit of another connection, which is ten minutes here.
    """
    monkeypatch.setattr(handshake, "SECONDS", 600)
    peers = Peers("b", "c", "d")
    early = peers.member("b")
    until(lambda: early.send({"asked": 0}) and peers.heard, "the node that connected first")
    idle = strangers(peers.address, {"127.0.0.9": 500}, False)  # noqa: FBT003
    strangers(peers.address, {f"127.0.0.{n}": 4 for n in range(10, 20)}, True)  # noqa: FBT003
    assert idle.opened >= 400

    for number in range(1, 21):
        assert early.send({"asked": number})
    until(lambda: ("b", {"asked": 20}) in peers.heard, "messages of the node that connected first")
    late = [peers.member(node) for node in ("c", "d")]
    for node, member in zip(("c", "d"), late, strict=True):
        until(lambda member=member: member.send({"up": True}), f"node {node}", 30)
        until(lambda node=node: (node, {"up": True}) in peers.heard, f"the report of node {node}", 30)
    peers.leader.send({"go": True})
    until(lambda: {node for node, _ in peers.orders} == {"b", "c", "d"}, "the leader's order", 30)


def test_unauthenticated_connections_of_its_own_address_delay_no_node(strangers) -> None:
    """An account of the same node has 100 open connections: the supervisor's replaces the oldest one."""
    peers = Peers("b")
    strangers(peers.address, {"127.0.0.1": 100}, False)  # noqa: FBT003
    member = peers.member("b")

    until(lambda: member.send({"up": True}), "the node", 30)
    until(lambda: peers.heard == [("b", {"up": True})], "its report", 30)


def test_unauthenticated_connections_start_no_threads(strangers) -> None:
    """One thread serves all of them, and their number is limited."""
    peers = Peers("b")
    before = threading.active_count()
    made = strangers(peers.address, {f"127.0.1.{n}": 20 for n in range(1, 26)}, False)  # noqa: FBT003

    assert made.opened >= 400
    until(lambda: len(peers.leader.server.pending) > 100, "unauthenticated connections")
    assert threading.active_count() == before + 1, "that of the test"
    assert len(peers.leader.server.pending) <= handshake.PENDING


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


def test_a_handshake_over_its_time_limit_is_closed(monkeypatch) -> None:
    """The limit counts from the beginning, even if the connection sends something."""
    monkeypatch.setattr(handshake, "SECONDS", 0.3)
    peers = Peers("b")
    with socket.create_connection(peers.address, timeout=20) as idle, socket.create_connection(peers.address) as slow:
        assert len(idle.recv(100)) == 33
        assert closed(idle)
        slow.recv(100)
        until(lambda: not sent(slow), "the end of the slow one", 20)
    until(lambda: not peers.leader.server.pending, "the end of both")


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
def test_a_handshake_without_proof_ends_only_its_connection(greeting: bytes) -> None:
    """Too long, not text, an unknown node, a wrong proof: it is closed, and the node can still connect."""
    peers = Peers("b")
    with socket.create_connection(peers.address, timeout=20) as stranger:
        stranger.recv(100)
        with contextlib.suppress(ConnectionError):
            stranger.sendall(greeting)
        assert closed(stranger)
    member = peers.member("b")
    until(lambda: member.send({"up": True}) and peers.heard, "the node")


class Relay:
    """A relay between a node and the leader that records what both send."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.sent: dict[str, bytes] = {"leader": b"", "node": b""}
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        node = self.listener.accept()[0]
        leader = socket.create_connection(self.address)
        for name, source, target in (("leader", leader, node), ("node", node, leader)):
            threading.Thread(target=self.copy, args=(name, source, target), daemon=True).start()

    def copy(self, name: str, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                self.sent[name] += piece
                target.sendall(piece)


def test_recorded_lines_are_refused_on_another_connection() -> None:
    """Neither a node's handshake nor its lines are accepted a second time, and the leader's own lines never."""
    peers = Peers("b")
    relay = Relay(peers.address)
    peers.address, real = relay.listener.getsockname(), peers.address
    member = peers.member("b")
    until(lambda: member.send({"stop": {"reason": "r"}}), "the node through the relay")
    until(lambda: peers.heard, "its report")
    peers.leader.send({"go": True})
    until(lambda: peers.orders, "the leader through the relay")
    before = list(peers.heard)

    for recorded in (relay.sent["node"], relay.sent["leader"]):
        with socket.create_connection(real, timeout=20) as stranger:
            stranger.recv(100)
            with contextlib.suppress(ConnectionError):
                stranger.sendall(recorded)
            assert closed(stranger)
    assert peers.heard == before
    assert list(peers.leader.links) == ["b"], "the node's own connection stays"


def test_a_node_cannot_impersonate_another_one() -> None:
    """Each node has its own secret: with that of b a process is neither accepted as c nor as the leader."""
    peers = Peers("b", "c")
    own = handshake.node_secret(SECRET, "b")
    with socket.create_connection(peers.address, timeout=20) as forger:
        line, _ = handshake.answer(own, "c", forger.recv(33).rstrip())
        forger.sendall(line)
        assert closed(forger)

    forged = channel.LeaderChannel("127.0.0.1", 0, own, ["c"], lambda *_: None)
    attempts, authenticate = [], forged.server.authenticate
    forged.server.authenticate = lambda *line: (attempts.append(line), authenticate(*line))[1]
    peers.address = forged.listener.getsockname()
    connected = threading.Event()
    peers.member("c", connected=connected.set)
    until(lambda: len(attempts) > 1, "two attempts of c")
    assert not connected.is_set()
    assert not peers.heard


def test_a_member_leaves_an_unauthenticated_leader() -> None:
    """A server at the leader's address without the secret receives no message."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)
    peers = Peers("b")
    peers.address = listener.getsockname()
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
    assert not member.send({"up": True})


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
ORDER = {"go": True, "end": {**END, "begun": 1.0, "lines": ["x"]}, "done": ["b"], "asks": 0.0, "now": 1.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"ended": []}, {"ended": {"x": 1}}, {"ended": {"x": {**ENDED, "time": "soon"}}}, {"stop": {}}, {"stop": "now"},
        {"ended": {"x": {**ENDED, "time": float("nan")}}}, {"stop": {"reason": "r", "grace": 1e300}}, {"other": 1},
        {"stop": {"reason": ["r"]}}, {"trouble": {}}, {"doing": "x" * 70000}, {"asked": {}}, {"asked": 10**400},
        {"now": float("inf")},
    ],
)  # fmt: skip
def test_an_invalid_report_of_a_node_is_refused(changes: dict) -> None:
    """Its connection ends, the leader continues, and receives a valid message afterwards."""
    assert messages.is_node_report({**NODE, "asked": 0.0, "now": 1.0})
    peers = Peers("b")
    member = peers.member("b")
    until(lambda: member.send({**NODE, **changes}), "the message")
    until(lambda: member.link is None, "the end of its connection")
    until(lambda: member.send({"up": True}), "another message")
    until(lambda: peers.heard, "the report")

    assert peers.heard[0] == ("b", {"up": True})


@pytest.mark.parametrize(
    "changes",
    [
        {"end": {}}, {"end": []}, {"end": {**END, "status": "GONE"}}, {"end": {**END, "reason": None}}, {"done": "b"},
        {"end": {**END, "grace": 1e300}}, {"end": {**END, "grace": float("nan")}}, {"end": {**END, "more": {}}},
        {"end": {**END, "lines": [1]}}, {"done": [[]]}, {"asks": []}, {"go": 1}, {"more": 1},
    ],
)  # fmt: skip
def test_an_invalid_order_of_the_leader_is_refused(changes: dict) -> None:
    """Otherwise the other nodes would record it, and hold their GPUs."""
    assert messages.is_leader_order(ORDER)
    assert not messages.is_leader_order({**ORDER, **changes})
