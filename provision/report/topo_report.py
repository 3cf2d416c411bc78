"""A machine's topology as JSON and as text: the matrix in blocks that fit, and the tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from provision.report import layout
from provision.report.reasons import message
from provision.topology.links import NEAR, PCIE_CLASSES, card_links, lanes
from provision.topology.machine import GpuDetails, MachineTopology, NicDetails
from provision.topology.summary import summary
from provision.topology.tree import Group, NumaNode, tree

if TYPE_CHECKING:
    from provision.report.json_documents.probes import DeviceGroup, DeviceTree, Topology

_LONGEST_NAME = 16
_LEGEND = (
    "NV# number of NVLink lanes; PIX one PCIe switch; PXB several; PHB a host bridge; NODE two host bridges of a NUMA "
    "node; SYS two NUMA nodes"
)


def as_document(machine: MachineTopology) -> Topology:
    """Return the document of ``topo --json``; keys are an interface and only ever added."""
    topology = machine.topology
    return {
        "node": machine.node,
        "simulated": bool(machine.simulated),
        "gpus": [
            {
                "index": gpu.index,
                "numa": gpu.numa,
                "cpus": list(gpu.cpus),
                "product": (details := machine.gpus.get(gpu.index, GpuDetails())).product or None,
                "pcie_generation": details.pcie_generation,
                "pcie_width": details.pcie_width,
            }
            for gpu in topology.gpus
        ],
        "nics": [
            {
                "name": nic.name,
                "numa": nic.numa,
                "rate_gbit": (card := machine.nics.get(nic.name, NicDetails())).rate_gbit,
                "link_layer": card.link_layer or None,
                "active": card.active if nic.name in machine.nics else None,
            }
            for nic in topology.nics
        ],
        "links": [list(row) for row in topology.links],
        "tree": [
            {"numa": numa_node.numa, "cpus": list(numa_node.cpus), **_node(numa_node, machine.names())}
            for numa_node in tree(topology)
        ],
        "chosen": list(machine.chosen),
        "warnings": [message(warning) for warning in topology.warnings],
        "warning_codes": [warning.as_document() for warning in topology.warnings],
    }


def _node(part: NumaNode | Group, names: Sequence[str]) -> DeviceTree:
    groups: list[DeviceGroup] = [{"class": group.kind, **_node(group, names)} for group in part.groups]
    return {"devices": [names[row] for row in part.devices], "groups": groups}


def as_text(machine: MachineTopology) -> str:
    """Return matrix and tree as text, at most 80 columns wide."""
    first, *more = head_lines(machine)
    lines = [*_wrap(first, "  "), *(part for line in more for part in _wrap(f"  {line}", "    "))]
    for block in _blocks(machine):
        lines += ["", *block]
    for numa_node in tree(machine.topology):
        lines += ["", *_wrap(numa_title(numa_node), "  "), *_branches(machine, numa_node, "")]
    lines += ["", *_wrap(_LEGEND, "")]
    for warning in machine.topology.warnings:
        lines += ["", *_wrap(f"WARNING  {message(warning)}", "         ")]
    return "\n".join(lines)


def head_lines(machine: MachineTopology) -> list[str]:
    """Return the summary of the machine: name and links, products, SIMULATED components, chosen GPUs."""
    name = f"{machine.node}: " if machine.node else ""
    products = sorted({details.product for details in machine.gpus.values() if details.product})
    lines = [f"{name}{summary(machine.topology)}"]
    if products:
        lines.append(f"{', '.join(products)}{_slots(machine)}")
    lines += [f"SIMULATED {text}" for text in machine.simulated]
    return [*lines, _chosen(machine)] if machine.chosen else lines


def numa_title(numa_node: NumaNode) -> str:
    """Return the title of a part of the machine."""
    cpus = f"CPUs {','.join(numa_node.cpus)}" if numa_node.cpus else ""
    if numa_node.numa is None:
        return cpus or "unknown NUMA node"
    return f"NUMA node {numa_node.numa}" + (f" ({cpus})" if cpus else "")


def _slots(machine: MachineTopology) -> str:
    """Return generation and width of the GPUs' slots if they are all equal."""
    slots = {(details.pcie_generation, details.pcie_width) for details in machine.gpus.values()}
    generation, width = slots.pop() if len(slots) == 1 else (None, None)
    return f", PCIe generation {generation} x{width}" if generation and width else ""


def _chosen(machine: MachineTopology) -> str:
    """Return the chosen GPUs, the worst link among them, and the cards near them."""
    rows = [row for row in range(len(machine.topology.gpus)) if machine.is_chosen(row)]
    names, links = machine.names(), machine.topology.links
    text = f"chosen (*): {', '.join(names[row] for row in rows)}"
    if len(rows) > 1:
        a, b = max(combinations(rows, 2), key=lambda pair: _cost(links[pair[0]][pair[1]]))
        text += f"; the worst link among them is {links[a][b]} ({names[a]}-{names[b]})"
    cards = card_links(machine.topology)
    near = {name: None for index in machine.chosen for name, kind in cards[index].items() if kind in NEAR}
    return f"{text}; cards near them: {', '.join(near) or 'none'}" if machine.topology.nics else text


def _cost(link: str) -> int:
    return PCIE_CLASSES.index(link) if link in PCIE_CLASSES else -lanes(link)


def _blocks(machine: MachineTopology) -> Iterator[list[str]]:
    """Yield the matrix as blocks of columns; GPUs and cards are separated if both together are too wide."""
    titles, count = _titles(machine), len(machine.topology.gpus)
    labels = _labels(machine, titles)
    links, margin = machine.topology.links, max(map(len, labels)) + 2
    widths = [max(len(titles[n]), *(len(row[n]) for row in links)) + 1 for n in range(len(titles))]
    columns, width_left = list(range(len(titles))), layout.width() - margin + 1
    while columns:
        fits = _fitting([widths[n] for n in columns], width_left)
        if columns[0] < count < columns[0] + len(columns) and fits < len(columns):
            fits = min(fits, count - columns[0])
        shown, columns = columns[:fits], columns[fits:]
        rows = [("", titles), *zip(labels, links, strict=True)]
        yield [_line(label.ljust(margin), [cells[n].ljust(widths[n]) for n in shown]) for label, cells in rows]


def _line(label: str, cells: Sequence[str]) -> str:
    return "".join([label, *cells]).rstrip()


def _fitting(widths: Sequence[int], width_left: int) -> int:
    used = 0
    for number, width in enumerate(widths):
        used += width
        if used > width_left:
            return max(number, 1)
    return len(widths)


def _titles(machine: MachineTopology) -> list[str]:
    """Return short column titles as in nvidia-smi: cards are numbered, and the row labels name them."""
    gpus = [f"GPU{gpu.index}{'*' * machine.is_chosen(row)}" for row, gpu in enumerate(machine.topology.gpus)]
    return [*gpus, *(f"NIC{number}" for number in range(len(machine.topology.nics)))]


def _labels(machine: MachineTopology, titles: Sequence[str]) -> list[str]:
    count = len(machine.topology.gpus)
    cards = [f"{title:<5} {_short(nic.name)}" for title, nic in zip(titles[count:], machine.topology.nics, strict=True)]
    return [*titles[:count], *cards]


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def _branches(machine: MachineTopology, part: NumaNode | Group, indent: str) -> Iterator[str]:
    """Yield the lines below a title: devices without a group in one line, then each group."""
    branches = ([("", Group("", part.devices))] if part.devices else []) + [(g.kind, g) for g in part.groups]
    for number, (kind, group) in enumerate(branches):
        last = number == len(branches) - 1
        devices = ", ".join(_device(machine, row) for row in group.devices)
        first, rest = f"{indent}{'`' if last else '|'}-- ", f"{indent}{' ' if last else '|'}   "
        title = f"{kind}: " if kind and devices else kind
        yield from _wrap(f"{first}{title}{devices}", rest + " " * len(title))
        if group.groups:
            yield from _branches(machine, Group(kind, (), group.groups), rest)


def _device(machine: MachineTopology, row: int) -> str:
    """Return a device's label with non-breaking blanks."""
    name = machine.names()[row] + "*" * machine.is_chosen(row)
    details = machine.nics.get(name)
    if details is None or row < len(machine.topology.gpus):
        return name
    rate = f"{details.rate_gbit:g}\u00a0Gbit/s" if details.rate_gbit is not None else ""
    properties = "\u00a0".join(part for part in (rate, "" if details.active else "down") if part)
    return f"{name}\u00a0({properties})" if properties else name


def _wrap(text: str, indent: str) -> list[str]:
    return [line.replace("\u00a0", " ") for line in layout.wrapped(text, indent)]
