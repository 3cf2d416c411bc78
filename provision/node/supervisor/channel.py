"""How the keepers of one attempt talk: JSON lines over TCP from every other node to the chief's.

Each line carries a number that grows and an HMAC by a key of this connection and direction alone; keeper_greeting.py
has the handshake that makes them. What is wrong or comes again is ignored. A line tells all that its sender knows, so
that none has to be repeated after a connection was lost.
"""

import contextlib
import hashlib
import hmac
import json
import socket
import struct
import threading
import time

from provision.node.supervisor import greeting, messages

LONGEST = 1 << 18
SEND_SECONDS = 2
AGAIN_SECONDS = 0.3
BACKLOG = 1024


class Link:
    """One connection on which both sides have proved that they know the secret of its node."""

    def __init__(self, connection, send_key, hear_key):
        self.connection = connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        self.send_key, self.hear_key = send_key, hear_key
        self.sent = self.heard = 0

    def send(self, value):
        """Send what we know; return whether it went out."""
        self.sent += 1
        try:
            self.connection.sendall(sealed(self.send_key, self.sent, value))
        except OSError:
            self.close()
            return False
        return True

    def hear(self, line):
        """Return what a line says, None for one that is not the other side's, or comes again."""
        found = opened(self.hear_key, line)
        if found is None or found[0] <= self.heard:
            return None
        self.heard = found[0]
        return found[1]

    def close(self):
        """Close it; whoever reads from it sees that."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def sealed(key, number, value):
    """Return a line."""
    body = json.dumps([number, value]).encode()
    return hmac.new(key, body, hashlib.sha256).hexdigest().encode() + b" " + body + b"\n"


def opened(key, line):
    """Return (number, value) of a line, None where the seal does not fit."""
    seal, _, body = line.rstrip(b"\n").partition(b" ")
    wanted = hmac.new(key, body, hashlib.sha256).hexdigest().encode()
    if not hmac.compare_digest(seal, wanted):
        return None
    number, value = json.loads(body.decode())
    return (number, value) if isinstance(value, dict) else None


def lines_of(connection, deadline):
    """Yield lines until the connection ends; one that is too long ends it, as does a time while `deadline` has one.

    As long as `deadline` has one, the other side has proved nothing: its lines are short.
    """
    rest = b""
    while True:
        line, newline, after = rest.partition(b"\n")
        if newline:
            rest = after
            yield line
            continue
        if len(rest) > (greeting.LONGEST if deadline else LONGEST):
            return
        if deadline:
            connection.settimeout(max(deadline[0] - time.monotonic(), 0.001))
        piece = connection.recv(1 << 16)
        if not piece:
            return
        rest += piece


class Chief:
    """The chief's end: takes connections of the other nodes, and tells `hear(node, value)` of each line."""

    def __init__(self, address, port, secret, nodes, hear):
        self.hear = hear
        self.links = {}
        self.lock = threading.Lock()
        family = socket.getaddrinfo(address, port, 0, socket.SOCK_STREAM)[0][0]
        self.listener = socket.socket(family, socket.SOCK_STREAM)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((address, port))
        self.listener.listen(BACKLOG)
        secrets = {node: greeting.node_secret(secret, node) for node in nodes}
        self.door = greeting.Door(self.listener, secrets, self._admit)
        threading.Thread(target=self.door.serve, daemon=True).start()

    def _admit(self, connection, node, keys):
        link = Link(connection, *keys)
        self._replace(node, link)
        threading.Thread(target=self._serve, args=(connection, node, link), daemon=True).start()

    def _serve(self, connection, node, link):
        try:
            with connection:
                for line in lines_of(connection, ()):
                    value = link.hear(line)
                    if value is None or not messages.from_node(value):
                        return  # bytes that somebody changed, or no message of a keeper: the node comes again
                    self.hear(node, value)
        except (OSError, ValueError, TypeError, RecursionError):
            pass
        finally:
            self._forget(node, link)

    def _replace(self, node, link):
        with self.lock:
            before, self.links[node] = self.links.get(node), link
        if before is not None:
            before.close()

    def _forget(self, node, link):
        with self.lock:
            if self.links.get(node) is link:
                del self.links[node]

    def tell(self, value):
        """Tell all nodes that are there."""
        with self.lock:
            links = list(self.links.values())
        for link in links:
            link.send(value)


class Member:
    """Another node's end: comes back to the chief as often as the connection is lost.

    `secret` is the node's own, `keeper_greeting.node_secret`.
    """

    def __init__(self, address, port, secret, node, hear, connected):
        self.place, self.secret, self.node = (address, port), secret, node
        self.hear, self.connected = hear, connected
        self.link = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
                self._talk()
            self.link = None
            time.sleep(AGAIN_SECONDS)

    def _talk(self):
        with contextlib.closing(socket.create_connection(self.place, timeout=3)) as connection:
            deadline = [time.monotonic() + greeting.SECONDS]
            lines = lines_of(connection, deadline)
            line, (from_chief, to_chief) = greeting.answer(self.secret, self.node, next(lines, b""))
            connection.sendall(line)
            if not greeting.same(next(lines, b"").decode("ascii"), greeting.proof(from_chief)):
                return
            deadline.clear()
            connection.settimeout(None)
            link = self.link = Link(connection, to_chief, from_chief)
            self.connected()
            for line in lines:
                value = link.hear(line)
                if value is None or not messages.from_chief(value):
                    return
                self.hear(value)

    def tell(self, value):
        """Tell the chief, if it is there; return whether it went out."""
        link = self.link
        return link is not None and link.send(value)
