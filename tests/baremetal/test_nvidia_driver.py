"""The driver of Debian on a machine without a GPU: real packages, real modules, a module without a device.

A container node builds the modules: on an emulated machine this would take hours. The machine gets them from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command import Done, Provision
from tests.support.nvidia_packages import ADD_SECTIONS, DRIVER_VERSION, INSTALLED, release_kernel
from tests.support.recorded_systems import SystemRecorder, converged_roles

LAB = f"driver{os.getpid()}"
NODE = f"{LAB}-1"
BUILD_LAB = f"build{os.getpid()}"
BUILDER = f"{BUILD_LAB}-1"
ONLY = ("--only", "base_system", "--only", "nvidia_driver")
FILE = "/etc/modprobe.d/provision-nvidia-driver.conf"
MODULE = "nvidia-current-open"
"""Debian's name of the file of the open kernel module."""
REQUEST = {"nvidia_driver_source": "distribution", "nvidia_driver_without_gpu_enabled": True}
IN_INITRAMFS = f"lsinitramfs /boot/initrd.img-$(uname -r) | grep -c {FILE.lstrip('/')} || true"
BOOT = "ln -sf boot/vmlinuz-{0} /vmlinuz && ln -sf boot/initrd.img-{0} /initrd.img && sync"
"""Makes a kernel the one that is booted next."""

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Node:
    """One virtual machine and the container node that builds its modules, in an inventory of their own."""

    provision: Provision
    controller: Provision
    inventory: Path
    kernel: str
    version: str

    def shell(self, command: str) -> str:
        """Run a command on the machine; it must succeed."""
        return self.provision.ok("lab", "ssh", LAB, NODE, "--", command).out.strip()

    def settings(self, **variables: Any) -> None:
        """Set variables of the inventory, and no others; the lab's SIMULATED packages are not in its repositories."""
        (self.inventory / "group_vars/all.yml").write_text(json.dumps(variables))

    def request(self) -> None:
        """Request the driver, with modules of the build node."""
        self.settings(
            **REQUEST,
            nvidia_driver_version=self.version,
            nvidia_driver_kernels=[self.kernel],
            nvidia_driver_build_node=BUILDER,
        )

    def call(self, verb: str, *words: str, node: str = NODE) -> Done:
        """Run a verb for one node of this inventory."""
        return self.controller(verb, "-i", str(self.inventory), "--json", "--limit", node, *words, timeout=6 * 3600)

    def step(self) -> dict[str, Any] | None:
        """Return the role's step of a plan."""
        [plan] = self.call("plan", *ONLY).document["nodes"]
        return next((one for one in plan["steps"] if one["role"] == "nvidia_driver"), None)

    def checks(self) -> dict[str, dict[str, Any]]:
        """Return the results of verify by id; roles that were not applied fail there."""
        [node] = self.call("verify").document["nodes"]
        return {one["id"]: one for one in node["checks"]}

    def reboot(self) -> None:
        """Reboot the machine and wait until its units are started."""
        self.provision.ok("lab", "reboot", LAB, NODE)
        self.shell("systemctl is-system-running --wait || true")


def hosts_of(provision: Provision, lab: str) -> dict[str, Any]:
    """Return the hosts of a lab with all their variables, except those for its SIMULATED packages."""
    document = yaml.safe_load(Path(provision.ok("lab", "inventory", lab).out.strip()).read_text())
    group = document["all"]["children"]["gpu_nodes"]
    common = {**document["all"].get("vars", {}), **group.get("vars", {})}
    common.pop("platform_extra_repositories", None)
    return {name: {**common, **(own or {})} for name, own in group["hosts"].items()}


@pytest.fixture(scope="module")
def node(provision: Provision) -> Iterator[Node]:
    """A machine without a GPU; none is SIMULATED either. It runs the kernel of the last point release."""
    try:
        provision.ok("lab", "up", BUILD_LAB, "--driver", "container", "--nodes", "1", "--system", "debian12")
        kernel, version = (
            provision.ok("lab", "ssh", BUILD_LAB, BUILDER, "--", f"({ADD_SECTIONS}) >&2; {command}").out.strip()
            for command in (release_kernel("amd64"), DRIVER_VERSION)
        )
        words = ("--driver", "vm", "--nodes", "1", "--system", "debian12", "--with", f"linux-image-{kernel}")
        provision.ok("lab", "up", LAB, *words, timeout=3600)
        inventory = provision.folder / "inventories/driver"
        (inventory / "group_vars").mkdir(parents=True)
        hosts = hosts_of(provision, BUILD_LAB) | hosts_of(provision, LAB)
        (inventory / "hosts.yml").write_text(json.dumps({"all": {"children": {"gpu_nodes": {"hosts": hosts}}}}))
        own = {**provision.environment, "XDG_CACHE_HOME": str(provision.folder / "cache")}  # of the builds
        made = Node(provision, Provision(provision.folder, **own), inventory, kernel, version)
        if made.shell("uname -r") != kernel:
            made.shell(BOOT.format(kernel))
            made.reboot()
        yield made
    finally:
        down = [provision("lab", "down", lab) for lab in (LAB, BUILD_LAB)]
    assert [done.code for done in down] == [0, 0], str(down)


@pytest.fixture(scope="module")
def before(node: Node) -> dict[str, str]:
    """The state of the bare node."""
    assert node.shell("uname -r") == node.kernel
    return {
        "initramfs": node.shell(IN_INITRAMFS),
        "installed": node.shell(INSTALLED),
        "headers": node.shell("ls /usr/src"),
    }


def test_without_a_request_the_driver_is_no_step(node: Node, before: dict[str, str]) -> None:
    """The default is `present`."""
    assert before["initramfs"] == "0"
    assert before["installed"] == ""
    node.settings()

    assert node.step() is None
    assert node.checks()["nvidia_driver.modules"]["code"] == "gpu.none"


def test_sources_without_the_driver_are_refused_with_the_remedy(node: Node, before: dict[str, str]) -> None:
    """The sections contrib and non-free are not Debian's default."""
    assert before
    node.settings(**REQUEST)
    refused = node.call("apply", "--yes", *ONLY)

    assert refused.code != 0, str(refused)
    assert "nvidia-open-kernel-dkms" in str(refused)
    assert "non-free-firmware" in str(refused)
    assert node.shell(INSTALLED) == ""


@pytest.fixture(scope="module")
def installed(node: Node, before: dict[str, str]) -> Node:
    """The machine after an apply that installed the driver, with the modules that the container node has built."""
    assert before
    node.request()
    built = node.call("apply", "--yes", *ONLY, node=BUILDER)
    assert built.code == 0, str(built)
    node.shell(ADD_SECTIONS)
    done = node.call("apply", "--yes", *ONLY)
    assert done.code == 0, str(done)
    return node


def test_the_open_modules_are_those_of_the_build_node(installed: Node) -> None:
    """From Debian's own sources, for the running kernel; the machine has not built, and has no headers."""
    sums = f"cd /lib/modules/{installed.kernel}/updates/dkms && sha256sum *.ko"
    assert installed.shell(f"modinfo -F version {MODULE}") == installed.version
    assert installed.shell(f"modinfo -F license {MODULE}") == "Dual MIT/GPL"
    assert installed.shell(f"modinfo -F vermagic {MODULE}").startswith(f"{installed.kernel} ")
    assert "SIMULATED" not in installed.shell(f"modinfo {MODULE}")
    assert "installed" in installed.shell("dkms status nvidia-current-open")
    assert installed.shell(f"test -e /lib/modules/{installed.kernel}/build || echo none") == "none"
    assert installed.shell(sums) == installed.provision.ok("lab", "ssh", BUILD_LAB, BUILDER, "--", sums).out.strip()


def test_a_module_without_a_device_is_reported_as_that(installed: Node) -> None:
    """By the kernel's and modprobe's words, the receipt and verify; nothing else is wrong with the driver."""
    version = installed.shell(f"modinfo -F version {MODULE}")
    assert "No such device" in installed.shell("modprobe nvidia 2>&1 || true")
    assert "NVRM: No NVIDIA GPU found." in installed.shell("dmesg | grep NVRM | tail -n 1")
    assert "couldn't communicate with the NVIDIA driver" in installed.shell("nvidia-smi 2>&1 || true")
    receipt = json.loads(installed.shell("cat /var/lib/provision/receipts/nvidia_driver.json"))
    [reduction] = receipt["reductions"]
    assert reduction.startswith(
        f"no NVIDIA device: driver {version} is installed for kernel {installed.shell('uname -r')}"
    )

    checks = installed.checks()
    own = {name: one for name, one in checks.items() if name.startswith("nvidia_driver.")}
    assert own["nvidia_driver.modules"]["code"] == "nvidia_driver.modules.no_device"
    assert own["nvidia_driver.build"]["status"] == "pass"
    assert [name for name, one in own.items() if one["status"] == "fail"] == []
    assert checks["gpu.driver"]["code"] == "gpu.none"


def test_nouveau_is_out(installed: Node) -> None:
    """On the disk and in the initramfs."""
    assert "blacklist nouveau" in installed.shell(f"cat {FILE}")
    assert installed.shell(IN_INITRAMFS) == "1"
    assert "nouveau" not in installed.shell("cut -d' ' -f1 /proc/modules").split()
    assert installed.checks()["nvidia_driver.nouveau"]["status"] == "pass"


def test_a_second_apply_changes_nothing_before_and_after_a_reboot(
    installed: Node, record_system: SystemRecorder
) -> None:
    """No unit of the driver fails at boot without a GPU."""
    for reboot in (False, True):
        if reboot:
            installed.reboot()
        assert installed.step() is None
        [node] = installed.call("apply", "--yes", *ONLY).document["nodes"]
        assert node["status"] == "unchanged"
        assert "nvidia" not in installed.shell("systemctl list-units --failed --plain --no-legend")
    record_system("debian12", {"nvidia_driver"}.intersection(converged_roles(installed.shell)), machine=True)


def test_a_reset_removes_everything(installed: Node, before: dict[str, str]) -> None:
    """Packages, modules, files, and nouveau's line in the initramfs."""
    done = installed.call("reset", "--yes")
    assert done.code == 0, str(done)

    assert installed.shell(INSTALLED) == before["installed"]
    assert installed.shell(IN_INITRAMFS) == before["initramfs"]
    assert installed.shell("ls /usr/src") == before["headers"]
    assert (
        installed.shell(
            "find /lib/modules -name 'nvidia*' -path '*dkms*'; ls -d /var/lib/dkms/nvidia* 2>/dev/null || true"
        )
        == ""
    )
    assert installed.shell(f"test -e {FILE} || echo gone") == "gone"
    assert installed.shell("getent passwd nvpd || echo gone") == "gone"
