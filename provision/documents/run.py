"""Frames from the supervisor of a ``provision run`` job, of which the last describes the job's end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from provision.documents.decoding import decode
from provision.documents.text import PrintableLine, PrintableText
from provision.errors import InvalidDocument

FRAME_LIMIT = 8 * 1024 * 1024
"""Bytes of one frame; the supervisor reads a job's output in pieces of 64 KiB."""
_HEAD_LIMIT = 32
_HEAD = re.compile(rb"([oeasx]) ([0-9]{1,8})\Z")


class EndingRecord(Struct):
    """The end of a job."""

    code: Annotated[int, Meta(ge=-255, le=255)] | None = None
    """The launcher's exit status, negative for a signal; None if it did not exit by itself."""
    reason: Literal["client", "silence", "stop", "signal"] | None = None
    """None if the job ended by itself."""
    left: Annotated[dict[PrintableLine, PrintableText], Meta(max_length=100_000)] = field(default_factory=dict)
    """Node -> processes of the job that could not be ended there."""

    @classmethod
    def parse(cls, data: bytes, node: str) -> EndingRecord:
        """Return the record, or raise InvalidDocument."""
        return decode(data, cls, node=node, what="end of the job", limit=FRAME_LIMIT)


class Frames:
    """Splits the supervisor's output into frames: a line ``KIND LENGTH`` and then LENGTH bytes."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield the complete frames; raise InvalidDocument if the data is not a frame."""
        self._pending += chunk
        start = 0
        try:
            while (end := self._pending.find(b"\n", start, start + _HEAD_LIMIT)) >= 0:
                kind, size = self._head(bytes(self._pending[start:end]))
                if len(self._pending) < end + 1 + size:
                    return
                data = bytes(self._pending[end + 1 : end + 1 + size])
                start = end + 1 + size
                yield kind, data
            if len(self._pending) - start >= _HEAD_LIMIT:
                self._head(bytes(self._pending[start : start + _HEAD_LIMIT]))
        finally:
            del self._pending[:start]

    def _head(self, line: bytes) -> tuple[str, int]:
        head = _HEAD.match(line)
        size = int(head[2]) if head else 0
        if head is None or size > FRAME_LIMIT:
            raise InvalidDocument("the supervisor of the job sent an invalid frame", node=self._node)
        return head[1].decode(), size
