"""SSH servers on this machine that stand for many nodes; whatever they answer is SIMULATED.

Each node has an address of its own under 127.0.0.0/8 and a host key of its own, which the known_hosts file that is
written beside the inventory holds. A handful of processes serve them all. A probe and the preflight of `plan` and
`apply` are answered as `described_node` says; any other command ends at once with status 0 and prints nothing.

    with SimulatedNodes(folder, Nodes(100, login_seconds=0.5)) as nodes:
        subprocess.run(["provision", "verify", "-i", nodes.inventory])

From a shell: ``python -m tests.benchmarks.simulated_nodes FOLDER --nodes 100`` serves until Ctrl-C.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.benchmarks import applied
from tests.benchmarks.described_node import DIGEST, IMAGE, data_address, name_of
from tests.benchmarks.simulated_sshd import EXECUTED, Nodes, address_of, serve
from tests.support.ssh_keys import new_key, public

__all__ = ["Nodes", "SimulatedNodes", "address_of", "name_of"]

ROOT = Path(__file__).resolve().parents[2]


class SimulatedNodes:
    """The nodes' servers, with the files by which they are reached, for as long as the context lasts."""

    def __init__(self, folder: Path, nodes: Nodes) -> None:
        self.folder, self.nodes = folder, nodes
        self.inventory = folder / "inventory"
        self.key = folder / "id_ed25519"
        self.known_hosts = self.inventory / "known_hosts.txt"
        self._servers: list[subprocess.Popen[str]] = []

    def executed(self) -> Counter[str]:
        """Return for each node how many commands clients have started on it."""
        return Counter((self.folder / EXECUTED).read_text().split())

    def __enter__(self) -> Self:
        """Write keys and inventory, start the servers and wait until they listen."""
        self._write()
        for part in range(self.nodes.processes):
            argv = [sys.executable, "-m", "tests.benchmarks.simulated_nodes", str(self.folder), "--serve", str(part)]
            self._servers.append(
                subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        for server in self._servers:
            assert server.stdout is not None
            if server.stdout.readline() != "ready\n":
                self.__exit__(None, None, None)
                raise RuntimeError("a server of simulated nodes did not start")
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """End the servers: each ends when its input does."""
        for server in self._servers:
            server.kill()
            server.communicate()
        self._servers.clear()

    def _write(self) -> None:
        folder = self.inventory / "group_vars"
        folder.mkdir(parents=True)
        (self.folder / "nodes.json").write_text(json.dumps(dataclasses.asdict(self.nodes)))
        user = new_key()
        self.key.write_text(user)
        self.key.chmod(0o600)
        (self.folder / "id_ed25519.pub").write_text(public(user) + " SIMULATED\n")
        keys = [new_key() for _ in range(self.nodes.count)]
        (self.folder / "host_keys.json").write_text(json.dumps(keys))
        (self.folder / "host_keys.json").chmod(0o600)
        hosts, known = [], []
        for number, key in enumerate(keys):
            name, address = name_of(number), address_of(number)
            hosts += [f"    {name}:", f"      ansible_host: {address}"]
            hosts.append(f"      cluster_data_address: {data_address(number)}")
            known.append(f"[{address}]:{self.nodes.port} {public(key)} {name}")
        (self.inventory / "hosts.yml").write_text("\n".join(["---", "gpu_nodes:", "  hosts:", *hosts, ""]))
        self.known_hosts.write_text("\n".join([*known, ""]))
        (folder / "all.yml").write_text(
            f"---\nansible_user: root\nansible_port: {self.nodes.port}\n"
            f"ansible_ssh_private_key_file: {self.key}\n"
            "ansible_ssh_common_args: >-\n"
            "  -o 'UserKnownHostsFile=\"{{ inventory_dir }}/known_hosts.txt\"' -o StrictHostKeyChecking=yes\n"
            f"cluster_name: simulated\ncluster_data_networks: [10.77.0.0/16]\n"
            f"training_image_reference: {IMAGE}\ntraining_image_digest: {DIGEST}\n"
        )
        outputs = applied.answers(self.inventory) if self.nodes.applied else {}
        (self.folder / "applied.json").write_text(json.dumps(outputs))


def main() -> None:
    """Serve nodes until Ctrl-C, or (``--serve``) one part of them for a `SimulatedNodes`."""
    parser = argparse.ArgumentParser(description="SIMULATED nodes on this machine")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--login-seconds", type=float, default=0.0)
    parser.add_argument("--smi-seconds", type=float, default=0.0)
    parser.add_argument("--port", type=int, default=2022)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.folder, given.serve)
    nodes = Nodes(given.nodes, given.login_seconds, given.smi_seconds, applied=True, port=given.port)
    with SimulatedNodes(given.folder, nodes) as made:
        sys.stderr.write(f"{given.nodes} SIMULATED nodes: provision verify -i {made.inventory}\n")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
