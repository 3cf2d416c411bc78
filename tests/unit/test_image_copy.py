"""Copies of an image between nodes, as the controller conducts them, with nodes that answer from a table."""

from __future__ import annotations

import json
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provision.documents import decode
from provision.documents import image_copy as answers
from provision.documents.image_copy import CopyState
from provision.errors import ConnectionFailed, InvalidDocument, NodeError, ProvisionError, UsageError
from provision.model import Cluster
from provision.testing import make_cluster
from provision.workflow import image_copy, image_peers, images
from provision.workflow.image_copy import CopyRequest, archive_id, distribute, names_of
from provision.workflow.image_peers import PeerCopy, Received

HASHES = ["a" * 64, "b" * 64]
ID, OTHER = (f"sha256:{name}" for name in HASHES)
OFFER = {
    "event": "offer", "torrent": "AAAA", "id": ID, "config": HASHES[0], "layers": HASHES[1:], "blobs": HASHES,
    "table": "", "diffs": [OTHER], "port": 7001,
}  # fmt: skip
PROGRESS = {"event": "progress", "step": "downloading", "done": 1, "total": 2, "received": 1, "sent": 0}
LISTENING, DONE = {"event": "listening", "port": 7002}, {"event": "done", "id": ID, "received": 5}
ADDRESSES = {f"n{number}": f"10.0.0.{number}" for number in range(1, 5)}


class Program:
    """The program of one node: it prints `events`, and stays until it is ended, unless it `dies`."""

    def __init__(self, events: list[Any], *, dies: bool = False) -> None:
        self.events, self.dies, self.requests, self.done = events, dies, list[dict[str, Any]](), 1
        self.deadline: float | None = None
        self.closed = threading.Event()
        self.rest, self.largest = b"", 0
        self.step = 0
        """By how much the program gets further with each of its last answers."""

    def write(self, data: bytes) -> None:
        self.largest = max(self.largest, len(data))
        *lines, self.rest = (self.rest + data).split(b"\n")
        self.requests += [json.loads(line) for line in lines]

    def output(self) -> Iterator[tuple[str, bytes]]:
        for event in self.events:
            yield "stdout", event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n"
        while not self.dies and not self.closed.is_set() and {"do": "end"} not in self.requests:
            self.done += self.step
            yield "stdout", json.dumps({**PROGRESS, "done": self.done, "total": 1 << 40}).encode() + b"\n"
            time.sleep(0.01)
        if self.dies:
            raise ConnectionFailed("no answer in time")

    def wait(self) -> int:
        return 1

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def copy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Copy an image from n1 to the other nodes of a table; return what each of them received."""

    def call(programs: dict[str, Program]) -> dict[str, Any]:
        monkeypatch.setattr(image_peers, "start_program", lambda way, *_, **__: programs[way.name])

        def each(nodes: Any, function: Any) -> dict[str, Any]:
            from provision.threads import outcomes

            connectors = [SimpleNamespace(name=node.name) for node in nodes]
            results = outcomes(function, connectors, limit=8)
            for one in results:
                if isinstance(one, Exception) and not isinstance(one, ProvisionError):
                    raise one
            return dict(zip((way.name for way in connectors), results, strict=True))

        monkeypatch.setattr(image_peers, "each", each)
        cluster = make_cluster(*programs)
        sender, *receivers = cluster.nodes
        part = PeerCopy("t:1", "t:1", {name: ADDRESSES[name] for name in programs}, 7)
        return part.run(sender, receivers)

    return call


def receiver(**changes: Any) -> Program:
    return Program([LISTENING, PROGRESS, {**DONE, **changes}])


def test_all_nodes_connect_to_the_sender_and_to_each_other(copy: Callable[..., Any]) -> None:
    """By addresses that the controller names; other addresses are not admitted."""
    programs = {"n1": Program([PROGRESS, OFFER]), "n2": receiver(), "n3": receiver(), "n4": receiver()}
    result = copy(programs)

    assert result == dict.fromkeys(("n2", "n3", "n4"), Received(ID, 5))
    connected = {name: _peers(programs[name]) for name in ("n2", "n3", "n4")}
    assert all(peers[0] == ["10.0.0.1", 7001] for peers in connected.values())
    assert sorted(len(peers) for peers in connected.values()) == [1, 2, 3]
    for name, program in programs.items():
        first = program.requests[0]
        assert (first["address"], first["rate"]) == (ADDRESSES[name], 7)
        assert first["allowed"] == sorted(ADDRESSES.values())
        assert program.requests[-1] == {"do": "end"}


def _peers(program: Program) -> list[Any]:
    (request,) = [one for one in program.requests if one["do"] == "peers"]
    return list(request["peers"])


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (Program([LISTENING, PROGRESS], dies=True), "connection.failed"),
        (Program([LISTENING, {"event": "failed", "code": "disk_full", "message": "full"}]), "image.disk_full"),
        (Program([LISTENING, {"event": "failed", "code": "no_peers", "message": "alone"}]), "image.no_peers"),
        (Program([{"event": "done", "id": "sha256:1", "received": 1}]), InvalidDocument.code),
        (Program([b"x" * 100_000]), InvalidDocument.code),
        (Program([b"{}\n"]), InvalidDocument.code),
        (Program([{**LISTENING, "port": 70_000}]), InvalidDocument.code),
    ],
)
def test_a_node_that_fails_or_lies_delays_no_other(copy: Callable[..., Any], program: Program, code: str) -> None:
    """Its error is its result."""
    result = copy({"n1": Program([OFFER]), "n2": program, "n3": receiver()})

    assert result["n3"] == Received(ID, 5)
    assert isinstance(result["n2"], ProvisionError)
    assert result["n2"].code == code


@pytest.mark.parametrize(
    "program",
    [
        Program([{"event": "failed", "code": "disk_full", "message": "no space"}]),
        Program([PROGRESS], dies=True),
        Program([{**OFFER, "blobs": ["../../etc/passwd"]}]),
        Program([{**OFFER, "torrent": "not base64!"}]),
    ],
)
def test_without_an_offer_no_node_receives(copy: Callable[..., Any], program: Program) -> None:
    """The error is the sender's, and the receivers are not started."""
    other = receiver()
    with pytest.raises(ProvisionError):
        copy({"n1": program, "n2": other})
    assert other.requests == []


def test_a_node_states_its_port_once(copy: Callable[..., Any]) -> None:
    """One that repeats it would fill the controller's memory, and the lists of the other nodes."""
    liar = Program([LISTENING, *[{**LISTENING, "port": 7100 + number} for number in range(50)], PROGRESS, DONE])
    other = Program([LISTENING, PROGRESS, DONE])
    assert set(copy({"n1": Program([OFFER]), "n2": liar, "n3": other})) == {"n2", "n3"}

    ports = {port for program in (liar, other) for _, port in _peers(program)}
    assert ports <= {7001, 7002}


def test_an_offer_that_is_too_large_is_refused(copy: Callable[..., Any]) -> None:
    """The controller holds it once for each of many nodes."""
    with pytest.raises(InvalidDocument):
        copy({"n1": Program([{**OFFER, "torrent": "A" * (9 << 20)}]), "n2": receiver()})
    with pytest.raises(InvalidDocument):
        copy({"n1": Program([{**OFFER, "table": "x" * 100_000}]), "n2": receiver()})


def test_a_large_offer_is_sent_in_pieces(copy: Callable[..., Any]) -> None:
    """The controller has it once, not for each of a thousand nodes."""
    program = receiver()
    torrent = "A" * (4 << 20)
    copy({"n1": Program([{**OFFER, "torrent": torrent}]), "n2": program})

    assert program.largest <= 1 << 16
    assert program.requests[0]["torrent"] == torrent
    assert program.requests[0]["do"] == "receive"


def test_an_answer_in_small_pieces_is_not_copied_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node could keep the controller busy with single bytes after a long beginning."""
    offer = json.dumps({**OFFER, "torrent": "A" * (4 << 20)}).encode() + b"\n"
    copied = list[int]()

    class Piece(bytes):
        def __radd__(self, before: bytes) -> bytes:
            copied.append(len(before))
            return before + bytes(self)

    pieces = [offer[:-20_000], *[Piece(offer[at : at + 1]) for at in range(len(offer) - 20_000, len(offer))]]
    monkeypatch.setattr(image_peers, "start_program", lambda *_, **__: Program(pieces))
    session = image_peers._Session(SimpleNamespace(name="n1"), {})  # type: ignore[arg-type]
    event = next(session.events(answers.OFFER_LIMIT))

    assert isinstance(event, answers.CopyOffer)
    assert sum(copied) <= len(offer)


@pytest.mark.parametrize(
    "values",
    [lambda at: at % 2, lambda at: 5 - min(at, 5)],
    ids=["up and down", "down"],
)
def test_a_node_that_reports_other_values_without_getting_further_is_given_up(
    monkeypatch: pytest.MonkeyPatch, values: Callable[[int], int]
) -> None:
    """Else it would keep the others sending, and the command waiting, without an end."""
    now = 0.0
    monkeypatch.setattr(image_peers, "time", SimpleNamespace(monotonic=lambda: now))
    advance = image_peers._Advance("n2")
    for at in range(180):
        now = at * 10.0
        advance.see(progress(values(at)))
    now = 1820.0
    with pytest.raises(NodeError, match="no progress for 1800 s"):
        advance.see(progress(values(5)))


def test_a_node_that_takes_much_longer_than_the_others_is_given_up(
    monkeypatch: pytest.MonkeyPatch, copy: Callable[..., Any]
) -> None:
    """Also if it gets a little further all the time; not before half of the nodes have the image."""
    monkeypatch.setattr(image_peers, "_STUCK_SECONDS", 0.5)
    slow = Program([LISTENING])
    slow.step = 1
    result = copy({"n1": Program([OFFER]), "n2": slow, "n3": receiver()})

    assert result["n3"] == Received(ID, 5)
    assert "has not finished" in result["n2"].message


def progress(done: int) -> answers.CopyProgress:
    return answers.CopyProgress("loading", done, 1 << 40, 0, 0)


def test_a_sender_that_is_lost_after_the_offer_fails_no_node(copy: Callable[..., Any]) -> None:
    """The nodes may have all pieces among themselves."""
    assert copy({"n1": Program([OFFER], dies=True), "n2": receiver()}) == {"n2": Received(ID, 5)}


def state(image: str = "", problem: str = "") -> CopyState:
    return decode(
        json.dumps({"event": "state", "problem": problem, "library": "2.0.8", "docker": "", "id": image}),
        CopyState,
        node="n1",
        what="state",
    )


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Distribute an image over nodes with these states; return the result and the nodes that pulled it."""

    def call(
        states: dict[str, Any], request: CopyRequest, copied: Any = None, refuse: str = ""
    ) -> tuple[Any, list[str], Any]:
        cluster: Cluster = make_cluster(*states)
        pulled: list[str] = []
        part: list[Any] = []

        def pull(_: Any, names: list[str], image: str) -> dict[str, Any]:
            pulled.extend(names)
            assert image == names_of(request.image).pulled
            return {
                name: NodeError("docker failed", node=name, output=refuse) if refuse else images.ImageState(ID)
                for name in names
            }

        def run(self: PeerCopy, sender: Any, receivers: Any) -> dict[str, Any]:
            part.append((sender.name, [node.name for node in receivers], sorted(self.addresses)))
            if isinstance(copied, Exception):
                raise copied
            return {node.name: (copied or {}).get(node.name, Received(ID, 5)) for node in receivers}

        def node_states(nodes: Any, _: str) -> dict[str, Any]:
            again = {name: state(ID) for name in pulled}
            return {node.name: again.get(node.name, states[node.name]) for node in nodes}

        monkeypatch.setattr(image_copy, "node_states", node_states)
        monkeypatch.setattr(
            image_copy, "data_addresses", lambda nodes: ({n.name: ADDRESSES[n.name] for n in nodes}, {})
        )
        monkeypatch.setattr(images, "pull", pull)
        monkeypatch.setattr(images, "tag", lambda *_: images.ImageState(ID))
        monkeypatch.setattr(images, "image_states", lambda _, names, __: dict.fromkeys(names, images.ImageState(ID)))
        monkeypatch.setattr(PeerCopy, "run", run)
        result = distribute(cluster, [], request)
        return {name: (one.source, one.reason, one.state) for name, one in result.nodes.items()}, pulled, part

    return call


def test_one_node_pulls_and_the_others_copy(spread: Callable[..., Any]) -> None:
    """The node that has the image already asks the registry, and sends nothing to a node that has the same."""
    result, pulled, part = spread(
        {"n1": state(), "n2": state(ID), "n3": state(ID), "n4": state(OTHER)}, CopyRequest("r/t:1")
    )

    assert pulled == ["n2"]
    assert part == [("n2", ["n1", "n4"], ["n1", "n2", "n4"])]
    assert {name: source for name, (source, _, _) in result.items()} == {
        "n1": "peers", "n2": "registry", "n3": "present", "n4": "peers",
    }  # fmt: skip


def test_no_program_is_started_where_all_nodes_have_the_image(spread: Callable[..., Any]) -> None:
    """The second call transfers nothing."""
    _, pulled, part = spread({"n1": state(ID), "n2": state(ID)}, CopyRequest("r/t:1"))

    assert (pulled, part) == (["n1"], [])


def test_a_node_that_cannot_take_part_pulls_with_the_reason(spread: Callable[..., Any]) -> None:
    """Before the copy, and after a failure of the transfer; not after a failure of its disk."""
    failed = {
        "n3": image_peers.TransferFailed("no_peers", "alone", node="n3"),
        "n4": image_peers.TransferFailed("disk_full", "full", node="n4"),
    }
    states = {"n1": state(), "n2": state(problem="no libtorrent"), "n3": state(), "n4": state()}
    result, pulled, _ = spread(states, CopyRequest("r/t:1"), failed)

    assert sorted(pulled) == ["n1", "n2", "n3"]
    assert result["n2"][:2] == ("registry", "no libtorrent")
    assert result["n3"][:2] == ("registry", "alone")
    assert result["n4"][2].code == "image.disk_full"


def test_a_failed_sender_is_a_reason_for_plain_pulls(spread: Callable[..., Any]) -> None:
    """All nodes get the image."""
    result, pulled, _ = spread({"n1": state(), "n2": state()}, CopyRequest("r/t:1"), NodeError("disk full", node="n1"))

    assert pulled == ["n1", "n2"]
    assert result["n2"][:2] == ("registry", "n1 cannot send it: disk full")


def test_a_refused_login_is_not_tried_on_the_next_node(spread: Callable[..., Any]) -> None:
    """Each attempt can count as a failed login, and the credential reaches one node only."""
    result, pulled, part = spread({f"n{n}": state() for n in (1, 2)}, CopyRequest("r/t:1"), refuse="unauthorized")

    assert pulled == ["n1"]
    assert part == []
    assert isinstance(result["n1"][2], NodeError)
    assert "n1 got no access" in result["n2"][2].message


def test_without_a_registry_no_node_pulls(spread: Callable[..., Any]) -> None:
    """A node that cannot take part is an error with a remedy."""
    request = CopyRequest("r/t:1", sender="n1")
    result, pulled, part = spread({"n1": state(ID), "n2": state(problem="no libtorrent"), "n3": state()}, request)

    assert pulled == []
    assert part == [("n1", ["n3"], ["n1", "n3"])]
    assert result["n2"][2].message == "no libtorrent"
    assert "python3-libtorrent" in result["n2"][2].remedy


@pytest.mark.parametrize(
    ("image", "pulled", "tag"),
    [
        ("t", "t:latest", "t:latest"),
        ("host:5000/t", "host:5000/t:latest", "host:5000/t:latest"),
        ("host:5000/t:1", "host:5000/t:1", "host:5000/t:1"),
        (f"host:5000/t:1@{ID}", f"host:5000/t@{ID}", "host:5000/t:1"),
    ],
)
def test_the_digest_is_verified_by_the_pull_and_the_tag_names_the_image(image: str, pulled: str, tag: str) -> None:
    """Docker ignores the tag beside a digest."""
    assert (names_of(image).pulled, names_of(image).tag) == (pulled, tag)


def test_an_image_without_a_tag_is_refused() -> None:
    """Docker cannot load it under its digest."""
    with pytest.raises(UsageError, match="no tag"):
        names_of(f"host:5000/t@{ID}")


@pytest.mark.parametrize("content", [b"", b"text", None])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """Before any node is contacted."""
    path = tmp_path / "train.tar"
    if content is not None:
        path.write_bytes(content)
    else:
        with tarfile.open(path, "w"):
            pass
    with pytest.raises(UsageError, match="not a tar file of docker save"):
        archive_id(path, "t:1")
