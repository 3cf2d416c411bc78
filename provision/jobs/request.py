"""The request for a job of `provision run`, and whether it fits."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from provision.commands.mpirun_words import TypedLine
from provision.errors import LaunchError, ProvisionError
from provision.facts import NodeFacts
from provision.launchers import MPIRUN, HostEntry, launcher_of, slot_table
from provision.model import Node, NodePlacement, Secret
from provision.profiles import NodeNetwork, ProfileOptions
from provision.report.grouping import Group, grouped, outline
from provision.report.node_names import in_short

MPI_CONTAINER = "provision-training"


@dataclass(frozen=True)
class JobRequest:
    """One job: what runs, on which nodes, with how many ranks."""

    command: tuple[str, ...]
    entries: tuple[HostEntry, ...]
    """The usable nodes in the order of the host file."""
    nodes: Mapping[str, Node]
    """Inventory name -> node, for every entry and the head."""
    head: str
    """The node whose container starts mpirun."""
    containers: Mapping[str, str] = field(default_factory=dict)
    """Inventory name -> name of its training container."""
    networks: tuple[str, ...] = ()
    ranks: int | None = None
    workdir: str | None = None
    sync: Path | None = None
    is_synced: bool = True
    """Whether the files of `sync` are in the containers. They are not while the job is only shown."""
    environment: Mapping[str, Secret] = field(default_factory=dict)
    job: str = ""
    profile: ProfileOptions = field(default_factory=ProfileOptions)
    node_networks: Mapping[str, NodeNetwork] = field(default_factory=dict)
    """Inventory name -> how the node is connected, for every entry."""
    interfaces: tuple[str, ...] = ()
    """The interfaces that carry the data addresses of all nodes with ranks; empty when one is not known."""
    mpirun: str = ""
    """Path of mpirun in the image; empty: the one on its PATH."""
    line: TypedLine | None = None
    """The mpirun line that the user typed in place of a program; `command` is the program in it."""
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    """Inventory name -> what is known of the node; empty where no node was asked."""
    launcher: str = MPIRUN
    """What starts the ranks: one of `launcher_names`."""
    placement: tuple[NodePlacement, ...] = ()
    """Who gets which GPUs, cards and CPUs; `entries` are just these nodes then, with as many slots."""
    visible: str = "node"
    """Which GPUs of a placement a rank sees: those of its ``node``'s ranks, or of the ``rank`` alone."""

    @property
    def program(self) -> tuple[str, ...]:
        """What is started on the nodes in the end, and has to be there."""
        return tuple(filter(None, (launcher_of(self.launcher).program,))) + self.command

    @property
    def hostfile(self) -> str:
        """Where the host file is in the head node's container; the name is random."""
        return f"/tmp/provision-{self.job}.hostfile"  # noqa: S108 # nosec B108 # in a container; the name is random

    def container(self, node: str) -> str:
        """Name of the training container on `node`."""
        return self.containers.get(node, MPI_CONTAINER)

    @property
    def directory(self) -> str | None:
        """Where every rank starts: what was asked for, else the synced directory, else the container's own."""
        return self.workdir or (str(self.sync) if self.sync else None)


def new_job_id() -> str:
    """A fresh id; it marks every process of the job."""
    return secrets.token_hex(6)


def rank_count(entries: Sequence[HostEntry], wanted: int | None) -> int:
    """Return the number of ranks to start; LaunchError with the table of slots when they do not fit."""
    total = sum(entry.slots for entry in entries)
    if not entries or total == 0:
        raise LaunchError(
            "no node can take ranks",
            remedy="Run `provision verify` to list the problems of each node, and `provision apply` to fix them.",
        )
    if wanted is None:
        return total
    if wanted < 1:
        raise LaunchError(f"{wanted} ranks were asked for", remedy="ask for at least one")
    if wanted > total:
        raise LaunchError(
            f"{wanted} ranks were asked for, but the nodes have {total} slot{'s' * (total != 1)}",
            remedy=f"ask for at most {total} (-n {total}), add nodes, or raise cluster_slots of nodes without GPUs",
            output=slot_table(entries),
        )
    return wanted


def chosen_entries(request: JobRequest) -> tuple[HostEntry, ...]:
    """The entries that the typed line names with -H, in its order and with its slots; all without it."""
    if request.line is None or not request.line.hosts:
        return request.entries
    known = {entry.name: entry for entry in request.entries}
    return tuple(replace(known[name], slots=slots) for name, slots in request.line.hosts if name in known)


def used_entries(entries: Sequence[HostEntry], ranks: int) -> list[HostEntry]:
    """The entries that get ranks when slots are filled in order."""
    used = []
    for entry in entries:
        if ranks <= 0:
            break
        if entry.slots > 0:
            used.append(entry)
            ranks -= entry.slots
    return used


def networks_of(entries: Sequence[HostEntry], networks: Sequence[str]) -> tuple[str, ...]:
    """The data networks that hold at least one node's data address; all of them when none does."""
    fitting = tuple(network for network in networks if any(_inside(entry.address, network) for entry in entries))
    return fitting or tuple(networks)


def _inside(address: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def together(problems: Mapping[str, ProvisionError]) -> LaunchError:
    """One error for all nodes that cannot take the job; each is named with its own reason."""
    first = next(iter(problems.values()))
    if len(problems) == 1:
        return LaunchError(first.message, node=first.node, remedy=first.remedy, output=first.output)
    if len({error.message for error in problems.values()}) == 1:
        return LaunchError(f"{first.message} (on {in_short(list(problems))})", remedy=first.remedy, output=first.output)
    groups = grouped(problems.items(), lambda _, error: (error.message, error.output), _outline)
    lines = "\n".join(_with_output(group) for group in groups)
    names = in_short(list(problems))
    return LaunchError(f"the job cannot start on {len(problems)} nodes: {names}", remedy=first.remedy, output=lines)


def _outline(name: str, error: ProvisionError) -> str:
    return outline(error.message, name)


def _with_output(group: Group[ProvisionError]) -> str:
    error = group.value
    head = f"{in_short(group.names)}: {error.message} {group.note}".rstrip() if len(group.names) > 1 else str(error)
    return "\n".join([head, *(f"  {line}" for line in error.output.splitlines()[-5:])])
