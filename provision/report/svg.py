"""Plots as SVG elements for an HTML page, without libraries and scripts; colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH = 600
_RIGHT = 175
"""Width of a bar's figures."""
_PITCH, _TALL = 50, 14
_LEFT_OF_CURVES, _HEIGHT = 64, 360
_BOTTOM = _HEIGHT - 48
_LETTER = 8.0
"""Wider than most letters of the font, in units of the drawing."""
COLOURS = 8


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart."""

    label: str
    value: float
    half: float | None
    """Half the length of its error bar."""
    figures: str
    """The figures as text."""
    mark: float | None = None
    """Position of a dashed line, e.g. at linear speed-up."""
    striped: bool = False
    """Drawn in another pattern to distinguish it."""
    series: int = 0
    """The number of its colour."""


@dataclass(frozen=True)
class Curve:
    """One line of a plot over the number of devices."""

    label: str
    points: tuple[tuple[int, float, float], ...]
    """Number, value, half the length of the error bar; all positive except the last, which may be zero."""
    series: int = 0
    """The number of its colour; numbers beyond `COLOURS` repeat colours with a dashed line."""
    ideal: float | None = None
    """The value at one device for a dotted line of linear speed-up."""


def clean(text: str) -> str:
    """Return text for an HTML page: escaped, and without invalid characters."""
    return escape("".join(letter if letter.isprintable() else "\ufffd" for letter in text))


def bars(title: str, unit: str, rows: Sequence[Bar], *, least: float = 0.0) -> str:
    """Return a chart with two lines for each bar: its label, then the bar from zero, error bar and figures.

    The axis goes up to the largest value, mark or `least`.
    """
    largest = max([least, *(row.value + (row.half or 0) for row in rows), *(row.mark or 0 for row in rows)])
    steps = _steps(largest)
    scale = (_WIDTH - _RIGHT) / (steps[-1] or 1.0)
    height = _PITCH * len(rows) + 34
    parts = [_open(_WIDTH, height, title)]
    for step in steps:
        x, anchor = step * scale, "start" if step == 0 else "middle"
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height - 28}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 12}" text-anchor="{anchor}">{step:g}</text>')
    parts.append(f'<text class="tick" x="{_WIDTH}" y="{height - 12}" text-anchor="end">{clean(unit)}</text>')
    for number, row in enumerate(rows):
        parts += _bar(row, number * _PITCH, scale)
    return "\n".join([*parts, "</svg>"])


def _bar(row: Bar, top: int, scale: float) -> list[str]:
    low, high = (max(0.0, row.value - (row.half or 0)) * scale, (row.value + (row.half or 0)) * scale)
    y, middle = top + 22, top + 22 + _TALL / 2
    kind = "bar striped" if row.striped else "bar"
    parts = [
        f'<g class="series{row.series % COLOURS}"><title>{clean(row.label)}: {clean(row.figures)}</title>',
        f'<rect class="{kind}" x="0" y="{y}" width="{row.value * scale:.1f}" height="{_TALL}"/>',
    ]
    if row.half:
        parts.append(f'<path class="error" d="{_whisker(low, high, middle)}"/>')
    if row.mark is not None:
        x = row.mark * scale
        parts.append(f'<line class="mark" x1="{x:.1f}" y1="{y - 1}" x2="{x:.1f}" y2="{y + _TALL + 5}"/>')
    mark = (row.mark or 0) * scale
    fits = mark - high > len(row.figures) * _LETTER + 14  # between bar and mark
    right = (high if fits else max(high, mark)) + 7
    parts.append(f'<text x="0" y="{top + 13}">{clean(_shortened(row.label, _WIDTH))}</text>')
    parts.append(f'<text class="figure" x="{right:.1f}" y="{y + 12}">{clean(row.figures)}</text></g>')
    return parts


def _whisker(low: float, high: float, y: float) -> str:
    return f"M{low:.1f} {y}H{high:.1f}M{low:.1f} {y - 4}v8M{high:.1f} {y - 4}v8"


def curves(title: str, across: str, up: str, lines: Sequence[Curve]) -> str:
    """Return a plot with a line for each curve; both axes begin at zero.

    The page has to explain the colours ``series0``, ``series1``...
    """
    points = [point for line in lines for point in line.points]
    sizes = sorted({number for number, _, _ in points})
    ideals = [[(n, line.ideal * n) for n in (sizes[0], sizes[-1])] if line.ideal else [] for line in lines]
    highest = max([*(value for _, value, _ in points), *(value for path in ideals for _, value in path)])
    plane = _Plane(sizes[-1], _steps(highest))
    parts = [_open(_WIDTH, _HEIGHT, title), *_axes(plane, sizes)]
    parts.append(f'<text class="tick" x="{_WIDTH}" y="{_HEIGHT - 8}" text-anchor="end">{clean(across)}</text>')
    parts.append(f'<text class="tick" x="0" y="12">{clean(up)}</text>')
    for line, path in zip(lines, ideals, strict=True):
        if path:
            parts.append(f'<polyline class="ideal series{line.series % COLOURS}" points="{plane.path(path)}"/>')
    for line in lines:
        parts += _curve(plane, line)
    return "\n".join([*parts, "</svg>"])


@dataclass(frozen=True)
class _Plane:
    """Coordinates in a plot: the largest number of devices, and the steps of the other axis."""

    most: int
    steps: Sequence[float]

    def x(self, number: float) -> float:
        return _LEFT_OF_CURVES + number / self.most * (_WIDTH - _LEFT_OF_CURVES - 20)

    def y(self, value: float) -> float:
        return _BOTTOM - min(value, self.steps[-1]) / (self.steps[-1] or 1.0) * (_BOTTOM - 24)

    def path(self, points: Sequence[tuple[int, float]]) -> str:
        return " ".join(f"{self.x(number):.1f},{self.y(value):.1f}" for number, value in points)


def _axes(plane: _Plane, numbers: Sequence[int]) -> list[str]:
    parts: list[str] = []
    for value in plane.steps:
        y = plane.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT_OF_CURVES}" y1="{y:.1f}" x2="{_WIDTH}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT_OF_CURVES - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    last = -math.inf
    for number in numbers:
        x = plane.x(number)
        if x - last > 4 * _LETTER:  # else the labels would overlap
            parts.append(f'<text class="tick" x="{x:.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{number}</text>')
            last = x
    return parts


def _curve(plane: _Plane, line: Curve) -> list[str]:
    path = plane.path([(number, value) for number, value, _ in line.points])
    kind = "curve" if line.series < COLOURS else "curve again"
    head = f'<g class="series{line.series % COLOURS}"><title>{clean(line.label)}</title>'
    parts = [f'{head}<polyline class="{kind}" points="{path}"/>']
    for number, value, half in line.points:
        x = f"{plane.x(number):.1f}"
        if half:
            low, high = plane.y(max(value - half, 0.0)), plane.y(value + half)
            parts.append(f'<path class="error" d="M{x} {low:.1f}V{high:.1f}"/>')
        parts.append(f'<circle cx="{x}" cy="{plane.y(value):.1f}" r="4"/>')
    return [*parts, "</g>"]


def _open(width: int, height: int, title: str) -> str:
    size = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    return f'<svg {size} role="img" aria-label="{clean(title)}">'


def _steps(largest: float) -> list[float]:
    """Return about five round steps from zero to at least `largest`."""
    if largest <= 0:
        return [0.0]
    rough = largest / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [round(number * step, 10) for number in range(math.ceil(largest / step - 1e-9) + 1)]


def _shortened(text: str, width: float) -> str:
    most = int(width / _LETTER)
    return text if len(text) <= most else text[: most - 1] + "\u2026"
