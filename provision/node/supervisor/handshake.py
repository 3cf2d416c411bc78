"""The handshake between the job supervisors of one attempt, and the connections that have not completed it.

The leader sends a nonce. The other node answers with its name, its own nonce and a proof that it has its secret; the
leader answers with a proof that it has the same secret. Both proofs depend on both nonces, so a recorded proof is
useless on another connection, and each side has its own key, so a proof cannot be reflected.

One thread serves all unauthenticated connections and never waits for one of them.
"""

import binascii
import contextlib
import hashlib
import hmac
import os
import re
import selectors
import socket
import time
from typing import Callable, Dict, NamedTuple, Optional, Tuple

SECONDS = 5
"""Time limit of a handshake, from the beginning of the connection."""
LONGEST = 512
"""Maximum bytes of a line of the handshake."""
PENDING = 256
"""Maximum number of unauthenticated connections."""
PENDING_OF_SOURCE = 32
"""Maximum number for one source address. A new connection replaces the oldest: a handshake takes one round trip."""
NONCE = re.compile(r"[0-9a-f]{32}\Z")


class Keys(NamedTuple):
    """The keys of one connection, one for each direction."""

    from_leader: bytes
    to_leader: bytes


OnNode = Callable[[socket.socket, str, Keys], None]
"""Takes over an authenticated connection: connection, node, keys."""


def node_secret(secret: bytes, node: str) -> bytes:
    """Return the secret of one node of an attempt; a node cannot impersonate another one with it."""
    return derived(secret, "node|" + node)


def derived(secret: bytes, words: str) -> bytes:
    """Return a key."""
    return hmac.new(secret, words.encode(), hashlib.sha256).digest()


def connection_keys(secret: bytes, node: str, nonces: Tuple[str, str]) -> Keys:
    """Return the keys of one connection."""
    words = "|".join([node, *nonces])
    return Keys(derived(secret, "from_leader|" + words), derived(secret, "to_leader|" + words))


def proof(key: bytes) -> str:
    """Return the proof that the sender has a connection's key; no signed line begins with it."""
    return hmac.new(key, b"proof", hashlib.sha256).hexdigest()


def is_same(text: str, other: str) -> bool:
    """Compare two proofs in constant time."""
    return hmac.compare_digest(text.encode(), other.encode())


def nonce() -> str:
    """Return a random nonce."""
    return binascii.hexlify(os.urandom(16)).decode()


def answer(secret: bytes, node: str, line: bytes) -> Tuple[bytes, Keys]:
    """Return the line that answers the leader's challenge, and the keys; ValueError for an invalid challenge."""
    challenge = line.decode("ascii")
    if not NONCE.match(challenge):
        raise ValueError("not a challenge")
    own = nonce()
    keys = connection_keys(secret, node, (challenge, own))
    return "{} {} {}\n".format(node, own, proof(keys.to_leader)).encode(), keys


class Pending:
    """An unauthenticated connection."""

    def __init__(self, connection: socket.socket, source: str) -> None:
        self.connection, self.source = connection, source
        self.nonce, self.received = nonce(), b""
        self.deadline = time.monotonic() + SECONDS

    def read_line(self) -> Optional[str]:
        """Return the line once it is complete, else None; ValueError for anything but one line."""
        try:
            piece = self.connection.recv(LONGEST + 1 - len(self.received))
        except BlockingIOError:
            return None
        self.received += piece
        line, newline, rest = self.received.partition(b"\n")
        if rest or not piece or (not newline and len(self.received) > LONGEST):
            raise ValueError("not a line of the handshake")
        return line.decode() if newline else None


class HandshakeServer:
    """Accepts the leader's connections, and passes on those of nodes."""

    def __init__(self, listener: socket.socket, secrets: Dict[str, bytes], on_node: OnNode) -> None:
        self.listener, self.secrets, self.on_node = listener, secrets, on_node
        self.pending: Dict[socket.socket, Pending] = {}  # in the order of arrival
        self.selector = selectors.DefaultSelector()
        listener.settimeout(0)
        self.selector.register(listener, selectors.EVENT_READ, listener)

    def serve(self) -> None:
        """Serve all connections, forever."""
        while True:
            for key, _ in self.selector.select(self.timeout()):
                pending = self.pending.get(key.data)
                if key.data is self.listener:
                    self.accept()
                elif pending is not None:  # else it was dropped meanwhile
                    self.advance(pending)
            self.drop_expired()

    def timeout(self) -> Optional[float]:
        """Return the seconds until the next deadline, None without one."""
        oldest = next(iter(self.pending.values()), None)
        return None if oldest is None else max(oldest.deadline - time.monotonic(), 0.001)

    def accept(self) -> None:
        """Accept a new connection, which may replace an older one."""
        try:
            connection, address = self.listener.accept()
        except OSError:
            if not self.pending:
                time.sleep(0.1)
            self.drop_oldest(self.busiest())  # the process may have no file descriptor left
            return
        self.enforce_limits(address[0])
        pending = Pending(connection, address[0])
        try:
            connection.settimeout(0)
            connection.sendall(pending.nonce.encode() + b"\n")
            self.selector.register(connection, selectors.EVENT_READ, connection)
        except OSError:
            connection.close()
            return
        self.pending[connection] = pending

    def enforce_limits(self, source: str) -> None:
        """Drop the oldest connection of this source, or of the busiest one, if a limit is reached."""
        if sum(1 for one in self.pending.values() if one.source == source) >= PENDING_OF_SOURCE:
            self.drop_oldest(source)
        elif len(self.pending) >= PENDING:
            self.drop_oldest(self.busiest())

    def busiest(self) -> Optional[str]:
        """Return the source with the most connections, None without any."""
        sources = [one.source for one in self.pending.values()]
        return max(set(sources), key=sources.count) if sources else None

    def drop_oldest(self, source: Optional[str]) -> None:
        """Close the oldest connection of a source."""
        oldest = next((one for one in self.pending.values() if one.source == source), None)
        if oldest is not None:
            self.remove(oldest).close()

    def advance(self, pending: Pending) -> None:
        """Continue a handshake; close the connection if it fails."""
        try:
            line = pending.read_line()
            if line is None:
                return
            node, keys = self.authenticate(pending, line)
            pending.connection.sendall(proof(keys.from_leader).encode() + b"\n")
        except (OSError, ValueError):
            self.remove(pending).close()
            return
        connection = self.remove(pending)
        try:
            connection.settimeout(None)
            self.on_node(connection, node, keys)
        except (OSError, RuntimeError):  # no thread can be started: the node connects again
            connection.close()

    def authenticate(self, pending: Pending, line: str) -> Tuple[str, Keys]:
        """Return the node that sent a line, and the keys; ValueError without a valid proof."""
        node, other, received_proof = line.split(" ")
        if node not in self.secrets or not NONCE.match(other):
            raise ValueError("not a node of this job")
        keys = connection_keys(self.secrets[node], node, (pending.nonce, other))
        if not is_same(received_proof, proof(keys.to_leader)):
            raise ValueError("no proof")
        return node, keys

    def drop_expired(self) -> None:
        """Close the connections whose time limit has passed."""
        now = time.monotonic()
        for pending in [one for one in self.pending.values() if one.deadline <= now]:
            self.remove(pending).close()

    def remove(self, pending: Pending) -> socket.socket:
        """Stop serving a connection; return it."""
        del self.pending[pending.connection]
        with contextlib.suppress(OSError, KeyError, ValueError):
            self.selector.unregister(pending.connection)
        return pending.connection
