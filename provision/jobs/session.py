"""Our end of the supervisor: its start, the beats that keep the job alive, and what comes back."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

from provision.connectors import Connector, RemoteProcess
from provision.connectors.programs import start_program
from provision.documents.run import EndingRecord, Frames
from provision.errors import ConnectionFailed, LaunchError, ProvisionError
from provision.node_archive import shell_script, source

BEAT_SECONDS = 5.0
SILENCE_SECONDS = 30
"""The supervisor ends the job after this long without a beat."""
_ANSWER_SECONDS = 45.0


class Session:
    """One supervised job; iterate over `frames`, and send `stop` to end it early."""

    def __init__(self, connector: Connector, spec: dict[str, Any]) -> None:
        self._node = connector.name
        self._process: RemoteProcess = start_program(connector, "run", limit=None)
        self._process.write(json.dumps(spec | {"silence_seconds": SILENCE_SECONDS}).encode() + b"\n")
        self._heard = time.monotonic()
        self._orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._errors = b""
        self.started = False
        self.ending: EndingRecord | None = None
        threading.Thread(target=self._beat, daemon=True, name="beat").start()

    def frames(self) -> Iterator[tuple[str, bytes]]:
        """Yield the job's output as ``("stdout"|"stderr", piece)`` until it ends; then `ending` says how.

        ConnectionFailed when the supervisor is lost before it said how the job ended.
        """
        frames = Frames(self._node)
        for stream, chunk in self._process.output():
            if stream == "stderr":
                self._errors = (self._errors + chunk)[-4000:]
                continue
            self._heard = time.monotonic()
            for kind, data in frames.feed(chunk):
                yield from self._take(kind, data)
                self._heard = time.monotonic()
        self._orders.put("over")
        if self.ending is None:
            raise self._lost()

    def stop(self) -> None:
        """Ask for the end of the job; `frames` goes on until it has ended. May be called by a signal handler."""
        self._orders.put("stop")

    def close(self) -> None:
        """Drop the connection; a job that still runs is ended by the supervisor."""
        self._orders.put("over")
        self._process.close()

    def _take(self, kind: str, data: bytes) -> Iterator[tuple[str, bytes]]:
        if kind in ("o", "e"):
            yield ("stdout" if kind == "o" else "stderr"), data
        elif kind == "s":
            self.started = True
        elif kind == "x":
            self.ending = EndingRecord.parse(data, self._node)

    def _beat(self) -> None:
        """Send beats until the job has ended; close the connection to a supervisor that does not answer."""
        order = "beat"
        while order != "over":
            with contextlib.suppress(ProvisionError):
                self._process.write(order.encode() + b"\n")
            if time.monotonic() - self._heard > _ANSWER_SECONDS:
                self._process.close()
                return
            try:
                order = self._orders.get(timeout=BEAT_SECONDS)
            except queue.Empty:
                order = "beat"

    def _lost(self) -> ProvisionError:
        said = self._errors.decode(errors="replace").strip()
        if not self.started:
            return LaunchError(
                "the supervisor of the job could not start",
                node=self._node,
                remedy="the head node needs python3 and docker; `provision verify` checks both",
                output=said,
            )
        return ConnectionFailed(
            "the connection to the job was lost; the head node ends the job, and so do we where a node can be reached",
            node=self._node,
            remedy="see whether the node is on and connected, then start the job again",
            output=said,
        )


def reap_script() -> str:
    """Return the script that ends what is left of a job on a machine; its caller sets variables before it."""
    return shell_script("run/reap.sh").replace("@reap.py@\n", source("run/reap"))
