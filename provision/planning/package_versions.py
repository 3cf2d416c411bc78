"""Which of two versions of a package is the older one, by the rules of dpkg, and of rpm for ``^``, which dpkg lacks."""

from __future__ import annotations

import re
from typing import Any

_PARTS = re.compile(r"(\D*)(\d*)")


def older(version: str, other: str) -> bool:
    """Return whether `version` is older than `other`: epoch, then version, then the distribution's revision."""
    return _key(version) < _key(other)


def _key(version: str) -> tuple[int, list[Any], list[Any]]:
    epoch, mark, rest = version.partition(":")
    if not mark:
        epoch, rest = "", version
    upstream, _, revision = rest.rpartition("-")
    if not upstream:
        upstream, revision = rest, ""
    return _number(epoch), _parts(upstream), _parts(revision)


def _number(digits: str) -> int:
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 100 else 0  # noqa: PLR2004


def _parts(text: str) -> list[Any]:
    """Return texts and numbers in turn; a text ends by what stands between ``~`` and every letter."""
    parts: list[Any] = []
    for letters, digits in _PARTS.findall(text):
        parts += [[_weight(letter) for letter in letters] + [0], _number(digits)]
    return parts


def _weight(letter: str) -> int:
    """``~`` comes before the end of a text, ``^`` right after it, and letters before all else."""
    if letter in "~^":
        return -1 if letter == "~" else 1
    return ord(letter) if letter.isalpha() else ord(letter) + 0x110000
