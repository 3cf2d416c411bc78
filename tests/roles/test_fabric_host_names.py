"""The role fabric_host: names of interfaces by PCI address, which have an effect at the next boot, and their reset."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.modules import load, play_commands, provide_utils, run

provide_utils()
origin = importlib.import_module("ansible.module_utils.platform_origin")
links = importlib.import_module("ansible.module_utils.platform_links")
undo = importlib.import_module("ansible.module_utils.platform_undo_kernel")
undo_files = importlib.import_module("ansible.module_utils.platform_undo_files")
MODULES: dict[str, ModuleType] = {}
RAIL, OTHER, SPARE = "0000:3b:00.0", "0000:86:00.0", "0000:af:00.0"
UP, DOWN = "0x1003", "0x1002"


def module() -> ModuleType:
    """Return the module, which is loaded once."""
    return MODULES.setdefault("names", load("fabric_host", "fabric_host_names"))


class Node:
    """Two cards, whose interfaces are up, a bridge on one of them, and the program `ip`."""

    def __init__(self, root: Path) -> None:
        self.root, self.ran = root, []
        self.routes = "default via 10.0.0.1 dev br0 proto static\n"
        self.addresses = "2: ens3    inet 10.1.0.5/24 brd 10.1.0.255 scope global ens3\n"
        self.virtual("ens3")
        self.card("ens4", RAIL)
        self.card("ens5", OTHER)
        self.virtual("br0", above="ens9")
        self.card("ens9", SPARE)

    def card(self, name: str, address: str, flags: str = UP) -> None:
        """Add the interface of a card."""
        device = self.root / f"devices/pci0000:00/0000:00:01.0/{address}/net/{name}"
        device.mkdir(parents=True)
        self._link(name, device, flags)

    def virtual(self, name: str, *, above: str = "") -> None:
        """Add an interface without a card."""
        device = self.root / f"devices/virtual/net/{name}"
        device.mkdir(parents=True)
        if above:
            (device / f"lower_{above}").mkdir()
        self._link(name, device, UP)

    def _link(self, name: str, device: Path, flags: str) -> None:
        (self.root / "net").mkdir(exist_ok=True)
        (self.root / "net" / name).symlink_to(device)
        (device / "mtu").write_text("1500\n")
        (device / "flags").write_text(f"{flags}\n")

    def set_flags(self, name: str, flags: str) -> None:
        """Set an interface up or down."""
        (self.root / "net" / name / "flags").write_text(f"{flags}\n")

    def reached_at(self, address: str) -> None:
        """Let the controller connect to an address of the node; sudo has cleared the environment of the module."""
        for pid, parent, text in (
            (os.getpid(), 77, "PATH=/bin\0"),
            (77, 1, f"A=b\0SSH_CONNECTION=1.2.3.4 5 {address} 22"),
        ):
            folder = self.root / "proc" / str(pid)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "environ").write_text(text)
            (folder / "stat").write_text(f"{pid} (python3 (x)) S {parent} 1 1")

    @property
    def files(self) -> dict[str, str]:
        """The files of systemd by name."""
        return {path.name: path.read_text() for path in sorted((self.root / "network").glob("*"))}

    def run_command(self, command: list[str]) -> tuple[int, str, str]:
        """Do what `ip` does."""
        if command[1:] == ["-4", "route", "show", "default"]:
            return 0, self.routes, ""
        if command[1:] == ["-6", "route", "show", "default"]:
            return 0, "", ""
        if command[1:] == ["-o", "addr", "show"]:
            return 0, self.addresses, ""
        self.ran.append(command)
        before, after = self.root / "net" / command[4], self.root / "net" / command[6]
        before.rename(after)
        return 0, "", ""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node that the controller reaches at an address of no card."""
    made = Node(tmp_path)
    made.reached_at("10.1.0.5")
    monkeypatch.setattr(links, "NET", str(tmp_path / "net"))
    monkeypatch.setattr(module(), "PROC", str(tmp_path / "proc"))
    play_commands(monkeypatch, module().AnsibleModule, made)
    return made


def apply(node: Node, *, check: bool = False, **names: str) -> dict[str, Any]:
    """Run the module."""
    return run(module(), check=check, names=names, folder=str(node.root / "network"))


def test_an_interface_that_is_up_is_named_at_the_next_boot(node: Node) -> None:
    """Check mode and a second run change nothing; the first file that matches is the only one that udev uses."""
    planned = apply(node, check=True, rail0=RAIL)
    assert (planned["changed"], node.files) == (True, {})

    done = apply(node, rail0=RAIL)

    assert (done["changed"], done["left_out"], node.ran) == (True, [], [])
    assert done["files"] == [str(node.root / "network/05-provision-rail0.link")]
    match, _, link = node.files["05-provision-rail0.link"].partition("\n\n")
    assert match.splitlines()[1:] == ["[Match]", f"Path=*pci-{RAIL}"]
    assert link.splitlines()[:2] == ["[Link]", "Name=rail0"]
    assert not apply(node, rail0=RAIL)["changed"]


def test_an_interface_that_is_down_is_named_at_once(node: Node) -> None:
    """No program uses it."""
    node.set_flags("ens4", DOWN)

    assert apply(node, check=True, rail0=RAIL)["diff"][-1]["after"] == "rail0\n"
    assert apply(node, rail0=RAIL, rail1=OTHER)["changed"]
    assert node.ran == [["ip", "link", "set", "dev", "ens4", "name", "rail0"]]
    assert not apply(node, rail0=RAIL, rail1=OTHER)["changed"]


def test_a_reset_removes_the_files(node: Node) -> None:
    """The names remain until the next boot, which the reset reports."""
    node.set_flags("ens4", DOWN)
    apply(node, rail0=RAIL, rail1=OTHER)

    assert undo.names_until_boot() == ["rail0 has this name until the next boot"]
    for step in filter(None, map(undo_files.file_step, origin.records("files"))):
        step.act()
    assert node.files == {}


def test_a_name_that_is_removed_from_the_inventory_has_no_file(node: Node) -> None:
    """A second run changes nothing."""
    apply(node, rail0=RAIL, rail1=OTHER)

    assert apply(node, rail1=OTHER)["changed"]
    assert list(node.files) == ["05-provision-rail1.link"]
    assert (apply(node, rail1=OTHER)["changed"], len(origin.records("link_names"))) == (False, 1)


@pytest.mark.parametrize("address", ["10.2.0.9", "::ffff:10.2.0.9", "fe80::1%ens4"])
def test_the_interface_of_the_connection_is_not_renamed(node: Node, address: str) -> None:
    """After a boot its network manager may not configure it under the other name. Nothing is written."""
    node.addresses += "3: ens4    inet 10.2.0.9/24 scope global ens4\n3: ens4    inet6 fe80::1/64 scope link\n"
    node.reached_at(address)

    assert "rail0: ens4 is the interface of the controller's connection" in apply(node, rail0=RAIL)["msg"]
    assert node.files == {}
    assert apply(node, ens4=RAIL)["changed"]


def test_an_interface_below_the_default_route_is_not_renamed(node: Node) -> None:
    """A bridge, a bond or a VLAN uses it."""
    assert "rail9: ens9 is the interface of the default route" in apply(node, rail9=SPARE)["msg"]
    node.routes = "default via 10.0.0.1 dev gone\n"
    assert apply(node, rail9=SPARE)["changed"]


def test_a_card_without_an_interface_is_reported(node: Node) -> None:
    """Its file is written: the driver may load later."""
    done = apply(node, rail0="0000:ff:00.0")

    assert done["left_out"] == ["rail0: no network interface at 0000:ff:00.0"]
    assert list(node.files) == ["05-provision-rail0.link"]


def test_names_of_two_cards_are_exchanged_at_the_next_boot(node: Node) -> None:
    """Neither name is free before."""
    for name in ("ens4", "ens5"):
        node.set_flags(name, DOWN)

    assert apply(node, ens5=RAIL, ens4=OTHER)["changed"]
    assert (node.ran, len(node.files)) == ([], 2)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"eth0": RAIL}, "eth0: not a name"),
        ({"rail 0": RAIL}, "rail 0: not a name"),
        ({"rail0": "3b:00.0"}, "3b:00.0 is not a PCI address"),
        ({"rail0": f"{RAIL}\nx"}, "is not a PCI address"),
        ({"rail0": RAIL, "rail1": RAIL}, f"{RAIL}: it has several names"),
        ({"br0": RAIL}, "br0: another interface has this name"),
    ],
)
def test_a_name_that_cannot_be_given_is_refused(node: Node, names: dict[str, str], message: str) -> None:
    """Before anything is written."""
    assert message in apply(node, **names)["msg"]
    assert node.files == {}


def test_a_card_with_several_interfaces_is_refused(node: Node) -> None:
    """The PCI address does not identify one of them."""
    node.card("ens4d1", RAIL)

    assert f"the card {RAIL} has several interfaces (ens4, ens4d1)" in apply(node, rail0=RAIL)["msg"]
