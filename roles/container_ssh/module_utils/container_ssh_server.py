"""The answer of an SSH server."""

import socket


def is_listening(address, port):
    """Return whether an SSH server answers."""
    try:
        with socket.create_connection((address, port), timeout=5) as connection:
            connection.settimeout(5)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
