"""A node described by a recorded matrix and settings on the command line."""

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

KEYS = ("gpu", "nic_gbit", "pcie_gen", "cpu", "busy", "mig", "mode", "leaf", "rack", "domain")
_LISTS = ("busy", "mig")
_FORM = "NAME=FILE[,gpu=PRODUCT|ARCHITECTURE][,nic_gbit=N][,pcie_gen=N][,busy=0-3]"
_MAX_GBIT = 100_000
_MAX_SHOWN = 4


@dataclass(frozen=True)
class TopoFile:
    """A value of ``--topo-file``."""

    name: str
    path: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings by key, without those that were not given."""


def topo_file(text: str) -> TopoFile:
    """Parse ``NAME=FILE[,KEY=VALUE]...``; a list of GPUs may contain commas: ``busy=0-3,6``.

    Raises:
        UsageError: the text has another form, or a value is invalid.
    """
    first, *words = text.split(",")
    name, equals, path = first.partition("=")
    if not equals or not name or not path:
        raise UsageError(f"--topo-file {text}: NAME=FILE is missing", remedy=f"Use the form {_FORM}.")
    settings: dict[str, str] = {}
    key = ""
    for word in words:
        if key in _LISTS and re.fullmatch(r"[0-9]+(-[0-9]+)?", word):
            settings[key] += f",{word}"
            continue
        key, equals, value = word.partition("=")
        if key not in KEYS or not equals or key in settings:
            raise UsageError(f"--topo-file {text}: invalid setting '{word}'", remedy=f"Use {', '.join(KEYS)}.")
        settings[key] = value
    file = TopoFile(name, path, settings)
    _checked(file)
    return file


def _checked(file: TopoFile) -> None:
    """Raise UsageError for an invalid value."""
    for key in _LISTS:
        _numbers(file, key)
    _nic_gbit(file)
    _choice(file, "pcie_gen", [str(generation) for generation in PCIE])
    _choice(file, "cpu", list(INTER_CPU))
    _choice(file, "mode", [mode.value for mode in Mode])


def _choice(file: TopoFile, key: str, known: Sequence[str]) -> None:
    if file.settings.get(key, known[0]) not in known:
        raise UsageError(f"{file.name}: unknown {key}={file.settings[key]}", remedy=f"Choose from {', '.join(known)}.")


def _nic_gbit(file: TopoFile) -> float | None:
    text = file.settings.get("nic_gbit")
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", text) or not 0 < float(text) <= _MAX_GBIT:
        raise UsageError(f"{file.name}: invalid nic_gbit={text}", remedy="Give the Gbit/s of one port, e.g. 200.")
    return float(text)


def _numbers(file: TopoFile, key: str) -> frozenset[int]:
    """Return the indices in a list such as ``0-3,6``."""
    indices: set[int] = set()
    for word in filter(None, file.settings.get(key, "").split(",")):
        ends = re.fullmatch(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", word)
        if ends is None or int(ends[2] or ends[1]) < int(ends[1]):
            raise UsageError(
                f"{file.name}: invalid list {key}={file.settings[key]}", remedy=f"Write {key}=0-3,6 or {key}=5."
            )
        indices.update(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return frozenset(indices)


def candidate(
    file: TopoFile, topology: Topology, p2p: tuple[tuple[int, ...], ...] | None = None
) -> tuple[Candidate, tuple[str, ...]]:
    """Return the node, and the assumptions about it.

    Raises:
        UsageError: the measured matrix does not match, or a listed GPU does not exist.
    """
    settings, known = file.settings, lanes(file.settings.get("gpu", ""))
    gbit = _nic_gbit(file)
    if p2p is not None and len(p2p) != len(topology.gpus):
        raise UsageError(
            f"{file.name}: {len(p2p)} GPUs were measured, but the matrix has {len(topology.gpus)}",
            remedy="Run p2pBandwidthLatencyTest on that node with all its GPUs visible.",
        )
    machine = Machine(
        topology,
        lane=known.rate if known else DEFAULT_LANE,
        lanes=known.count if known else None,
        pcie=(pcie_rate(int(settings["pcie_gen"])) if "pcie_gen" in settings else None) or DEFAULT_PCIE,
        inter_cpu=INTER_CPU.get(settings.get("cpu", "")),
        ports=tuple(Port(DEFAULT_NIC if gbit is None else nic_rate(gbit)) for _ in topology.nics),
        p2p=p2p,
    )
    node = Candidate(
        file.name,
        machine,
        busy=_of(file, topology, "busy"),
        faulty=faulty(topology),
        mig=_of(file, topology, "mig"),
        mode=Mode(settings["mode"]) if "mode" in settings else None,
        leaf=settings.get("leaf", ""),
        rack=settings.get("rack", ""),
        domain=settings.get("domain", ""),
    )
    return node, tuple(_assumed(file, machine))


def _of(file: TopoFile, topology: Topology, key: str) -> frozenset[int]:
    named = _numbers(file, key)
    unknown = sorted(named - {gpu.index for gpu in topology.gpus})
    if unknown:
        raise UsageError(
            f"{file.name}: {key}={file.settings[key]}: unknown GPU {unknown[0]}",
            remedy="Use the indices that nvidia-smi shows.",
        )
    return named


def _assumed(file: TopoFile, machine: Machine) -> Iterator[str]:
    """Yield the assumptions about settings that were not given."""
    gpu = file.settings.get("gpu", "")
    if machine.p2p is None and typical_product(gpu):
        yield f"gpu={gpu} is an architecture; the NVLink lanes of {typical_product(gpu)} are assumed"
    elif machine.p2p is None and lanes(gpu) is None:
        reason = (
            f"the NVLink lanes of {file.settings['gpu']} are unknown" if "gpu" in file.settings else "gpu= is not set"
        )
        yield f"{reason}; {DEFAULT_LANE // 10} GB/s are assumed per NVLink lane"
    if "pcie_gen" not in file.settings:
        yield f"pcie_gen= is not set; {DEFAULT_PCIE // 10} GB/s are assumed per PCIe slot"
    if "nic_gbit" not in file.settings or not machine.ports:
        yield f"{_no_rate(machine)}; {DEFAULT_NIC / 10} GB/s are assumed per network card"


def _no_rate(machine: Machine) -> str:
    return "nic_gbit= is not set" if machine.ports else "the matrix has no network card"


def grouped(warnings: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return each warning once, with its nodes."""
    nodes: dict[str, list[str]] = {}
    for node, text in warnings:
        nodes.setdefault(text, []).append(node)
    return tuple(f"{_names(names)}: {text}" for text, names in nodes.items())


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MAX_SHOWN
    return ", ".join(names[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")
