"""The role fabric_host: PCIe read requests and ACS, at boot as well, and their reset."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import pytest

from tests.support.expressions import Role
from tests.support.modules import ROLES, load, play_commands, provide_utils, run, undone

provide_utils()
origin = importlib.import_module("ansible.module_utils.platform_origin")
links = importlib.import_module("ansible.module_utils.platform_links")
pci = importlib.import_module("ansible.module_utils.platform_pci")
cards = importlib.import_module("ansible.module_utils.fabric_host_cards")
settings = importlib.import_module("ansible.module_utils.fabric_host_settings")
undo = importlib.import_module("ansible.module_utils.platform_undo_kernel")
MODULES: dict[str, ModuleType] = {}
ROOT_PORT, SWITCH, CARD, GPU_PORT, GPU = (
    "0000:00:01.0",
    "0000:01:00.0",
    "0000:02:00.0",
    "0000:00:02.0",
    "0000:03:00.0",
)
MANAGEMENT_PORT, MANAGEMENT = "0000:00:05.0", "0000:05:00.0"
REQUEST, ACS = "CAP_EXP+8.w", "ECAP_ACS+6.w"


def module() -> ModuleType:
    """Return the module, which is loaded once."""
    return MODULES.setdefault("pci", load("fabric_host", "fabric_host_pci"))


class Node:
    """A card below a switch, a GPU below another root port, and the management's card below a third one."""

    def __init__(self, root: Path) -> None:
        self.root, self.has_setpci, self.is_locked, self.accepts = root, True, False, True
        self.registers: dict[tuple[str, str], int] = {}
        self.writes: list[str] = []
        self.device(ROOT_PORT, kind="0x060400", **{ACS: 0x1D})
        self.device(f"{ROOT_PORT}/{SWITCH}", kind="0x060400", **{ACS: 0x00})
        self.device(f"{ROOT_PORT}/{SWITCH}/{CARD}", vendor="0x15b3", kind="0x020000", **{REQUEST: 0x2810})
        self.device(GPU_PORT, kind="0x060400", **{ACS: 0x1C})
        self.device(f"{GPU_PORT}/{GPU}", vendor="0x10de", kind="0x030200", **{REQUEST: 0x2810})
        self.device(MANAGEMENT_PORT, kind="0x060400", **{ACS: 0x1D})
        self.device(f"{MANAGEMENT_PORT}/{MANAGEMENT}", kind="0x020000", **{REQUEST: 0x2810})
        self.interface("ens4", f"{ROOT_PORT}/{SWITCH}/{CARD}")
        self.interface("ens3", f"{MANAGEMENT_PORT}/{MANAGEMENT}")

    def device(self, path: str, *, vendor: str = "0x8086", kind: str, **registers: int) -> None:
        """Add a device."""
        folder = self.root / "devices/pci0000:00" / path
        folder.mkdir(parents=True)
        for name, text in (("vendor", vendor), ("device", "0x1021"), ("class", kind)):
            (folder / name).write_text(f"{text}\n")
        (self.root / "pci").mkdir(exist_ok=True)
        (self.root / "pci" / folder.name).symlink_to(folder)
        self.registers |= {(folder.name, name): value for name, value in registers.items()}

    def interface(self, name: str, path: str = "", *, below: tuple[str, ...] = ()) -> None:
        """Add an interface of a card, or one on top of others."""
        device = self.root / "devices/pci0000:00" / path
        folder = device / "net" / name if path else self.root / "devices/virtual" / name
        folder.mkdir(parents=True)
        (folder / "mtu").write_text("1500\n")
        if path:
            (folder / "device").symlink_to(device)
        for one in below:
            (folder / f"lower_{one}").symlink_to(self.root / "net" / one)
        (self.root / "net").mkdir(exist_ok=True)
        (self.root / "net" / name).symlink_to(folder)

    def assign(self, address: str) -> None:
        """Give a device to a virtual machine."""
        folder = self.root / "drivers/vfio-pci"
        folder.mkdir(parents=True)
        (folder / address).symlink_to(self.root / "pci" / address)

    def run_command(self, command: list[str]) -> tuple[int, str, str]:
        """Do what setpci does."""
        assert command[:2] == ["setpci", "-s"]
        address, (register, _, text) = command[2], command[3].partition("=")
        if (address, register) not in self.registers:
            exists = (self.root / "pci" / address).exists()
            return (1, "", "no capabilities with that id") if exists else (0, "", "No devices selected")
        if not text:
            return 0, f"{self.registers[address, register]:04x}\n", ""
        if self.is_locked:
            return 1, "", "sysfs_write: write failed: Operation not permitted"
        value, mask = (int(part, 16) for part in text.split(":"))
        self.writes.append(f"{address} {register}")
        if self.accepts:
            self.registers[address, register] = self.registers[address, register] & ~mask | value
        return 0, "", ""

    def get_bin_path(self, _name: str) -> str | None:
        """Return where setpci is."""
        return "/usr/bin/setpci" if self.has_setpci else None


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node."""
    made = Node(tmp_path)
    monkeypatch.setattr(links, "NET", str(tmp_path / "net"))
    monkeypatch.setattr(pci, "DEVICES", str(tmp_path / "pci"))
    monkeypatch.setattr(pci, "DRIVERS", str(tmp_path / "drivers"))
    monkeypatch.setattr(cards, "RDMA", str(tmp_path / "infiniband"))
    play_commands(monkeypatch, settings.AnsibleModule, made)
    return made


def apply(*interfaces: str, check: bool = False, **more: Any) -> dict[str, Any]:
    """Run the module."""
    return run(module(), check=check, interfaces=list(interfaces or ("ens4",)), **more)


def reset(node: Node) -> tuple[list[str], list[str]]:
    """Undo the settings; return the steps and what is left."""
    left: list[str] = []
    steps = undo.pci_steps(node, left)
    return undone(steps), left


def test_the_read_request_of_data_cards_is_set_and_reset(node: Node) -> None:
    """Other bits of the register and other cards are unchanged; so is all in check mode and by a second run."""
    planned = apply(max_read_request=4096, check=True)
    assert (planned["changed"], node.writes, origin.records("pci")) == (True, [], [])
    assert planned["diff"][0]["after"] == f"{CARD} {REQUEST} 5000\n"

    assert apply(max_read_request=4096)["changed"]
    assert node.registers[CARD, REQUEST] == 0x5810
    assert not apply(max_read_request=4096)["changed"]
    assert node.writes == [f"{CARD} {REQUEST}"]
    assert reset(node) == ([f"set {REQUEST} of {CARD} back to 2000"], [])
    assert node.registers[CARD, REQUEST] == 0x2810
    assert reset(node) == ([], [])


@pytest.mark.parametrize(("size", "bits"), [(128, 0), (256, 1), (512, 2), (1024, 3), (2048, 4), (4096, 5)])
def test_sizes_are_powers_of_two(size: int, bits: int) -> None:
    """As the PCI Express specification numbers them."""
    assert (pci.read_request_bits(size), pci.read_request_size(bits << 12 | 0x0810)) == (bits << 12, size)


def test_a_bond_has_the_cards_of_its_interfaces(node: Node) -> None:
    """So does a VLAN on it."""
    node.interface("bond0", below=("ens3", "ens4"))
    node.interface("bond0.100", below=("bond0",))

    assert apply("bond0.100", max_read_request=1024)["changed"]
    assert sorted(node.writes) == [f"{CARD} {REQUEST}", f"{MANAGEMENT} {REQUEST}"]


def test_acs_is_cleared_above_cards_and_gpus(node: Node) -> None:
    """Source validation stays, and the bridge of another card too; what a bridge lacks or has is not written."""
    done = apply(acs="disabled")

    assert done["changed"]
    assert sorted(node.writes) == [f"{ROOT_PORT} {ACS}", f"{GPU_PORT} {ACS}"]
    assert (node.registers[ROOT_PORT, ACS], node.registers[MANAGEMENT_PORT, ACS]) == (0x01, 0x1D)
    assert not apply(acs="disabled")["changed"]
    assert len(reset(node)[0]) == 2
    assert (node.registers[ROOT_PORT, ACS], node.registers[GPU_PORT, ACS]) == (0x1D, 0x1C)


def test_acs_is_cleared_above_rdma_devices_of_other_vendors(node: Node) -> None:
    """A software RDMA device is none."""
    device = node.root / "pci" / MANAGEMENT
    for name in ("bnxt_re0", "rxe0"):
        (node.root / "infiniband" / name).mkdir(parents=True)
        (node.root / "infiniband" / name / "device").symlink_to(device)
    (node.root / "infiniband/rxe0/parent").write_text("ens3\n")
    assert MANAGEMENT in cards.peers()

    (node.root / "infiniband/bnxt_re0/device").unlink()
    assert MANAGEMENT not in cards.peers()


@pytest.mark.parametrize("check", [True, False])
def test_acs_of_a_virtualization_host_is_not_changed(node: Node, *, check: bool) -> None:
    """It separates the devices of virtual machines. The script at boot checks it too."""
    node.assign(GPU)

    done = apply(acs="disabled", check=check)

    assert f"{GPU} may be assigned to virtual machines" in done["msg"]
    assert node.writes == []


def test_settings_that_are_removed_are_restored(node: Node) -> None:
    """A value that was changed since is left, and so is a card in the place of another one."""
    apply(max_read_request=4096, acs="disabled")
    node.registers[CARD, REQUEST] = 0x3810

    done = apply()

    assert (done["changed"], done["boot"]) == (True, [])
    assert (node.registers[CARD, REQUEST], node.registers[ROOT_PORT, ACS]) == (0x3810, 0x1D)
    assert (origin.records("pci"), apply()["changed"]) == ([], False)


def test_a_reset_leaves_what_was_changed_since(node: Node) -> None:
    """And reports it; another device in the same slot is not touched."""
    apply(max_read_request=4096)
    node.registers[CARD, REQUEST] = 0x3810
    assert reset(node) == ([], [f"leave {REQUEST} of {CARD} at 3000, which was changed since (originally 2000)"])

    node.registers[CARD, REQUEST] = 0x5810
    (node.root / "pci" / CARD / "device").write_text("0x1023\n")
    assert reset(node) == ([], [])
    node.has_setpci = False
    assert reset(node) == ([], ["leave PCIe settings until the next boot: setpci is missing"])


def test_a_card_without_pcie_is_left_out(node: Node) -> None:
    """Such as one of a virtual machine; the receipt records it."""
    del node.registers[CARD, REQUEST]

    done = apply(max_read_request=4096)

    assert (done["changed"], done["boot"]) == (False, [])
    assert done["left_out"] == [f"maximum read request of {CARD} skipped: it is no PCIe device"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_locked": True}, "a kernel in lockdown refuses it"),
        ({"accepts": False}, f"{CARD}: the device does not accept the value"),
        ({"has_setpci": False}, "setpci is missing"),
    ],
)
def test_a_value_that_cannot_be_set_is_an_error(node: Node, change: dict[str, bool], message: str) -> None:
    """The next apply tries again, because nothing claims that it is set."""
    for name, value in change.items():
        setattr(node, name, value)

    assert message in apply(max_read_request=4096)["msg"]
    assert node.registers[CARD, REQUEST] == 0x2810


def test_a_plan_works_before_pciutils_is_installed(node: Node) -> None:
    """The step installs it."""
    node.has_setpci = False

    assert apply(max_read_request=4096, check=True)["changed"]
    assert not apply(check=True)["changed"]


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("size", [64, 1000, 8192])
def test_other_sizes_are_refused(size: int) -> None:
    """Before anything is written."""
    assert "fabric_host_pcie_max_read_request" in apply(max_read_request=size)["msg"]


def script(node: Node, rows: list[dict[str, Any]]) -> str:
    """The script for boots, with the folders of the test."""
    template = (ROLES / "fabric_host/templates/fabric-setup.j2").read_text()
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined, autoescape=False)  # noqa: S701
    environment.filters["quote"] = lambda text: f"'{text}'"
    names = set(re.findall(r"__fabric_host_\w+", template))
    values = {**dict.fromkeys(names, ""), "__fabric_host_hugepages": {}, "__fabric_host_pci_boot": rows}
    text = environment.from_string(template).render(values)
    return text.replace("/sys/bus/pci/devices", str(node.root / "pci")).replace(
        "/sys/bus/pci/drivers", str(node.root / "drivers")
    )


def boot(node: Node, rows: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """Run the script; return its messages, and what it gives to setpci."""
    program = node.root / "bin/setpci"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\necho "$*" >>{node.root}/calls\n')
    program.chmod(0o755)
    (node.root / "calls").write_text("")
    done = subprocess.run(
        ["sh", "-c", script(node, rows)],
        env={"PATH": f"{program.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stderr, (node.root / "calls").read_text().splitlines()


def test_the_script_sets_the_same_values_at_boot(node: Node) -> None:
    """Those that the node has already, too: a boot sets other ones."""
    apply(max_read_request=4096, acs="disabled")
    rows = apply(max_read_request=4096, acs="disabled")["boot"]

    assert boot(node, rows) == (
        "",
        [
            f"-s {ROOT_PORT} {ACS}=0000:001c",
            f"-s {GPU_PORT} {ACS}=0000:001c",
            f"-s {SWITCH} {ACS}=0000:001c",
            f"-s {CARD} {REQUEST}=5000:7000",
        ],
    )


def test_the_script_changes_no_other_device_and_no_virtualization_host(node: Node) -> None:
    """Cards may have moved, or devices have been assigned since the apply."""
    rows = apply(max_read_request=4096, acs="disabled")["boot"]
    (node.root / "pci" / CARD / "device").write_text("0x1023\n")
    node.assign(GPU)

    messages, calls = boot(node, rows)

    assert calls == []
    assert f"{CARD}: not the device 0x15b3:0x1021 any more; skipped" in messages
    assert f"ACS unchanged: {GPU} is assigned to virtual machines (vfio)" in messages


def test_cards_of_a_container_node_belong_to_its_host() -> None:
    """Its receipt records it, and no package is installed."""
    variables = {"fabric_host_pcie_max_read_request": 4096, "fabric_host_pcie_acs": "disabled"}
    more = {"__fabric_host_network": {}, "__fabric_host_kernel": {}, "fabric_host_interfaces": ["ens4"]}
    metal, inside = (
        Role("fabric_host", platform_node={"kind": kind}, **variables, **more) for kind in ("metal", "container")
    )

    names = ("uses_interfaces", "has_script", "packages", "reductions")
    assert [metal.value(f"__fabric_host_{name}") for name in names] == [True, True, ["pciutils"], []]
    assert [inside.value(f"__fabric_host_{name}") for name in names] == [
        False,
        False,
        [],
        ["PCIe settings skipped: those of a container node belong to its host"],
    ]
