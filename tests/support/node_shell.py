"""Shell commands on the nodes of a lab, with the options of `lab ssh`: only `ssh` is started, and no Python."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from provision.lab.access import ssh_argv
from provision.lab.base import LabNode, NodeState
from tests.support.command import Done, Provision

__all__ = ["on_node"]


def on_node(provision: Provision, lab: str, node: str, command: str, *, timeout: float = 1500) -> str:
    """Run a shell command as root on a node and return its output; it must succeed."""
    folder = Path(provision.environment["XDG_STATE_HOME"]) / "provision/labs" / lab
    argv = ssh_argv(folder, _nodes(provision, lab)[node], command)
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{node}: {command}: {Done(done.returncode, done.stdout, done.stderr)}"
    return done.stdout


@cache
def _nodes(provision: Provision, lab: str) -> dict[str, LabNode]:
    """Return the nodes by name. Their addresses and ports never change."""
    status = provision.ok("lab", "status", lab, "--json").document
    return {
        node["name"]: LabNode(node["name"], node["address"], node["port"], "", NodeState.RUNNING)
        for node in status["nodes"]
    }
