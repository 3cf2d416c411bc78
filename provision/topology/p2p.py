"""Reads what CUDA's sample program p2pBandwidthLatencyTest measured between the GPUs of a node."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.errors import UsageError

__all__ = ["parse_p2p"]

Matrix = tuple[tuple[int, ...], ...]

_TITLE = re.compile(r"^\s*(Uni|Bi)directional P2P=(Enabled|Disabled) Bandwidth.*Matrix \(GB/s\)", re.IGNORECASE)
_ROW = re.compile(r"\s*(\d{1,3})((?:\s+\d{1,6}(?:\.\d{1,6})?)+)\s*$")


def parse_p2p(text: str, name: str) -> Matrix:
    """Return the bandwidth from each GPU to each other, one way, in tenths of GB/s and in the program's order.

    What was measured one way counts; where both ways at once alone were measured, half of it does. Of the two ways
    between two GPUs the slower is taken. Figures without peer access are those of copies through the host, and are
    read only where there are no others.

    Args:
        text: the program's output.
        name: what to call the text in errors.

    Raises:
        UsageError: it holds no whole matrix of bandwidths.
    """
    found: dict[tuple[str, str], list[list[float]]] = {}
    for kind, told, figures in _matrices(text):
        found.setdefault((kind.lower(), told.lower()), figures)  # writes come first, then there may be reads
    for access in ("enabled", "disabled"):
        for way, share in (("uni", 10.0), ("bi", 5.0)):
            rows = found.get((way, access), [])
            if rows and all(len(row) == len(rows) for row in rows):
                return _both_ways([[int(value * share) for value in row] for row in rows])
    raise UsageError(
        f"{name} holds no bandwidths between GPUs",
        remedy="Give the whole output of p2pBandwidthLatencyTest, run with CUDA_DEVICE_ORDER=PCI_BUS_ID.",
    )


def _matrices(text: str) -> Iterator[tuple[str, str, list[list[float]]]]:
    """Yield the kind of each matrix of bandwidths and its rows."""
    rows: list[list[float]] = []
    for line in text.splitlines():
        title, row = _TITLE.match(line), _ROW.match(line)
        if title:
            rows = []
            yield title[1], title[2], rows
        elif row and int(row[1]) == len(rows):
            rows.append([float(value) for value in row[2].split()])
        elif rows:
            rows = []


def _both_ways(rates: list[list[int]]) -> Matrix:
    count = range(len(rates))
    return tuple(tuple(min(rates[a][b], rates[b][a]) for b in count) for a in count)
