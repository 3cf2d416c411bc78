"""MIG mode and persistence mode of SIMULATED GPUs of a container node, with a driver that the site installs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Done, Provision

LAB = f"modes{os.getpid()}"
NODE = f"{LAB}-1"
ONLY = ("--only", "nvidia_driver")
MODES = (
    "nvidia-smi --query-gpu=mig.mode.current,mig.mode.pending,persistence_mode --format=csv,noheader | sort | uniq -c"
)
FAULTS = "/etc/provision-lab/faults.json"
HOLD = "mknod /dev/nvidia90 c 1 3 && { nohup sleep 100000 </dev/nvidia90 >/dev/null 2>&1 & echo $!; }"
"""Nothing can open the lab's device files: here is one that a process can hold."""


class Site:
    """A node with eight GPUs that have MIG, and an inventory of its own."""

    def __init__(self, provision: Provision, inventory: Path) -> None:
        self.provision, self.inventory = provision, inventory

    def shell(self, command: str) -> str:
        """Run a command on the node; it must succeed."""
        return self.provision.ok("lab", "ssh", LAB, NODE, "--", command).out.strip()

    def modes(self) -> str:
        """Return the modes of the GPUs, with the number of GPUs that have them."""
        return " ".join(self.shell(MODES).split())

    def request(self, **variables: Any) -> None:
        """Set variables of the inventory, and no others."""
        settings = {
            "platform_extra_repositories": [],
            **{f"nvidia_driver_{key}": one for key, one in variables.items()},
        }
        (self.inventory / "group_vars/gpu_nodes.yml").write_text(json.dumps(settings))

    def call(self, verb: str, *words: str) -> Done:
        """Run a verb with this inventory."""
        return self.provision(verb, "-i", str(self.inventory), "--json", *words)

    def steps(self) -> list[dict[str, Any]]:
        """Return the steps of the plan."""
        [node] = self.call("plan", *ONLY).document["nodes"]
        return list(node["steps"])

    def apply(self) -> dict[str, Any]:
        """Apply the role; return the result of the node."""
        [node] = self.call("apply", "--yes", *ONLY).document["nodes"]
        return dict(node)


@pytest.fixture(scope="module")
def site(provision: Provision) -> Iterator[Site]:
    """A bare node."""
    try:
        provision.ok(
            *("lab", "up", LAB, "--driver", "container", "--nodes", "1", "--distro", "debian13"),
            *("--machine", "dgxa100"),
        )
        inventory = provision.folder / f"inventories/{LAB}"
        (inventory / "group_vars").mkdir(parents=True)
        shutil.copy(provision.ok("lab", "inventory", LAB).out.strip(), inventory / "hosts.yml")
        yield Site(provision, inventory)
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


def test_modes_are_set_on_an_idle_node_and_restored_by_a_reset(site: Site) -> None:
    """A process on a GPU delays MIG mode; a manual change is in the plan; the driver is not touched."""
    before = site.modes()
    assert before == "8 Disabled, Disabled, Enabled"
    site.request(mig_mode="enabled", persistence_mode="disabled")
    process = site.shell(HOLD)
    [step] = site.steps()
    assert (step["role"], step["class"]) == ("nvidia_driver", "needs-idle")
    assert f"process {process} (sleep of root) holds /dev/nvidia90" in step["waits_for"]
    site.apply()
    assert site.modes() == before

    site.shell(f"kill {process}; rm /dev/nvidia90")
    applied = site.apply()
    assert applied["status"] == "changed", applied
    assert site.modes() == "8 Enabled, Enabled, Disabled"
    assert site.steps() == []
    assert site.apply()["status"] == "unchanged"
    assert site.shell("systemctl is-enabled provision-nvidia-modes.service") == "enabled"
    receipt = json.loads(site.shell("cat /var/lib/provision/receipts/nvidia_driver.json"))
    assert (receipt["inputs"]["source"], receipt["packages"]) == ("present", {})

    site.shell("nvidia-smi -i 3 -mig 0")
    [step] = site.steps()
    assert [one["code"] for one in step["reason_codes"]] == ["nvidia_driver.mig.differs"]
    assert site.apply()["status"] == "changed"
    assert site.modes() == "8 Enabled, Enabled, Disabled"

    done = site.call("reset", "--yes")
    assert done.code == 0, str(done)
    assert site.modes() == before
    assert site.shell("ls /etc/systemd/system | grep -c provision-nvidia-modes || true") == "0"


def test_a_gpu_that_requires_a_reset_fails_the_apply(site: Site) -> None:
    """With the words of nvidia-smi; the next apply sets it when nothing uses the GPU any more."""
    site.request(mig_mode="enabled")
    site.shell(f"""echo '{{"2": {{"in_use": "yes"}}}}' >{FAULTS}""")
    failed = site.apply()

    assert failed["status"] == "failed"
    assert "requires a reset of the GPU" in failed["error"]["message"]
    assert "In use by another client" in failed["error"]["message"]
    site.shell(f"rm {FAULTS}")
    assert site.apply()["status"] == "changed"
    assert site.modes() == "8 Enabled, Enabled, Enabled"


def test_gpus_without_mig_are_refused_before_anything_changes(site: Site) -> None:
    """The plan names the GPUs and the variable."""
    site.request(mig_mode="enabled")
    site.shell(f"""echo '{{"all": {{"mig.mode.current": "[N/A]", "mig.mode.pending": "[N/A]"}}}}' >{FAULTS}""")
    done = site.call("apply", "--yes", "--only", "nvidia_driver", "--force", "nvidia_driver")

    assert done.code == 1, str(done)
    [problem] = done.document["problems"]
    assert (problem["code"], problem["object"]) == ("variable.invalid", "nvidia_driver_mig_mode")
    assert "has no MIG mode" in problem["problem"]
    site.shell(f"rm {FAULTS}")
