"""Loading the peer-memory module by hand: the actions on a node, their order, and how the outcome is reported."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from provision.checks.reload import FACTS, RELOAD_SECONDS, read_reload
from provision.errors import NodeError
from provision.facts import NodeFacts, parse
from provision.model import CommandResult, ReloadResult
from provision.node import reload as program
from provision.report.reasons import remedy
from tests.support.modules import ROLES
from tests.support.probe import answer
from tests.support.reasons import shown
from tests.unit.checks.conftest import make_node

JOBS = ["process 7 (python3 of root) holds /dev/nvidia0", "process 8 (x of root)"]
IN_USE = (
    "peer memory: nv_peer_mem is in use (3 users): memory of running jobs is registered through it. "
    "Stop the jobs on this node and try again.\n"
)
STATUS = {
    "format": 1,
    "boot_id": "b",
    "kernel": "6.1.0",
    "provider": "nv_peer_mem",
    "module": "nv_peer_mem",
    "state": "ready",
    "ok": True,
    "since": "2026-11-21T10:00:00Z",
}
HANGS = {
    **STATUS,
    "state": "failed",
    "ok": False,
    "cause": "load_hangs",
    "explanation": "modprobe nv_peer_mem did not return within its limit",
    "remedy": "Look at what the kernel says (dmesg).",
}


class Node:
    """The files of the role, with programs that record their calls."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, *, unload: int = 0, restart: int = 0) -> None:
        self.root, self.patch = root, patch
        (root / "bin").mkdir(parents=True)
        self.program = self.write(
            "bin/peer-memory", f'echo "unit\'s program $*" >>{root}/calls; {_say(unload, IN_USE)}'
        )
        self.write(
            "bin/systemctl", f'echo "systemctl $*" >>{root}/calls; [ "$1" != restart ] || {{ {_say(restart, "no")} }}'
        )
        (root / "units").mkdir()
        self.unit = root / "units/provision-peer-memory.service"
        self.unit.write_text("")
        patch.setattr(program, "PROGRAM", str(self.program))
        patch.setattr(program, "UNITS", str(root / "units"))
        patch.setenv("PATH", f"{root}/bin:{os.environ['PATH']}")

    def write(self, name: str, text: str) -> Path:
        """Write a program."""
        file = self.root / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        return file

    def reload(self, jobs: list[str] | Exception = ()) -> tuple[dict[str, object], list[str]]:
        """Run the node's program; return its answer, and the calls that it made."""

        def running_jobs() -> list[str]:
            if isinstance(jobs, Exception):
                raise jobs
            return list(jobs)

        self.patch.setattr(program, "running_jobs", running_jobs)
        outcome = program.reload()
        calls = self.root / "calls"
        return outcome, calls.read_text().splitlines() if calls.exists() else []


def _say(code, text):
    return f"printf '%s' '{text.rstrip()}' >&2; exit {code};" if code else "exit 0;"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Return a node with the role's files."""
    return Node(tmp_path, monkeypatch)


def test_the_module_is_unloaded_before_the_unit_is_restarted(node):
    """systemd starts the load, so that it ends it at its limit, and knows the unit's state."""
    outcome, calls = node.reload()

    assert (outcome["step"], outcome["exit_code"]) == ("done", 0)
    assert calls == [
        "unit's program unload",
        "systemctl reset-failed provision-peer-memory.service",
        "systemctl restart provision-peer-memory.service",
    ]


def test_a_module_in_use_stays_and_the_unit_is_not_restarted(tmp_path, monkeypatch):
    """A restart would succeed and do nothing; the program's own refusal is reported."""
    outcome, calls = Node(tmp_path, monkeypatch, unload=1).reload()

    assert (outcome["step"], outcome["output"]) == ("refused", IN_USE.strip())
    assert calls == ["unit's program unload"]


@pytest.mark.parametrize(
    ("jobs", "step", "output"),
    [(JOBS, "busy", "; ".join(JOBS)), (OSError("no /proc here"), "unknown", "OSError: no /proc here")],
)
def test_a_busy_node_is_not_changed(node, jobs, step, output):
    """A job that has no memory registered yet would lose it; if that is unknown, the node counts as busy."""
    outcome, calls = node.reload(jobs)

    assert (outcome["step"], outcome["output"]) == (step, output)
    assert calls == []


@pytest.mark.parametrize("missing", ["program", "unit"])
def test_nothing_is_done_without_the_role(node, missing):
    getattr(node, missing).unlink()

    assert node.reload() == ({"step": "absent", "output": "", "exit_code": 0}, [])


def test_the_time_limits_include_each_other():
    """systemd ends a load first, then the program ends, then the connection."""
    unit = (ROLES / "peer_memory/templates/provision-peer-memory.service.j2").read_text()
    limit = int(unit.partition("TimeoutStartSec=")[2].split()[0])

    assert limit < program.RESTART_SECONDS
    assert program.RESTART_SECONDS + 2 * program.UNLOAD_SECONDS < RELOAD_SECONDS < 600


def test_a_step_that_hangs_is_ended_with_its_children(node):
    """Otherwise modprobe would go on beside the next reload, and keep the answer waiting through its output."""
    node.write("bin/peer-memory", f"sleep 1000 & echo $! >{node.root}/child; wait")
    node.patch.setattr(program, "UNLOAD_SECONDS", 1)
    outcome, _ = node.reload()
    child = int((node.root / "child").read_text())

    assert (outcome["step"], outcome["exit_code"]) == ("refused", 124)
    with pytest.raises(ProcessLookupError):
        wait_for_end(child)


def wait_for_end(pid):
    """Raise ProcessLookupError when a process has ended, as init collects it."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        os.kill(pid, 0)
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            raise ProcessLookupError
        time.sleep(0.01)


def test_a_failed_probe_after_a_reload_is_not_an_unreachable_node():
    """The module was reloaded: the operator learns that the node was changed, and why its state is unknown."""
    error = NodeError("the probe ended with code 1", node="gpu1", remedy="Check /run.")
    outcome = read_reload(make_node("gpu1", "10.77.0.1"), printed("done").answer, error)

    assert (outcome.result, outcome.reason.code) == (FAILED, "reload.result_unknown")
    assert outcome.reason.params["cause"] == error.message
    assert remedy(outcome.reason, "gpu1") == "Check /run. Run: provision verify --limit gpu1"


@pytest.mark.parametrize("step", ["absent", "busy", "refused"])
def test_a_failed_probe_of_an_unchanged_node_is_its_error(step):
    """Nothing was changed."""
    with pytest.raises(NodeError):
        read_reload(make_node("gpu1", "10.77.0.1"), printed(step).answer, NodeError("no", node="gpu1"))


class Printed(NamedTuple):
    """What the node's program prints, and the outputs of the facts afterwards."""

    answer: CommandResult
    outputs: dict[str, str]

    def facts(self) -> NodeFacts:
        """Return the facts."""
        asked = json.dumps({"token": "0" * 32}).encode()
        return parse(answer(self.outputs)("", asked).stdout, FACTS)


def printed(step="", code=0, said="", status=STATUS, *, loaded=True, receipt=None, boot="b"):
    """Return what a node prints."""
    unit = "LoadState=loaded\nActiveState=active\nResult=success\nUnitFileState=enabled"
    record = f"now=1795255290\n{unit}\nconfig\n\nstatus\n{json.dumps(status)}"
    outputs = {
        "system": 'ID=debian\nVERSION_ID="12"\nprobe_uname=6.1.0 x86_64\nprobe_python3=/usr/bin/python3',
        "boot": f"uptime=4000.5\nboot_id={boot}",
        "peer_memory": "nv_peer_mem 16384 0 - Live 0x0" if loaded else "",
        "peer_status": record if status else "",
        "receipts": "" if receipt is None else f"peer_memory.json:{json.dumps({'inputs': {'provider': receipt}})}",
    }
    text = json.dumps({"step": step, "exit_code": code, "output": said}) + "\n" if step else ""
    return Printed(CommandResult(text, "", 0), outputs)


READY, FAILED = ReloadResult.READY, ReloadResult.FAILED
REFUSED, SKIPPED = ReloadResult.REFUSED, ReloadResult.SKIPPED
OUTCOMES = {
    "it is loaded": (READY, "peer_memory.boot.ok: nv_peer_mem 6.1.0 2026-11-21T10:00:00Z", "", printed("done")),
    "the load hung": (
        FAILED,
        "peer_memory.boot.failed",
        "Look at what the kernel says (dmesg). Afterwards: provision reload --limit gpu1",
        printed("done", 1, status=HANGS, loaded=False),
    ),
    "the status says ready, and the module is not there": (
        FAILED,
        "peer_memory.boot.unloaded: nv_peer_mem",
        "provision reload",
        printed("done", loaded=False),
    ),
    "the unit did not run": (FAILED, "peer_memory.boot.not_checked", "provision reload", printed("done", boot="c")),
    "the unit cannot be started, an older check was well": (
        FAILED,
        "reload.not_restarted: provision-peer-memory.service 1 Unit is masked.",
        "journalctl -b -u provision-peer-memory.service",
        printed("done", 1, "Unit is masked."),
    ),
    "in use": (
        REFUSED,
        "nv_peer_mem is in use (3 users): memory of running jobs is registered through it",
        "Stop what uses it, and try again.",
        printed("refused", said=IN_USE.strip()),
    ),
    "the unload hung": (REFUSED, "within its limit", "Stop what uses it", printed("refused", said="")),
    "a job runs": (
        REFUSED,
        "reload.busy: process 7 holds /dev/nvidia0",
        "Wait until it has ended",
        printed("busy", said="process 7 holds /dev/nvidia0"),
    ),
    "nobody knows": (
        REFUSED,
        "reload.busy_unknown: no python",
        "why python3 does not run",
        printed("unknown", said="no python"),
    ),
    "never applied": (
        SKIPPED,
        "reload.never_applied",
        "provision apply --limit gpu1 --only peer_memory",
        printed("absent", status=None),
    ),
    "nothing is wanted": (SKIPPED, "reload.no_module", "", printed("absent", status=None, receipt="none")),
    "the role's files are gone": (
        FAILED,
        "peer_memory.boot.never_checked_unit",
        "provision apply --limit gpu1 --only peer_memory",
        printed("absent", status=None, receipt="nv_peer_mem"),
    ),
    "no root": (
        FAILED,
        "reload.script_failed: 1 sudo: a password is required",
        "may become root",
        Printed(CommandResult("", "sudo: a password is required\n", 1), {}),
    ),
    "cut off": (
        FAILED,
        "reload.script_failed: 0 no output",
        "may become root",
        printed(),
    ),
}


@pytest.mark.parametrize(("result", "said", "advice", "output"), OUTCOMES.values(), ids=OUTCOMES)
def test_a_result_is_reported_with_reason_and_remedy(result, said, advice, output):
    """By what the node's check says afterwards, not by what the programs returned."""
    outcome = read_reload(make_node("gpu1", "10.77.0.1"), output.answer, output.facts())

    assert (outcome.result, said in shown(outcome.reason)) == (result, True), outcome
    assert advice in remedy(outcome.reason, "gpu1")
    assert bool(remedy(outcome.reason, "gpu1")) or outcome.result.ok
    assert outcome.cause == outcome.reason.params.get("cause", "") or outcome.reason.code != "peer_memory.boot.failed"


def test_only_ready_and_nothing_to_do_are_successful():
    """What a script may go on after."""
    assert {result for result in ReloadResult if result.ok} == {READY, SKIPPED}
