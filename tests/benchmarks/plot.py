"""A plot of costs over the number of nodes, as an SVG file written by hand: no library is needed for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["bars", "lines"]

_COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#34495e", "#16a085")
_WIDTH, _HEIGHT, _LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 860, 460, 70, 50, 560, 350
_BARS_LEFT = 260


def lines(title: str, unit: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Return an SVG with one line for each of `curves` (x, y); both axes are logarithmic, and 45 degrees is linear."""
    points = [point for curve in curves.values() for point in curve]
    across, up = _Scale([x for x, _ in points], _PLOT_WIDTH), _Scale([y for _, y in points], _PLOT_HEIGHT)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 12}">nodes</text><text x="8" y="{_TOP - 10}">{escape(unit)}</text>',
    ]
    for value, at in across.ticks():
        x = _LEFT + at
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_TOP + _PLOT_HEIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{_TOP + _PLOT_HEIGHT + 18}" text-anchor="middle">{value:g}</text>')
    for value, at in up.ticks():
        y = _TOP + _PLOT_HEIGHT - at
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + _PLOT_WIDTH}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for number, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [(_LEFT + across(x), _TOP + _PLOT_HEIGHT - up(y)) for x, y in curve]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        key = _TOP + 14 + 20 * number
        parts.append(f'<rect x="{_LEFT + _PLOT_WIDTH + 16}" y="{key - 9}" width="12" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{_LEFT + _PLOT_WIDTH + 34}" y="{key}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def bars(title: str, unit: str, values: Mapping[str, float]) -> str:
    """Return an SVG with a bar for each of `values`; the axis is logarithmic, from a tenth of `unit` on."""
    scale = _Scale([0.1, *values.values()], _PLOT_WIDTH - 140)
    height = 2 * _TOP + 24 * len(values)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="24" font-size="15">{escape(title)}</text>',
    ]
    for value, at in scale.ticks():
        x = _BARS_LEFT + at
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{height - _TOP}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - _TOP + 18}" text-anchor="middle">{value:g} {escape(unit)}</text>')
    for number, (name, value) in enumerate(values.items()):
        y = _TOP + 24 * number + 4
        parts.append(f'<text x="{_BARS_LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{_BARS_LEFT}" y="{y}" width="{scale(value):.1f}" height="16" fill="{_COLOURS[0]}"/>')
        parts.append(f'<text x="{_BARS_LEFT + scale(value) + 6:.1f}" y="{y + 12}">{value:.2f}</text>')
    return "\n".join([*parts, "</svg>", ""])


class _Scale:
    """From a value to its place on an axis of decades."""

    def __init__(self, values: Sequence[float], length: float) -> None:
        self._low = math.floor(math.log10(min(values)))
        self._high = max(self._low + 1, math.ceil(math.log10(max(values))))
        self._length = length

    def __call__(self, value: float) -> float:
        return (math.log10(value) - self._low) / (self._high - self._low) * self._length

    def ticks(self) -> list[tuple[float, float]]:
        """Each decade with its place."""
        return [(10.0**power, self(10.0**power)) for power in range(self._low, self._high + 1)]
