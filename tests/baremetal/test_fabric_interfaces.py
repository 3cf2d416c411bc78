"""The role fabric_host on a virtual machine: names by PCI address, and trust and PFC by a SIMULATED mlnx_qos."""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provision.lab.services.packages import build_packages
from tests.baremetal.conftest import LAB
from tests.support.command import Done, Provision

THREE = "0,0,0,1,0,0,0,0"
NAMES = "ls /sys/class/net"


@dataclass(frozen=True)
class Metal:
    """One virtual machine and an inventory of its own."""

    provision: Provision
    inventory: Path
    node: str

    def shell(self, command: str) -> str:
        """Run a command on the node; it must succeed."""
        return self.provision.ok("lab", "ssh", LAB, self.node, "--", command).out.strip()

    def card(self, interface: str) -> str:
        """The PCI address of an interface's card; its device is a child of the card (virtio)."""
        return self.shell(f"basename $(dirname $(readlink -f /sys/class/net/{interface}/device))")

    def run(self, verb: str, *words: str, **variables: Any) -> Done:
        """Run a verb for the machine, with these variables of the inventory and no others."""
        if variables:
            text = json.dumps({"fabric_host_enabled": True, **variables})
            (self.inventory / "group_vars/all.yml").write_text(text)
        return self.provision(verb, "-i", str(self.inventory), *words, "--json", timeout=7200)

    def apply(self, **variables: Any) -> str:
        """Apply the role; return the status of the node."""
        done = self.run("apply", "--yes", "--only", "fabric_host", **variables)
        assert done.code == 0, str(done)
        status: str = done.document["nodes"][0]["status"]
        return status

    def check(self, name: str) -> tuple[str, str]:
        """Status and code of a check of the role."""
        results = self.run("verify").document["nodes"][0]["checks"]
        check = next(one for one in results if one["id"] == f"fabric_host.{name}")
        return check["status"], check["code"].rpartition(".")[2]


@pytest.fixture(scope="module")
def metal(provision: Provision, lab: dict) -> Metal:
    """The machine."""
    inventory = provision.folder / "inventories/interfaces"
    (inventory / "group_vars").mkdir(parents=True)
    shutil.copy(provision.ok("lab", "inventory", LAB).out.strip(), inventory / "hosts.yml")
    return Metal(provision, inventory, lab["nodes"][0]["name"])


@pytest.mark.long
def test_an_interface_has_its_name_after_a_reboot(metal: Metal) -> None:
    """One that is up is not renamed before, and a reset restores it. The interface of the default route is refused."""
    before = metal.shell("ip -o -4 addr show | awk '$4 ~ /^10[.]77[.]/ {print $2}'")
    management = metal.shell("ip route show default | sed 's/.* dev //; s/ .*//'")
    planned = metal.run("plan", fabric_host_interface_names={"main0": metal.card(management)})
    problems = [(one["role"], one["object"]) for one in planned.document["problems"]]
    assert ("fabric_host", "fabric_host_interface_names") in problems, str(planned)

    card = metal.card(before)
    metal.apply(fabric_host_interface_names={"rail0": card})
    assert before in metal.shell(NAMES).split()
    assert metal.check("interface_names") == ("warn", "reboot")
    metal.provision.ok("lab", "reboot", LAB, metal.node)
    assert "rail0" in metal.shell(NAMES).split()
    assert metal.check("interface_names") == ("pass", "ok")
    assert metal.apply() == "unchanged"

    metal.shell("ip link set dev rail0 down")
    metal.apply(fabric_host_interface_names={"rail1": card})
    assert "rail1" in metal.shell(NAMES).split()

    reset = metal.run("reset", "--yes")
    assert "rail1 has this name until the next boot" in reset.out, str(reset)
    metal.provision.ok("lab", "reboot", LAB, metal.node)
    assert before in metal.shell(NAMES).split()


@pytest.mark.long
def test_trust_and_pfc_are_set_now_and_at_boot(metal: Metal, tmp_path: Path) -> None:
    """Without mlnx_qos they are reported. The change is confirmed over a new connection, and a reset restores it."""
    interface = metal.shell("ip -o -4 addr show | awk '$4 ~ /^10[.]77[.]/ {print $2}'")
    wanted = {"fabric_host_interfaces": [interface], "fabric_host_roce_trust": "dscp", "fabric_host_roce_pfc": THREE}
    metal.apply(**wanted)
    assert metal.check("roce_qos") == ("warn", "unknown")

    package = next(path for path in build_packages(tmp_path) if path.name.startswith("mlnx-tools_"))
    text = base64.b64encode(package.read_bytes()).decode()
    metal.shell(f"echo {text} | base64 -d >/root/mlnx-tools.deb && dpkg -i /root/mlnx-tools.deb")
    assert metal.check("roce_qos") == ("fail", "differs")
    metal.apply()
    assert metal.check("roce_qos") == ("pass", "ok")
    assert '"state": "confirmed"' in metal.shell("cat /var/lib/provision/rescue/last.json")
    assert metal.apply() == "unchanged"

    metal.provision.ok("lab", "reboot", LAB, metal.node)
    shows = f"systemctl is-active provision-fabric.service; mlnx_qos -i {interface} 2>/dev/null"
    assert "Priority trust state: dscp" in metal.shell(shows)
    reset = metal.run("reset", "--yes")
    assert reset.code == 0, str(reset)
    assert "Priority trust state: pcp" in metal.shell(f"mlnx_qos -i {interface} 2>/dev/null")
