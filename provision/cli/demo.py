"""``provision demo``: the whole way once, on nodes made for it, every command printed before it runs."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Annotated

import typer

from provision.cli.common import say, show
from provision.errors import ProvisionError

__all__ = ["demo"]


def demo(
    name: Annotated[str, typer.Option("--name", help="Name of the lab that is made.")] = "demo",
    driver: Annotated[str, typer.Option("--driver", help="vm (real kernels, real reboots) or container.")] = "vm",
    machine: Annotated[str, typer.Option("--machine", help="Described GPU machine that the nodes stand for.")] = "pair",
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="How many nodes.")] = 2,
) -> None:
    """Demonstrate all steps on two virtual nodes.

    Two bare nodes, apply, verify, an MPI job over both, apply again.

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
    _nothing_left(_show("6. Apply again: nothing may change.", ["apply", *lab, "--yes", "--json"], capture=True))
    show(_summary(name, driver, time.monotonic() - begin))


def _nothing_left(printed: str) -> None:
    """Show what the second apply did, and stop when that is anything at all."""
    from provision.model import NodeStatus
    from provision.report.apply_report import as_text, from_document

    report = from_document(json.loads(printed))
    show(as_text(report))
    changed = [
        f"{node.name}: " + "; ".join(f"{role.role}: {', '.join(role.reasons)}" for role in node.roles if role.reasons)
        for node in report.nodes
        if node.status is not NodeStatus.UNCHANGED
    ]
    if changed:
        raise ProvisionError(
            "the second apply changed what the first one had made",
            remedy="A role that finds something to do each time is at fault; the lines name it.",
            output="\n".join(changed),
        )


def _show(title: str, words: list[str], *, capture: bool = False) -> str:
    """Print one step and its command, run it, and stop the demo when it fails; return what was to be captured."""
    say(f"\n== {title}\n$ provision {shlex.join(words)}")
    begin = time.monotonic()
    code, printed = _run(words, capture=capture)
    say(f"== exit {code}, {time.monotonic() - begin:.0f} s")
    if code:
        show(printed, end="")
        raise ProvisionError(
            f"the demo stopped: `provision {shlex.join(words)}` exited {code}",
            remedy="Read what it printed above; the same command can be run again by hand.",
        )
    return printed


def _run(words: list[str], *, capture: bool) -> tuple[int, str]:
    """Run one command to its end, also when it is interrupted: it has more to end than itself.

    It is in a process group of its own, so that it is told of a Ctrl-C once, by us, however we were told.
    """
    child: subprocess.Popen[str] | None = None
    came: list[int] = []
    forwarded: list[int] = []

    def tell(number: int, _frame: FrameType | None = None) -> None:
        came.append(number)
        if child:
            forwarded.append(number)
            child.send_signal(signal.SIGINT)

    # Handlers that only note and pass on, because an exception could come before there is a child to be told.
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in signals}
    mine = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in mine:
        signal.signal(number, tell)
    try:
        out = subprocess.PIPE if capture else None
        child = subprocess.Popen([sys.executable, "-m", "provision", *words], stdout=out, text=True, process_group=0)
        if came and not forwarded:
            child.send_signal(signal.SIGINT)
        printed, _ = child.communicate()
    finally:
        for number in mine:
            signal.signal(number, before[number])
    if came:
        raise KeyboardInterrupt
    return child.returncode, printed or ""


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
