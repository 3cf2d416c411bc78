"""Lists of host names in Slurm's compressed form, such as ``gpu[01-03,7],login``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.errors import InvalidDocument

MOST_NAMES = 100_000
_PART = re.compile(r"[A-Za-z0-9_.-]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def expand(text: str, limit: int = MOST_NAMES) -> list[str]:
    """Return the names of a compressed list, in its order.

    Raises:
        InvalidDocument: the text is not such a list, or has more than `limit` names.
    """
    if text in {"", "(null)", "None assigned", "n/a", "N/A"}:
        return []
    names: list[str] = []
    for part in _split(text):
        for name in _expanded(part, limit - len(names)):
            if not _NAME.fullmatch(name):
                raise InvalidDocument(f"list of hosts: invalid name {name!r:.80}", remedy="Check the output of sinfo.")
            names.append(name)
    return names


def _split(text: str) -> Iterator[str]:
    """Yield the parts between the commas that are outside of brackets."""
    begin, depth = 0, 0
    for at, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth not in {0, 1}:
            raise _invalid(text)
        if character == "," and not depth:
            yield text[begin:at]
            begin = at + 1
    if depth:
        raise _invalid(text)
    yield text[begin:]


def _expanded(part: str, limit: int) -> list[str]:
    """Return the names of one part, which may have several pairs of brackets."""
    names = [""]
    for piece in re.split(r"(\[[^\[\]]*\])", part):
        if not piece.startswith("["):
            if not _PART.fullmatch(piece):
                raise _invalid(part)
            names = [name + piece for name in names]
            continue
        numbers: list[str] = []
        for span in piece[1:-1].split(","):
            match = _RANGE.fullmatch(span)
            if match is None:
                raise _invalid(part)
            first, last = match[1], match[2] or match[1]
            count = int(last) - int(first) + 1
            if count < 1 or (len(numbers) + count) * len(names) > limit:
                raise _invalid(part)
            numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        names = [name + number for name in names for number in numbers]
    if len(names) > limit:
        raise _invalid(part)
    return names


def _invalid(text: str) -> InvalidDocument:
    return InvalidDocument(f"list of hosts: invalid or too long: {text!r:.120}", remedy="Check the output of sinfo.")
