"""Answers of the probe about Slurm: what slurmd counts on a node, and the nodes as slurmctld sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from provision.documents.text import PrintableLine

Count = Annotated[int, Meta(ge=1, le=1 << 40)]
Number = Annotated[int, Meta(ge=0, le=1 << 20)]


@dataclass(frozen=True)
class SlurmGpu:
    """A GPU by the number N of its device file ``/dev/nvidiaN``."""

    minor: Number
    model: PrintableLine
    socket: Number | None = None
    """The socket beside it; None if it is unknown."""


@dataclass(frozen=True)
class SlurmLayout:
    """CPUs and memory as slurmd counts them, and the GPUs."""

    sockets: Count
    cores: Count
    """Of a socket."""
    threads: Count
    """Of a core."""
    memory: Count
    """In MiB."""
    hostname: PrintableLine
    gpus: tuple[SlurmGpu, ...] = ()


@dataclass(frozen=True)
class SlurmNode:
    """A node as slurmctld sees it."""

    state: PrintableLine = field(default_factory=PrintableLine)
    """As sinfo prints it: ``idle``, ``mixed``, ``drained*``. An asterisk means that the node does not respond."""
    gres: PrintableLine = field(default_factory=PrintableLine)
    user: PrintableLine = field(default_factory=PrintableLine)
    """Who set the reason."""
    state_cause: PrintableLine = field(default_factory=PrintableLine)
    """Slurm's Reason of the state, from an operator or a program."""


@dataclass(frozen=True)
class SlurmAccounting:
    """What slurmdbd answers."""

    problem: PrintableLine = field(default_factory=PrintableLine)
    """Why slurmdbd does not answer this node; empty if it answers."""
    is_registered: bool = False
    """Whether its database has the cluster."""


@dataclass(frozen=True)
class SlurmState:
    """Slurm on one node."""

    version: PrintableLine = field(default_factory=PrintableLine)
    """Of the commands; empty if Slurm is not installed."""
    node: PrintableLine = field(default_factory=PrintableLine)
    """The name of this node in Slurm."""
    layout: SlurmLayout | None = None
    """None without slurmd."""
    key: PrintableLine = field(default_factory=PrintableLine)
    """A hash of munge's key."""
    recorded: Mapping[PrintableLine, Mapping[PrintableLine, Any]] | None = None
    """On a controller of the role, the nodes of its configuration: name -> entry. None elsewhere."""
    problem: PrintableLine = field(default_factory=PrintableLine)
    """Why slurmctld does not answer this node; empty if it answers."""
    nodes: Mapping[PrintableLine, SlurmNode] = field(default_factory=dict)
    """On a controller all nodes, elsewhere this one."""
    devices: bool | None = None
    """Whether a job can use only the devices that Slurm gave it; None if it is unknown."""
    controllers: tuple[PrintableLine, ...] = ()
    """The recorded nodes with slurmctld, the primary one first; empty where the role has not run."""
    state_folder: PrintableLine = field(default_factory=PrintableLine)
    """The recorded folder of slurmctld's state; empty where no slurmctld runs."""
    partitions: tuple[PrintableLine, ...] = ()
    """The recorded partitions; empty where no slurmctld runs."""
    busy_partitions: tuple[PrintableLine, ...] | None = ()
    """The partitions with jobs; None if they are unknown."""
    accounting: SlurmAccounting | None = None
    """On a controller that has recorded accounting by slurmdbd. None elsewhere."""
