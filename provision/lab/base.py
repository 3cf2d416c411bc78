"""The description of a lab, its nodes, and the interface of both drivers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from provision.lab.systems import DEFAULT_SYSTEM, SEPARATOR, LabSystem, lab_system


class DriverName(StrEnum):
    """The kinds of lab nodes."""

    VM = "vm"
    CONTAINER = "container"


class NodeState(StrEnum):
    """The current state of a lab node."""

    RUNNING = "running"
    STOPPED = "stopped"
    MISSING = "missing"


@dataclass(frozen=True)
class LabSpec:
    """The options of ``lab up``, stored in the lab's state directory; sufficient to start the lab again."""

    name: str
    driver: DriverName
    nodes: int
    distro: str = DEFAULT_SYSTEM
    """The name of the nodes' operating system; several names, separated by commas, alternate."""
    machine: str | None = None
    """Name of the described GPU machine that the nodes simulate; None for nodes without GPUs."""
    packages: tuple[str, ...] = ()
    """Packages in the nodes' disk image, as in a site's image: ``NAME`` or ``NAME=VERSION``, of the system's archive or
    of the lab's stand-ins. Those of the archive are installed first, then the stand-ins in this order."""
    memory_mib: int = 3072
    cpus: int = 2
    """Virtual CPUs of a node with hardware virtualization; an emulated one has a single CPU."""
    mirror: str = ""
    """URL of a mirror of the system's archive; empty: that of the controller."""

    @property
    def systems(self) -> tuple[LabSystem, ...]:
        """The operating systems.

        Raises:
            LabError: one is unknown.
        """
        return tuple(lab_system(name, self.mirror) for name in self.distro.split(SEPARATOR))

    def system_of(self, index: int) -> LabSystem:
        """Return the operating system of a node by its index."""
        return self.systems[index % len(self.systems)]


@dataclass(frozen=True)
class LabNode:
    """One node of a lab."""

    name: str
    address: str
    """The address of its sshd as seen from the controller."""
    port: int
    data_address: str
    """Its address on the private data network."""
    state: NodeState


class Progress(Protocol):
    """Receives progress messages of long steps."""

    def step(self, message: str) -> None:
        """Report a step that begins."""


class LabDriver(Protocol):
    """Creates, disrupts and removes nodes. Every method can be repeated after a crash.

    `folder` is the lab's state directory (0700) with ``id_ed25519`` (the operator's key), ``known_hosts`` (the
    generated host keys) and the driver's files.
    """

    def up(self, spec: LabSpec, folder: Path, progress: Progress) -> list[LabNode]:
        """Create and start all nodes of `spec` and wait for SSH; running nodes are left unchanged."""

    def nodes(self, spec: LabSpec, folder: Path) -> list[LabNode]:
        """Return the current state of the nodes without changing it."""

    def down(self, spec: LabSpec, folder: Path, progress: Progress) -> None:
        """Remove every process, disk, interface and rule of the nodes; missing ones are no error."""

    def reboot(self, spec: LabSpec, folder: Path, node: str) -> None:
        """Reboot one node cleanly and return when its sshd answers again."""

    def power(self, spec: LabSpec, folder: Path, node: str, *, on: bool) -> None:
        """Cut the power of a node, or restore it."""

    def link(self, spec: LabSpec, folder: Path, node: str, *, up: bool) -> None:
        """Disconnect a node from all its networks, or reconnect it."""

    def host_address(self, spec: LabSpec, folder: Path) -> str:
        """Return the controller's address as seen from the nodes: 10.0.2.2 for vm, that of the bridge for container."""
