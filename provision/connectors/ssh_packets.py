"""paramiko's packets with limits and less overhead; imported only when a connection is made."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any, cast

import paramiko
from cryptography.exceptions import InvalidTag
from paramiko.common import (
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    MSG_CHANNEL_OPEN,
    MSG_CHANNEL_WINDOW_ADJUST,
)
from paramiko.packet import Packetizer

_HANDSHAKE_BYTES = 256 * 1024
"""Limit of bytes until the key exchange is complete: banner, algorithms and host key."""
_PACKET_BYTES = 256 * 1024
"""OpenSSH's limit of a packet. paramiko has none and would read whatever length a host announces."""
_DATA_OVERHEAD = 8
"""Bytes of a channel data message in addition to the data."""
_OPEN, _ADJUST = bytes([MSG_CHANNEL_OPEN]), bytes([MSG_CHANNEL_WINDOW_ADJUST])


class _HandshakeSocket:
    """A socket with a limit of received bytes until the handshake is complete."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._left = connection, _HANDSHAKE_BYTES

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def recv(self, size: int) -> bytes:
        """Receive data like a socket."""
        data: bytes = self._connection.recv(size)
        self._left -= len(data)
        if self._left < 0:
            raise paramiko.SSHException(f"it sent more than {_HANDSHAKE_BYTES // 1024} KiB before the key exchange")
        return data

    def complete(self) -> None:
        """Remove the limit."""
        self.recv = self._connection.recv  # type: ignore[method-assign]


class Packets(Packetizer):
    """Limits what a host may send: before the key exchange, in one packet, and beyond the windows of its channels.

    paramiko has no such limits. The time limit of the handshake is checked with the clock, where paramiko starts
    a thread for each connection.
    """

    _end: float | None = None

    def __init__(self, connection: socket.socket | paramiko.Channel) -> None:
        self._handshake = _HandshakeSocket(connection)
        self._granted, self._received = 0, 0
        """Bytes that the host may send according to the windows of all channels, and bytes that it has sent."""
        self._granting = threading.Lock()
        super().__init__(cast("socket.socket", self._handshake))

    def start_handshake(self, timeout: float) -> None:
        """Make `handshake_timed_out` return True after `timeout` seconds, unless the handshake is complete."""
        self._end = time.monotonic() + timeout

    def handshake_timed_out(self) -> bool:
        """Return whether the handshake took too long; reading then ends."""
        return self._end is not None and time.monotonic() >= self._end

    def complete_handshake(self) -> None:
        """Remove the limits of the handshake."""
        self._end = None
        self._handshake.complete()

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:  # noqa: FBT001, FBT002 - paramiko's own signature
        """Read `n` bytes; SSHException if the packet is too large."""
        if not 0 <= n <= _PACKET_BYTES:
            raise paramiko.SSHException(f"it sends a packet of {n} bytes")
        data: bytes = super().read_all(n, check_rekey)
        return data

    def read_message(self) -> tuple[int, paramiko.Message]:
        """Report a packet without valid authentication like a packet with a wrong MAC.

        SSHException if the host sends more data than the windows of its channels allow.
        """
        try:
            kind, message = super().read_message()
        except InvalidTag as error:
            raise paramiko.SSHException("a packet was modified in transit") from error
        if kind in {MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA}:
            self._received += len(message.asbytes()) - _DATA_OVERHEAD
            if self._received > self._granted:
                raise paramiko.SSHException("it sends more data than the window allows")
        return kind, message

    def send_message(self, data: paramiko.Message) -> None:
        """Send a message and record how much the host may send."""
        content = data.asbytes()
        if content[:1] == _OPEN:
            message = paramiko.Message(content[1:])
            message.get_binary()
            message.get_int()
            self._grant(message.get_int())
        elif content[:1] == _ADJUST:
            self._grant(int.from_bytes(content[5:9], "big"))
        super().send_message(data)

    def _grant(self, size: int) -> None:
        with self._granting:
            self._granted += size
