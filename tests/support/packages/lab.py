"""Nodes of a container lab for the contract suite of package managers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.command import Provision, with_own_state
from tests.support.packages.node import Node

SYSTEMS = {"apt": "debian12", "dnf": "el9"}
"""Package manager -> the system of its node. PACKAGE_SYSTEMS=apt=ubuntu24,dnf=el8 chooses others."""


def systems() -> dict[str, str]:
    """Return the systems of the nodes."""
    chosen = os.environ.get("PACKAGE_SYSTEMS", "")
    return dict(pair.split("=", 1) for pair in chosen.split(",")) if chosen else SYSTEMS


@contextmanager
def lab_nodes() -> Iterator[dict[str, Node]]:
    """Provide a node for each package manager, in a lab of its own."""
    lab, chosen = f"packages{os.getpid()}", systems()
    with with_own_state() as provision:
        try:
            words = ("--driver", "container", "--system", ",".join(chosen.values()), "--nodes", str(len(chosen)))
            provision.ok("lab", "up", lab, *words)
            status = provision.ok("lab", "status", lab, "--json").document
            nodes = [
                node_of(provision, lab, manager, entry) for manager, entry in zip(chosen, status["nodes"], strict=True)
            ]
            for node in nodes:
                _disconnect(node)
            yield {node.manager: node for node in nodes}
        finally:
            down = provision("lab", "down", lab)
        assert down.code == 0, str(down)


def node_of(provision: Provision, lab: str, manager: str, entry: dict[str, Any]) -> Node:
    """Return a node of a lab, by the entry of `lab status`."""
    folder = provision.folder / "state/provision/labs" / lab
    options = {
        "UserKnownHostsFile": folder / "known_hosts",
        "StrictHostKeyChecking": "yes",
        "ControlMaster": "auto",
        "ControlPath": provision.folder / "%C",
        "ControlPersist": "60",
    }
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    target = f"root@{entry['address']}"
    argv = ["ssh", "-i", str(folder / "id_ed25519"), *words, "-p", str(entry["port"]), target]
    return Node(manager, argv, entry["name"], folder / "inventory")


def _disconnect(node: Node) -> None:
    """Disable the node's own repositories: the suite downloads nothing, and nothing else of the node changes."""
    folder = "/etc/apt/sources.list.d" if node.manager == "apt" else "/etc/yum.repos.d"
    node.ok(f"mkdir -p {folder} && find {folder} -mindepth 1 -delete; rm -f /etc/apt/sources.list")
