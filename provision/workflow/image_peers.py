"""One copy of an image between nodes: the node that sends, those that receive, and what each of them reports."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from provision.connectors import Connector, RemoteProcess, each
from provision.connectors.programs import start_program
from provision.documents import decode
from provision.documents.image_copy import (
    LINE_LIMIT,
    OFFER_LIMIT,
    CopyDone,
    CopyEvent,
    CopyFailed,
    CopyListening,
    CopyOffer,
    CopyProgress,
)
from provision.errors import ConnectionFailed, InvalidDocument, NodeError, ProvisionError
from provision.model import Node

PROGRAM = "image-peers"
PORT = 6881
"""The port of a node's libtorrent; the next free one if another program uses it."""
_SILENCE_SECONDS = 45.0
"""After this time without an answer a node is given up; its program reports every second."""
_STUCK_SECONDS = 1800.0
"""After this time in one step without progress a node is given up; `docker save` first writes a copy of the image."""
_OFFER_SECONDS = 4 * 3600.0
"""After this time without an offer the sender is given up."""
_LATE_FACTOR = 4
"""Once half of the nodes have the image, how many times as long another one may take, beside `_STUCK_SECONDS`."""
_STAY_SECONDS = 10.0
"""How often a node hears that the controller is still there."""
_NEIGHBOURS = 40
"""To how many other nodes a node connects, beside the one that sends."""
_MESSAGE_BYTES = 4000
_PIECE = 1 << 16
_OFFERED = ("torrent", "id", "config", "layers", "blobs", "table", "diffs")
"""The fields of an offer that a receiver gets."""

Report = Callable[[str, str, int, int, int], None]
"""Receives node, step, done and total bytes, and the bytes that came from other nodes."""
FALLBACK_CODES = frozenset({"no_peers", "stalled", "unusable"})
"""Failures of the transfer itself: a plain pull may succeed."""


class TransferFailed(NodeError):
    """The copy between the nodes failed on one of them."""

    def __init__(self, code: str, message: str, *, node: str) -> None:
        remedies = {
            "disk_full": "Free disk space on the node: `docker system df` and `df -h` show what uses it.",
            "no_peers": f"Check the firewalls of the nodes: TCP ports from {PORT} on are used on the data network.",
        }
        remedy = remedies.get(code, "Check Docker and the disk of the node (dmesg), then run the command again.")
        super().__init__(message, node=node, remedy=remedy)
        self.code = f"image.{code}" if code in {*remedies, "stalled", "unusable"} else "node.failed"
        self.may_pull = code in FALLBACK_CODES


@dataclass(frozen=True)
class Received:
    """What one node received."""

    id: str
    bytes: int


@dataclass
class PeerCopy:
    """The copy of one image from one node to others."""

    image: str
    """The name by which the sender has it."""
    tag: str
    """Its name on the other nodes."""
    addresses: Mapping[str, str]
    """Node -> its address on the data network."""
    rate: int = 0
    """The limit of each node in bytes per second; 0 for none."""
    report: Report = lambda *_: None
    _offer: CopyOffer | None = None
    _offered: bytes = b""
    """The part of a request that all receivers get: megabytes for a large image, and there are many receivers."""
    _problem: ProvisionError | None = None
    _ready: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _peers: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Node -> where it listens, first the sender; a node states it once."""
    _longest: float = 0.0
    """The longest time in which a node has received the image."""
    _received_by: int = 0
    """How many nodes have received it."""
    _waiting: set[str] = field(default_factory=set)
    _receiving: set[str] = field(default_factory=set)

    def run(self, sender: Node, receivers: Sequence[Node]) -> dict[str, Received | ProvisionError]:
        """Copy the image from `sender` to `receivers`; return the result of each receiver.

        Raises:
            ProvisionError: the sender cannot offer the image.
        """
        self._waiting = {node.name for node in receivers}
        thread = threading.Thread(target=self._run_sender, args=(sender,), daemon=True)
        thread.start()
        try:
            while not self._ready.wait(0.5):  # Ctrl-C is noticed between two waits
                pass
            if self._offer is None:
                raise self._problem or NodeError("the image was not offered", node=sender.name)
            result = each(receivers, self._receive)
        finally:
            self._over.set()
        thread.join(_SILENCE_SECONDS)  # until the sender has removed its files
        return result

    def _run_sender(self, sender: Node) -> None:
        result = each([sender], self._send)[sender.name]
        if isinstance(result, ProvisionError):
            self._problem = result
        self._ready.set()

    def _request(self, action: str, node: str) -> dict[str, Any]:
        common = {"image": self.image, "tag": self.tag, "address": self.addresses[node], "port": PORT}
        return {"do": action, **common, "allowed": sorted(self.addresses.values()), "rate": self.rate}

    def _send(self, connector: Connector) -> None:
        session = _Session(connector, self._request("send", connector.name))
        advance = _Advance(connector.name, _OFFER_SECONDS)
        try:
            for event in session.events(OFFER_LIMIT):
                if isinstance(event, CopyOffer) and self._offer is None:
                    self._peers[connector.name] = self.addresses[connector.name], event.port
                    self._offered = json.dumps({key: getattr(event, key) for key in _OFFERED}).encode()
                    self._offer = event
                    self._ready.set()
                elif isinstance(event, CopyProgress):
                    self.report(connector.name, event.step, event.done, event.total, event.received)
                    if self._offer is None:
                        advance.see(event)
                if self._over.is_set():
                    session.end()
                    return
        finally:
            session.close()

    def _receive(self, connector: Connector) -> Received:
        name = connector.name
        with self._lock:
            self._waiting.discard(name)
            self._receiving.add(name)
        session: _Session | None = None
        try:
            session = _Session(connector, self._request("receive", name), self._offered)
            received = self._received(session, name)
            self._finish(name)
            self._go_on_sending(session, name)
            return received
        finally:
            self._finish(name)
            if session is not None:
                session.close()

    def _received(self, session: _Session, name: str) -> Received:
        advance = _Advance(name)
        for event in session.events(LINE_LIMIT):
            advance.limit = _LATE_FACTOR * self._longest + _STUCK_SECONDS if self._have_most() else math.inf
            if isinstance(event, CopyListening) and name not in self._peers:
                with self._lock:
                    first, *others = self._peers.values()
                    chosen = random.sample(others, min(len(others), _NEIGHBOURS))  # nosec B311 # no secret
                    self._peers[name] = self.addresses[name], event.port
                session.write({"do": "peers", "peers": [first, *chosen]})
            elif isinstance(event, CopyProgress):
                self.report(name, event.step, event.done, event.total, event.received)
                advance.see(event)
            elif isinstance(event, CopyDone):
                self.report(name, "done", event.received, event.received, event.received)
                with self._lock:
                    self._received_by, self._longest = self._received_by + 1, max(self._longest, advance.seconds)
                return Received(event.id, event.received)
        raise InvalidDocument("the program for copies of images ended without a result", node=name)

    def _go_on_sending(self, session: _Session, name: str) -> None:
        """Let the node send to the others until all have the image; an error now does not concern its own image."""
        with suppress(ProvisionError):
            for event in session.events(LINE_LIMIT):
                if isinstance(event, CopyProgress):
                    self.report(name, "done", event.done, event.total, event.received)
                with self._lock:
                    is_over = not self._receiving or bool(self._waiting)  # waiting nodes need this one's thread
                if is_over or self._over.is_set():
                    session.end()
                    return

    def _have_most(self) -> bool:
        """Return whether at least half of the nodes have the image; from then on the others may be late."""
        with self._lock:
            return self._received_by > 0 and self._received_by >= len(self._receiving) + len(self._waiting)

    def _finish(self, name: str) -> None:
        with self._lock:
            self._receiving.discard(name)


class _Advance:
    """Notices that a node does not get on, or takes too long as a whole; the node may report anything."""

    def __init__(self, node: str, limit: float = math.inf) -> None:
        self.limit = limit
        """The most seconds as a whole."""
        self._node, self._most, self._begin = node, dict[str, int](), time.monotonic()
        self._since = self._begin

    @property
    def seconds(self) -> float:
        """The time since the start."""
        return time.monotonic() - self._begin

    def see(self, event: CopyProgress) -> None:
        """Raise NodeError if no step has got further than before for too long, or the time limit has passed."""
        now, most = time.monotonic(), self._most.get(event.step, -1)
        if event.done > most:
            self._most[event.step], self._since = event.done, now
        elif now - self._since > _STUCK_SECONDS:
            self._fail(f"no progress for {_STUCK_SECONDS:.0f} s ({event.step})")
        if self.seconds > self.limit:
            self._fail(f"it has not finished after {self.seconds:.0f} s ({event.step})")

    def _fail(self, words: str) -> None:
        raise NodeError(words, node=self._node, remedy="Check Docker and the disk of the node (dmesg).")


class _Session:
    """The program on one node."""

    def __init__(self, connector: Connector, request: Mapping[str, Any], more: bytes = b"{}") -> None:
        """Start the program, and send a request; `more` is a JSON object with further fields."""
        self._node = connector.name
        self._process: RemoteProcess = start_program(connector, PROGRAM, limit=None)
        self._stayed = time.monotonic()
        self._parts, self._size, self._words = list[bytes](), 0, b""
        self._output = self._process.output()
        self._lines: list[bytes] = []
        self._process.write(json.dumps(request).encode()[:-1] + (b", " if len(more) > len(b"{}") else b""))
        for at in range(1, len(more), _PIECE):
            self._process.write(more[at : at + _PIECE])  # a copy of the whole for each node would fill the memory
        self._process.write(b"\n")

    def write(self, request: Mapping[str, Any]) -> None:
        """Send a request."""
        self._process.write(json.dumps(request).encode() + b"\n")

    def events(self, limit: int) -> Iterator[CopyEvent]:
        """Yield the node's answers; end with its program.

        Raises:
            ConnectionFailed: the node is silent, or the connection is lost.
            NodeError: the program failed or sent something that is not valid.
        """
        self._process.deadline = time.monotonic() + _SILENCE_SECONDS
        while True:
            while self._lines:
                yield self._event(self._lines.pop(0), limit)
            try:
                stream, chunk = next(self._output)
            except StopIteration:
                raise self._ended() from None
            if stream == "stderr":
                self._words = (self._words + chunk)[-_MESSAGE_BYTES:]
                continue
            self._add(chunk)
            if self._size > limit:
                raise InvalidDocument(f"an answer has more than {limit} bytes", node=self._node)
            self._stay()

    def _add(self, chunk: bytes) -> None:
        """Add output: what came before is searched and copied only at the end of a line, however small the chunks."""
        first, *more = chunk.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        if more:
            *self._lines, rest = b"".join(self._parts), *more
            self._parts, self._size = [rest], len(rest)

    def _event(self, line: bytes, limit: int) -> CopyEvent:
        self._process.deadline = time.monotonic() + _SILENCE_SECONDS
        event: Any = decode(line, CopyEvent, node=self._node, what="answer of image-peers", limit=limit)  # type: ignore[arg-type] # a union
        if isinstance(event, CopyFailed):
            raise TransferFailed(event.code, event.message, node=self._node)
        return event  # type: ignore[no-any-return]

    def _stay(self) -> None:
        if time.monotonic() - self._stayed >= _STAY_SECONDS:
            self._stayed = time.monotonic()
            self.write({"do": "stay"})

    def _ended(self) -> ProvisionError:
        words = self._words.decode(errors="replace").strip()
        try:
            code = self._process.wait()
        except ConnectionFailed as error:
            return error
        return NodeError(
            f"the program for copies of images ended with code {code}",
            node=self._node,
            output=words,
            remedy="Run the command again. If it fails again, check the node's memory (dmesg).",
        )

    def end(self) -> None:
        """Ask the program to end, and wait until it has removed its files."""
        with suppress(ProvisionError):
            self.write({"do": "end"})
            self._process.deadline = time.monotonic() + _SILENCE_SECONDS
            for _ in self._output:
                pass

    def close(self) -> None:
        """Close the connection; the program ends with it."""
        self._process.close()
