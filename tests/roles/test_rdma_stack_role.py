"""The role rdma_stack without a node: how it builds, loads and replaces a vendor's stack, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from provision.inventory.role_files import systems
from provision.resources import roles_folder
from tests.support.expressions import Role
from tests.support.modules import load, run

module = load("rdma_stack", "rdma_stack")
UBUNTU = systems(roles_folder())["ubuntu_24.04"]
KERNEL = "6.8.0-31-generic"
ROUTE = "default via 10.0.0.1 dev eth0 proto static\n"
ADDRESSES = (
    "2: eth0    inet 10.0.0.5/24 brd 10.0.0.255 scope global eth0\n"
    "3: bond0    inet 10.77.0.5/24 brd 10.77.0.255 scope global bond0\n"
)
ESTABLISHED = "0 0 10.0.0.5:22 10.0.0.9:50312\n"
CONFLICT = "ERROR: cannot unload ib_core: in use by nvidia_peermem\n"


# Building


@pytest.fixture
def dkms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with the sources of the stack, whose dkms builds nothing."""
    (tmp_path / "dkms/mlnx-ofed-kernel/25.10/source").mkdir(parents=True)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "dkms").write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\n')
    (programs / "dkms").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "DKMS", str(tmp_path / "dkms"))
    return tmp_path


def build() -> dict[str, Any]:
    """Run the action."""
    return run(module, action="build", dkms="mlnx-ofed-kernel", kernels=[KERNEL])


def test_a_kernel_with_modules_is_not_built_again(dkms: Path) -> None:
    """The packages have built them."""
    folder = dkms / f"dkms/mlnx-ofed-kernel/25.10/{KERNEL}/x86_64/module"
    folder.mkdir(parents=True)
    (folder / "ib_core.ko.zst").touch()

    result = build()
    assert (result["changed"], result["outcome"]["ok"]) == (False, True)
    assert not (dkms / "calls").exists()


def test_missing_headers_are_named(dkms: Path) -> None:
    """DKMS only skips the kernel."""
    result = build()

    assert (result["changed"], result["outcome"]["cause"]) == (True, "kernel_headers_missing")
    assert KERNEL in result["outcome"]["explanation"]
    assert (dkms / "calls").read_text() == f"autoinstall -k {KERNEL}\n"


# Loading


class Node:
    """A node on which the programs that the module runs have prepared results."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.unit = {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}
        self.installed = {"ib_core": "AAA", "mlx5_core": "BBB"}
        self.replaces, self.code, self.log = True, 0, ""
        self.route, self.established = ROUTE, ESTABLISHED
        self.commands: list[str] = []
        self.params = {"disruptive": True}
        (root / "net").mkdir()
        monkeypatch.setattr(module, "LOADED", str(root / "modules"))
        monkeypatch.setattr(module, "INTERFACES", str(root / "net"))
        self.recorded: list[str] = []
        monkeypatch.setattr(module, "record_file", self.recorded.append)

    def load(self, **modules: str) -> None:
        """Load modules with these checksums of their sources."""
        for name, checksum in modules.items():
            folder = self.root / "modules" / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "srcversion").write_text(f"{checksum}\n")

    def interface(self, name: str, driver: str = "", *lower: str) -> None:
        """Add a network interface, with the ones that it is made of."""
        folder = self.root / "net" / name
        folder.mkdir()
        if driver:
            (self.root / "drivers" / driver).mkdir(parents=True)
            (folder / "device").mkdir()
            (folder / "device/driver").symlink_to(self.root / "drivers" / driver)
        for one in lower:
            (folder / f"lower_{one}").touch()

    def run_command(self, argv: list[str]) -> tuple[int, str, str]:
        words = argv[2:] if argv[0] == "timeout" else argv
        self.commands.append(" ".join(words))
        if words[0] == "modinfo":
            return 0, self.installed.get(words[-1], "") + "\n", ""
        if words[:2] == ["systemctl", "show"]:
            return 0, "".join(f"{key}={value}\n" for key, value in self.unit.items()), ""
        if words[:2] in (["systemctl", "restart"], ["systemctl", "start"]):
            if self.code == 0 and self.replaces:
                self.load(**self.installed)
            return self.code, "", "Job for openibd.service failed\n" if self.code else ""
        answers = {"ip -4": self.route, "ip -o": ADDRESSES, "ss -Htn": self.established, "journalctl -b": self.log}
        return 0, answers.get(" ".join(words[:2]), ""), ""

    def start(self, *, disruptive: bool = True) -> tuple[dict[str, Any], bool]:
        """Run the action; return the outcome, and whether it changed something."""
        self.params["disruptive"] = disruptive
        start = module.Start(self)
        return start.outcome(), start.changed

    @property
    def verbs(self) -> list[str]:
        """What was done to the unit."""
        return [line.split()[1] for line in self.commands if line.startswith("systemctl") and " show " not in line]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node whose loaded stack is the installed one."""
    made = Node(tmp_path, monkeypatch)
    made.load(ib_core="AAA", mlx5_core="BBB")
    return made


def test_a_running_stack_is_not_touched(node: Node) -> None:
    """The second run changes nothing."""
    outcome, changed = node.start()

    assert (outcome["ok"], changed, node.verbs) == (True, False, [])


def test_openibd_is_enabled_and_started(node: Node) -> None:
    """Its packages do not enable it."""
    unit = node.root / "openibd.service"
    unit.write_text("[Unit]\nBefore=network.target\n\n[Install]\nWantedBy=sysinit.target multi-user.target\n")
    node.unit |= {"ActiveState": "inactive", "UnitFileState": "disabled", "FragmentPath": str(unit)}
    outcome, changed = node.start(disruptive=False)

    assert (outcome["ok"], changed) == (True, True)
    assert node.verbs == ["--no-reload", "start"]
    folder = "/etc/systemd/system"
    assert node.recorded == [f"{folder}/{one}.target.wants/openibd.service" for one in ("sysinit", "multi-user")]


def test_another_loaded_stack_is_replaced_on_an_idle_node(node: Node) -> None:
    """The modules differ from those on the disk."""
    node.load(ib_core="old", mlx5_core="old")
    outcome, changed = node.start()

    assert (outcome["ok"], changed, node.verbs) == (True, True, ["restart"])


def test_another_loaded_stack_stays_under_a_job(node: Node) -> None:
    """Until a reboot."""
    node.load(ib_core="old")
    outcome, changed = node.start(disruptive=False)

    assert (outcome["ok"], outcome["cause"], changed, node.verbs) == (False, "reboot", False, [])
    assert "reboot" in outcome["remedy"]


@pytest.mark.parametrize(
    ("route", "established"),
    [
        ("default via 10.77.0.1 dev bond0\n", ""),
        (ROUTE, ESTABLISHED + "0 0 10.77.0.5:22 10.77.0.1:40000\n"),
        (ROUTE, "0 0 [::ffff:10.77.0.5]:22 [::ffff:10.77.0.1]:40000\n"),
    ],
)
def test_a_connection_over_the_cards_is_not_cut(node: Node, route: str, established: str) -> None:
    """The operator's may be one; a bond of cards counts, other interfaces do not."""
    node.load(ib_core="old")
    node.interface("eth0", "igb")
    node.interface("ens1", "mlx5_core")
    node.interface("bond0", "", "ens1")
    assert node.start()[0]["ok"]

    node.load(ib_core="old")
    node.route, node.established, node.commands = route, established, []
    outcome, changed = node.start()
    assert (outcome["cause"], changed, node.verbs) == ("reboot", False, [])
    assert "bond0" in outcome["explanation"]


def test_modules_in_use_are_replaced_by_a_reboot(node: Node) -> None:
    """With the line of openibd."""
    node.load(ib_core="old")
    node.replaces, node.code, node.log = False, 1, "Unloading\n" + CONFLICT
    outcome, _ = node.start()

    assert (outcome["ok"], outcome["cause"]) == (False, "reboot")
    assert "in use by nvidia_peermem" in outcome["evidence"]


def test_a_service_that_does_not_start_is_named(node: Node) -> None:
    """And packages without it."""
    node.unit["ActiveState"], node.code, node.log = "failed", 1, "modprobe: FATAL: Module mlx5_core cannot be loaded\n"
    outcome, _ = node.start()
    assert (outcome["cause"], outcome["evidence"]) == ("openibd", node.log.strip())

    node.unit["LoadState"] = "not-found"
    outcome, _ = node.start()
    assert outcome["cause"] == "no_unit"
    assert "rdma_stack_profile" in outcome["remedy"]


# The role's expressions


CHECKS = {
    "stack": "Check that there is a stack for the node and its kernels",
    "elsewhere": "Check that no stack from elsewhere is installed",
    "signature": "Check that the kernel accepts the modules",
    "jobs": "Check that no job uses the stack that would be replaced",
}


def role(facts: dict[str, Any] | None = None, **variables: Any) -> Role:
    """Return the role on a node after its probe."""
    usual = {
        "installed": "",
        "managed": False,
        "loaded": False,
        "secure_boot": False,
        "certificate": False,
        "enrolled": False,
    }
    platform = {
        "kind": "metal",
        "kernel": KERNEL,
        "modules_loadable": True,
        "packages": {},
        "jobs": [],
        "other_sources": ["http://archive.ubuntu.com/ubuntu"],
        **variables.pop("platform_node", {}),
    }
    return Role(
        "rdma_stack",
        inventory_hostname="gpu1",
        platform_node=platform,
        __rdma_stack_probe={"facts": usual | (facts or {})},
        **UBUNTU | {"rdma_stack_source": "doca", "__platform_disruptive": False} | variables,
    )


def test_a_usual_node_passes_the_preflight() -> None:
    """With the repository, the pin and the packages of its system."""
    one = role()

    assert all(one.holds("vendor", name) for name in CHECKS.values())
    assert one.value("__rdma_stack_choice.packages | list") == ["doca-ofed"]
    [repository] = one.value("__rdma_stack_own_repositories")
    assert repository["uris"] == "https://linux.mellanox.com/public/repo/doca/3.2.2/ubuntu24.04/x86_64"
    assert repository["exclude"] == ["dkms"]
    pin = one.value("__rdma_stack_pin_file.content")
    assert "Pin: release l=DOCA-HOST*" in pin
    assert 'Pin: origin "linux.mellanox.com"' in pin
    assert "Pin: version 3.2.2*" in pin
    assert one.value("__rdma_stack_units") == ["provision-rdma.service", "openibd.service"]


@pytest.mark.parametrize("source", ["distribution", "inbox", "present"])
def test_without_a_vendors_stack_the_role_is_as_before(source: str) -> None:
    """No repository, no pin, no openibd."""
    one = role(rdma_stack_source=source)

    assert one.value("__rdma_stack_vendor") is False
    assert one.value("__rdma_stack_own_repositories") == []
    assert one.value("__rdma_stack_pin") == ""
    assert one.value("__rdma_stack_units") == ["provision-rdma.service"]
    assert one.value("__rdma_stack_packages") == []


def test_an_unsupported_kernel_is_refused_with_the_remedy() -> None:
    """Plain Ansible makes the same choice as `plan`."""
    new = {"kernel": "7.0.0-1008-azure"}
    one = role(platform_node=new)

    assert not one.holds("vendor", CHECKS["stack"])
    assert one.says("vendor", CHECKS["stack"]).startswith("gpu1: rdma_stack_version: DOCA 3.2.2 is known to support")
    assert role(platform_node=new, rdma_stack_version="3.4.0").holds("vendor", CHECKS["stack"])
    assert role(platform_node=new, rdma_stack_kernel_check_enabled=False).holds("vendor", CHECKS["stack"])


def test_a_stack_from_elsewhere_is_not_mixed_with_packages() -> None:
    """Later runs see the role's own."""
    other = {"installed": "MLNX_OFED_LINUX-5.8-1.0.1.1"}
    own = {"packages": {"doca-ofed": "3.2.2-044000"}}

    assert not role(other).holds("vendor", CHECKS["elsewhere"])
    assert "MLNX_OFED_LINUX-5.8-1.0.1.1 is installed from elsewhere" in role(other).says("vendor", CHECKS["elsewhere"])
    assert role(other, platform_node=own).holds("vendor", CHECKS["elsewhere"])
    assert role(other | {"managed": True}).holds("vendor", CHECKS["elsewhere"])


@pytest.mark.parametrize(
    ("receipt", "is_managed"),
    [
        ('{"inputs": {"source": "doca"}}', True),
        ('{"inputs": {"source": "distribution"}}', False),
        ("{}", False),
        ("[]", False),
        ("broken", False),
        ("", False),
    ],
)
def test_the_roles_own_stack_is_known_by_its_receipt(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    receipt: str,
    is_managed: bool,  # noqa: FBT001
) -> None:
    """Also after its profile was removed manually."""
    (tmp_path / "rdma_stack.json").write_text(receipt)
    monkeypatch.setattr(module, "RECEIPT", str(tmp_path / "rdma_stack.json"))

    assert run(module, action="probe")["facts"]["managed"] is is_managed


def test_secure_boot_refuses_modules_without_an_enrolled_certificate() -> None:
    """With the commands."""
    locked = role({"secure_boot": True, "certificate": True})

    assert not locked.holds("vendor", CHECKS["signature"])
    assert "mokutil --import /var/lib/dkms/mok.pub" in locked.says("vendor", CHECKS["signature"])
    assert role({"secure_boot": True, "certificate": True, "enrolled": True}).holds("vendor", CHECKS["signature"])


def test_a_loaded_stack_is_not_replaced_under_a_job() -> None:
    """Unless nothing changes, or the operator consents."""
    loaded, busy = {"loaded": True}, {"jobs": ["process 1 uses /dev/infiniband/uverbs0"]}

    assert not role(loaded, platform_node=busy).holds("vendor", CHECKS["jobs"])
    assert role(platform_node=busy).holds("vendor", CHECKS["jobs"])
    assert role(loaded).holds("vendor", CHECKS["jobs"])
    assert role(loaded, platform_node=busy, __platform_disruptive=True).holds("vendor", CHECKS["jobs"])
    assert role(loaded, platform_node={**busy, "packages": {"doca-ofed": "3.2.2"}}).holds("vendor", CHECKS["jobs"])


def test_a_container_gets_the_stack_for_listed_kernels_only() -> None:
    """It builds, and loads nothing."""
    container = {"kind": "container", "modules_loadable": False}
    listed = role(platform_node=container, rdma_stack_kernels=[KERNEL])

    assert role(platform_node=container).value("__rdma_stack_vendor") is False
    assert (listed.value("__rdma_stack_vendor"), listed.value("__rdma_stack_loads")) == (True, False)
    assert f"linux-headers-{KERNEL}" in listed.value("__rdma_stack_choice.packages")
