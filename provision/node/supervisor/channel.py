"""The connections between the job supervisors of one attempt: JSON lines over TCP, from each node to the leader.

Each line has an increasing number and an HMAC with the key of this connection and direction; `handshake` creates the
keys. Invalid and repeated lines end the connection. Each line contains the complete state of its sender, so nothing has
to be repeated after a lost connection.
"""

import contextlib
import hashlib
import hmac
import json
import socket
import struct
import threading
import time
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from provision.node.supervisor import handshake, messages
from provision.node.supervisor.messages import Message

LONGEST = 1 << 18
SEND_SECONDS = 2
RECONNECT_SECONDS = 0.3
BACKLOG = 1024


class Link:
    """One authenticated connection."""

    def __init__(self, connection: socket.socket, send_key: bytes, receive_key: bytes) -> None:
        self.connection = connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        self.send_key, self.receive_key = send_key, receive_key
        self.last_sent = self.last_received = 0

    def send(self, message: Message) -> bool:
        """Send a message; return whether it was sent."""
        self.last_sent += 1
        try:
            self.connection.sendall(signed(self.send_key, self.last_sent, message))
        except OSError:
            self.close()
            return False
        return True

    def verify(self, line: bytes) -> Optional[Message]:
        """Return the message of a line, None for a line that is not from the other side, or is repeated."""
        result = verified(self.receive_key, line)
        if result is None or result[0] <= self.last_received:
            return None
        self.last_received, message = result
        return message

    def close(self) -> None:
        """Close the connection; its reader sees the end."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def signed(key: bytes, number: int, message: Message) -> bytes:
    """Return a line."""
    body = json.dumps([number, message]).encode()
    return hmac.new(key, body, hashlib.sha256).hexdigest().encode() + b" " + body + b"\n"


def verified(key: bytes, line: bytes) -> Optional[Tuple[int, Message]]:
    """Return the number and the message of a line, None if the signature is wrong."""
    signature, _, body = line.rstrip(b"\n").partition(b" ")
    expected = hmac.new(key, body, hashlib.sha256).hexdigest().encode()
    if not hmac.compare_digest(signature, expected):
        return None
    number, message = json.loads(body.decode())
    return (number, message) if isinstance(message, dict) else None


def read_lines(connection: socket.socket, deadlines: List[float]) -> Iterator[bytes]:
    """Yield lines until the connection ends, a line is too long or the deadline is reached.

    While `deadlines` contains one, the other side is not authenticated: its lines are short.
    """
    rest = b""
    while True:
        line, newline, after = rest.partition(b"\n")
        if newline:
            rest = after
            yield line
            continue
        if len(rest) > (handshake.LONGEST if deadlines else LONGEST):
            return
        if deadlines:
            connection.settimeout(max(deadlines[0] - time.monotonic(), 0.001))
        piece = connection.recv(1 << 16)
        if not piece:
            return
        rest += piece


class LeaderChannel:
    """The leader's side: accepts connections of the other nodes, and calls `on_message(node, message)`."""

    def __init__(
        self, address: str, port: int, secret: bytes, nodes: Iterable[str], on_message: Callable[[str, Message], None]
    ) -> None:
        self.on_message = on_message
        self.links: Dict[str, Link] = {}
        self.lock = threading.Lock()
        family = socket.getaddrinfo(address, port, 0, socket.SOCK_STREAM)[0][0]
        self.listener = socket.socket(family, socket.SOCK_STREAM)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((address, port))
        self.listener.listen(BACKLOG)
        secrets = {node: handshake.node_secret(secret, node) for node in nodes}
        self.server = handshake.HandshakeServer(self.listener, secrets, self._accept)
        threading.Thread(target=self.server.serve, daemon=True).start()

    def _accept(self, connection: socket.socket, node: str, keys: handshake.Keys) -> None:
        link = Link(connection, keys.from_leader, keys.to_leader)
        self._replace(node, link)
        threading.Thread(target=self._serve, args=(connection, node, link), daemon=True).start()

    def _serve(self, connection: socket.socket, node: str, link: Link) -> None:
        try:
            with connection:
                for line in read_lines(connection, []):
                    message = link.verify(line)
                    if message is None or not messages.is_node_report(message):
                        return  # changed on the way, or not from a supervisor: the node connects again
                    self.on_message(node, message)
        except (OSError, ValueError, TypeError, RecursionError):
            pass
        finally:
            self._remove(node, link)

    def _replace(self, node: str, link: Link) -> None:
        with self.lock:
            before, self.links[node] = self.links.get(node), link
        if before is not None:
            before.close()

    def _remove(self, node: str, link: Link) -> None:
        with self.lock:
            if self.links.get(node) is link:
                del self.links[node]

    def send(self, message: Message) -> None:
        """Send a message to all connected nodes."""
        with self.lock:
            links = list(self.links.values())
        for link in links:
            link.send(message)


class MemberChannel:
    """Another node's side: connects to the leader again whenever the connection is lost.

    `secret` is the node's own, see `handshake.node_secret`.
    """

    def __init__(
        self,
        address: str,
        port: int,
        secret: bytes,
        node: str,
        on_message: Callable[[Message], None],
        on_connected: Callable[[], None],
    ) -> None:
        self.address, self.secret, self.node = (address, port), secret, node
        self.on_message, self.on_connected = on_message, on_connected
        self.link: Optional[Link] = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
                self._connect()
            self.link = None
            time.sleep(RECONNECT_SECONDS)

    def _connect(self) -> None:
        with contextlib.closing(socket.create_connection(self.address, timeout=3)) as connection:
            deadlines = [time.monotonic() + handshake.SECONDS]
            lines = read_lines(connection, deadlines)
            line, keys = handshake.answer(self.secret, self.node, next(lines, b""))
            connection.sendall(line)
            if not handshake.is_same(next(lines, b"").decode("ascii"), handshake.proof(keys.from_leader)):
                return
            deadlines.clear()
            connection.settimeout(None)
            link = self.link = Link(connection, keys.to_leader, keys.from_leader)
            self.on_connected()
            for line in lines:
                message = link.verify(line)
                if message is None or not messages.is_leader_order(message):
                    return
                self.on_message(message)

    def send(self, message: Message) -> bool:
        """Send a message to the leader; return whether it was sent."""
        link = self.link
        return link is not None and link.send(message)
