"""One session per node that runs ``true``, and nothing else: what looking at many nodes is measured against.

Each way is a program of its own: ``python -m tests.benchmarks.fan_out WAY INVENTORY``.
paramiko: the bare library, and host keys checked; connectors: the project's own; fabric: its ThreadingGroup.
Addresses, port, key and known_hosts are read from the files as they are written here, without Ansible.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

WIDTH = 64


@dataclass(frozen=True)
class Place:
    """Where a node is, and by what it is trusted."""

    name: str
    address: str
    port: int
    key_file: Path
    known_hosts: Path


def places(inventory: Path) -> list[Place]:
    """Read what `simulated_nodes` wrote."""
    variables = (inventory / "group_vars" / "all.yml").read_text()
    port = int(re.findall(r"^ansible_port: (\d+)", variables, re.MULTILINE)[0])
    key = Path(re.findall(r"^ansible_ssh_private_key_file: (\S+)", variables, re.MULTILINE)[0])
    hosts = re.findall(r"^    (\S+):\n      ansible_host: (\S+)", (inventory / "hosts.yml").read_text(), re.MULTILINE)
    return [Place(name, address, port, key, inventory / "known_hosts.txt") for name, address in hosts]


def by_paramiko(nodes: list[Place]) -> int:
    """Threads around the bare library; keys and known hosts are read once."""
    import paramiko

    own = paramiko.PKey.from_path(nodes[0].key_file)
    known = {line.split()[0]: line.split()[2] for line in nodes[0].known_hosts.read_text().splitlines()}

    def one(node: Place) -> int:
        link = socket.create_connection((node.address, node.port), timeout=30)
        transport = paramiko.Transport(link)
        try:
            transport.start_client(timeout=30)
            if transport.get_remote_server_key().get_base64() != known[f"[{node.address}]:{node.port}"]:
                raise RuntimeError(f"{node.name} shows another host key")
            transport.auth_publickey("root", own)
            channel = transport.open_session()
            channel.exec_command("true")
            return channel.recv_exit_status()
        finally:
            transport.close()

    with ThreadPoolExecutor(WIDTH) as pool:
        return sum(code == 0 for code in pool.map(one, nodes))


def by_connectors(nodes: list[Place]) -> int:
    """The project's connectors."""
    from provision.connectors import each
    from provision.model import Connection, Node

    made = [
        Node(place.name, Connection(place.address, place.port, "root", place.key_file, place.known_hosts))
        for place in nodes
    ]
    results = each(made, lambda connector: connector.run("true").exit_code)
    return sum(result == 0 for result in results.values())


def by_fabric(nodes: list[Place]) -> int:
    """Fabric's own group, a thread for each node; host keys are known, others are refused."""
    import fabric
    import paramiko

    keys = paramiko.HostKeys(str(nodes[0].known_hosts))
    group = fabric.ThreadingGroup(
        *(node.address for node in nodes),
        user="root",
        port=nodes[0].port,
        connect_kwargs={"key_filename": str(nodes[0].key_file), "allow_agent": False, "look_for_keys": False},
    )
    for connection in group:
        connection.client._host_keys = keys  # a thousand copies would be read otherwise
        connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    return sum(result.ok for result in group.run("true", hide=True, in_stream=False).values())


PROGRAMS: dict[str, Callable[[list[Place]], int]] = {
    "paramiko": by_paramiko,
    "connectors": by_connectors,
    "fabric": by_fabric,
}


def main() -> None:
    """Do it, and fail unless every node answered."""
    way, inventory = sys.argv[1:]
    nodes = places(Path(inventory))
    good = PROGRAMS[way](nodes)
    sys.stdout.write(f"{good} of {len(nodes)} nodes answered\n")
    raise SystemExit(good != len(nodes))


if __name__ == "__main__":
    main()
