"""Parses the matrix that ``nvidia-smi topo -m`` prints, of any driver version, including copied text.

Rows and columns name the same devices in the same order. The row names are used, so that lost tabs in the heading do
no harm; a heading with more names than rows shows that the text is truncated. Link classes contain no blanks, so cells
are split at blanks of any kind and number; only the affinities after them, of which any may be empty, need the tabs or
the columns of expanded tabs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from provision.errors import UsageError
from provision.model import Topology, TopologyGpu, TopologyNic
from provision.model.reason import Reason, reason
from provision.topology.faults import find_faults
from provision.topology.links import PCIE_CLASSES, SELF, lanes

_REMEDY = "Give the complete output of `nvidia-smi topo -m`, from its heading to the end of its legend."
_COLOUR = re.compile(r"(?:\x1b|\\e|\\033)?\[[0-9;]{0,8}m")
"""The underline of a terminal; copied text often lacks the escape character in front."""
_GPU = re.compile(r"GPU([0-9]{1,3})")
_NUMBERED_NIC = re.compile(r"NIC[0-9]{1,3}")
_LEGEND_NIC = re.compile(r"\s*(NIC[0-9]{1,3}):\s*(\S+)\s*$")
_LEGEND_CLASS = re.compile(r"\s*(X|SOC|SYS|NODE|PHB|PXB|PIX|NV#)\s+= ")
_KIND = re.compile(r"[A-Z]+|NV[0-9]+|\.+")
_AFFINITIES = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID")
_CPUS = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")
_TAB = 8
_MAX_CELLS = 4  # CPUs, NUMA nodes, a cell that is always empty, the GPU's own NUMA node
_NOTHING = ("", "N/A")
_SOC = "SOC"
"""The name of SYS in old drivers."""


@dataclass(frozen=True)
class _Row:
    """A line of the matrix: the device and its cells."""

    name: str
    cells: tuple[str, ...]
    line: str


@dataclass(frozen=True)
class _Affinity:
    """The affinity cells after the links; empty cells are empty strings."""

    cpus: str = ""
    numa: str = ""
    lost: bool = False
    """True if there is text whose column cannot be determined."""


def parse(text: str) -> Topology:
    """Return the topology in `text`, the output of ``nvidia-smi topo -m``.

    ``warnings`` has the repairs of the text and the faults of the machine, e.g. a GPU that is not connected to the
    NVLink fabric or a matrix that is not symmetric; `links` are always as printed.

    Raises:
        UsageError: the text is not such an output, or is incomplete.
    """
    heading, rows, legend = _parts(text)
    names = _names(heading, rows, legend)
    links = tuple(_links(row, names, number) for number, row in enumerate(rows))
    topology, repairs = _described(heading, rows, legend, links)
    return replace(topology, warnings=(*repairs, *(fault.reason for fault in find_faults(topology))))


def _refuse(problem: str, remedy: str = _REMEDY) -> UsageError:
    return UsageError(f"nvidia-smi topology matrix: {problem}", remedy=remedy)


def _parts(text: str) -> tuple[str, list[_Row], list[str]]:
    """Return the heading, the rows and the lines of the legend."""
    lines = [_COLOUR.sub("", line) for line in text.lstrip("\ufeff").splitlines()]
    lines = [line for line in lines if line.strip() and not line.startswith(("#", "$"))]
    headings = [number for number, line in enumerate(lines) if _is_heading(line)]
    if not headings:
        raise _refuse("no heading that names GPUs")
    if len(headings) > 1:
        raise _refuse("more than one matrix", "Give the output of one node.")
    below = lines[headings[0] + 1 :]
    end = next((number for number, line in enumerate(below) if line.strip() == "Legend:"), len(below))
    titles = "".join(_titles(lines[headings[0]]))
    candidates = [row for line in below[:end] if (row := _row(line)) is not None]
    rows = [row for row in candidates if row.name in titles or SELF in row.cells]
    if not rows:
        raise _refuse("no row after the heading")
    return lines[headings[0]], rows, below[end:]


def _titles(heading: str) -> list[str]:
    match = _AFFINITIES.search(heading)
    return heading[: match.start() if match else len(heading)].split()


def _is_heading(line: str) -> bool:
    if not _GPU.match(line.strip()) or ":" in line:
        return False
    return bool(_AFFINITIES.search(line)) or _row(line) is None


def _row(line: str) -> _Row | None:
    """Return a line with a name and a link; None for lines of the legend and for interspersed text."""
    words = line.split()
    if len(words) == 1 and _GPU.fullmatch(words[0]):
        raise _refuse(f"row {words[0]} is truncated")
    if len(words) < 2 or not _KIND.fullmatch(words[1]) or words[1] == "=":  # noqa: PLR2004 - a name and a link
        return None
    return _Row(words[0], tuple(words[1:]), line)


def _names(heading: str, rows: Sequence[_Row], legend: Sequence[str]) -> list[str]:
    """Return the device names, which heading and rows must agree on."""
    names = [row.name for row in rows]
    titles = _titles(heading)
    if "." in titles or "..." in titles or "\u2026" in titles:
        raise _refuse("columns were removed from the heading")
    if len(set(names)) < len(names):
        raise _refuse("duplicate row names")
    title, row_names = "".join(titles), "".join(names)
    if title != row_names:
        if title.startswith(row_names):
            raise _refuse(f"its heading names more devices than it has rows; the last row is {names[-1]}")
        raise _refuse("rows and heading name different devices")
    if not all(_GPU.fullmatch(name) for name in names[: _count(names)]) or not _count(names):
        raise _refuse("no GPU before the network cards")
    _refuse_other_tables(rows, legend)
    return names


def _refuse_other_tables(rows: Sequence[_Row], legend: Sequence[str]) -> None:
    """Refuse ``topo -p2p``, which has other classes, and ``topo -mp``, which omits NVLink."""
    legend_classes = {match[1] for line in legend if (match := _LEGEND_CLASS.match(line))}
    wired = any(lanes(cell) for row in rows for cell in row.cells)
    if "PIX" in legend_classes and not wired and "NV#" not in legend_classes and _SOC not in legend_classes:
        raise _refuse(
            "the legend has no NV#; it is the output of `nvidia-smi topo -mp`, which omits NVLink, or is truncated",
            "Give the output of `nvidia-smi topo -m`.",
        )


def _count(names: Sequence[str]) -> int:
    """Return the number of GPUs among the names."""
    return sum(bool(_GPU.fullmatch(name)) for name in names)


def _links(row: _Row, names: Sequence[str], number: int) -> tuple[str, ...]:
    """Return the row's link classes after checking that they are known and that only the device's own cell is X."""
    cells = row.cells[: len(names)]
    for name, cell in zip(names, cells, strict=False):
        if cell != SELF and cell not in PCIE_CLASSES and cell != _SOC and not lanes(cell):
            raise _refuse(
                f"unknown link class {cell!r} between {row.name} and {name}"
                if _KIND.fullmatch(cell)
                else f"row {row.name} has fewer cells than there are devices"
            )
    if len(cells) < len(names):
        raise _refuse(f"row {row.name} has {len(cells)} cells for {len(names)} devices")
    if [start for start, cell in enumerate(cells) if cell == SELF] != [number]:
        raise _refuse(f"row {row.name} does not have its X in its own column; a cell is missing or surplus")
    return tuple("SYS" if cell == _SOC else cell for cell in cells)


def _described(
    heading: str, rows: Sequence[_Row], legend: Sequence[str], links: tuple[tuple[str, ...], ...]
) -> tuple[Topology, tuple[Reason, ...]]:
    """Return the topology and the repairs of the text."""
    count = _count([row.name for row in rows])
    affinities = [_affinity(row, heading, len(rows)) for row in rows[:count]]
    gpus = tuple(
        TopologyGpu(int(row.name.removeprefix("GPU")), _numa(affinity.numa), _cpus(affinity.cpus))
        for row, affinity in zip(rows, affinities, strict=False)
    )
    named = {match[1]: match[2] for line in legend if (match := _LEGEND_NIC.match(line))}
    nics = tuple(TopologyNic(named.get(row.name, row.name)) for row in rows[count:])
    if len({nic.name for nic in nics}) < len(nics):
        raise _refuse("its legend gives two network cards the same name")
    return Topology(gpus, nics, links), tuple(_repairs(heading, rows[:count], affinities, nics))


def _repairs(
    heading: str, gpus: Sequence[_Row], affinities: Sequence[_Affinity], nics: Sequence[TopologyNic]
) -> Iterator[Reason]:
    if not any(_GPU.fullmatch(title) for title in _titles(heading)):
        yield reason("topology.heading_not_separated")
    lost = [row.name for row, affinity in zip(gpus, affinities, strict=True) if affinity.lost]
    if lost:
        yield reason("topology.affinity_ambiguous", gpus=lost)
    invalid = {affinity.cpus for affinity in affinities if affinity.cpus not in _NOTHING and not _cpus(affinity.cpus)}
    if invalid:
        yield reason("topology.cpus_invalid", cells=sorted(invalid))
    ranges = {
        affinity.numa for affinity in affinities if affinity.numa not in _NOTHING and _numa(affinity.numa) is None
    }
    if ranges:
        yield reason("topology.numa_invalid", cells=sorted(ranges))
    empty = [
        row.name for row, affinity in zip(gpus, affinities, strict=True) if not affinity.numa and not affinity.lost
    ]
    if empty and any(affinity.numa for affinity in affinities):
        yield reason("topology.numa_missing", gpus=empty)
    unnamed = [nic.name for nic in nics if _NUMBERED_NIC.fullmatch(nic.name)]
    if unnamed:
        yield reason("topology.cards_unnamed", cards=unnamed)


def _numa(cell: str) -> int | None:
    return int(cell) if re.fullmatch("[0-9]{1,4}", cell) else None


def _cpus(cell: str) -> tuple[str, ...]:
    """Return the ranges of a list of CPUs; none if it is invalid, e.g. truncated so that a range runs backwards."""
    ranges = tuple(cell.split(",")) if _CPUS.fullmatch(cell) else ()
    ends = [[int(end) for end in part.split("-")] for part in ranges]
    return ranges if all(end == sorted(end) for end in ends) else ()


def _affinity(row: _Row, heading: str, count: int) -> _Affinity:
    """Return the affinities after the `count` links of a row."""
    titles = _AFFINITIES.findall(heading)
    words = row.cells[count:]
    if not words or not titles:
        return _Affinity()
    if len(words) == len(titles):
        cell_by_title = dict(zip(titles, words, strict=True))
        return _Affinity(cell_by_title.get("CPU Affinity", ""), cell_by_title.get("NUMA Affinity", ""))
    cells = _parted(row.line, count)
    if cells is None or len(cells) > _MAX_CELLS:
        return _Affinity(lost=True)
    cpus, *others = cells
    own = "GPU NUMA ID" in titles
    return _Affinity(cpus, (others or [""])[0] if own else next(filter(None, others), ""))


def _parted(line: str, count: int) -> list[str] | None:
    """Return the cells after the links, split at tabs or at the stops of expanded tabs; None if ambiguous."""
    if "\t" in line:
        start = [match.end() for match in re.finditer(r"\S+", line)][count]
        return [cell.strip() for cell in line[start:].rstrip().split("\t")[1:]]
    return _unexpanded(line, count + 1)


def _unexpanded(line: str, skip: int) -> list[str] | None:
    """Undo the expansion of tabs; None if a word does not begin at a tab stop."""
    cells: list[str] = []
    at = 0
    while at < len(line):
        word = re.match(r" ?(\S+)", line[at:])
        end = at + len(word[0]) if word else at
        cells.append(word[1] if word else "")
        at = (end // _TAB + 1) * _TAB
        if line[end:at].strip():
            return None
    return cells[skip:]
