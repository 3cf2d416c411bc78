"""Ports, addresses and network cards of a lab's virtual nodes, chosen once for the lab's lifetime."""

from __future__ import annotations

import json
import random
import socket
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from provision.documents import decode
from provision.errors import InvalidDocument, LabError
from provision.lab.base import LabSpec
from provision.local_files import write_private

# Below Linux's range of ports for outgoing connections, so that a stopped node's port stays free.
_FIRST_PORT, _LAST_PORT = 22000, 32000
_SUBNETS = 250
_FILE = "plan.json"


@dataclass(frozen=True)
class Plan:
    """The network of a lab."""

    subnet: int
    """X in the data network 10.77.X.0/24 and its multicast group."""
    multicast_port: int
    ssh_ports: dict[str, int] = field(default_factory=dict)
    """Port of each node's sshd on 127.0.0.1, in the order of the nodes."""

    @property
    def multicast(self) -> str:
        """Group and port that carry the data network's frames on the loopback interface."""
        return f"230.7.7.{self.subnet}:{self.multicast_port}"

    def data_address(self, node: str) -> str:
        """Return the node's address on the data network."""
        return f"10.77.{self.subnet}.{self._number(node)}"

    def mac(self, node: str, *, data: bool) -> str:
        """Return the MAC address of one of the node's two cards."""
        return f"52:54:00:{0x77 if data else 0x10:02x}:{self.subnet:02x}:{self._number(node):02x}"

    def _number(self, node: str) -> int:
        return list(self.ssh_ports).index(node) + 1


def make_plan(
    spec: LabSpec, old: Plan | None, *, taken_subnets: Iterable[int], is_free: Callable[[int, int], bool] | None = None
) -> Plan:
    """Return the plan of `spec`: entries of `old` are unchanged, new nodes get unused ones.

    `is_free` returns whether a port is unused: ``is_free(port, socket.SOCK_STREAM or SOCK_DGRAM)``.
    """
    free = is_free or port_is_free
    if old is None:
        old = Plan(_subnet(spec.name, set(taken_subnets)), _port(free, socket.SOCK_DGRAM, set()))
    ports = dict(old.ssh_ports)
    for number in range(1, spec.nodes + 1):
        name = f"{spec.name}-{number}"
        if name not in ports:
            ports[name] = _port(free, socket.SOCK_STREAM, set(ports.values()))
    return Plan(old.subnet, old.multicast_port, ports)


def load_plan(folder: Path) -> Plan | None:
    """Return the plan stored in `folder`, or None."""
    path = folder / _FILE
    if not path.exists():
        return None
    try:
        return decode(path.read_bytes(), Plan, node="", what=str(path))
    except InvalidDocument as error:
        raise LabError(f"{path} cannot be read: {error.message}", remedy="Take the lab down and up again.") from error


def save_plan(folder: Path, plan: Plan) -> None:
    """Store `plan` in `folder`."""
    write_private(folder / _FILE, json.dumps(asdict(plan), indent=2) + "\n")


def port_is_free(port: int, kind: int) -> bool:
    """Return whether no local socket of `kind` uses `port`."""
    with socket.socket(socket.AF_INET, kind) as probe:
        try:
            probe.bind(("127.0.0.1" if kind == socket.SOCK_STREAM else "", port))
        except OSError:
            return False
    return True


def _port(free: Callable[[int, int], bool], kind: int, used: set[int]) -> int:
    for port in random.sample(range(_FIRST_PORT, _LAST_PORT), 200):  # nosec B311 # ports to try, not a secret
        if port not in used and free(port, kind):
            return port
    raise LabError(f"no free port between {_FIRST_PORT} and {_LAST_PORT} on 127.0.0.1")


def _subnet(name: str, used: set[int]) -> int:
    first = zlib.crc32(name.encode()) % _SUBNETS
    for step in range(_SUBNETS):
        number = (first + step) % _SUBNETS + 1
        if number not in used:
            return number
    raise LabError(f"all {_SUBNETS} data networks are in use by other labs")
