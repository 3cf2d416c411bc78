"""Virtual machines of a lab that GRUB boots, with an inventory of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.command import Done, Provision
from tests.support.grub import boot_by_grub, up_with_grub

__all__ = ["SECONDS", "GrubMachines", "grub_machines"]

SECONDS = 420
"""How long a new kernel may run unconfirmed."""


@dataclass(frozen=True)
class GrubMachines:
    """The machines of a lab, and an inventory of them."""

    provision: Provision
    lab: str
    inventory: Path
    names: Mapping[str, str]
    """Name in the inventory -> name in the lab."""

    def shell(self, node: str, command: str) -> str:
        """Run a command on a node; it must succeed."""
        return self.provision.ok("lab", "ssh", self.lab, self.names[node], "--", command).out.strip()

    def running(self, node: str) -> str:
        """The kernel that runs."""
        return self.shell(node, "uname -r")

    def boot_id(self, node: str) -> str:
        """The id of the boot."""
        return self.shell(node, "cat /proc/sys/kernel/random/boot_id")

    def offered(self, node: str, *, besides: tuple[str, ...]) -> list[str]:
        """The other kernels of the repository, in order."""
        listed = self.shell(node, "apt-get -qq update; apt-cache pkgnames linux-image-6.1.0-")
        names = {line.removeprefix("linux-image-") for line in listed.splitlines() if line.endswith("-amd64")}
        return sorted(name for name in names if name.count("-") == 2 and name not in besides)

    def settings(self, **variables: Any) -> None:
        """Set variables of the inventory for all nodes, and no others."""
        (self.inventory / "group_vars/all.yml").write_text(json.dumps({"kernel_confirm_seconds": SECONDS, **variables}))

    def words(self, *words: str, limit: str = "all") -> list[str]:
        """The words of an apply of the role kernel."""
        return ["apply", "-i", str(self.inventory), "--yes", "--json", "--only", "kernel", "--limit", limit, *words]

    def apply(self, *words: str, limit: str = "all") -> Done:
        """Apply the role kernel."""
        return self.provision(*self.words(*words, limit=limit), timeout=7200)

    def require_in_service(self, node: str) -> None:
        """Require that the node takes jobs."""
        assert self.shell(node, "test -e /var/lib/provision/jobs/.drained || echo in service") == "in service"

    def require_upgraded(self, node: str, release: str) -> None:
        """Require that a kernel runs confirmed, and that the node takes jobs."""
        assert self.running(node) == release
        record = json.loads(self.shell(node, "cat /var/lib/provision/kernel/upgrade.json"))
        assert (record["phase"], record["to"]) == ("confirmed", release)
        assert f"gnulinux-{release}-advanced" in self.shell(node, "grub-editenv - list | grep saved_entry")
        self.require_in_service(node)


@contextmanager
def grub_machines(
    provision: Provision, lab: str, inventory: str, *, nodes: int, names: tuple[str, ...] = ()
) -> Iterator[GrubMachines]:
    """Create machines that GRUB boots, with an inventory of this name, and remove them at the end.

    Args:
        provision: the command.
        lab: name of the lab.
        inventory: name of the folder below ``inventories``.
        nodes: the number of machines.
        names: names in the inventory, by default those of the lab.
    """
    try:
        up_with_grub(provision, lab, nodes=nodes)
        folder = provision.folder / "inventories" / inventory
        (folder / "group_vars").mkdir(parents=True)
        document = yaml.safe_load(Path(provision.ok("lab", "inventory", lab).out.strip()).read_text(encoding="utf-8"))
        group = document["all"]["children"]["gpu_nodes"]
        known = dict(zip(names or group["hosts"], group["hosts"], strict=True))
        group["hosts"] = {name: group["hosts"][machine] for name, machine in known.items()}
        (folder / "hosts.yml").write_text(json.dumps(document))
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda machine: boot_by_grub(provision, lab, machine), known.values()))
        yield GrubMachines(provision, lab, folder, known)
    finally:
        down = provision("lab", "down", lab)
    assert down.code == 0, str(down)
