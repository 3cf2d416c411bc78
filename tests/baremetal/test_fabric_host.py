"""The role fabric_host on a virtual machine that GRUB boots: arguments of the kernel, ACS and RoCE are real.

The machine is a PCI Express one: a network card is below a root port, and an IOMMU makes Linux enable ACS at boot.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Done, Provision
from tests.support.grub import boot_by_grub, up_with_grub

LAB = f"fabric{os.getpid()}"
NODE = f"{LAB}-1"
QEMU = """#!/bin/sh
# Turns the lab's machine into one with PCI Express, an IOMMU, and a card below a root port.
case " $* " in *" -name "*) ;; *) exec @QEMU@ "$@";; esac
for word; do
  shift
  case $word in pc) set -- "$@" q35 -device intel-iommu;; *) set -- "$@" "$word";; esac
done
exec @QEMU@ "$@" -device pcie-root-port,id=rootport,chassis=1,slot=1,addr=0x8 \\
  -netdev user,id=rail -device e1000e,netdev=rail,bus=rootport,id=nic-rail
"""
ARGUMENTS = ("intel_iommu=on", "iommu=pt")
REDIRECTS = 0x1C


@dataclass(frozen=True)
class Metal:
    """One virtual machine and an inventory of its own."""

    provision: Provision
    inventory: Path

    def shell(self, command: str) -> str:
        """Run a command on the node; it must succeed."""
        return self.provision.ok("lab", "ssh", LAB, NODE, "--", command).out.strip()

    def settings(self, **variables: Any) -> None:
        """Set variables of the inventory, and no others."""
        (self.inventory / "group_vars/all.yml").write_text(json.dumps({"fabric_host_enabled": True, **variables}))

    def run(self, verb: str, *words: str) -> Done:
        """Run a verb for the machine."""
        return self.provision(verb, "-i", str(self.inventory), *words, "--json", timeout=7200)

    def apply(self, *roles: str) -> Done:
        """Apply roles."""
        return self.run("apply", "--yes", *(word for role in roles for word in ("--only", role)))

    def checks(self) -> dict[str, tuple[str, str]]:
        """Status and code of each check of the role."""
        results = self.run("verify").document["nodes"][0]["checks"]
        return {
            one["id"].removeprefix("fabric_host."): (one["status"], one["code"].rpartition(".")[2])
            for one in results
            if one["id"].startswith("fabric_host.")
        }

    @property
    def card(self) -> str:
        """The PCI address of the card below the root port."""
        return self.shell("basename $(readlink -f /sys/bus/pci/drivers/e1000e/0*)")

    @property
    def port(self) -> str:
        """The PCI address of the root port."""
        return self.shell("basename $(dirname $(readlink -f /sys/bus/pci/drivers/e1000e/0*))")

    @property
    def redirects(self) -> int:
        """The redirecting ACS bits of the root port."""
        return int(self.shell(f"setpci -s {self.port} ECAP_ACS+6.w"), 16) & REDIRECTS

    def roce(self, name: str) -> str:
        """A default of Soft-RoCE."""
        folder = "/sys/kernel/config/rdma_cm/rxe0"
        return self.shell(f"mkdir {folder} && cat {folder}/ports/1/default_roce_{name}; rmdir {folder}")


@pytest.fixture(scope="module")
def metal(provision: Provision) -> Iterator[Metal]:
    """The machine, which extlinux boots at first."""
    programs = provision.folder / "qemu"
    programs.mkdir()
    (programs / "qemu-system-x86_64").write_text(QEMU.replace("@QEMU@", str(shutil.which("qemu-system-x86_64"))))
    (programs / "qemu-system-x86_64").chmod(0o755)
    made = Provision(
        provision.folder,
        XDG_STATE_HOME=provision.environment["XDG_STATE_HOME"],
        PATH=f"{programs}:{provision.environment['PATH']}",
    )
    try:
        up_with_grub(made, LAB)
        inventory = provision.folder / "inventories/fabric"
        (inventory / "group_vars").mkdir(parents=True)
        shutil.copy(made.ok("lab", "inventory", LAB).out.strip(), inventory / "hosts.yml")
        yield Metal(made, inventory)
    finally:
        down = made("lab", "down", LAB)
    assert down.code == 0, str(down)


def settings(metal: Metal, **more: Any) -> None:
    """Set what the machine supports: the data interface has Soft-RoCE, and the other card is below a root port."""
    data = metal.shell("ip -o -4 addr show | awk '$4 ~ /^10[.]77[.]/ {print $2}'")
    metal.settings(
        rdma_stack_soft_roce_enabled=True,
        fabric_host_interfaces=[data, metal.card],
        fabric_host_kernel_arguments=list(ARGUMENTS),
        fabric_host_pcie_acs="disabled",
        fabric_host_roce_mode="v2",
        fabric_host_roce_tos=106,
        **more,
    )


@pytest.mark.long
def test_arguments_are_refused_where_grub_does_not_boot_the_machine(metal: Metal) -> None:
    """Before anything is changed; GRUB's programs are installed, and extlinux boots the machine."""
    metal.settings(fabric_host_kernel_arguments=list(ARGUMENTS))

    planned = metal.run("plan")

    problems = [(one["role"], one["object"]) for one in planned.document["problems"]]
    assert ("fabric_host", "fabric_host_kernel_arguments") in problems, str(planned)


@pytest.mark.long
def test_settings_survive_a_reboot_and_are_reset(metal: Metal) -> None:
    """Linux enables ACS at boot because of the IOMMU, and the node disables it again; a reset restores everything.

    The emulated card has a fixed read request, which is reported.
    """
    boot_by_grub(metal.provision, LAB, NODE)
    settings(metal)
    done = metal.apply("rdma_stack", "fabric_host")
    assert done.code == 0, str(done)
    menu = "grep -c 'intel_iommu=on iommu=pt' /boot/grub/grub.cfg"
    assert int(metal.shell(menu)) >= 1
    assert (metal.roce("mode"), metal.roce("tos")) == ("RoCE v2", "106")
    checks = metal.checks()
    assert checks["kernel_arguments"] == ("warn", "reboot"), checks
    assert (checks["pcie_acs"][0], checks["roce"][0]) == ("pass", "pass"), checks

    settings(metal, fabric_host_pcie_max_read_request=4096)
    refused = metal.apply("fabric_host")
    assert "does not accept the value" in str(refused.document["nodes"][0]["error"]), str(refused)
    settings(metal)

    metal.shell("systemctl disable provision-fabric.service")
    metal.provision.ok("lab", "reboot", LAB, NODE)
    assert set(ARGUMENTS) <= set(metal.shell("cat /proc/cmdline").split())
    assert (metal.redirects, metal.roce("tos")) == (REDIRECTS, "0")
    assert metal.checks()["pcie_acs"] == ("fail", "differs")
    done = metal.apply("fabric_host")
    assert (done.code, metal.redirects, metal.roce("tos")) == (0, 0, "106"), str(done)

    metal.provision.ok("lab", "reboot", LAB, NODE)
    assert metal.shell("systemctl is-active provision-fabric.service") == "active"
    assert metal.redirects == 0
    assert metal.roce("tos") == "106"
    assert {name: metal.checks()[name][0] for name in ("kernel_arguments", "pcie_acs", "roce")} == {
        "kernel_arguments": "pass",
        "pcie_acs": "pass",
        "roce": "pass",
    }
    again = metal.apply("rdma_stack", "fabric_host")
    assert [node["status"] for node in again.document["nodes"]] == ["unchanged"], str(again)

    reset = metal.run("reset", "--yes")
    assert reset.code == 0, str(reset)
    assert "intel_iommu=on" not in metal.shell("cat /boot/grub/grub.cfg; ls /etc/default/grub.d")
    assert "until the next boot" in reset.out
    metal.provision.ok("lab", "reboot", LAB, NODE)
    assert not set(ARGUMENTS) & set(metal.shell("cat /proc/cmdline").split())
