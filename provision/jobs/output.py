"""From mpirun's tagged output to whole lines, each with the rank that wrote it."""

from __future__ import annotations

import re

_TAGS = {
    space: re.compile(rb"\[(?:[^\[\],\s]*,)?(\d{1,7})\]<(stdout|stderr|stddiag)>:" + (b" " if space else b""))
    for space in (False, True)
}
_SPACED_SINCE = 5
_TAG_LIMIT = 160
"""No tag is longer; a cut-off piece of this length at the end of a chunk may still become one."""
_UNFINISHED_LIMIT = 16 << 20
"""Bytes of all lines that have not ended; then they are given out as they are."""
_LINE_COST = 200
_LINE_LIMIT = 1 << 20
"""A longer line is given out in pieces, so that output without newlines cannot fill the memory."""

Line = tuple[str, bytes]


class RankLines:
    """Takes mpirun's stdout or stderr in pieces and gives back lines ``[rank] text``.

    Open MPI puts a tag before each piece that a rank wrote, and pieces of several ranks may share a line.
    Here every rank's pieces are put together again, and only whole lines come out.
    """

    def __init__(self, stream: str, version: int = 4) -> None:
        self._stream = stream
        self._tag = _TAGS[version >= _SPACED_SINCE]
        self._rest = b""
        self._owner: tuple[int, str] | None = None
        self._lines: dict[tuple[int, str] | None, bytes] = {}
        self._unfinished = 0
        """Bytes of `_lines`, and something for each of them."""

    def feed(self, data: bytes) -> list[Line]:
        """Take the next piece; return the lines that are whole now, as ``("stdout"|"stderr", line)``."""
        data = self._rest + data
        keep = self._possible_tag(data)
        self._rest, data = (data[keep:], data[:keep])
        return self._take(data)

    def end(self) -> list[Line]:
        """Return what is left: the last lines that did not end with a newline."""
        lines = self._take(self._rest)
        self._rest = b""
        return lines + self._give_out()

    def _give_out(self) -> list[Line]:
        """Return all lines as far as they came."""
        lines = [self._line(owner, text) for owner, text in self._lines.items() if text]
        self._lines.clear()
        self._unfinished = 0
        return lines

    def _possible_tag(self, data: bytes) -> int:
        """Where the part begins that may be the first half of a tag; the end of `data` when there is none."""
        tail = max(0, len(data) - _TAG_LIMIT)
        start = data.rfind(b"[", tail)
        if start < 0 or b"\n" in data[start:]:
            return len(data)
        if self._tag.match(data, start):
            return len(data)
        return start if re.fullmatch(rb"\[[^\[\]\s]*(\](<[a-z]*(>:?)?)?)?", data[start:]) else len(data)

    def _take(self, data: bytes) -> list[Line]:
        lines: list[Line] = []
        position = 0
        for tag in self._tag.finditer(data):
            lines += self._add(data[position : tag.start()])
            self._owner = (int(tag[1]), "stdout" if tag[2] == b"stdout" else "stderr")
            position = tag.end()
        return lines + self._add(data[position:])

    def _add(self, text: bytes) -> list[Line]:
        """Text up to a newline belongs to the last tag; after a newline without a tag, mpirun itself speaks."""
        lines: list[Line] = []
        while text:
            head, newline, text = text.partition(b"\n")
            before = self._lines.pop(self._owner, None)
            self._unfinished -= len(before) + _LINE_COST if before is not None else 0
            line = (before or b"") + head
            if newline or len(line) > _LINE_LIMIT:
                lines.append(self._line(self._owner, line))
                self._owner = None if newline else self._owner
            elif line:
                self._lines[self._owner] = line
                self._unfinished += len(line) + _LINE_COST
        return lines + self._give_out() if self._unfinished > _UNFINISHED_LIMIT else lines

    def _line(self, owner: tuple[int, str] | None, text: bytes) -> Line:
        if owner is None:
            return self._stream, text + b"\n"
        rank, stream = owner
        return stream, b"[%d] %b\n" % (rank, text)
