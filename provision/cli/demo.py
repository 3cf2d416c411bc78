"""``provision demo``: the whole way once, on nodes made for it, every command printed before it runs."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from typing import Annotated

import typer

from provision.cli.common import say
from provision.errors import ProvisionError

__all__ = ["demo"]


def demo(
    name: Annotated[str, typer.Option("--name", help="Name of the lab that is made.")] = "demo",
    driver: Annotated[str, typer.Option("--driver", help="vm (real kernels, real reboots) or container.")] = "vm",
    machine: Annotated[str, typer.Option("--machine", help="Described GPU machine that the nodes stand for.")] = "pair",
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="How many nodes.")] = 2,
) -> None:
    """Show the whole way: two bare nodes, apply, verify, an MPI job over both, apply again.

    The lab stays up afterwards; the last lines say how to use it and how to remove it.

    \b
    Examples:
      provision demo
      provision demo --driver container
    """
    begin = time.monotonic()
    lab = ["--lab", name]
    up = ["lab", "up", name, "--driver", driver, "--nodes", str(nodes), "--machine", machine]
    _show("1. Make bare nodes: sshd, Python, and nothing of ours.", up)
    _show("2. Bring them to what the inventory says.", ["apply", *lab, "--yes"])
    _show("3. Prove it.", ["verify", *lab])
    _show("4. Run an MPI job over all nodes: rank, node and an all-reduce.", ["run", *lab, "--", "provision-smoke"])
    _show("5. The host file that was used.", ["hostfile", *lab, "--launcher", "openmpi"])
    _show("6. Apply again: nothing may change.", ["apply", *lab, "--yes"])
    typer.echo(_summary(name, driver, time.monotonic() - begin))


def _show(title: str, words: list[str]) -> None:
    """Print one step and its command, run it, and stop the demo when it fails."""
    say(f"\n== {title}\n$ provision {shlex.join(words)}")
    begin = time.monotonic()
    code = subprocess.run([sys.executable, "-m", "provision", *words], check=False).returncode
    say(f"== exit {code}, {time.monotonic() - begin:.0f} s")
    if code:
        raise ProvisionError(
            f"the demo stopped: `provision {shlex.join(words)}` exited {code}",
            remedy="Read what it printed above; the same command can be run again by hand.",
        )


def _summary(name: str, driver: str, seconds: float) -> str:
    from provision.lab.manager import status

    simulated = status(name).simulated
    kernels = {
        "vm": "virtual machines with kernels of their own, real reboots, Soft-RoCE verbs devices",
        "container": "systemd containers (no kernel modules: RDMA was skipped)",
    }[driver]
    stand_ins = "\n".join(f"  - {item}" for item in simulated) or "  nothing"
    return f"""
== Summary ({seconds / 60:.1f} minutes)
Real:
  - the nodes: {kernels}
  - sshd and host keys, apt, docker, the TLS registry and its CA, the image pull
  - sshd between the containers, mpirun and every rank of the job
SIMULATED:
{stand_ins}

Go on with the lab:
  provision verify --lab {name} --verbose
  provision run --lab {name} -- hostname
  provision lab ssh {name} {name}-1
Go on with real hardware:
  provision init 'gpu[1-8]' --user root --name prod
  provision apply -i inventories/prod
  provision run -i inventories/prod -- python3 train.py
Remove the lab:
  provision lab down {name}"""
