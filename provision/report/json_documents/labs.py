"""Documents of the verbs of labs."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class LabNode(TypedDict):
    """A node of a lab."""

    name: str
    """Its name in the inventory."""
    address: str
    """The address of its SSH server."""
    port: int
    """The port of its SSH server."""
    state: str
    """`running`, `stopped` or `missing`."""


class LabService(TypedDict):
    """A service of a lab."""

    name: str
    """Its name."""
    running: bool
    """Whether it runs."""


class Lab(TypedDict):
    """A lab."""

    name: str
    """Its name."""
    driver: str
    """`vm` or `container`."""
    distro: str
    """The operating system of its nodes."""
    machine: str | None
    """The GPU machine that its nodes simulate; null without GPUs."""
    packages: list[str]
    """Additional packages in the disk image."""
    simulated: list[str]
    """Simulated components."""
    nodes: list[LabNode]
    """The nodes."""
    services: list[LabService]
    """The services."""
    inventory: str
    """The path of its inventory."""
    init: list[str]
    """The command that writes a separate inventory for its nodes."""


class ListedLab(TypedDict):
    """A lab, or its name and the error if its state is unknown."""

    name: str
    """Its name."""
    error: NotRequired[str]
    """Why its state is unknown; then the other keys are missing."""
    driver: NotRequired[str]
    """`vm` or `container`."""
    distro: NotRequired[str]
    """The operating system of its nodes."""
    machine: NotRequired[str | None]
    """The GPU machine that its nodes simulate; null without GPUs."""
    packages: NotRequired[list[str]]
    """Additional packages in the disk image."""
    simulated: NotRequired[list[str]]
    """Simulated components."""
    nodes: NotRequired[list[LabNode]]
    """The nodes."""
    services: NotRequired[list[LabService]]
    """The services."""
    inventory: NotRequired[str]
    """The path of its inventory."""
    init: NotRequired[list[str]]
    """The command that writes a separate inventory for its nodes."""


class Labs(TypedDict):
    """The labs of a user."""

    labs: list[ListedLab]
    """The labs."""
