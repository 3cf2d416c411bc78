"""The commands of the page "Upgrade a fleet", in its order, on two virtual machines that GRUB boots.

The kernels, installations and boots are real. The page's names of kernels stand for those of the machines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.command import ROOT, Provision
from tests.support.grub_machines import GrubMachines, grub_machines
from tests.support.page_commands import PageFile, Reader, steps_of

LAB = f"upgrade{os.getpid()}"
NODES = ("gpu1", "gpu2")
PAGE = ROOT / "docs/how-to/upgrade.md"
OLD, NEW, PACKAGE, DAY = "6.1.0-56-amd64", "6.1.0-57-amd64", "6.1.192-3", "Sat 02:00-06:00"
"""What the page has for kernels, the version of a package, and a window."""
WITHOUT = ("peer_memory", "docker_engine", "nvidia_container", "training_image", "training_container", "container_ssh")
"""Roles that take long on an emulated machine, and do not change with the kernel."""
GOOD, WAITING = 0, 6
"""Exit codes on the page."""


@pytest.fixture(scope="module")
def fleet(provision: Provision) -> Iterator[GrubMachines]:
    """Two machines that have been applied, and the command on the PATH."""
    provision.put_on_path()
    with grub_machines(provision, LAB, "prod", nodes=len(NODES), names=NODES) as machines:
        settings = {f"{role}_enabled": False for role in WITHOUT}
        settings["base_system_time_sync_check_enabled"] = False
        (machines.inventory / "group_vars/all.yml").write_text(json.dumps(settings))
        provision.ok("apply", "--yes", timeout=7200)
        yield machines


def reader_of(fleet: GrubMachines) -> Reader:
    """Return a reader of the page, for whom the window is closed."""
    old = fleet.running(NODES[0])
    new = fleet.offered(NODES[0], besides=(old,))[-1]
    package = fleet.shell(NODES[0], f"apt-cache show linux-image-{new} | sed -n 's/^Version: //p' | head -n 1")
    day = f"{datetime.now(UTC) + timedelta(days=3):%a} 02:00-06:00"
    places = {OLD: old, NEW: new, PACKAGE: package, DAY: day}
    return Reader(fleet.provision.folder, fleet.provision.environment, places)


@pytest.mark.long
def test_the_commands_of_the_page_upgrade_a_fleet_and_return(fleet: GrubMachines) -> None:
    """Each prints what the page shows; afterwards both nodes run the confirmed kernel, and take jobs."""
    reader, differing = reader_of(fleet), []
    for step in steps_of(PAGE.read_text(encoding="utf-8")):
        if isinstance(step, PageFile):
            reader.write(step)
            continue
        differing += [f"$ {step.line}\n{part}" for part in reader.run(step, seconds=7200)]
        assert reader.code in {GOOD, WAITING}, reader.transcript

    assert differing == [], reader.transcript
    for node in NODES:
        fleet.require_upgraded(node, reader.here(OLD))
