"""paramiko's packets with less work for each connection; it is imported only where a connection is made."""

from __future__ import annotations

import time

from cryptography.exceptions import InvalidTag

from provision.connectors.bare_paramiko import Packetizer, paramiko

__all__ = ["Packets"]


class Packets(Packetizer):
    """Looks at the clock for the time limit of the handshake, where paramiko starts a thread for each connection."""

    _end: float | None = None

    def start_handshake(self, timeout: float) -> None:
        """Let `handshake_timed_out` be true in `timeout` seconds, unless it is complete before."""
        self._end = time.monotonic() + timeout

    def handshake_timed_out(self) -> bool:
        """Tell whether it took too long; reading ends then."""
        return self._end is not None and time.monotonic() >= self._end

    def complete_handshake(self) -> None:
        """From now on there is no limit."""
        self._end = None

    def read_message(self) -> tuple[int, paramiko.Message]:
        """Take a packet that does not authenticate as paramiko takes one whose MAC is wrong."""
        try:
            return super().read_message()
        except InvalidTag as error:
            raise paramiko.SSHException("a packet was changed on its way") from error
