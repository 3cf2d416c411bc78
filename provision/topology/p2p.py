"""Parses the output of the CUDA sample p2pBandwidthLatencyTest."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.errors import UsageError

Matrix = tuple[tuple[int, ...], ...]

_TITLE = re.compile(r"^\s*(Uni|Bi)directional P2P=(Enabled|Disabled) Bandwidth.*Matrix \(GB/s\)", re.IGNORECASE)
_ROW = re.compile(r"\s*(\d{1,3})((?:\s+\d{1,6}(?:\.\d{1,6})?)+)\s*$")


def parse_p2p(text: str, name: str) -> Matrix:
    """Return the bandwidth from each GPU to each other, in one direction, in tenths of GB/s and in the program's order.

    Unidirectional results are preferred; of bidirectional ones, half is used. The slower direction between two GPUs
    counts. Results without peer access are copies through the host, and are used only if there are no others.

    Args:
        text: the program's output.
        name: name of the text in errors.

    Raises:
        UsageError: the text has no complete matrix of bandwidths.
    """
    figures_by_test: dict[tuple[str, str], list[list[float]]] = {}
    for kind, p2p, figures in _matrices(text):
        figures_by_test.setdefault((kind.lower(), p2p.lower()), figures)  # writes come first; reads may follow
    for access in ("enabled", "disabled"):
        for direction, share in (("uni", 10.0), ("bi", 5.0)):
            rows = figures_by_test.get((direction, access), [])
            if rows and all(len(row) == len(rows) for row in rows):
                return _slower_direction([[int(value * share) for value in row] for row in rows])
    raise UsageError(
        f"{name}: no bandwidths between GPUs",
        remedy="Give the complete output of p2pBandwidthLatencyTest, run with CUDA_DEVICE_ORDER=PCI_BUS_ID.",
    )


def _matrices(text: str) -> Iterator[tuple[str, str, list[list[float]]]]:
    """Yield the direction, P2P setting and rows of each matrix of bandwidths."""
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


def _slower_direction(rates: list[list[int]]) -> Matrix:
    count = range(len(rates))
    return tuple(tuple(min(rates[a][b], rates[b][a]) for b in count) for a in count)
