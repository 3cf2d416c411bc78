"""The status that a node records at boot, as written by its own program and in invalid forms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from provision.facts import RawOutput
from provision.facts.peer_status import CONFIG_FILE, PROGRAM, STATUS_FILE, PeerRecord, PeerStatusFact, PeerUnit
from tests.support.modules import load

program = load("peer_memory", "peer_memory_node", part="module_utils")

STATUS = {
    "format": 1,
    "boot_id": "5f0c",
    "kernel": "6.1.0-9",
    "provider": "nv_peer_mem",
    "module": "nv_peer_mem",
    "state": "ready",
    "ok": True,
    "since": "2026-11-21T10:00:00Z",
    "simulated": False,
    "cause": "",
    "explanation": "",
    "remedy": "",
    "kernels": [],
}
SYSTEMD = "LoadState=loaded\nActiveState=failed\nResult=timeout\nUnitFileState=enabled\n"


class Node:
    """A node's files, and its systemctl."""

    def __init__(self, root: Path) -> None:
        """Create a node without the role, with a running kernel."""
        self.root = root
        self.write("/proc/sys/kernel/osrelease", "6.1.0-9\n")
        self.write("/proc/sys/kernel/random/boot_id", "5f0c\n")
        self.write("/boot/vmlinuz-6.1.0-9", "")
        self.write("/lib/modules/6.1.0-9/modules.dep", "")
        self.systemd(SYSTEMD)

    def write(self, path: str, text: str) -> None:
        """Write a file."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def systemd(self, text: str) -> None:
        """Set the output of systemctl."""
        self.write("/bin/systemctl", f"#!/bin/sh\necho asked >>{self.root}/asked\nprintf '%s' '{text}'\n")
        (self.root / "bin/systemctl").chmod(0o755)

    def record(self) -> PeerRecord:
        """Run the fact's command, and parse its output."""
        command = PeerStatusFact.command
        for folder in ("/etc/", "/var/lib/", "/lib/modules", "/usr/local/"):
            command = command.replace(folder, f"{self.root}{folder}")
        path = f"{self.root}/bin:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-c", command],
            capture_output=True,
            env={**os.environ, "PATH": path},
            timeout=20,
            check=True,
        )
        return PeerStatusFact().parse(RawOutput(done.stdout.decode(errors="replace"), 0))


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_without_the_role_nothing_is_read_or_queried(node):
    assert node.record() == PeerRecord()
    assert not (node.root / "asked").exists()


@pytest.mark.parametrize(
    ("provider", "cause"), [("none", ""), ("dma_buf", "driver_missing"), ("nv_peer_mem", "headers_missing")]
)
def test_the_status_of_the_nodes_program_is_read(node, provider, cause):
    node.write(CONFIG_FILE, json.dumps({"provider": provider}, indent=4) + "\n")
    program.start(program.Node(str(node.root), program.Runner(5)))
    record = node.record()

    assert record.wanted == record.status.provider == provider
    assert (record.status.boot_id, record.status.kernel) == ("5f0c", "6.1.0-9")
    assert record.unit == PeerUnit("failed", "timeout", "enabled")
    assert record.age_seconds < 60
    ready = not cause
    assert (record.status.state, record.status.cause) == ("ready" if ready else "failed", cause)
    assert bool(record.status.explanation and record.status.remedy) is not ready
    (kernel,) = record.status.kernels
    assert (kernel.release, kernel.ok, kernel.cause) == ("6.1.0-9", ready, record.status.cause)


def upgrade(node):
    """Change the modules a minute after the status was written."""
    later = (node.root / STATUS_FILE.lstrip("/")).stat().st_mtime + 60
    os.utime(node.root / "lib/modules/6.1.0-9/modules.dep", (later, later))


def install(node, script):
    """Replace the node's program."""
    node.write(PROGRAM, f"#!/bin/sh\n{script}\n")
    (node.root / PROGRAM.lstrip("/")).chmod(0o755)


def test_modules_that_changed_after_the_status_are_checked_again(node):
    """An upgrade of the RDMA stack writes no status, so the node's own program is run."""
    node.write(CONFIG_FILE, json.dumps({"provider": "nv_peer_mem"}))
    node.write(STATUS_FILE, json.dumps(STATUS))
    source = Path(program.__file__).parent
    paths = ":".join(map(str, (source, source.parents[1] / "platform/module_utils")))
    run = f"import sys, peer_memory_node as it; sys.exit(it.main(['--root', '{node.root}', sys.argv[1]]))"
    install(node, f'PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={paths} exec {sys.executable} -c "{run}" "$1"')
    upgrade(node)
    record = node.record()

    assert record.newer == ("6.1.0-9",)
    (kernel,) = record.rechecked
    assert (kernel.release, kernel.ok, kernel.cause) == ("6.1.0-9", False, "headers_missing")
    assert "headers of kernel 6.1.0-9 are not installed" in kernel.explanation
    assert json.loads((node.root / STATUS_FILE.lstrip("/")).read_text()) == STATUS


@pytest.mark.parametrize("said", ["exit 127", "echo 'Traceback (most recent call last):'; exit 1", "exec sleep 60"])
def test_a_program_that_does_not_answer_leaves_an_outdated_status(node, said, monkeypatch):
    monkeypatch.setattr(
        PeerStatusFact, "command", PeerStatusFact.command.replace("timeout -k 1 12", "timeout -k 1 0.3")
    )
    node.write(STATUS_FILE, json.dumps(STATUS))
    install(node, said)
    upgrade(node)

    assert (node.record().newer, node.record().rechecked) == (("6.1.0-9",), None)


def test_after_an_apply_or_boot_no_check_is_run(node):
    node.write(STATUS_FILE, json.dumps(STATUS))
    install(node, "echo 6.1.0-9: ready")

    assert (node.record().newer, node.record().rechecked) == ((), None)


def test_a_load_in_progress_is_read(node):
    """The program writes this status before it begins."""
    node.write(CONFIG_FILE, json.dumps({"provider": "nv_peer_mem"}))
    program.Node(str(node.root)).write("loading")

    assert node.record().status.state == "loading"
    assert node.record().error == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ('{"format": 1, "boot', "is not valid"),
        ("[" * 100_000, "is not valid"),
        ("[]", "Expected `object`, got `array`"),
        (json.dumps({**STATUS, "format": 2}), "format 2; supported: 1"),
        (json.dumps({**STATUS, "state": "fine"}), "Invalid enum value 'fine' - at `$.state`"),
        (json.dumps({**STATUS, "ok": False}), "contradicts itself"),
        (json.dumps({**STATUS, "boot_id": 7}), "Expected `str`, got `int` - at `$.boot_id`"),
        (
            json.dumps({key: value for key, value in STATUS.items() if key != "provider"}),
            "missing required field `provider`",
        ),
        (json.dumps({**STATUS, "kernels": {}}), "Expected `array`, got `object` - at `$.kernels`"),
        (json.dumps({**STATUS, "kernels": [{"kernel": "6.1", "ok": "yes"}]}), "Expected `bool`, got `str`"),
        (json.dumps({**STATUS, "explanation": "x" * 200_000}), "limit 131072"),
    ],
)
def test_an_invalid_status_has_a_reason(node, text, said):
    node.write(STATUS_FILE, text)
    record = node.record()

    assert record.status is None
    assert said in record.error


def test_a_status_path_that_is_not_a_file_does_not_block_the_probe(node):
    (node.root / "var/lib/provision/peer_memory").mkdir(parents=True)
    os.mkfifo(node.root / STATUS_FILE.lstrip("/"))

    assert "cannot be read" in node.record().error


def test_control_characters_of_a_node_do_not_reach_the_terminal(node):
    bad = "a\x1b[2Jb\nleft out: gpu1\u202e" + "x" * 50_000
    node.write(STATUS_FILE, json.dumps({**STATUS, "state": "failed", "ok": False, "explanation": bad}))
    explanation = node.record().status.explanation

    assert explanation.isprintable()
    assert explanation.startswith("a [2Jb left out: gpu1 xxx")
    assert len(explanation) <= 8192


@pytest.mark.parametrize("config", ["", "[]", "{", "[" * 5000])
def test_an_unreadable_configuration_requests_nothing(node, config):
    node.write(CONFIG_FILE, config)
    node.write(STATUS_FILE, json.dumps(STATUS))

    assert node.record().wanted == ""
    assert node.record().status.provider == "nv_peer_mem"


def test_the_age_uses_the_nodes_clock_and_is_never_negative():
    rest = f"{SYSTEMD}config\n\nstatus\n{json.dumps(STATUS)}"
    clocks = ("1795255290", "1795255100", "")  # 90 s after, and 100 s before, ten o'clock of that day
    ages = [PeerStatusFact().parse(RawOutput(f"now={clock}\n{rest}", 0)).age_seconds for clock in clocks]

    assert ages == [90, None, None]


def test_a_missing_unit_is_none(node):
    node.write(STATUS_FILE, json.dumps(STATUS))
    node.systemd("LoadState=not-found\nActiveState=inactive\nResult=success\nUnitFileState=\n")

    assert node.record().unit is None
