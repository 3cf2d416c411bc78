"""Short notations of many node names: ``gpu[1-8]``, ``gpu[01-16,18]``, ``a, b, c and 997 more``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

_MAX_PLAIN = 3
"""Up to this number, names are listed individually."""
_MAX_RANGES = 8
"""The most names and ranges; further names are counted."""

_Affixes = tuple[str, str]
"""The text before and after the number in which names differ."""


def in_short(names: Sequence[str]) -> str:
    """Return the names, with numbered ones as ranges, in the notation of ``provision init``."""
    if len(names) <= _MAX_PLAIN:
        return ", ".join(names)
    ranges, left = _ranges(names, _MAX_RANGES)
    shown = ", ".join(ranges)
    return f"{shown} and {left} more" if left else shown


def in_ranges(names: Sequence[str]) -> list[str]:
    """Return all names, with numbered ones as ranges, each range separately."""
    return _ranges(names, len(names))[0]


def as_limit(names: Sequence[str]) -> str:
    """Return all names as a value of ``--limit``, quoted for a shell if necessary."""
    ranges = names if len(names) <= _MAX_PLAIN else _ranges(names, len(names))[0]
    return shlex.quote(",".join(ranges))


def _ranges(names: Sequence[str], most: int) -> tuple[list[str], int]:
    """Return at most `most` names and ranges, and the number of remaining names."""
    runs = [(affixes, run) for affixes, numbers in _numbered(names).items() for run in _runs(numbers)]
    ranges: dict[_Affixes, list[str]] = {}
    for affixes, run in runs[:most]:
        ranges.setdefault(affixes, []).append(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return [_word(affixes, parts) for affixes, parts in ranges.items()], sum(len(run) for _, run in runs[most:])


def _word(affixes: _Affixes, parts: Sequence[str]) -> str:
    single = len(parts) == 1 and "-" not in parts[0]
    return f"{affixes[0]}{parts[0] if single else '[' + ','.join(parts) + ']'}{affixes[1]}"


def _numbered(names: Sequence[str]) -> dict[_Affixes, list[str]]:
    """Return the numbers of names that differ in only one number, the last varying one."""
    shapes: dict[tuple[str, ...], list[list[str]]] = {}
    for name in dict.fromkeys(names):
        parts = re.split(r"([0-9]+)", name) if re.search("[0-9]", name) else [name, "", ""]
        shapes.setdefault(tuple(parts[::2]), []).append(parts)
    numbers: dict[_Affixes, list[str]] = {}
    for same in shapes.values():
        varying = [at for at in range(1, len(same[0]), 2) if len({parts[at] for parts in same}) > 1]
        at = varying[-1] if varying else len(same[0]) - 2
        for parts in same:
            numbers.setdefault(("".join(parts[:at]), "".join(parts[at + 1 :])), []).append(parts[at])
    return numbers


def _runs(numbers: Sequence[str]) -> Iterator[list[str]]:
    """Yield sequences of consecutive numbers; 9 and 10 are consecutive, 09 and 10 too, 9 and 010 are not."""
    run: list[str] = []
    for number in sorted(numbers, key=lambda text: (int(text or 0), text)):
        if run and number == str(int(run[-1] or 0) + 1).zfill(len(run[0]) if run[0].startswith("0") else 0):
            run.append(number)
        else:
            if run:
                yield run
            run = [number]
    yield run
