"""Runs the advisor's sampler on a node, and reads what it prints as it comes."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import provision.advisor
from provision.advisor.records import read_series
from provision.advisor.series import NodeSeries
from provision.connectors import Connector, RemoteProcess
from provision.documents.sampler import LINE_LIMIT
from provision.errors import ConnectionFailed
from provision.jobs.node_ask import start_program

__all__ = ["sample_node"]

_SAMPLER = Path(provision.advisor.__file__).parent / "files" / "sampler.py"
_LATE_SECONDS = 45.0
"""The sampler itself gives up half a minute after its window."""


def sample_node(
    connector: Connector, containers: Sequence[Mapping[str, Any]], *, seconds: float, interval: float = 1.0
) -> tuple[NodeSeries, str]:
    """Look at a job on one node for so long.

    Args:
        connector: the way to the node.
        containers: the job's there, as the sampler takes them (``id``, ``instance``, ``gpus``, ``log``,
            ``speaks_for_all``, ``watch``).
        seconds: the window.
        interval: seconds between two samples.

    Returns:
        What was seen, and why it ended before its time; empty where it did not.

    Raises:
        ConnectionFailed: the node cannot be reached.
    """
    code = _code()
    process = start_program(connector, code, "sampler")
    late = threading.Timer(seconds + _LATE_SECONDS, process.close)
    late.daemon = True
    late.start()
    request = {"seconds": seconds, "interval": interval, "containers": list(containers)}
    said: list[bytes] = []
    try:
        with suppress(ConnectionFailed, OSError, ValueError):  # what ended before it read all of it says why
            process.write(code + json.dumps(request).encode() + b"\n")
        series = read_series(connector.name, _lines(process, said))
    finally:
        late.cancel()
        process.close()  # its input ends, and so does it
    return series, "" if series.ended else _why(b"".join(said))


def _lines(process: RemoteProcess, said: list[bytes]) -> Iterator[bytes]:
    """Return whole lines until the sampler ends or is lost; what it says on stderr goes into `said`."""
    rest = b""
    with suppress(ConnectionFailed):
        for stream, chunk in process.output():
            if stream == "stderr":
                said[:] = [b"".join((*said, chunk))[-4000:]]
                continue
            *whole, rest = (rest + chunk).split(b"\n")
            yield from whole
            if len(rest) > LINE_LIMIT:  # it is read as a record that is not valid
                yield rest
                rest = b""


def _why(said: bytes) -> str:
    words = said.decode(errors="replace").strip().splitlines()
    return words[-1] if words else "the connection was lost, or the node gave no answer in time"


@functools.cache
def _code() -> bytes:
    return _SAMPLER.read_bytes()
