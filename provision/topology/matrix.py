"""Reads the matrix that ``nvidia-smi topo -m`` prints, of every age, also where it was pasted through other hands.

Rows and columns name the same devices in the same order, so the rows' names decide: a heading whose tabs were lost is
no harm, and one that names more than the rows do tells of a text that was cut. Link classes never hold a blank, so
cells are parted at blanks of any kind and number; only what follows them (affinities, of which any may be empty) needs
the tabs, or the columns at which expanded tabs would end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from provision.errors import UsageError
from provision.model import Topology, TopologyGpu, TopologyNic
from provision.topology.faults import find_faults
from provision.topology.links import PCIE_CLASSES, SELF, lanes

__all__ = ["parse"]

_ASK = "Give the whole output of `nvidia-smi topo -m`, from its heading to the end of its legend."
_COLOUR = re.compile(r"(?:\x1b|\\e|\\033)?\[[0-9;]{0,8}m")
"""A terminal's underline; where a text was copied, the escape character before it is often gone."""
_GPU = re.compile(r"GPU([0-9]{1,3})")
_NUMBERED_NIC = re.compile(r"NIC[0-9]{1,3}")
_LEGEND_NIC = re.compile(r"\s*(NIC[0-9]{1,3}):\s*(\S+)\s*$")
_LEGEND_CLASS = re.compile(r"\s*(X|SOC|SYS|NODE|PHB|PXB|PIX|NV#)\s+= ")
_KIND = re.compile(r"[A-Z]+|NV[0-9]+|\.+")
_AFFINITIES = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID")
_CPUS = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")
_TAB = 8
_MOST_CELLS = 4  # CPUs, NUMA nodes, a cell that is always empty, the GPU's own NUMA node
_NOTHING = ("", "N/A")
_SOC = "SOC"
"""What old drivers call SYS."""


@dataclass(frozen=True)
class _Row:
    """A line of the matrix: its device, and what stands behind the name."""

    name: str
    cells: tuple[str, ...]
    line: str


@dataclass(frozen=True)
class _Affinity:
    """The cells behind the links, blank ones as empty text."""

    cpus: str = ""
    numa: str = ""
    lost: bool = False
    """Something stands there, and nobody can tell in which column."""


def parse(text: str) -> Topology:
    """Return the topology that `text`, the output of ``nvidia-smi topo -m``, shows.

    What was repaired, and what is wrong with the machine (a GPU off the NVLink fabric, a matrix that is not
    symmetric), stands in ``warnings``; `links` are always as printed.

    Raises:
        UsageError: it is no such output, or a part of it is missing, so that it could only be misread.
    """
    heading, rows, legend = _parts(text)
    names = _names(heading, rows, legend)
    links = tuple(_links(row, names, number) for number, row in enumerate(rows))
    topology, repairs = _described(heading, rows, legend, links)
    return replace(topology, warnings=(*repairs, *(fault.text for fault in find_faults(topology))))


def _refuse(what: str, remedy: str = _ASK) -> UsageError:
    return UsageError(f"this matrix of nvidia-smi cannot be used: {what}", remedy=remedy)


def _parts(text: str) -> tuple[str, list[_Row], list[str]]:
    """Return the heading, the rows and the lines of the legend."""
    lines = [_COLOUR.sub("", line) for line in text.lstrip("\ufeff").splitlines()]
    lines = [line for line in lines if line.strip() and not line.startswith(("#", "$"))]
    headings = [number for number, line in enumerate(lines) if _is_heading(line)]
    if not headings:
        raise _refuse("it has no heading that names GPUs")
    if len(headings) > 1:
        raise _refuse("it holds more than one matrix", "Give the output of one node.")
    below = lines[headings[0] + 1 :]
    end = next((number for number, line in enumerate(below) if line.strip() == "Legend:"), len(below))
    titles = "".join(_titles(lines[headings[0]]))
    found = [row for line in below[:end] if (row := _row(line)) is not None]
    rows = [row for row in found if row.name in titles or SELF in row.cells]
    if not rows:
        raise _refuse("no row follows its heading")
    return lines[headings[0]], rows, below[end:]


def _titles(heading: str) -> list[str]:
    found = _AFFINITIES.search(heading)
    return heading[: found.start() if found else len(heading)].split()


def _is_heading(line: str) -> bool:
    if not _GPU.match(line.strip()) or ":" in line:
        return False
    return bool(_AFFINITIES.search(line)) or _row(line) is None


def _row(line: str) -> _Row | None:
    """A name and a link; neither a legend's line nor what others said in between."""
    words = line.split()
    if len(words) == 1 and _GPU.fullmatch(words[0]):
        raise _refuse(f"the row {words[0]} is cut")
    if len(words) < 2 or not _KIND.fullmatch(words[1]) or words[1] == "=":  # noqa: PLR2004 - a name and a link
        return None
    return _Row(words[0], tuple(words[1:]), line)


def _names(heading: str, rows: Sequence[_Row], legend: Sequence[str]) -> list[str]:
    """Return the devices' names, which heading and rows agree on."""
    names = [row.name for row in rows]
    titles = _titles(heading)
    if "." in titles or "..." in titles or "\u2026" in titles:
        raise _refuse("somebody has left columns out of it")
    if len(set(names)) < len(names):
        raise _refuse("two of its rows have one name")
    title, said = "".join(titles), "".join(names)
    if title != said:
        if title.startswith(said):
            raise _refuse(f"its heading names more devices than it has rows; the last row is {names[-1]}")
        raise _refuse("its rows are not the devices that its heading names")
    if not all(_GPU.fullmatch(name) for name in names[: _count(names)]) or not _count(names):
        raise _refuse("it names no GPU before the network cards")
    _refuse_other_tables(rows, legend)
    return names


def _refuse_other_tables(rows: Sequence[_Row], legend: Sequence[str]) -> None:
    """``topo -p2p`` has other words in its cells, and ``topo -mp`` tells of no NVLink whether there is one or not."""
    told = {found[1] for line in legend if (found := _LEGEND_CLASS.match(line))}
    wired = any(lanes(cell) for row in rows for cell in row.cells)
    if "PIX" in told and not wired and "NV#" not in told and _SOC not in told:
        raise _refuse(
            "its legend has no NV#: it is the output of `nvidia-smi topo -mp`, which leaves out NVLink, or is cut",
            "Give the output of `nvidia-smi topo -m`.",
        )


def _count(names: Sequence[str]) -> int:
    """How many of the names are GPUs."""
    return sum(bool(_GPU.fullmatch(name)) for name in names)


def _links(row: _Row, names: Sequence[str], number: int) -> tuple[str, ...]:
    """Return the row's link classes, which are known words, with the device itself at its own place alone."""
    cells = row.cells[: len(names)]
    for name, cell in zip(names, cells, strict=False):
        if cell != SELF and cell not in PCIE_CLASSES and cell != _SOC and not lanes(cell):
            raise _refuse(
                f"{cell!r} between {row.name} and {name} is no class of `topo -m`"
                if _KIND.fullmatch(cell)
                else f"the row {row.name} has fewer cells than there are devices"
            )
    if len(cells) < len(names):
        raise _refuse(f"the row {row.name} has {len(cells)} cells, and there are {len(names)} devices")
    if [place for place, cell in enumerate(cells) if cell == SELF] != [number]:
        raise _refuse(f"the row {row.name} has its X not in its own column: a cell is missing or too many")
    return tuple("SYS" if cell == _SOC else cell for cell in cells)


def _described(
    heading: str, rows: Sequence[_Row], legend: Sequence[str], links: tuple[tuple[str, ...], ...]
) -> tuple[Topology, tuple[str, ...]]:
    """Return the topology, and what had to be repaired."""
    count = _count([row.name for row in rows])
    affinities = [_affinity(row, heading, len(rows)) for row in rows[:count]]
    gpus = tuple(
        TopologyGpu(int(row.name.removeprefix("GPU")), _numa(where.numa), _cpus(where.cpus))
        for row, where in zip(rows, affinities, strict=False)
    )
    named = {found[1]: found[2] for line in legend if (found := _LEGEND_NIC.match(line))}
    nics = tuple(TopologyNic(named.get(row.name, row.name)) for row in rows[count:])
    if len({nic.name for nic in nics}) < len(nics):
        raise _refuse("its legend gives two network cards one name")
    return Topology(gpus, nics, links), tuple(_repairs(heading, rows[:count], affinities, nics))


def _repairs(
    heading: str, gpus: Sequence[_Row], affinities: Sequence[_Affinity], nics: Sequence[TopologyNic]
) -> Iterator[str]:
    if not any(_GPU.fullmatch(title) for title in _titles(heading)):
        yield "the names in the heading run together; they were taken from the rows"
    lost = [row.name for row, where in zip(gpus, affinities, strict=True) if where.lost]
    if lost:
        yield f"the affinity of {', '.join(lost)} cannot be told apart: a cell is empty, and the tabs are lost"
    odd = {where.cpus for where in affinities if where.cpus not in _NOTHING and not _cpus(where.cpus)}
    if odd:
        yield f"the CPU affinity {', '.join(sorted(odd))} is no list of CPUs, so it is taken as unknown"
    ranges = {where.numa for where in affinities if where.numa not in _NOTHING and _numa(where.numa) is None}
    if ranges:
        yield f"the NUMA affinity {', '.join(sorted(ranges))} is no single node, so it is taken as unknown"
    empty = [row.name for row, where in zip(gpus, affinities, strict=True) if not where.numa and not where.lost]
    if empty and any(where.numa for where in affinities):
        yield f"the NUMA affinity of {', '.join(empty)} is missing, and other GPUs have one"
    unnamed = [nic.name for nic in nics if _NUMBERED_NIC.fullmatch(nic.name)]
    if unnamed:
        yield f"the legend does not name {', '.join(unnamed)}: which RDMA devices they are is not known"


def _numa(cell: str) -> int | None:
    return int(cell) if re.fullmatch("[0-9]{1,4}", cell) else None


def _cpus(cell: str) -> tuple[str, ...]:
    """Return the ranges of a list; none where it is none, or a range runs backwards because its end is cut off."""
    ranges = tuple(cell.split(",")) if _CPUS.fullmatch(cell) else ()
    ends = [[int(end) for end in part.split("-")] for part in ranges]
    return ranges if all(end == sorted(end) for end in ends) else ()


def _affinity(row: _Row, heading: str, count: int) -> _Affinity:
    """Return what stands behind a row's links; `count` is how many they are."""
    titles = _AFFINITIES.findall(heading)
    words = row.cells[count:]
    if not words or not titles:
        return _Affinity()
    if len(words) == len(titles):
        told = dict(zip(titles, words, strict=True))
        return _Affinity(told.get("CPU Affinity", ""), told.get("NUMA Affinity", ""))
    cells = _parted(row.line, count)
    if cells is None or len(cells) > _MOST_CELLS:
        return _Affinity(lost=True)
    cpus, *others = cells
    own = "GPU NUMA ID" in titles
    return _Affinity(cpus, (others or [""])[0] if own else next(filter(None, others), ""))


def _parted(line: str, count: int) -> list[str] | None:
    """Return the cells behind the links by their tabs, or by where expanded tabs would have ended; None: unclear."""
    if "\t" in line:
        place = [found.end() for found in re.finditer(r"\S+", line)][count]
        return [cell.strip() for cell in line[place:].rstrip().split("\t")[1:]]
    return _unexpanded(line, count + 1)


def _unexpanded(line: str, skip: int) -> list[str] | None:
    """Undo the expansion of tabs; None where a word does not begin at a tab stop, so that it was another hand's."""
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
