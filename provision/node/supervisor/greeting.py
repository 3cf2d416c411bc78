"""The handshake between the keepers of one attempt, and the connections that have not finished it.

The chief sends a nonce. The other node answers with its name, a nonce of its own and a proof that it knows its secret;
the chief answers with a proof that it knows the same. Both proofs depend on both nonces, so that neither can be used
again, and each side's proof is made with a key of its own, so that neither can be sent back.

All connections that have proved nothing are served by one thread, without waiting for any of them.
"""

import binascii
import contextlib
import hashlib
import hmac
import os
import re
import selectors
import time

SECONDS = 5
"""A connection has this long to prove who it is, from its beginning."""
LONGEST = 512
"""Bytes of the line in which it does."""
PENDING = 256
"""Connections that may be in the handshake."""
PENDING_OF_SOURCE = 32
"""Those of one address among them. The oldest gives way to a new one: a handshake takes one round trip only."""
NONCE = re.compile(r"[0-9a-f]{32}\Z")


def node_secret(secret: bytes, node: str) -> bytes:
    """Return the secret of one node of an attempt: another node that knows its own cannot speak in its name."""
    return derived(secret, "node|" + node)


def derived(secret: bytes, words: str) -> bytes:
    """Return a key."""
    return hmac.new(secret, words.encode(), hashlib.sha256).digest()


def connection_keys(secret, node, nonces):
    """Return the keys of one connection: from the chief, to the chief."""
    words = "|".join([node, *nonces])
    return [derived(secret, kind + "|" + words) for kind in ("from chief", "to chief")]


def proof(key):
    """Return what proves that its sender has a connection's key; no sealed line begins with this."""
    return hmac.new(key, b"proof", hashlib.sha256).hexdigest()


def same(text, other):
    """Return whether two proofs are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(text.encode(), other.encode())


def nonce():
    """Draw what makes a connection's keys its own."""
    return binascii.hexlify(os.urandom(16)).decode()


def answer(secret, node, line):
    """Return (line that answers the chief's challenge, keys); ValueError where it is no challenge."""
    challenge = line.decode("ascii")
    if not NONCE.match(challenge):
        raise ValueError("not a challenge")
    own = nonce()
    keys = connection_keys(secret, node, (challenge, own))
    return "{} {} {}\n".format(node, own, proof(keys[1])).encode(), keys


class Pending:
    """A connection that has proved nothing yet."""

    def __init__(self, connection, source):
        self.connection, self.source = connection, source
        self.nonce, self.received = nonce(), b""
        self.deadline = time.monotonic() + SECONDS

    def advance(self):
        """Return the line once it has come, and None before; ValueError where it is none."""
        try:
            piece = self.connection.recv(LONGEST + 1 - len(self.received))
        except BlockingIOError:
            return None
        self.received += piece
        line, newline, rest = self.received.partition(b"\n")
        if rest or not piece or (not newline and len(self.received) > LONGEST):
            raise ValueError("not a greeting")
        return line.decode() if newline else None


class Door:
    """Takes the chief's connections, and hands on those of nodes: ``admit(connection, node, keys)``.

    `secrets` has the secret of each node that may come.
    """

    def __init__(self, listener, secrets, admit):
        self.listener, self.secrets, self.admit = listener, secrets, admit
        self.pending = {}  # in the order in which they came
        self.selector = selectors.DefaultSelector()
        listener.settimeout(0)
        self.selector.register(listener, selectors.EVENT_READ, listener)

    def serve(self):
        """Serve all connections, for ever."""
        while True:
            for key, _ in self.selector.select(self.pause()):
                pending = self.pending.get(key.data)
                if key.data is self.listener:
                    self.take()
                elif pending is not None:  # else it has given way meanwhile
                    self.advance(pending)
            self.expire()

    def pause(self):
        """Return how long nothing has to be done by itself."""
        oldest = next(iter(self.pending.values()), None)
        return None if oldest is None else max(oldest.deadline - time.monotonic(), 0.001)

    def take(self):
        """Take a new connection, in the place of another one where there are too many."""
        try:
            connection, place = self.listener.accept()
        except OSError:
            if not self.pending:
                time.sleep(0.1)
            self.drop_oldest(self.busiest())  # the process may have no file descriptor left
            return
        self.make_room(place[0])
        pending = Pending(connection, place[0])
        try:
            connection.settimeout(0)
            connection.sendall(pending.nonce.encode() + b"\n")
            self.selector.register(connection, selectors.EVENT_READ, connection)
        except OSError:
            connection.close()
            return
        self.pending[connection] = pending

    def make_room(self, source):
        """Drop the oldest connection of this source, or of the one that has most, where there are too many."""
        if sum(1 for one in self.pending.values() if one.source == source) >= PENDING_OF_SOURCE:
            self.drop_oldest(source)
        elif len(self.pending) >= PENDING:
            self.drop_oldest(self.busiest())

    def busiest(self):
        """Return the source with the most connections, None where there is none."""
        sources = [one.source for one in self.pending.values()]
        return max(set(sources), key=sources.count) if sources else None

    def drop_oldest(self, source):
        """Close the oldest connection of a source."""
        found = next((one for one in self.pending.values() if one.source == source), None)
        if found is not None:
            self.forget(found).close()

    def advance(self, pending):
        """Go on with a handshake; whoever fails it is closed."""
        try:
            line = pending.advance()
            if line is None:
                return
            node, keys = self.proved(pending, line)
            pending.connection.sendall(proof(keys[0]).encode() + b"\n")
        except (OSError, ValueError):
            self.forget(pending).close()
            return
        connection = self.forget(pending)
        try:
            connection.settimeout(None)
            self.admit(connection, node, keys)
        except (OSError, RuntimeError):  # no thread can be started: the node comes again
            connection.close()

    def proved(self, pending, line):
        """Return (node, keys) of a line that proves which node sent it; ValueError for any other."""
        node, other, proved = line.split(" ")
        if node not in self.secrets or not NONCE.match(other):
            raise ValueError("not a node of this job")
        keys = connection_keys(self.secrets[node], node, (pending.nonce, other))
        if not same(proved, proof(keys[1])):
            raise ValueError("no proof")
        return node, keys

    def expire(self):
        """Close what has had its time."""
        now = time.monotonic()
        for pending in [one for one in self.pending.values() if one.deadline <= now]:
            self.forget(pending).close()

    def forget(self, pending):
        """Wait no more for a connection; return it."""
        del self.pending[pending.connection]
        with contextlib.suppress(OSError, KeyError, ValueError):
            self.selector.unregister(pending.connection)
        return pending.connection
