"""Descriptions of the GPU machines that lab nodes simulate, one YAML file each in ``machines/``.

A file says::

    name: pair                     # as in `lab up --machine pair`; also the file's name
    description: one sentence
    driver_version: 535.183.06
    cuda_version: "12.2"
    gpu:                           # properties of all GPUs of the machine; see class Product
      model: NVIDIA A10
      ...
    numa: {0: 0-15, 1: 16-31}      # NUMA node -> its CPUs
    gpus:                          # in the order of nvidia-smi
      - {bus: "3b:00.0", at: 0/0/a}          # override: {query field: value} describes a fault, as in nvidia_smi.py
    nics:                          # RDMA devices, in the order of nvidia-smi's columns
      - {name: mlx5_0, bus: "5e:00.0", at: 0/1, rate_gbps: 100, link: InfiniBand, use: compute}
    nvlink: {switched: 18}         # or {direct: [[0, 1, 2], ...]}: GPU, GPU, number of links; optional

``at`` is the position in the PCIe tree: NUMA node, host bridge, then switches from the root down. It determines the
classes that ``nvidia-smi topo -m`` prints: same last switch PIX, a common switch higher up PXB, the same host bridge
PHB, the same NUMA node NODE, else SYS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from provision.errors import LabError
from provision.resources import package_path

_FOLDER = package_path("lab", "machines")
_BUS = re.compile(r"[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST_BRIDGE = 2  # parts of ``at`` down to the host bridge


@dataclass(frozen=True)
class Product:
    """The common properties of all GPUs of a machine."""

    model: str
    architecture: str
    compute_capability: str
    memory_mib: int
    power_limit_watts: int
    pcie_generation: int
    pcie_width: int = 16
    ecc: bool = True
    mig: bool = False
    """Whether the product can be partitioned; the lab's GPUs never are."""
    fan: bool = False
    idle_watts: int = 40
    idle_celsius: int = 30
    sm_clock_mhz: int = 1410
    memory_clock_mhz: int = 1215
    vbios: str = "00.00.00.00.00"
    pci_device_id: str = "0x000010DE"
    nvlink_gbps: str = ""
    """Speed of one link in GB/s, as ``nvidia-smi nvlink --status`` prints it."""
    fabric: bool = False
    """Whether the product joins an NVLink fabric and reports its state."""


@dataclass(frozen=True)
class Gpu:
    """One GPU: its position, and values that replace the usual ones (query field -> value)."""

    bus: str
    at: tuple[str, ...]
    override: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Nic:
    """One RDMA device."""

    name: str
    bus: str
    at: tuple[str, ...]
    rate_gbps: int
    link: str
    """``InfiniBand`` or ``Ethernet``."""
    use: str = "compute"
    """``compute`` or ``storage``."""


@dataclass(frozen=True)
class Machine:
    """A described machine."""

    name: str
    description: str
    driver_version: str
    cuda_version: str
    gpu: Product
    numa: Mapping[int, str]
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...] = ()
    switched_links: int = 0
    """NVLinks from each GPU to the NVLink switches; 0 without switches."""
    direct_links: Mapping[frozenset[int], int] = field(default_factory=dict)
    """NVLinks between two directly connected GPUs."""


def names() -> tuple[str, ...]:
    """Return the names of all described machines."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yml")))


def load(name: str) -> Machine:
    """Return the machine called `name`.

    Raises:
        LabError: the name is unknown; the message lists the known names.
    """
    if name not in names():
        raise LabError(f"unknown lab machine {name}", remedy=f"Choose from {', '.join(names())}.")
    return parse((_FOLDER / f"{name}.yml").read_text(encoding="utf-8"), source=f"machines/{name}.yml")


def parse(text: str, *, source: str) -> Machine:
    """Parse the description of a machine.

    Raises:
        LabError: the description is invalid; the message names `source` and the problem.
    """
    import yaml

    from provision import yamltext

    try:
        document = yamltext.safe_load(text)
        machine = _machine(document)
        _validate(machine)
    except (yaml.YAMLError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise LabError(
            f"invalid machine description {source}: {error}",
            remedy="See the format at the top of provision/lab/machines.py.",
        ) from error
    return machine


def connection(machine: Machine, first: int, second: int) -> str:
    """Return the class between two devices as ``topo -m`` prints it; indices count the GPUs, then the NICs."""
    gpus = len(machine.gpus)
    if first != second and first < gpus and second < gpus:
        links = machine.switched_links or machine.direct_links.get(frozenset({first, second}), 0)
        if links:
            return f"NV{links}"
    return _path(machine, first, second)


def to_json(machine: Machine) -> str:
    """Return the data file of the simulated nvidia-smi on a node: every GPU and NIC, and the matrix.

    ``paths`` are the PCIe classes that apply to two GPUs while their NVLinks are down.
    """
    gpus = len(machine.gpus)
    count = gpus + len(machine.nics)
    document = {
        "simulated": f"{machine.name}: {machine.description}",
        "name": machine.name,
        "driver_version": machine.driver_version,
        "cuda_version": machine.cuda_version,
        "product": asdict(machine.gpu),
        "gpus": [
            {
                "bus_id": f"00000000:{gpu.bus.upper()}",
                "numa": int(gpu.at[0]),
                "cpus": machine.numa[int(gpu.at[0])],
                "nvlinks": _links_of(machine, index),
                "nvlink_peers": _peers_of(machine, index),
                "override": dict(gpu.override),
            }
            for index, gpu in enumerate(machine.gpus)
        ],
        "nics": [{key: value for key, value in asdict(nic).items() if key != "at"} for nic in machine.nics],
        "matrix": [[connection(machine, row, column) for column in range(count)] for row in range(count)],
        "paths": [[_path(machine, row, column) for column in range(gpus)] for row in range(gpus)],
    }
    return json.dumps(document, indent=1) + "\n"


def _links_of(machine: Machine, index: int) -> int:
    return machine.switched_links or sum(links for pair, links in machine.direct_links.items() if index in pair)


def _peers_of(machine: Machine, index: int) -> list[int]:
    """Return the GPU at the other end of each link, by link number; none for links to switches."""
    if machine.switched_links:
        return []
    wires = ((min(pair - {index}), links) for pair, links in machine.direct_links.items() if index in pair)
    return [peer for peer, links in sorted(wires) for _ in range(links)]


def _path(machine: Machine, first: int, second: int) -> str:
    """Return the PCIe class between two devices."""
    if first == second:
        return "X"
    positions = [*(gpu.at for gpu in machine.gpus), *(nic.at for nic in machine.nics)]
    return _pcie_class(positions[first], positions[second])


def _pcie_class(first: tuple[str, ...], second: tuple[str, ...]) -> str:
    if first[0] != second[0]:
        return "SYS"
    if first[:_HOST_BRIDGE] != second[:_HOST_BRIDGE]:
        return "NODE"
    if len(first) == _HOST_BRIDGE or len(second) == _HOST_BRIDGE or first[_HOST_BRIDGE] != second[_HOST_BRIDGE]:
        return "PHB"
    return "PIX" if first == second else "PXB"


def _machine(document: dict[str, Any]) -> Machine:
    nvlink = document.pop("nvlink", {})
    unknown = set(nvlink) - {"switched", "direct"}
    if unknown:
        raise ValueError(f"nvlink has no key {', '.join(sorted(unknown))}")
    return Machine(
        gpu=Product(**document.pop("gpu")),
        gpus=tuple(Gpu(**_placed(entry)) for entry in document.pop("gpus")),
        nics=tuple(Nic(**_placed(entry)) for entry in document.pop("nics", [])),
        switched_links=nvlink.get("switched", 0),
        direct_links={frozenset((first, second)): links for first, second, links in nvlink.get("direct", [])},
        **document,
    )


def _placed(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "at": tuple(str(entry["at"]).split("/"))}


def _validate(machine: Machine) -> None:
    devices: list[Gpu | Nic] = [*machine.gpus, *machine.nics]
    for item in (machine, machine.gpu, *devices):
        _check_types(item)
    if not machine.gpus:
        raise ValueError("gpus is empty")
    for device in devices:
        if not _BUS.fullmatch(device.bus):
            raise ValueError(f"bus {device.bus!r} is not of the form 3b:00.0")
        if len(device.at) < _HOST_BRIDGE or not device.at[0].isdecimal() or int(device.at[0]) not in machine.numa:
            raise ValueError(f"at {'/'.join(device.at)!r} must begin with a NUMA node of numa and a host bridge")
    buses = [device.bus for device in devices]
    if len(set(buses)) != len(buses):
        raise ValueError("two devices have the same bus address")
    if any(not pair <= set(range(len(machine.gpus))) for pair in machine.direct_links):
        raise ValueError("nvlink.direct names a GPU that does not exist")


def _check_types(item: Machine | Product | Gpu | Nic) -> None:
    for known in fields(item):
        value = getattr(item, known.name)
        expected = {"str": str, "int": int, "bool": bool}.get(str(known.type))
        if expected is not None and type(value) is not expected:
            raise TypeError(f"{known.name} is {value!r}, not a {expected.__name__}")
