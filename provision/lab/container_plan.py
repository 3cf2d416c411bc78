"""Names, labels and addresses of a container lab; no side effects except for its own file."""

from __future__ import annotations

import ipaddress
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from provision.documents import decode
from provision.errors import InvalidDocument, LabError
from provision.lab.base import LabSpec
from provision.local_files import write_private

_FIRST_HOST = 10
_BLOCKS = 254


@dataclass(frozen=True)
class Network:
    """One of the lab's two networks."""

    name: str
    prefix: str
    """The first three numbers of its addresses."""
    internal: bool
    """Whether it has no route to other networks."""

    @property
    def subnet(self) -> str:
        """The network in CIDR notation."""
        return f"{self.prefix}.0/24"

    @property
    def gateway(self) -> str:
        """The controller's address on it."""
        return f"{self.prefix}.1"

    def address(self, index: int) -> str:
        """Return the address of the node with this index, counted from 0."""
        return f"{self.prefix}.{_FIRST_HOST + index}"


@dataclass(frozen=True)
class Plan:
    """The networks of a lab: block N means 10.78.N.0/24 for management and 10.79.N.0/24 for data."""

    lab: str
    block: int

    @property
    def management(self) -> Network:
        """The network with SSH and a route to other networks."""
        return Network(f"provision-{self.lab}", f"10.78.{self.block}", internal=False)

    @property
    def data(self) -> Network:
        """The private network between the nodes."""
        return Network(f"provision-{self.lab}-data", f"10.79.{self.block}", internal=True)

    @property
    def networks(self) -> tuple[Network, Network]:
        """Both networks, in the order in which nodes are connected."""
        return (self.management, self.data)

    @property
    def gateway(self) -> str:
        """The controller's address as seen from the nodes."""
        return self.management.gateway

    def container(self, node: str) -> str:
        """Return the name of a node's container."""
        return f"provision-{self.lab}-{node}"

    def volume(self, node: str) -> str:
        """Return the name of the volume for a node's ``/var/lib/docker``."""
        return f"{self.container(node)}-docker"


def labels_of(lab: str, folder: Path) -> dict[str, str]:
    """Return the labels of all objects of a lab; the folder distinguishes labs of different users and directories."""
    return {"provision.lab": lab, "provision.folder": str(folder)}


def node_names(spec: LabSpec) -> list[str]:
    """Return the names of all nodes of a lab: NAME-1, NAME-2, ..."""
    return [f"{spec.name}-{number}" for number in range(1, spec.nodes + 1)]


def choose_block(lab: str, used_cidrs: Iterable[str]) -> int:
    """Return a block for the lab whose subnets overlap none of `taken` (CIDRs).

    Equal names get the same block if it is free.
    """
    networks = [ipaddress.ip_network(cidr) for cidr in used_cidrs if ":" not in cidr]
    start = zlib.crc32(lab.encode())
    for step in range(_BLOCKS):
        block = (start + step) % _BLOCKS + 1
        subnets = [ipaddress.ip_network(f"10.{second}.{block}.0/24") for second in (78, 79)]
        if not any(one.overlaps(other) for one in subnets for other in networks):
            return block
    raise LabError(
        "no free subnet for the lab: 10.78.0.0/16 and 10.79.0.0/16 are in use on the controller",
        remedy="Remove a lab (provision lab list), or the route that covers these networks.",
    )


def route_networks(table: str) -> list[str]:
    """Parse ``/proc/net/route`` into CIDRs without the default route."""
    cidrs = []
    for line in table.splitlines()[1:]:
        words = line.split()
        destination, mask = (int.from_bytes(bytes.fromhex(words[i])[::-1], "big") for i in (1, 7))
        if mask:
            cidrs.append(str(ipaddress.ip_network((destination, mask.bit_count()))))
    return cidrs


def save_plan(folder: Path, plan: Plan) -> None:
    """Write the plan into the lab's folder."""
    write_private(folder / "containers.json", json.dumps({"lab": plan.lab, "block": plan.block}) + "\n")


def load_plan(folder: Path) -> Plan | None:
    """Return the lab's plan, or None if it has none yet."""
    try:
        return decode((folder / "containers.json").read_bytes(), Plan, node="", what="containers.json")
    except FileNotFoundError:
        return None
    except InvalidDocument as error:
        raise LabError(
            f"{folder / 'containers.json'} is damaged: {error.message}",
            remedy="Take the lab down with: provision lab down",
        ) from error
