"""An SSH server in threads of this process."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import paramiko

__all__ = ["ssh_server"]


@contextlib.contextmanager
def ssh_server(
    transport_of: Callable[[socket.socket], paramiko.Transport | None],
    interface_of: Callable[[], paramiko.ServerInterface],
) -> Iterator[int]:
    """Serve SSH at 127.0.0.1 until the end of the context.

    Args:
        transport_of: returns the transport of a connection, with its host keys; None if it has closed the connection.
        interface_of: returns what answers a client.

    Yields:
        the port.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    transports = []

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            if (transport := transport_of(peer)) is None:
                continue
            transports.append(transport)
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                transport.start_server(server=interface_of())

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # a close alone leaves the thread waiting, and its port open
        accepting.join()
        listener.close()
        for transport in transports:
            transport.close()
