"""A machine's topology as an SVG drawing.

All GPUs are in one row, with NVLink above them and network cards below; each group of the PCIe tree and each NUMA node
has a box with its name at the bottom. A box is at least as wide as its name, so that names do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import combinations

from provision.report.topo_report import head_lines, numa_title
from provision.topology.faults import switched_lanes
from provision.topology.links import lanes
from provision.topology.machine import MachineTopology
from provision.topology.tree import Group, NumaNode, tree

_LETTER = 7.3  # width at the size of `_STYLE`
_LINE = 18
_PAD = 10
_BOX = 34
_CARDS_A_ROW = 4
_ARC = 16  # height of an NVLink arc for each position between its GPUs
_THICKEST = 8
_MAX_LETTERS = 34
_STYLE = (
    ".sheet{fill:#fff}text{font:12px monospace;fill:#222}.head{font-weight:bold}"
    ".simulated{fill:#b00020;font-weight:bold}"
    ".place{fill:#f7f7f7;stroke:#666}.group{fill:#fff;stroke:#999;stroke-dasharray:4 3}"
    ".gpu{fill:#dcedc8;stroke:#33691e}.nic{fill:#d6e9fb;stroke:#1565c0}"
    ".chosen{fill:#ffcc80;stroke:#e65100;stroke-width:3}.nvlink{stroke:#33691e;fill:none}"
    ".switch{fill:#dcedc8;stroke:#33691e}"
)


@dataclass(frozen=True)
class _Box:
    """A part of the tree with its position on the sheet."""

    part: NumaNode | Group
    x: float
    width: float
    level: int
    """Nesting depth of the boxes within it."""
    inner: tuple[_Box, ...]


def as_svg(machine: MachineTopology) -> str:
    """Return the drawing as the text of an SVG file."""
    return _Sheet(machine).text()


class _Sheet:
    """The layout and the shapes of the drawing."""

    def __init__(self, machine: MachineTopology) -> None:
        self.machine, self.names = machine, machine.names()
        self.gpus = len(machine.topology.gpus)
        labels = [line for row in range(len(self.names)) for line in self._label(row)]
        self.column = max(len(label) for label in labels) * _LETTER + _PAD
        self.boxes: list[_Box] = []
        x: float = _PAD
        for numa_node in tree(machine.topology):
            self.boxes.append(self._box(numa_node, x))
            x += self.boxes[-1].width + _PAD
        self.head = head_lines(machine)
        self.note, self.rise = self._nvlink()
        texts = [*self.head, self.note]
        self.width = max(x, *(len(line) * _LETTER + 2 * _PAD for line in texts))
        levels = max(box.level for box in self.boxes) + 1
        self.gpu_y = (len(self.head) + 1) * _LINE + self.rise + levels * _PAD
        self.nic_y = self.gpu_y + _BOX + _PAD
        self.bottom = self.nic_y + max(self._nic_rows(box) for box in self.boxes) * (_BOX + _PAD)
        self.height = self.bottom + levels * _LINE + _LINE + _PAD
        self.centre = {row: x for box in self.boxes for row, x in self._centres(box)}

    def text(self) -> str:
        """Return the text of the file."""
        size = f'width="{self.width:.0f}" height="{self.height:.0f}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {self.width:.0f} {self.height:.0f}">',
                f"<style>{_STYLE}</style>",
                f'<rect width="{self.width:.0f}" height="{self.height:.0f}" class="sheet"/>',
                *self._heading(),
                *(line for box in self.boxes for line in self._drawn(box, "place")),
                *self._links(),
                *(line for row in sorted(self.centre) for line in self._device(row)),
                "</svg>\n",
            ]
        )

    def _heading(self) -> Iterator[str]:
        for number, line in enumerate(self.head):
            kind = "simulated" if line.startswith("SIMULATED") else "head" if number == 0 else "detail"
            yield _text(_PAD, (number + 1) * _LINE, line, kind)
        if self.note:
            yield _text(_PAD, (len(self.head) + 1) * _LINE, self.note, "detail")

    def _box(self, part: NumaNode | Group, x: float) -> _Box:
        inner: list[_Box] = []
        at = x + _PAD
        loose = self._columns(part.devices) * (self.column + _PAD)
        at += loose
        for group in part.groups:
            inner.append(self._box(group, at))
            at += inner[-1].width + _PAD
        label = max(len(line) for line in _titles(part)) * _LETTER + 2 * _PAD
        level = max((box.level + 1 for box in inner), default=0)
        return _Box(part, x, max(at - x, label), level, tuple(inner))

    def _columns(self, devices: Sequence[int]) -> int:
        """Return the number of columns; GPUs are in one row, cards may use several."""
        gpus = sum(row < self.gpus for row in devices)
        return max(gpus, min(len(devices) - gpus, _CARDS_A_ROW))

    def _nic_rows(self, box: _Box) -> int:
        nics = sum(row >= self.gpus for row in box.part.devices)
        own = -(-nics // self._columns(box.part.devices)) if nics else 0
        return max([own, *(self._nic_rows(inner) for inner in box.inner)])

    def _centres(self, box: _Box) -> Iterator[tuple[int, tuple[float, float]]]:
        """Yield the position of each device: the horizontal centre, and the top of its box."""
        columns, step = self._columns(box.part.devices), self.column + _PAD
        gpus = [row for row in box.part.devices if row < self.gpus]
        for number, row in enumerate(box.part.devices):
            card = number - len(gpus)
            across = (number if row < self.gpus else card % columns) * step
            y = self.gpu_y if row < self.gpus else self.nic_y + card // columns * (_BOX + _PAD)
            yield row, (box.x + _PAD + across + self.column / 2, y)
        for inner in box.inner:
            yield from self._centres(inner)

    def _drawn(self, box: _Box, kind: str) -> Iterator[str]:
        titles = _titles(box.part)
        top = self.gpu_y - (box.level + 1) * _PAD
        bottom = self.bottom + box.level * _LINE + len(titles) * _LINE
        yield _rect(box.x, top, box.width, bottom - top, kind)
        for inner in box.inner:
            yield from self._drawn(inner, "group")
        for number, line in enumerate(reversed(titles)):
            yield _text(box.x + _PAD, bottom - 6 - number * _LINE, line, "title")

    def _device(self, row: int) -> Iterator[str]:
        x, y = self.centre[row]
        kind = "gpu" if row < self.gpus else "nic"
        kind += " chosen" * self.machine.is_chosen(row)
        yield _rect(x - self.column / 2, y, self.column, _BOX, kind)
        lines = self._label(row)
        for number, line in enumerate(lines):
            middle = y + _BOX / 2 + 4 + (number - (len(lines) - 1) / 2) * 14
            yield _text(x, middle, line, "device", anchor="middle")

    def _label(self, row: int) -> list[str]:
        name = _cut(self.names[row]) + "*" * self.machine.is_chosen(row)
        details = self.machine.nics.get(self.names[row]) if row >= self.gpus else None
        if details is None:
            return [name]
        rate = f"{details.rate_gbit:g} Gbit/s" if details.rate_gbit is not None else ""
        properties = " ".join(part for part in (rate, "" if details.active else "down") if part)
        return [name, properties] if properties else [name]

    def _nvlink(self) -> tuple[str, float]:
        """Return a note about the lines above the GPUs, and their height."""
        if switched := switched_lanes(self.machine.topology):
            return f"NVLink switches: {switched} lanes of each GPU", 2.0 * _LINE
        pairs = list(self._pairs())
        if not pairs:
            return "", 0
        few, most = min(count for *_, count in pairs), max(count for *_, count in pairs)
        widths = f"{most} lanes each" if few == most else f"{few} to {most} lanes, as wide as they have lanes"
        return f"Arcs are NVLinks of {widths}", max(b - a for a, b, _ in pairs) * _ARC + _PAD

    def _pairs(self) -> Iterator[tuple[int, int, int]]:
        links = self.machine.topology.links
        for a, b in combinations(range(self.gpus), 2):
            if count := max(lanes(links[a][b]), lanes(links[b][a])):
                yield a, b, count

    def _links(self) -> Iterator[str]:
        yield from self._switches() if switched_lanes(self.machine.topology) else self._arcs()

    def _switches(self) -> Iterator[str]:
        """Yield a bar, and a line from it to each GPU with links."""
        joined = sorted({row for a, b, _ in self._pairs() for row in (a, b)})
        xs = [self.centre[row][0] for row in joined]
        y = (len(self.head) + 1) * _LINE + 8
        yield _rect(min(xs) - _PAD, y, max(xs) - min(xs) + 2 * _PAD, _LINE / 2, "switch")
        for row, x in zip(joined, xs, strict=True):
            shown = f"{self.names[row]} {max(map(lanes, self.machine.topology.links[row]))} lanes"
            yield _path(f"M{x:.1f} {y + _LINE / 2:.1f}V{self.gpu_y:.1f}", 2, shown)

    def _arcs(self) -> Iterator[str]:
        for a, b, count in self._pairs():
            (left, y), (right, _) = sorted((self.centre[a], self.centre[b]))
            top = y - (b - a) * _ARC * 4 / 3 - _PAD
            curve = f"M{left:.1f} {y:.1f}C{left:.1f} {top:.1f} {right:.1f} {top:.1f} {right:.1f} {y:.1f}"
            yield _path(curve, min(count, _THICKEST), f"{self.names[a]}-{self.names[b]} {count} lanes")


def _titles(part: NumaNode | Group) -> list[str]:
    if isinstance(part, Group):
        return [part.kind]
    title, _, cpus = numa_title(part).partition(" (")
    return [_cut(line) for line in (title, cpus.removesuffix(")")) if line]


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_LETTERS else f"{text[: _MAX_LETTERS - 3]}..."


def _safe(text: str) -> str:
    """Return escaped text without control characters, which XML does not allow."""
    return escape("".join(letter if letter.isprintable() else "?" for letter in text))


def _text(x: float, y: float, text: str, kind: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{_safe(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4" class="{kind}"/>'


def _path(curve: str, width: int, title: str) -> str:
    return f'<path d="{curve}" class="nvlink" stroke-width="{width}"><title>{_safe(title)}</title></path>'
