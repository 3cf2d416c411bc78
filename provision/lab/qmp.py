"""A minimal client of QEMU's machine protocol."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec import UNSET

from provision.documents import decode
from provision.documents.lab import QmpMessage
from provision.errors import LabError

_SECONDS = 10.0


class QmpClient:
    """A connection to one QEMU process over its socket; use it in a ``with`` statement.

    Raises:
        LabError: the socket does not answer, or QEMU answers with an error or not at all.
    """

    def __init__(self, path: Path, *, node: str, timeout: float = _SECONDS) -> None:
        self._node = node
        try:
            self._socket = _connect(path, timeout)
            self._lines = self._socket.makefile("rb")
            self._read(lambda message: message.greeting is not UNSET)
        except OSError as error:
            raise LabError(f"the virtual machine's control socket does not answer: {error}", node=node) from error
        self.execute("qmp_capabilities")

    def execute(self, command: str, **arguments: Any) -> Any:
        """Execute one command and return its result."""
        message = json.dumps({"execute": command, "arguments": arguments})
        try:
            self._socket.sendall(message.encode() + b"\n")
            answer = self._read(lambda message: message.result is not UNSET or message.error is not UNSET)
        except OSError as error:
            raise LabError(f"the virtual machine did not answer {command}: {error}", node=self._node) from error
        if answer.error is not UNSET:
            raise LabError(f"the virtual machine refused {command}: {answer.error.desc}", node=self._node)
        return answer.result

    def close(self) -> None:
        """Close the connection; the machine keeps running."""
        self._lines.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, is_match: Callable[[QmpMessage], bool]) -> QmpMessage:
        """Return the next matching message; events in between are ignored."""
        for line in self._lines:
            message = decode(line, QmpMessage, node=self._node, what="message of QEMU")
            if is_match(message):
                return message
        raise ConnectionResetError("QEMU closed the connection")


def _connect(path: Path, timeout: float) -> socket.socket:
    """Connect through the folder's descriptor, because socket paths are limited to 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection
