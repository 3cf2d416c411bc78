"""Loading the peer-memory module by hand: the actions on a node, their order, and how the outcome is reported."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from provision.checks.reload import _FACTS, LOAD_SECONDS, RELOAD_SECONDS, read_reload, reload_script
from provision.model import CommandResult, ReloadResult
from provision.report.reasons import remedy
from tests.support.modules import ROLES
from tests.support.reasons import shown
from tests.unit.checks.conftest import make_node

BUSY = (ROLES / "platform/module_utils/platform_busy.py").read_text(encoding="utf-8")
IDLE = "def running_jobs():\n    return []\n"
JOBS = "def running_jobs():\n    return ['process 7 (python3 of root) holds /dev/nvidia0', 'process 8 (x of root)']\n"
BROKEN = "raise SystemExit('no python here')\n"
PROGRAM, UNITS = "/usr/local/lib/provision/peer-memory", "/etc/systemd/system/"
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
    """Where the script's files lie, with programs that note that they were called."""

    def __init__(self, root: Path, *, unload: int = 0, restart: int = 0) -> None:
        """Have the role's program and unit there."""
        self.root = root
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

    def write(self, name: str, text: str) -> Path:
        """Put a program there."""
        file = self.root / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        return file

    def reload(self, busy: str = IDLE) -> tuple[dict[str, str], list[str]]:
        """Run the script's own part; return its output, and what it called."""
        text = reload_script(busy).partition("LC_ALL=C\n")[0]
        text = text.replace(PROGRAM, str(self.program)).replace(UNITS, f"{self.root}/units/")
        path = f"{self.root}/bin:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh"], input=text, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60, check=True
        )
        calls = self.root / "calls"
        outcome = dict(line.removeprefix("reload.").split("=", 1) for line in done.stdout.splitlines())
        return outcome, calls.read_text().splitlines() if calls.exists() else []


def _say(code, text):
    return f"printf '%s' '{text.rstrip()}' >&2; exit {code};" if code else "exit 0;"


def test_reload_unloads_the_module_and_restarts_the_unit(tmp_path):
    """systemd starts the load, so that it ends it at its limit, and knows that the unit is up."""
    outcome, calls = Node(tmp_path).reload()

    assert (outcome["step"], outcome["code"]) == ("done", "0")
    assert calls == [
        "unit's program unload",
        "systemctl reset-failed provision-peer-memory.service",
        "systemctl restart provision-peer-memory.service",
    ]


def test_a_module_in_use_is_not_reloaded(tmp_path):
    """A restart would say that all is well and do nothing; the program's own refusal is handed on."""
    outcome, calls = Node(tmp_path, unload=1).reload()

    assert (outcome["step"], outcome["said"]) == ("refused", IN_USE.strip())
    assert calls == ["unit's program unload"]


@pytest.mark.parametrize(
    ("busy", "step", "said"),
    [(JOBS, "busy", "(python3 of root) holds /dev/nvidia0; process 8"), (BROKEN, "unknown", "no python here")],
)
def test_a_busy_node_is_not_touched(tmp_path, busy, step, said):
    """A job that has no memory registered yet would lose it; if that is unknown, the node counts as busy."""
    outcome, calls = Node(tmp_path).reload(busy)

    assert outcome["step"] == step
    assert said in outcome["said"]
    assert calls == []


def test_the_job_detection_of_the_roles_runs_on_a_node(tmp_path):
    """The file that the roles use is understood by the node's python; this machine has no GPU job."""
    outcome, _ = Node(tmp_path).reload(BUSY)

    assert outcome["step"] in {"done", "busy"}


@pytest.mark.parametrize("lacks", ["program", "unit"])
def test_nothing_is_done_without_the_role(tmp_path, lacks):
    """No program or no unit: there is nothing to reload."""
    node = Node(tmp_path)
    getattr(node, lacks).unlink()

    assert node.reload() == ({"step": "absent"}, [])


def test_the_time_limit_includes_unit_unload_and_probe():
    """The wait ends with the unit's time limit, plus unloading, probing and a slow node's slack."""
    assert LOAD_SECONDS == 120
    assert LOAD_SECONDS < RELOAD_SECONDS < 600
    unit = (ROLES / "peer_memory/templates/provision-peer-memory.service.j2").read_text()
    assert f"TimeoutStartSec={LOAD_SECONDS}\n" in unit


def printed(step="", code="0", said="", status=STATUS, *, loaded=True, receipt=None, boot="b"):
    """What a node prints: the script's own lines, then the facts."""
    token = "0" * 32
    unit = "LoadState=loaded\nActiveState=active\nResult=success\nUnitFileState=enabled"
    record = f"now=1795255290\n{unit}\nconfig\n\nstatus\n{json.dumps(status)}"
    outputs = {
        "system": 'ID=debian\nVERSION_ID="12"\nprobe_uname=6.1.0 x86_64',
        "boot": f"uptime=4000.5\nboot_id={boot}",
        "peer_memory": "nv_peer_mem 16384 0 - Live 0x0" if loaded else "",
        "peer_status": record if status else "",
        "receipts": "" if receipt is None else f"peer_memory.json:{json.dumps({'inputs': {'provider': receipt}})}",
    }
    own = f"reload.step={step}\nreload.code={code}\nreload.said={said}\n" if step else ""
    facts = "".join(
        f"{token} out {fact.name}\n{outputs.get(fact.name, '')}\n{token} err {fact.name}\n\n{token} end {fact.name} 0\n"
        for fact in _FACTS
    )
    return CommandResult(f"{own}provision-probe 1 {token}\n{facts}", "", 0)


READY, FAILED = ReloadResult.READY, ReloadResult.FAILED
REFUSED, SKIPPED = ReloadResult.REFUSED, ReloadResult.SKIPPED
OUTCOMES = {
    "it is loaded": (READY, "peer_memory.boot.ok: nv_peer_mem 6.1.0 2026-11-21T10:00:00Z", "", printed("done")),
    "the load hung": (
        FAILED,
        "peer_memory.boot.failed",
        "Look at what the kernel says (dmesg). Afterwards: provision reload --limit gpu1",
        printed("done", "1", status=HANGS, loaded=False),
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
        printed("done", "1", "Unit is masked."),
    ),
    "in use": (
        REFUSED,
        "nv_peer_mem is in use (3 users): memory of running jobs is registered through it",
        "Stop the jobs on this node and try again.",
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
        CommandResult("", "sudo: a password is required\n", 1),
    ),
    "cut off": (
        FAILED,
        "reload.script_failed: 0 00000000000000000000000000000000 end simulated 0",
        "may become root",
        printed(),
    ),
}


@pytest.mark.parametrize(("result", "said", "advice", "output"), OUTCOMES.values(), ids=OUTCOMES)
def test_a_result_is_reported_with_reason_and_remedy(result, said, advice, output):
    """By what the node's check says afterwards, not by what the programs returned."""
    outcome = read_reload(make_node("gpu1", "10.77.0.1"), output)

    assert (outcome.result, said in shown(outcome.reason)) == (result, True), outcome
    assert advice in remedy(outcome.reason, "gpu1")
    assert bool(remedy(outcome.reason, "gpu1")) or outcome.result.ok
    assert outcome.cause == outcome.reason.params.get("cause", "") or outcome.reason.code != "peer_memory.boot.failed"


def test_only_ready_and_nothing_to_do_are_successful():
    """What a script may go on after."""
    assert {result for result in ReloadResult if result.ok} == {READY, SKIPPED}
