"""A node as a recorded matrix and a few words on the command line describe it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from provision.errors import UsageError
from provision.model import Topology
from provision.topology.candidates import Candidate, Machine, Mode, Port, faulty
from provision.topology.products import (
    DEFAULT_LANE,
    DEFAULT_NIC,
    DEFAULT_PCIE,
    INTER_CPU,
    PCIE,
    lanes,
    nic_rate,
    pcie_rate,
    typical_product,
)

__all__ = ["KEYS", "TopoFile", "candidate", "grouped", "topo_file"]

KEYS = ("gpu", "nic_gbit", "pcie_gen", "cpu", "busy", "mig", "mode", "leaf", "rack", "domain")
_LISTS = ("busy", "mig")
_FORM = "NAME=FILE[,gpu=PRODUCT|ARCHITECTURE][,nic_gbit=N][,pcie_gen=N][,busy=0-3]"
_MOST_GBIT = 100_000
_SHOWN = 4


@dataclass(frozen=True)
class TopoFile:
    """What ``--topo-file`` says of a node."""

    name: str
    path: str
    said: Mapping[str, str] = field(default_factory=dict)
    """By key; what is not there was not said."""


def topo_file(text: str) -> TopoFile:
    """Read ``NAME=FILE[,KEY=VALUE]...``; a list of GPUs may have commas too: ``busy=0-3,6``.

    Raises:
        UsageError: it is of another form, or a value means nothing.
    """
    first, *words = text.split(",")
    name, equals, path = first.partition("=")
    if not equals or not name or not path:
        raise UsageError(f"--topo-file {text}: no node and its file", remedy=f"Give {_FORM}.")
    said: dict[str, str] = {}
    key = ""
    for word in words:
        if key in _LISTS and re.fullmatch(r"[0-9]+(-[0-9]+)?", word):
            said[key] += f",{word}"
            continue
        key, equals, value = word.partition("=")
        if key not in KEYS or not equals or key in said:
            raise UsageError(f"--topo-file {text}: what is “{word}”?", remedy=f"Known are {', '.join(KEYS)}.")
        said[key] = value
    found = TopoFile(name, path, said)
    _checked(found)
    return found


def _checked(file: TopoFile) -> None:
    """Raise UsageError for a value that means nothing."""
    for key in _LISTS:
        _numbers(file, key)
    _nic_gbit(file)
    _choice(file, "pcie_gen", [str(generation) for generation in PCIE])
    _choice(file, "cpu", list(INTER_CPU))
    _choice(file, "mode", [mode.value for mode in Mode])


def _choice(file: TopoFile, key: str, known: Sequence[str]) -> None:
    if file.said.get(key, known[0]) not in known:
        raise UsageError(f"{file.name}: {key}={file.said[key]} is not known", remedy=f"Known are {', '.join(known)}.")


def _nic_gbit(file: TopoFile) -> float | None:
    text = file.said.get("nic_gbit")
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", text) or not 0 < float(text) <= _MOST_GBIT:
        raise UsageError(f"{file.name}: nic_gbit={text} is no rate in Gbit/s", remedy="Give the rate of one port: 200.")
    return float(text)


def _numbers(file: TopoFile, key: str) -> frozenset[int]:
    """Return the indices that ``0-3,6`` means."""
    found: set[int] = set()
    for word in filter(None, file.said.get(key, "").split(",")):
        ends = re.fullmatch(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", word)
        if ends is None or int(ends[2] or ends[1]) < int(ends[1]):
            raise UsageError(
                f"{file.name}: {key}={file.said[key]} names no GPUs", remedy=f"Write {key}=0-3,6 or {key}=5."
            )
        found.update(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return frozenset(found)


def candidate(
    file: TopoFile, topology: Topology, p2p: tuple[tuple[int, ...], ...] | None = None
) -> tuple[Candidate, tuple[str, ...]]:
    """Return the node, and what had to be assumed or is wrong with it.

    Raises:
        UsageError: the measured matrix, or a GPU that is said to be busy, is of another machine.
    """
    said, known = file.said, lanes(file.said.get("gpu", ""))
    gbit = _nic_gbit(file)
    if p2p is not None and len(p2p) != len(topology.gpus):
        raise UsageError(
            f"{file.name}: {len(p2p)} GPUs were measured, and its matrix has {len(topology.gpus)}",
            remedy="Run p2pBandwidthLatencyTest on that node, with all its GPUs visible.",
        )
    machine = Machine(
        topology,
        lane=known.rate if known else DEFAULT_LANE,
        lanes=known.count if known else None,
        pcie=(pcie_rate(int(said["pcie_gen"])) if "pcie_gen" in said else None) or DEFAULT_PCIE,
        inter_cpu=INTER_CPU.get(said.get("cpu", "")),
        ports=tuple(Port(DEFAULT_NIC if gbit is None else nic_rate(gbit)) for _ in topology.nics),
        p2p=p2p,
    )
    made = Candidate(
        file.name,
        machine,
        busy=_of(file, topology, "busy"),
        faulty=faulty(topology),
        mig=_of(file, topology, "mig"),
        mode=Mode(said["mode"]) if "mode" in said else None,
        leaf=said.get("leaf", ""),
        rack=said.get("rack", ""),
        domain=said.get("domain", ""),
    )
    return made, tuple(_assumed(file, machine))


def _of(file: TopoFile, topology: Topology, key: str) -> frozenset[int]:
    named = _numbers(file, key)
    strange = sorted(named - {gpu.index for gpu in topology.gpus})
    if strange:
        raise UsageError(
            f"{file.name}: {key}={file.said[key]}, and its matrix has no GPU{strange[0]}",
            remedy="Give the numbers that nvidia-smi shows.",
        )
    return named


def _assumed(file: TopoFile, machine: Machine) -> Iterator[str]:
    """Yield what nobody has said and what is taken for it, then what the matrix itself warns of."""
    gpu = file.said.get("gpu", "")
    if machine.p2p is None and typical_product(gpu):
        yield f"gpu={gpu} is an architecture: NVLink lanes as of {typical_product(gpu)} are assumed"
    elif machine.p2p is None and lanes(gpu) is None:
        why = f"of {file.said['gpu']} no lane is known" if "gpu" in file.said else "no gpu= is given"
        yield f"{why}: {DEFAULT_LANE // 10} GB/s are taken for an NVLink lane"
    if "pcie_gen" not in file.said:
        yield f"no pcie_gen= is given: {DEFAULT_PCIE // 10} GB/s are taken for a PCIe slot"
    if "nic_gbit" not in file.said or not machine.ports:
        yield f"{_no_rate(machine)}: {DEFAULT_NIC / 10} GB/s are taken for a card"
    yield from machine.topology.warnings


def _no_rate(machine: Machine) -> str:
    return "no nic_gbit= is given" if machine.ports else "its matrix has no network card"


def grouped(warnings: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return each warning once, with the nodes that it is about."""
    nodes: dict[str, list[str]] = {}
    for node, text in warnings:
        nodes.setdefault(text, []).append(node)
    return tuple(f"{_names(names)}: {text}" for text, names in nodes.items())


def _names(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
