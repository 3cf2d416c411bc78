"""The programs on the nodes that hold locks, as seen from here: their sessions, who they hold for, and their end."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from provision.commands import node_lock
from provision.connectors.programs import run_program, start_program
from provision.documents import decode_last_line
from provision.documents.locks import ANSWER_LIMIT, LookAnswer, UnlockAnswer
from provision.errors import InvalidDocument, NodeError, ProvisionError
from provision.locks import user
from provision.model import Node
from provision.model.history import Holder, NodeLockState, Unlocked

if TYPE_CHECKING:
    from provision.connectors.base import Connector

ANSWER_SECONDS = 60.0
_LINE_LIMIT = 2**20
"""Bytes of an answer in a session; ours are far shorter."""
T = TypeVar("T")


class RemoteLock:
    """Our end of the session in which a lock holder has a lock."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._process = start_program(connector, "lock")
        self._output = self._process.output()
        self._sending = threading.Lock()
        self._errors = b""

    def begin(self, request: Mapping[str, Any]) -> None:
        """Start it: what it is, and what it is to do."""
        self._process.write(_line(request))

    def send(self, document: Mapping[str, Any]) -> None:
        """Send one line; ConnectionFailed when the node is gone."""
        with self._sending:
            self._process.write(json.dumps(dict(document)).encode() + b"\n")

    def answer(self, kind: type[T], seconds: float) -> T:
        """Return the next line that it says, as a value of `kind`; ProvisionError when there is none in time."""
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._process.close()

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            line = b""
            for stream, chunk in self._output:
                line += chunk if stream == "stdout" else b""
                self._errors += chunk if stream == "stderr" else b""
                if len(line) + len(self._errors) > _LINE_LIMIT:
                    raise NodeError("its lock could not be asked for: the answer has no end", node=self._connector.name)
                if line.endswith(b"\n"):
                    return _document(self._connector.name, kind, line, self._errors)
            if not late.is_set():
                self._process.wait()
        finally:
            timer.cancel()
        if late.is_set():
            text = f"no answer about its lock within {seconds:g} s"
            raise NodeError(text, node=self._connector.name, remedy="Its disk may hang: check it manually (dmesg).")
        return _document(self._connector.name, kind, line, self._errors)

    def end(self) -> str:
        """Return why it is no more; empty while it is."""
        if not self._process.ended():
            return ""
        try:
            return f"its lock holder has ended (exit {self._process.wait()}): was the node unlocked?"
        except ProvisionError as error:
            return error.message

    def leave(self) -> None:
        """Go and let it run on, until what it waits for has ended."""
        self._process.close_stdin()

    def close(self) -> None:
        """End the connection."""
        with suppress(ProvisionError, OSError):
            self._process.close()
        self._connector.close()


def probe_locks(
    nodes: Sequence[Node], *, entries: int = 0, patience: float | None = None
) -> dict[str, NodeLockState | ProvisionError]:
    """Ask each node who has its lock, and for its newest `entries` applies; one SSH session per node.

    With `patience` nodes are given up that take so much longer than the others (`connectors.each`).
    """
    from provision.connectors import each

    request = node_lock.look_request(entries)
    return each(
        nodes,
        lambda c: node_lock.read_lock_state(c.name, _asked(c, LookAnswer, request)),
        patience=patience,
    )


def unlock(nodes: Sequence[Node], holders: Mapping[str, Holder]) -> tuple[Unlocked, ...]:
    """End the lock holders of these applies; locks of other applies that came meanwhile are not touched."""
    from provision.connectors import each

    who = f"{user()} on {os.uname().nodename}"

    def end(connector: Connector) -> Unlocked:
        name = connector.name
        answer = _asked(connector, UnlockAnswer, node_lock.unlock_request(holders[name], who))
        return node_lock.read_unlocked(name, answer, holders[name])

    results = each([node for node in nodes if node.name in holders], end)
    return tuple(_unlocked(name, outcome, holders[name]) for name, outcome in results.items())


def without_holder(name: str, state: NodeLockState) -> Unlocked:
    """Return the result for a node whose lock is free, or held by another program."""
    return node_lock.strange(name) if state.held else Unlocked(name, "free", "there is no lock to take away")


def _unlocked(name: str, outcome: Unlocked | ProvisionError, holder: Holder) -> Unlocked:
    if isinstance(outcome, ProvisionError):
        return Unlocked(name, "unreachable", outcome.message, holder, outcome.remedy)
    return outcome


def _line(request: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(request)).encode() + b"\n"


def _asked(connector: Connector, kind: type[T], request: Mapping[str, Any]) -> T:
    result = run_program(connector, "lock", stdin=_line(request), timeout=ANSWER_SECONDS, limit=ANSWER_LIMIT)
    return _document(connector.name, kind, result.stdout, result.stderr.encode())


def _document(node: str, kind: type[T], text: str | bytes, errors: bytes) -> T:
    """Read the last line of an answer."""
    try:
        return decode_last_line(text, kind, node=node, what="its lock could not be asked for", limit=ANSWER_LIMIT)
    except InvalidDocument as error:
        error.output = errors.decode(errors="replace").strip() or error.output
        raise
