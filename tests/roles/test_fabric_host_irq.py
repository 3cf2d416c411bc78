"""The role fabric_host: CPUs of the interrupts of data cards, at boot as well, their facts and their reset."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import pytest

from provision.facts.base import RawOutput
from provision.facts.fabric import FabricFact
from tests.support.modules import ROLES, load, provide_utils, run, undone

provide_utils()
origin = importlib.import_module("ansible.module_utils.platform_origin")
irq = importlib.import_module("ansible.module_utils.platform_irq")
links = importlib.import_module("ansible.module_utils.platform_links")
pci = importlib.import_module("ansible.module_utils.platform_pci")
undo = importlib.import_module("ansible.module_utils.platform_undo_kernel")
MODULES: dict[str, ModuleType] = {}
RAIL, UNKNOWN = "0000:3b:00.0", "0000:86:00.0"


def module() -> ModuleType:
    """Return the module, which is loaded once."""
    return MODULES.setdefault("irq", load("fabric_host", "fabric_host_irq"))


class Node:
    """A card on the second of two NUMA nodes with four interrupts, and one whose node is unknown."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, address, node, local in (("ens4", RAIL, "1", "4-7"), ("ens5", UNKNOWN, "-1", "0-7")):
            card = root / "devices" / address
            (card / "net" / name).mkdir(parents=True)
            (root / "net").mkdir(exist_ok=True)
            (root / "net" / name).symlink_to(card / "net" / name)
            (root / "pci").mkdir(exist_ok=True)
            (root / "pci" / address).symlink_to(card)
            for key, value in (
                ("numa_node", node),
                ("local_cpulist", local),
                ("vendor", "0x15b3"),
                ("device", "0x1017"),
            ):
                (card / key).write_text(f"{value}\n")
            (card / "net" / name / "mtu").write_text("1500\n")
            (card / "msi_irqs").mkdir()
        for number, cpus in ((40, "0-7"), (41, "4"), (42, "1,5"), (43, "6-7")):
            (root / "devices" / RAIL / "msi_irqs" / str(number)).write_text("msix\n")
            (root / "irq" / str(number)).mkdir(parents=True)
            (root / "irq" / str(number) / "smp_affinity_list").write_text(f"{cpus}\n")
        (root / "devices" / RAIL / "msi_irqs" / "44").write_text("msix\n")  # not in use
        (root / "boot_id").write_text("first\n")

    @property
    def cpus(self) -> list[str]:
        """The CPUs of each interrupt in use."""
        return [(self.root / f"irq/{number}/smp_affinity_list").read_text().strip() for number in (40, 41, 42, 43)]

    def set(self, number: int, cpus: str) -> None:
        """Set the CPUs of an interrupt as another program does."""
        (self.root / f"irq/{number}/smp_affinity_list").write_text(f"{cpus}\n")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node."""
    monkeypatch.setattr(links, "NET", str(tmp_path / "net"))
    monkeypatch.setattr(pci, "DEVICES", str(tmp_path / "pci"))
    monkeypatch.setattr(irq, "PROC", str(tmp_path / "irq"))
    monkeypatch.setattr(irq, "BOOT_ID", str(tmp_path / "boot_id"))
    return Node(tmp_path)


def apply(*interfaces: str, check: bool = False, affinity: str = "local") -> dict[str, Any]:
    """Run the module."""
    return run(module(), check=check, interfaces=list(interfaces or ("ens4",)), affinity=affinity)


def reset() -> tuple[list[str], list[str]]:
    """Undo the settings; return the steps and what is left."""
    left: list[str] = []
    steps = undo.irq_steps(left)
    return undone(steps), left


def test_interrupts_of_other_numa_nodes_are_moved_and_reset(node: Node) -> None:
    """Those that run on the card's node are left. Check mode and a second run change nothing."""
    planned = apply(check=True)
    assert (planned["changed"], node.cpus) == (True, ["0-7", "4", "1,5", "6-7"])
    assert planned["diff"][0]["after"] == f"{RAIL} interrupt 40: CPU 4-7\n{RAIL} interrupt 42: CPU 4-7\n"

    assert apply()["changed"]
    assert (node.cpus, apply()["changed"]) == (["4-7", "4", "4-7", "6-7"], False)
    node.set(42, "5")
    assert reset() == ([f"set the CPUs of interrupts of {RAIL} back"], [])
    assert (node.cpus, reset()) == (["0-7", "4", "5", "6-7"], ([], []))


def test_a_setting_that_is_removed_is_restored(node: Node) -> None:
    """An interrupt that was changed since is left."""
    apply()
    node.set(42, "5")

    assert apply(affinity="")["changed"]
    assert (node.cpus, origin.records("irqs"), apply(affinity="")["changed"]) == (["0-7", "4", "5", "6-7"], [], False)


def test_numbers_of_interrupts_are_valid_until_the_next_boot(node: Node) -> None:
    """Values of an earlier boot are not restored: the numbers belong to other devices."""
    apply()
    (node.root / "boot_id").write_text("second\n")
    node.set(40, "0-7")

    assert reset() == ([], [f"interrupts of {RAIL} have their CPUs until the next boot"])
    assert apply()["changed"]
    assert [doc["boot"] for doc in origin.records("irqs")] == ["second"]
    assert reset()[1] == []


@pytest.mark.usefixtures("node")
def test_a_card_whose_numa_node_is_unknown_is_left_out() -> None:
    """As in most virtual machines."""
    done = apply("ens5")

    assert (done["changed"], done["left_out"]) == (
        False,
        [f"interrupts of {UNKNOWN} skipped: its NUMA node is unknown"],
    )


@pytest.mark.usefixtures("node")
def test_an_interrupt_that_the_kernel_distributes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses other CPUs."""

    def refuse(_path: str, _text: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(links, "write", refuse)
    assert "the kernel refuses other CPUs for the interrupt 40" in apply()["msg"]


def test_the_script_moves_them_at_boot_and_facts_count_the_others(node: Node) -> None:
    """Another device at the address is skipped."""
    rows = [
        *apply("ens4", "ens5", check=True)["boot"],
        {"address": "0000:99:00.0", "identity": "a:b", "is_known": True},
    ]
    environment = jinja2.Environment(trim_blocks=True, autoescape=False)  # noqa: S701
    environment.filters["quote"] = str
    template = environment.from_string((ROLES / "fabric_host/templates/fabric-setup.j2").read_text())
    script = node.root / "fabric-setup"
    text = template.render(__fabric_host_hugepages={}, __fabric_host_irq_boot=rows)

    def here(command: str) -> str:
        folders = {
            "/sys/bus/pci/devices": "pci",
            "/proc/irq": "irq",
            "/usr/local/lib/provision/fabric-setup": "fabric-setup",
        }
        for path, name in folders.items():
            command = command.replace(path, str(node.root / name))
        return command

    def facts() -> dict[str, int | None]:
        done = subprocess.run(["sh", "-c", here(FabricFact.command)], capture_output=True, text=True, check=True)
        return dict(FabricFact().parse(RawOutput(done.stdout, 0, "")).interrupts)

    script.write_text(here(text))
    assert facts() == {RAIL: 2, UNKNOWN: None}
    done = subprocess.run(["sh", script], capture_output=True, text=True, check=False)
    assert (done.returncode, node.cpus) == (0, ["4-7", "4", "4-7", "6-7"]), done.stderr
    assert done.stderr == "0000:99:00.0: not the device a:b any more; skipped\n"
    assert facts() == {RAIL: 0, UNKNOWN: None}


@pytest.mark.parametrize("line", ["0 0-7 x", "0 7-0 1", "0 0-9999999 1", "0", "0 0-7 1,,2", "0 0-7 \u0661"])
def test_a_list_of_another_form_is_no_fact(line: str) -> None:
    """A node may print anything."""
    assert FabricFact().parse(RawOutput(f"interrupts {RAIL} {line}\n", 0, "")).interrupts == {}
