"""How the keepers of one attempt talk: JSON lines over TCP from every other node to the chief's. A part of keeper.py.

Each line carries a number that grows and an HMAC by a key of this connection alone, which both sides derive from the
attempt's secret and from what each has drawn for it. What is wrong or comes again is ignored. A line tells all that its
sender knows, so that none has to be repeated after a connection was lost.
"""

import binascii
import contextlib
import hashlib
import hmac
import json
import os
import socket
import struct
import threading
import time

LONGEST = 1 << 18
GREETING_SECONDS = 10
SEND_SECONDS = 2
AGAIN_SECONDS = 0.3
STRANGERS = 64


class Link:
    """One connection on which both sides have proved that they know the secret."""

    def __init__(self, connection, secret, node, nonces, *, chief):
        words = "|".join([node, *nonces])
        keys = [derived(secret, kind + "|" + words) for kind in ("from chief", "to chief")]
        self.connection = connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        self.send_key, self.hear_key = keys if chief else keys[::-1]
        self.sent = self.heard = 0
        self.rest = b""

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


def derived(secret, words):
    """Return a key."""
    return hmac.new(secret, words.encode(), hashlib.sha256).digest()


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


def nonce():
    """Draw what makes a connection's keys its own."""
    return binascii.hexlify(os.urandom(16)).decode()


def lines_of(connection, deadline=()):
    """Yield lines until the connection ends; one that is too long ends it, as does a time while `deadline` has one."""
    rest = b""
    while True:
        line, newline, after = rest.partition(b"\n")
        if newline:
            rest = after
            yield line
            continue
        if len(rest) > LONGEST:
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
        self.secret, self.nodes, self.hear = secret, set(nodes), hear
        self.links = {}
        self.lock = threading.Lock()
        self.strangers = threading.Semaphore(STRANGERS)
        family = socket.getaddrinfo(address, port, 0, socket.SOCK_STREAM)[0][0]
        self.listener = socket.socket(family, socket.SOCK_STREAM)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((address, port))
        self.listener.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                time.sleep(0.1)
                continue
            if self.strangers.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _serve(self, connection):
        link = node = None
        known = False
        try:
            with connection:
                connection.settimeout(GREETING_SECONDS)
                deadline = [time.monotonic() + GREETING_SECONDS]
                own = nonce()
                connection.sendall(own.encode() + b"\n")
                for line in lines_of(connection, deadline):
                    if link is None:
                        node, _, other = line.decode(errors="replace").partition(" ")
                        if node not in self.nodes:
                            return
                        link = Link(connection, self.secret, node, (own, other), chief=True)
                        continue
                    value = link.hear(line)
                    if value is None:
                        return  # a stranger, or bytes that somebody changed: the node comes again
                    if not known:
                        known = True
                        deadline.clear()
                        self.strangers.release()
                        connection.settimeout(None)
                        self._replace(node, link)
                    self.hear(node, value)
        except (OSError, ValueError, TypeError):
            pass
        finally:
            if not known:
                self.strangers.release()
            self._forget(node, link)

    def _replace(self, node, link):
        with self.lock:
            before, self.links[node] = self.links.get(node), link
        if before is not None:
            before.close()

    def _forget(self, node, link):
        with self.lock:
            if link is not None and self.links.get(node) is link:
                del self.links[node]

    def tell(self, value):
        """Tell all nodes that are there."""
        with self.lock:
            links = list(self.links.values())
        for link in links:
            link.send(value)


class Member:
    """Another node's end: comes back to the chief as often as the connection is lost."""

    def __init__(self, address, port, secret, node, hear, connected):
        self.place, self.secret, self.node = (address, port), secret, node
        self.hear, self.connected = hear, connected
        self.link = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            with contextlib.suppress(OSError, ValueError, TypeError):
                self._talk()
            self.link = None
            time.sleep(AGAIN_SECONDS)

    def _talk(self):
        with contextlib.closing(socket.create_connection(self.place, timeout=3)) as connection:
            connection.settimeout(GREETING_SECONDS)
            lines = lines_of(connection)
            other, own = next(lines, b"").decode(errors="replace"), nonce()
            connection.sendall("{} {}\n".format(self.node, own).encode())
            link = Link(connection, self.secret, self.node, (other, own), chief=False)
            connection.settimeout(None)
            self.link = link
            self.connected()
            for line in lines:
                value = link.hear(line)
                if value is not None:
                    self.hear(value)

    def tell(self, value):
        """Tell the chief, if it is there; return whether it went out."""
        link = self.link
        return link is not None and link.send(value)
