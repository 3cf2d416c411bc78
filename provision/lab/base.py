"""What a lab is: its description, its nodes, and the interface that both drivers implement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

__all__ = ["DriverName", "LabDriver", "LabNode", "LabSpec", "NodeState", "Progress"]


class DriverName(StrEnum):
    """The kinds of virtual node."""

    VM = "vm"
    CONTAINER = "container"


class NodeState(StrEnum):
    """What a lab node is doing now."""

    RUNNING = "running"
    STOPPED = "stopped"
    MISSING = "missing"


@dataclass(frozen=True)
class LabSpec:
    """What ``lab up`` was asked for; written to the lab's state folder, and enough to bring the lab up again."""

    name: str
    driver: DriverName
    nodes: int
    distro: str = "debian12"
    """``debian12`` or ``debian13``."""
    machine: str | None = None
    """Name of a described GPU machine that the nodes pretend to be; None for nodes without GPUs."""
    packages: tuple[str, ...] = ()
    """What the nodes' disks already carry, as a site's own image may: ``NAME`` or ``NAME=VERSION``, of Debian or of the
    lab's stand-ins. Debian's come first, then the stand-ins, one after the other in this order."""
    memory_mib: int = 3072
    cpus: int = 2
    """Virtual CPUs of a node with hardware virtualization; an emulated one has a single CPU."""


@dataclass(frozen=True)
class LabNode:
    """One node as the rest of the world sees it."""

    name: str
    address: str
    """Where its sshd is reached from this machine."""
    port: int
    data_address: str
    """Its address on the private data network."""
    state: NodeState


class Progress(Protocol):
    """Where long steps tell what they are doing."""

    def step(self, message: str) -> None:
        """Say what begins now."""


class LabDriver(Protocol):
    """Makes, breaks and removes nodes. Every method can be called again after a crash.

    `folder` is the lab's state folder (0700). It holds ``id_ed25519`` (the operator's key for the lab),
    ``known_hosts`` (made from the host keys that the lab itself generated) and what the driver keeps.
    """

    def up(self, spec: LabSpec, folder: Path, progress: Progress) -> list[LabNode]:
        """Make all nodes of `spec` exist, run and answer on SSH; start what is stopped, keep what runs."""

    def nodes(self, spec: LabSpec, folder: Path) -> list[LabNode]:
        """Look at the nodes as they are now; changes nothing."""

    def down(self, spec: LabSpec, folder: Path, progress: Progress) -> None:
        """Remove every process, disk, interface and rule of the nodes; what is gone already is no error."""

    def reboot(self, spec: LabSpec, folder: Path, node: str) -> None:
        """Restart one node the orderly way and return when its sshd answers again."""

    def power(self, spec: LabSpec, folder: Path, node: str, *, on: bool) -> None:
        """Pull the power of a node at once, or give it back."""

    def link(self, spec: LabSpec, folder: Path, node: str, *, up: bool) -> None:
        """Cut a node off all its networks, or connect it again."""

    def host_address(self, spec: LabSpec, folder: Path) -> str:
        """The address at which the nodes reach services here: 10.0.2.2 for vm, the bridge's for container."""
