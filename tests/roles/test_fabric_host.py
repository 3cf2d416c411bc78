"""The role fabric_host: network settings, hugepages, CPU governor and irqbalance, and their reset."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from provision.commands.fabric_interfaces import data_interfaces
from tests.support.expressions import Role
from tests.support.modules import load, play_commands, provide_utils, run, undone

provide_utils()
origin = importlib.import_module("ansible.module_utils.platform_origin")
links = importlib.import_module("ansible.module_utils.platform_links")
pci = importlib.import_module("ansible.module_utils.platform_pci")
undo = importlib.import_module("ansible.module_utils.platform_undo_kernel")
MODULES: dict[str, ModuleType] = {}
CARD = "0000:3b:00.0"


def module(name: str) -> ModuleType:
    """Return a module of the role, which is loaded once."""
    if name not in MODULES:
        MODULES[name] = load("fabric_host", name)
    return MODULES[name]


class Node:
    """The interfaces, CPUs and units of a node below a folder, and the programs that change them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.refused: set[str] = set()
        self.ran: list[list[str]] = []
        self.unit = {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}

    def interface(self, name: str, card: str = "", mtu: int = 1500) -> None:
        """Add an interface."""
        device = self.root / (
            f"devices/pci0000:00/0000:00:01.0/{card}/net/{name}" if card else f"devices/virtual/{name}"
        )
        device.mkdir(parents=True)
        (self.root / "net").mkdir(exist_ok=True)
        (self.root / "net" / name).symlink_to(device)
        (device / "mtu").write_text(f"{mtu}\n")
        if card:
            (device / "dev_port").write_text("0\n")
            (self.root / "pci").mkdir(exist_ok=True)
            (self.root / "pci" / card).symlink_to(device.parents[1])
        folder = self.root / "conf" / name
        folder.mkdir(parents=True)
        for key in ("rp_filter", "arp_ignore", "arp_announce"):
            (folder / key).write_text("0\n")

    def mtu(self, name: str) -> int:
        """Return the MTU of an interface."""
        return int((self.root / "net" / name / "mtu").read_text())

    def arp(self, name: str) -> list[str]:
        """Return the ARP settings of an interface."""
        return [
            (self.root / "conf" / name / key).read_text().strip() for key in ("rp_filter", "arp_ignore", "arp_announce")
        ]

    def run_command(self, command: list[str]) -> tuple[int, str, str]:
        """Do what `ip` and `systemctl` do."""
        if command[:2] == ["systemctl", "show"]:
            return 0, "".join(f"{key}={value}\n" for key, value in self.unit.items()), ""
        self.ran.append(command)
        if command[0] == "ip":
            if command[6] in self.refused:
                return 2, "", "RTNETLINK answers: Invalid argument"
            (self.root / "net" / command[4] / "mtu").write_text(command[6])
        elif "start" in command or "stop" in command:
            self.unit["ActiveState"] = "active" if "start" in command else "inactive"
        else:
            self.unit["UnitFileState"] = "enabled" if "enable" in command else "disabled"
        return 0, "", ""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node with a card's interface and a bond."""
    made = Node(tmp_path)
    made.interface("ens4", CARD)
    made.interface("bond0")
    monkeypatch.setattr(links, "NET", str(tmp_path / "net"))
    monkeypatch.setattr(links, "GOVERNORS", str(tmp_path / "cpu*" / "scaling_governor"))
    monkeypatch.setattr(pci, "DEVICES", str(tmp_path / "pci"))
    monkeypatch.setattr(module("fabric_host_network"), "PROC", str(tmp_path / "conf"))
    monkeypatch.setattr(module("fabric_host_kernel"), "HUGEPAGES", str(tmp_path / "hugepages"))
    monkeypatch.setattr(module("fabric_host_kernel"), "MEMINFO", str(tmp_path / "meminfo"), raising=False)
    (tmp_path / "meminfo").write_text("MemTotal:       16777216 kB\nMemFree:         1000000 kB\n")
    for name in ("fabric_host_network", "fabric_host_kernel"):
        play_commands(monkeypatch, module(name).AnsibleModule, made)
    return made


def network(node: Node, *interfaces: str, check: bool = False, **more: Any) -> dict[str, Any]:
    """Run the module for interfaces."""
    paths = {"rules_path": str(node.root / "rules"), "sysctl_path": str(node.root / "sysctl")}
    return run(module("fabric_host_network"), check=check, interfaces=list(interfaces), **paths, **more)


def text(node: Node, name: str) -> str:
    """Return a file of the node without its first line."""
    return (node.root / name).read_text().partition("\n")[2]


def reset(node: Node) -> list[str]:
    """Undo the settings; return the steps and what is left."""
    left: list[str] = []
    steps = [*undo.sysctl_steps(left), *undo.link_steps(node, left), *undo.governor_steps()]
    steps += undo.unit_steps(node, ("irqbalance.service",))
    return [*undone(steps), *left]


def test_an_mtu_is_set_now_and_whenever_the_interface_appears(node: Node) -> None:
    """A card is known by its address, because its interface's name may change. A second run changes nothing."""
    planned = network(node, "ens4", "bond0", mtu=9000, check=True)
    assert (planned["changed"], node.mtu("ens4"), (node.root / "rules").exists()) == (True, 1500, False)
    assert planned["diff"][-1]["after"] == "ens4 mtu 9000\nbond0 mtu 9000\n"

    done = network(node, CARD, "bond0", mtu=9000)

    assert (done["changed"], node.mtu("ens4"), node.mtu("bond0")) == (True, 9000, 9000)
    assert done["files"] == [str(node.root / "rules")]
    assert text(node, "rules") == (
        f'ACTION=="add", SUBSYSTEM=="net", SUBSYSTEMS=="pci", KERNELS=="{CARD}", ATTR{{dev_port}}=="0", '
        'ATTR{mtu}="9000"\n'
        'ACTION=="add", SUBSYSTEM=="net", KERNEL=="bond0", ATTR{mtu}="9000"\n'
    )
    assert not network(node, CARD, "bond0", mtu=9000)["changed"]


def test_drift_is_corrected(node: Node) -> None:
    """The reset restores the value before the role, not that of the drift."""
    network(node, "ens4", mtu=9000)
    (node.root / "net/ens4/mtu").write_text("1400")

    assert network(node, "ens4", mtu=9000)["changed"]
    assert node.mtu("ens4") == 9000
    assert reset(node) == ["set the MTU of ens4 back to 1500"]
    assert (node.mtu("ens4"), reset(node)) == (1500, [])


def test_a_value_that_was_changed_since_is_left(node: Node) -> None:
    """The reset reports it."""
    network(node, "ens4", mtu=9000)
    (node.root / "net/ens4/mtu").write_text("4200")

    assert reset(node) == ["leave the MTU of ens4 at 4200, which was changed since (originally 1500)"]
    assert node.mtu("ens4") == 4200


def test_a_setting_that_is_removed_is_restored(node: Node) -> None:
    """Also that of an interface that is no data interface any more."""
    network(node, "ens4", "bond0", mtu=9000, arp=True)

    assert network(node, "ens4", mtu=9000)["changed"]
    assert (node.mtu("ens4"), node.mtu("bond0"), node.arp("ens4")) == (9000, 1500, ["0", "0", "0"])
    assert not (node.root / "sysctl").exists()

    assert network(node)["changed"]
    assert (node.mtu("ens4"), (node.root / "rules").exists(), origin.records("mtus")) == (1500, False, [])
    assert not network(node)["changed"]


def test_interfaces_in_one_subnet_answer_for_their_own_addresses(node: Node) -> None:
    """The file has the keys with slashes, because the name of an interface can contain dots."""
    node.interface("ens4.100")

    network(node, "ens4.100", arp=True)

    assert node.arp("ens4.100") == ["2", "1", "2"]
    assert text(node, "sysctl").splitlines() == [
        f"net/ipv4/conf/ens4.100/{key} = {value}"
        for key, value in (("arp_announce", 2), ("arp_ignore", 1), ("rp_filter", 2))
    ]
    assert len(reset(node)) == 3
    assert node.arp("ens4.100") == ["0", "0", "0"]


def test_read_only_settings_of_a_container_node_are_left_out(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receipt names them."""
    monkeypatch.setattr(module("fabric_host_network").os, "access", lambda *_: False)

    done = network(node, "ens4", arp=True)

    assert (done["changed"], done["left_out"]) == (False, ["ARP settings of ens4 skipped: read-only on this node"])


@pytest.mark.parametrize("name", ["ens9", "0000:99:00.0", "../../etc", "ens4;reboot", ""])
def test_an_interface_that_does_not_exist_is_an_error(node: Node, name: str) -> None:
    """Nothing is changed, and no name gets into a rule unchecked."""
    done = network(node, "ens4", name, mtu=9000)

    assert (done["failed"], node.mtu("ens4")) == (True, 1500)
    assert f"{name}: no such network interface" in done["msg"]


@pytest.mark.parametrize("mtu", [1279, 65521, -1])
def test_an_mtu_has_bounds(node: Node, mtu: int) -> None:
    """IPv6 requires 1280."""
    assert "fabric_host_mtu" in network(node, "ens4", mtu=mtu)["msg"]
    assert node.ran == []


class Saved:
    """The change that a module arms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Any] = []
        rescue = module("fabric_host_network").Rescue
        monkeypatch.setattr(rescue, "arm", lambda change, *saved, records=(): self.arm(change.what, saved, records))
        monkeypatch.setattr(rescue, "revert", lambda _self: self.calls.append("reverted"))
        monkeypatch.setattr(rescue, "unchanged", lambda _self: self.calls.append("unchanged"))
        self.records: list[str] = []

    def arm(self, what: str, saved: tuple[Any, ...], records: list[str]) -> None:
        """Store what is saved."""
        self.calls.append((what, *saved))
        self.records = [Path(path).name for path in records]


def test_the_node_can_revert_all_that_is_changed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and values, at the limit and at a boot; nothing waits if nothing is changed."""
    saved = Saved(monkeypatch)
    network(node, "ens4", mtu=9000, arp=True)
    network(node, "ens4", mtu=9000, arp=True)

    (what, files, commands, boot_commands) = saved.calls[0]
    sysctl = [
        f"{node.root}/conf/ens4/{key}=0"[len("/proc/sys/") :] for key in ("arp_announce", "arp_ignore", "rp_filter")
    ]
    assert what == "network settings of ens4"
    assert files == [str(node.root / "rules"), str(node.root / "sysctl")]
    assert commands == [["ip", "link", "set", "dev", "ens4", "mtu", "1500"], ["sysctl", "-q", "-w", *sysctl]]
    assert boot_commands == [["udevadm", "settle", "--timeout=20"], *commands]
    assert saved.calls[1:] == ["unchanged"]


def record_names(kind: str, *names: str) -> list[str]:
    """Return the names of the files of records."""
    return sorted(Path(origin.record_path(kind, name)).name + end for name in names for end in (".json", ".ours"))


def test_a_revert_restores_the_records_of_values(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An MTU that comes back without its record would never be restored; that of a new record is the original one."""
    keys = [f"net.ipv4.conf.ens4.{key}" for key in ("arp_announce", "arp_ignore", "rp_filter")]
    saved = Saved(monkeypatch)
    network(node, "ens4", mtu=9000, arp=True)
    assert sorted(saved.records) == sorted(record_names("mtus", "ens4") + record_names("sysctls", *keys))
    network(node, "ens4", "bond0", mtu=9000)
    assert sorted(saved.records) == sorted(record_names("mtus", "bond0") + record_names("sysctls", *keys))


def test_the_state_is_read_after_other_changes_have_ended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The change of a dead controller looks complete until the node reverts it."""
    network(node, "ens4", mtu=9000)
    reverted = node.root / "net/ens4/mtu"
    monkeypatch.setattr(module("fabric_host_network").Rescue, "begin", lambda _self: reverted.write_text("1500"))

    assert network(node, "ens4", mtu=9000)["changed"]
    assert node.mtu("ens4") == 9000


def test_a_refused_mtu_reverts_the_rest(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver decides about the largest one."""
    saved = Saved(monkeypatch)
    node.refused.add("9000")

    done = network(node, "ens4", mtu=9000)

    assert "ens4: the MTU 9000 is refused (RTNETLINK answers: Invalid argument)" in done["msg"]
    assert saved.calls[-1] == "reverted"


def kernel(*, check: bool = False, **more: Any) -> dict[str, Any]:
    """Run the module for the kernel."""
    return run(module("fabric_host_kernel"), check=check, irqbalance_unit="irqbalance.service", **more)


@pytest.fixture
def cpus(node: Node) -> list[Path]:
    """Two CPUs, and hugepages of 2 MiB."""
    paths = [node.root / f"cpu{number}" / "scaling_governor" for number in range(2)]
    for path in paths:
        path.parent.mkdir()
        path.write_text("powersave\n")
    pages = node.root / "hugepages/hugepages-2048kB/nr_hugepages"
    pages.parent.mkdir(parents=True)
    pages.write_text("0\n")
    return paths


def test_hugepages_and_governor_are_set_and_reset(node: Node, cpus: list[Path]) -> None:
    """Check mode changes nothing, a second run neither, and a reset restores both."""
    pages = node.root / "hugepages/hugepages-2048kB/nr_hugepages"
    wanted = {"hugepages": {"2048": 512}, "governor": "performance"}
    planned = kernel(check=True, **wanted)
    assert planned["diff"][0]["after"] == "hugepages-2048kB 512\nCPU governor performance\n"
    assert (pages.read_text(), origin.records("governors")) == ("0\n", [])

    assert kernel(**wanted)["changed"]
    assert (pages.read_text(), [path.read_text() for path in cpus]) == ("512", ["performance"] * 2)
    assert not kernel(**wanted)["changed"]

    assert reset(node) == ["set hugepages-2048kB back to 0", "set the CPU governor back to powersave"]
    assert (pages.read_text(), [path.read_text() for path in cpus]) == ("0", ["powersave"] * 2)


def test_settings_of_the_kernel_that_are_removed_are_restored(node: Node, cpus: list[Path]) -> None:
    """A value that was changed since is left."""
    kernel(hugepages={"2048": 512}, governor="performance")
    cpus[0].write_text("schedutil")

    assert kernel()["changed"]
    assert (node.root / "hugepages/hugepages-2048kB/nr_hugepages").read_text() == "0"
    assert [path.read_text() for path in cpus] == ["schedutil", "powersave"]
    assert not kernel()["changed"]
    assert origin.records("governors") == origin.records("sysctls") == []


@pytest.mark.usefixtures("node")
def test_what_a_node_does_not_have_is_left_out() -> None:
    """A virtual machine has no frequencies."""
    done = kernel(hugepages={"1048576": 4}, governor="performance")

    assert (done["changed"], len(done["left_out"])) == (False, 2)


@pytest.mark.usefixtures("cpus")
@pytest.mark.parametrize(
    ("hugepages", "fits"),
    [
        ({"2048": 7372}, True),
        ({"2048": 7373}, False),
        ({"1048576": 14}, True),
        ({"2048": 512, "1048576": 14}, False),
    ],
)
def test_hugepages_leave_memory_for_programs(node: Node, *, hugepages: dict[str, int], fits: bool) -> None:
    """Of 16 GiB, nine tenths for pages of all sizes together. Nothing is changed before the check."""
    done = kernel(hugepages=hugepages, governor="performance")

    assert done.get("failed", False) is not fits
    if not fits:
        assert "90 % of the memory (16384 MiB)" in done["msg"]
        assert (node.root / "cpu0/scaling_governor").read_text() == "powersave\n"
        assert (node.root / "hugepages/hugepages-2048kB/nr_hugepages").read_text() == "0\n"
        assert kernel(hugepages=hugepages, check=True)["failed"]


@pytest.mark.usefixtures("cpus")
def test_fewer_pages_than_wanted_are_reported(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel finds no contiguous memory; a reset knows its number."""
    pages = node.root / "hugepages/hugepages-2048kB/nr_hugepages"
    monkeypatch.setattr(links, "write", lambda path, text: Path(path).write_text("300" if text == "512" else text))

    done = kernel(hugepages={"2048": 512})

    assert "the kernel reserved 300 of 512 pages" in done["left_out"][0]
    assert reset(node) == ["set hugepages-2048kB back to 0"]
    assert pages.read_text() == "0"


def test_irqbalance_is_stopped_and_comes_back(node: Node) -> None:
    """Without the setting, or with a reset, it is as before; systemd never rereads its units."""
    assert not kernel()["changed"]
    assert kernel(irqbalance="stopped")["changed"]
    assert not kernel(irqbalance="stopped")["changed"]
    assert node.ran == [
        ["systemctl", "--no-reload", "disable", "irqbalance.service"],
        ["systemctl", "stop", "irqbalance.service"],
    ]
    assert kernel()["changed"]
    assert (node.unit["ActiveState"], node.unit["UnitFileState"], origin.records("units")) == ("active", "enabled", [])

    kernel(irqbalance="stopped")
    assert reset(node) == ["enable irqbalance.service, as before", "start irqbalance.service, as before"]
    assert node.unit == {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}


def test_an_irqbalance_that_was_removed_is_not_started(node: Node) -> None:
    """One that is not installed need not be stopped either."""
    kernel(irqbalance="stopped")
    node.unit, node.ran = {"LoadState": "not-found", "ActiveState": "inactive", "UnitFileState": ""}, []

    assert not kernel(irqbalance="stopped")["changed"]
    assert not kernel()["changed"]
    assert node.ran == []


def test_data_interfaces_are_those_on_the_data_networks() -> None:
    """All rails count; without networks it is the interface of the data address."""
    addresses = [
        {"interface": "eth10", "address": "10.10.0.10"},
        {"interface": "eth2", "address": "10.10.0.2"},
        {"interface": "eth2", "address": "fe80::1%eth2"},
        {"interface": "eth0", "address": "192.0.2.7"},
    ]

    assert data_interfaces(addresses, ["10.10.0.0/16"], "eth0") == ["eth2", "eth10"]
    assert data_interfaces(addresses, [], "eth0") == ["eth0"]
    assert data_interfaces(addresses, [], "") == []


def role(kind: str = "metal", **variables: Any) -> Role:
    """The role on a node with two rails."""
    rails = [{"interface": f"ens{number}", "address": f"10.10.0.{number}"} for number in (4, 5)]
    node_facts = {"kind": kind, "addresses": rails, "data_interface": "ens4"}
    defaults = {"cluster_data_networks": ["10.10.0.0/16"], "__fabric_host_network": {}, "__fabric_host_kernel": {}}
    return Role("fabric_host", inventory_hostname="gpu1", platform_node=node_facts, **{**defaults, **variables})


def test_the_role_without_settings_changes_nothing() -> None:
    """Neither interfaces nor values of the kernel."""
    plain = role()

    names = ("uses_interfaces", "hugepages", "governor", "has_script")
    assert [plain.value(f"__fabric_host_{name}") for name in names] == [False, {}, "", False]
    assert role(fabric_host_mtu=9000).value("__fabric_host_interfaces") == ["ens4", "ens5"]
    assert role(fabric_host_interfaces=["bond0"]).value("__fabric_host_interfaces") == ["bond0"]


def test_settings_of_the_kernel_are_not_those_of_a_container_node() -> None:
    """Its receipt says so."""
    wanted = {
        "fabric_host_hugepages_2mib": "512",
        "fabric_host_hugepages_1gib": 0,
        "fabric_host_cpu_governor": "performance",
    }
    metal, inside = role(**wanted), role("container", **wanted)

    assert metal.value("__fabric_host_hugepages") == {"2048": 512, "1048576": 0}
    assert metal.value("__fabric_host_reductions") == []
    assert (inside.value("__fabric_host_hugepages"), inside.value("__fabric_host_has_script")) == ({}, False)
    assert inside.value("__fabric_host_reductions") == [
        "hugepages and CPU governor skipped: those of a container node belong to its host"
    ]


def test_unknown_data_interfaces_stop_the_role() -> None:
    """Only if a setting needs them."""
    check = ("preflight", "Check that the data interfaces are known")

    assert role(fabric_host_mtu=9000).holds(*check)
    assert not role(fabric_host_mtu=9000, cluster_data_networks=["10.99.0.0/16"]).holds(*check)


def test_a_unit_that_is_removed_is_not_enabled_any_more() -> None:
    """Otherwise its link leads nowhere. A reset must not restore the link."""
    fabric_host = role()
    entries = fabric_host.value(
        fabric_host.task("configure", "Write the script and the unit for boots")["vars"]["__fabric_host_absent"][2:-2]
    )

    link = "/etc/systemd/system/multi-user.target.wants/provision-fabric.service"
    assert {"path": link, "state": "absent", "origin": False} in entries
    assert len(entries) == 3
