"""What a cluster of virtual machines survives: power cuts in the middle, reboots."""

from __future__ import annotations

import os
from pathlib import Path

from tests.baremetal.conftest import LAB
from tests.support.command import eventually


def processes_naming(text):
    """Pids of processes whose command line holds `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in line:
                found.append((int(entry.name), line[:120]))
    return found


def test_power_pulled_in_the_middle_then_converged_then_rebooted(provision, lab):
    """A power cut names node, role and task; lab up and apply finish the work; a reboot keeps it."""
    first, second = (node["name"] for node in lab["nodes"])
    running = provision.start("apply", "--lab", LAB, "--yes", "--json")
    try:
        seen = []
        for line in running.stdout:
            seen.append(line)
            if second in line and "platform" in line:
                break
        assert running.poll() is None, "".join(seen)
        provision.ok("lab", "power", LAB, second, "off")
        rest = running.stdout.read()
        code = running.wait()
    finally:
        running.kill()
    assert code == 1, rest
    assert '"status": "unreachable"' in rest
    assert '"role": ' in rest
    assert second in rest

    provision.ok("lab", "up", LAB, "--driver", "vm", "--nodes", "2", "--machine", "pair")
    provision.ok("apply", "--lab", LAB, "--yes")
    again = provision.ok("apply", "--lab", LAB, "--yes", "--json").document
    assert [node["status"] for node in again["nodes"]] == ["unchanged", "unchanged"]

    provision.ok("lab", "reboot", LAB, second)
    eventually(lambda: provision("verify", "--lab", LAB).code == 0, seconds=120, what="verify passes after a reboot")
    job = provision.ok("run", "--lab", LAB, "--", "provision-smoke")
    assert job.out.count("sum 10") >= 4
    assert first in job.out
    assert second in job.out


def test_lab_down_leaves_nothing_behind(provision, lab):
    """No process, file or socket of the lab is left when it is down."""
    folder = provision.folder / "state/provision/labs" / LAB
    assert folder.is_dir()
    assert lab["nodes"]
    provision.ok("lab", "down", LAB)

    assert not folder.exists()
    assert processes_naming(f"labs/{LAB}") == []
    assert processes_naming(f"{LAB}-1") == []
