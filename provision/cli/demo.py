"""``provision demo``: all steps on a new lab, with every command printed before it runs."""

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

from provision.batch.durations import elapsed
from provision.cli import log_file
from provision.cli.common import say, show
from provision.errors import ProvisionError
from provision.launchers import DEFAULT_MPI


def demo(
    name: Annotated[str, typer.Option("--name", help="Name of the new lab.")] = "demo",
    driver: Annotated[str, typer.Option("--driver", help="vm (real kernels, real reboots) or container.")] = "vm",
    machine: Annotated[str, typer.Option("--machine", help="GPU machine that the nodes simulate.")] = "pair",
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of nodes.")] = 2,
) -> None:
    """Demonstrate all steps on two virtual nodes.

    Two bare nodes, apply, verify, an MPI job on both, apply again.

    The lab keeps running afterwards; the last lines show how to use it and how to remove it.

    \b
    Examples:
      provision demo
      provision demo --driver container
      provision demo --driver container --name trial
    """
    begin = time.monotonic()
    lab = ["--lab", name]
    up = ["lab", "up", name, "--driver", driver, "--nodes", str(nodes), "--machine", machine]
    _show("1. Create bare nodes with sshd and Python.", up)
    _show("2. Apply the inventory.", ["apply", *lab, "--yes"])
    _show("3. Verify the nodes.", ["verify", *lab])
    _show("4. Run an MPI job on all nodes: rank, node and an all-reduce.", ["run", *lab, "--", "provision-smoke"])
    _show("5. Show the host file of the job.", ["hostfile", *lab, "--launcher", DEFAULT_MPI])
    _nothing_left(_show("6. Apply again: nothing may change.", ["apply", *lab, "--yes", "--json"], capture=True))
    show(_summary(name, driver, time.monotonic() - begin))


def _nothing_left(printed: str) -> None:
    """Show the changes of the second apply, and stop if there are any."""
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
            "the second apply changed nodes that the first one had converged",
            remedy="A role is not idempotent; the lines above name it.",
            output="\n".join(changed),
        )


def _show(title: str, words: list[str], *, capture: bool = False) -> str:
    """Print one step and its command, run it, and stop the demo if it fails; return the captured output."""
    say(f"\n== {title}\n$ provision {shlex.join(words)}")
    begin = time.monotonic()
    code, printed = _run(words, capture=capture)
    say(f"== exit {code}, {elapsed(time.monotonic() - begin)}")
    if code:
        show(printed, end="")
        raise ProvisionError(
            f"the demo stopped: `provision {shlex.join(words)}` exited {code}",
            remedy="Read its output above; you can run the same command manually.",
        )
    return printed


def _run(words: list[str], *, capture: bool) -> tuple[int, str]:
    """Run one command to its end, even if it is interrupted, because it may have to end child processes.

    It has its own process group, so that it receives each signal once, from this process.
    """
    child: subprocess.Popen[str] | None = None
    came: list[int] = []
    forwarded: list[int] = []

    def tell(number: int, _frame: FrameType | None = None) -> None:
        came.append(number)
        if child:
            forwarded.append(number)
            child.send_signal(signal.SIGINT)

    # These handlers only record and forward signals: an exception could occur before the child exists.
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in signals}
    mine = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in mine:
        signal.signal(number, tell)
    try:
        out = subprocess.PIPE if capture else None
        argv = [sys.executable, "-m", "provision", *log_file.options(), *words]
        child = subprocess.Popen(argv, stdout=out, text=True, process_group=0)
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
        "vm": "virtual machines with their own kernels, real reboots, Soft-RoCE verbs devices",
        "container": "systemd containers (no kernel modules: RDMA was skipped)",
    }[driver]
    stand_ins = "\n".join(f"  - {item}" for item in simulated) or "  nothing"
    return f"""
== Summary ({elapsed(seconds)})
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
