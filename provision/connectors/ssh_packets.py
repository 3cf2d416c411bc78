"""paramiko's packets, bounded, and with less work for each connection; imported only where a connection is made."""

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

__all__ = ["Packets"]

_HANDSHAKE_BYTES = 256 * 1024
"""What a host may send until the keys are agreed: its banner, algorithms and host key."""
_PACKET_BYTES = 256 * 1024
"""OpenSSH's own limit; paramiko has none, and would collect what a host announces."""
_DATA_OVERHEAD = 8
"""Bytes of a message of channel data beside the data."""
_OPEN, _ADJUST = bytes([MSG_CHANNEL_OPEN]), bytes([MSG_CHANNEL_WINDOW_ADJUST])


class _HandshakeSocket:
    """A socket from which little can be read until the handshake is complete."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._left = connection, _HANDSHAKE_BYTES

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def recv(self, size: int) -> bytes:
        """Receive as a socket does."""
        data: bytes = self._connection.recv(size)
        self._left -= len(data)
        if self._left < 0:
            raise paramiko.SSHException(f"it sent more than {_HANDSHAKE_BYTES // 1024} KiB before it agreed on keys")
        return data

    def complete(self) -> None:
        """From now on there is no limit."""
        self.recv = self._connection.recv  # type: ignore[method-assign]


class Packets(Packetizer):
    """Bounds what a host may send: before keys are agreed, in one packet, and beyond the windows of its channels.

    paramiko leaves that to the host. It looks at the clock for the time limit of the handshake, where paramiko starts a
    thread for each connection.
    """

    _end: float | None = None

    def __init__(self, connection: socket.socket | paramiko.Channel) -> None:
        self._handshake = _HandshakeSocket(connection)
        self._granted, self._received = 0, 0
        """Bytes of data that the host may send, by the windows of all channels, and that it has sent."""
        self._granting = threading.Lock()
        super().__init__(cast("socket.socket", self._handshake))

    def start_handshake(self, timeout: float) -> None:
        """Let `handshake_timed_out` be true in `timeout` seconds, unless it is complete before."""
        self._end = time.monotonic() + timeout

    def handshake_timed_out(self) -> bool:
        """Tell whether it took too long; reading ends then."""
        return self._end is not None and time.monotonic() >= self._end

    def complete_handshake(self) -> None:
        """From now on there is no limit."""
        self._end = None
        self._handshake.complete()

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:  # noqa: FBT001, FBT002 - paramiko's own signature
        """Read `n` bytes; SSHException where a packet has so many."""
        if not 0 <= n <= _PACKET_BYTES:
            raise paramiko.SSHException(f"it sends a packet of {n} bytes")
        data: bytes = super().read_all(n, check_rekey)
        return data

    def read_message(self) -> tuple[int, paramiko.Message]:
        """Take a packet that does not authenticate as paramiko takes one whose MAC is wrong.

        SSHException where the host sends more data than its channels' windows allow: nobody might read it.
        """
        try:
            kind, message = super().read_message()
        except InvalidTag as error:
            raise paramiko.SSHException("a packet was changed on its way") from error
        if kind in {MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA}:
            self._received += len(message.asbytes()) - _DATA_OVERHEAD
            if self._received > self._granted:
                raise paramiko.SSHException("it sends more data than it may")
        return kind, message

    def send_message(self, data: paramiko.Message) -> None:
        """Send a message; note how much the host may send."""
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
