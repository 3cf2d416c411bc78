"""The role fabric_host: trust, PFC and ECN of data interfaces, at boot as well, their facts and their reset.

The program mlnx_qos is the SIMULATED one of the lab, whose output has the format of the real one.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import pytest

from provision.facts.base import RawOutput
from provision.facts.fabric import FabricFact
from provision.resources import package_path
from tests.support.modules import ROLES, load, play_commands, provide_utils, run, undone

provide_utils()
origin = importlib.import_module("ansible.module_utils.platform_origin")
links = importlib.import_module("ansible.module_utils.platform_links")
qos = importlib.import_module("ansible.module_utils.platform_qos")
undo = importlib.import_module("ansible.module_utils.platform_undo_kernel")
MODULES: dict[str, ModuleType] = {}
NONE, THREE = "0,0,0,0,0,0,0,0", "0,0,0,1,0,0,0,0"
POINTS = ("roce_np", "roce_rp")
OLDER = (
    "DCBX mode: OS controlled\nPriority trust state: dscp\ndscp2prio mapping:\n"
    "        prio:0 dscp:07,06,05,04,03,02,01,00,\nCable len: 7\nPFC configuration:\n"
    "        priority    0   1   2   3   4   5   6   7\n        enabled     0   0   0   1   0   0   0   0   \n"
    "tc: 0 ratelimit: unlimited, tsa: vendor\n         priority:  1\n"
)
"""As MLNX_OFED 4 prints it: without buffers, and with spaces."""


def module() -> ModuleType:
    """Return the module, which is loaded once."""
    return MODULES.setdefault("qos", load("fabric_host", "fabric_host_qos"))


class Node:
    """A bond of two cards, one of which has ECN settings, and the SIMULATED mlnx_qos."""

    def __init__(self, root: Path) -> None:
        self.root, self.has_tool, self.ran = root, True, []
        for name in ("bond0", "ens4", "ens5"):
            (root / "net" / name).mkdir(parents=True)
            (root / "net" / name / "mtu").write_text("1500\n")
        (root / "net/bond0/lower_ens4").mkdir()
        (root / "net/bond0/lower_ens5").mkdir()
        for point in POINTS:
            folder = root / "net/ens4/ecn" / point / "enable"
            folder.mkdir(parents=True)
            for priority in range(8):
                (folder / str(priority)).write_text("0\n")
        self.tool = root / "bin/mlnx_qos"
        self.tool.parent.mkdir()
        text = package_path("lab", "files", "mlnx_qos.py").read_text()
        text = text.replace("/run/provision-lab", str(root)).replace("/sys/class/net", str(root / "net"))
        self.tool.write_text(text.replace("#!/usr/bin/python3", f"#!{sys.executable}"))
        self.tool.chmod(0o755)

    def ecn(self, point: str) -> str:
        """ECN of each priority of ens4."""
        return ",".join(
            (self.root / f"net/ens4/ecn/{point}/enable/{number}").read_text().strip() for number in range(8)
        )

    def set(self, name: str, option: str) -> None:
        """Set a value as another program does."""
        subprocess.run([self.tool, "-i", name, option], check=True, capture_output=True)

    def shows(self, name: str) -> tuple[str, str]:
        """Trust and PFC of an interface."""
        done = subprocess.run([self.tool, "-i", name], check=True, capture_output=True, text=True)
        values = qos.parse(done.stdout)
        return values["trust"], values["pfc"]

    def run_command(self, command: list[str]) -> tuple[int, str, str]:
        """Run a program; mlnx_qos is that of the lab."""
        if len(command) != 3 or command[0] != "mlnx_qos":
            self.ran.append(command[0])
        words = [self.tool, *command[1:]] if command[0] == "mlnx_qos" else command
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def get_bin_path(self, _name: str) -> str | None:
        """Return where mlnx_qos is."""
        return str(self.tool) if self.has_tool else None


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node."""
    made = Node(tmp_path)
    monkeypatch.setattr(links, "NET", str(tmp_path / "net"))
    play_commands(monkeypatch, module().AnsibleModule, made)
    return made


def apply(*interfaces: str, check: bool = False, **more: Any) -> dict[str, Any]:
    """Run the module."""
    return run(module(), check=check, interfaces=list(interfaces or ("ens4",)), **more)


def reset(node: Node) -> tuple[list[str], list[str]]:
    """Undo the settings; return the steps and what is left."""
    left: list[str] = []
    steps = undo.qos_steps(node, left)
    return undone(steps), left


def test_trust_pfc_and_ecn_are_set_and_reset(node: Node) -> None:
    """Check mode and a second run change nothing."""
    planned = apply(trust="dscp", pfc=THREE, ecn=THREE, check=True)
    assert (planned["changed"], node.shows("ens4"), node.ran) == (True, ("pcp", NONE), [])
    assert "ens4 trust dscp\n" in planned["diff"][0]["after"]

    assert apply(trust="dscp", pfc="0, 0, 0, 1, 0, 0, 0, 0", ecn=THREE)["changed"]
    assert (node.shows("ens4"), node.ecn("roce_np"), node.ecn("roce_rp")) == (("dscp", THREE), THREE, THREE)
    node.ran.clear()
    assert (apply(trust="dscp", pfc=THREE, ecn=THREE)["changed"], node.ran) == (False, [])

    originals = {"pfc": NONE, "roce_np": NONE, "roce_rp": NONE, "trust": "pcp"}
    steps, left = reset(node)
    assert (sorted(steps), left) == ([f"set {name} of ens4 back to {value}" for name, value in originals.items()], [])
    assert (node.shows("ens4"), node.ecn("roce_np"), reset(node)) == (("pcp", NONE), NONE, ([], []))


def test_a_setting_that_is_removed_is_restored(node: Node) -> None:
    """A value that was changed since is left."""
    apply(trust="dscp", pfc=THREE)
    node.set("ens4", "--trust=pcp")
    node.set("ens4", "--pfc=1,1,0,0,0,0,0,0")
    apply(trust="dscp")

    assert node.shows("ens4") == ("dscp", "1,1,0,0,0,0,0,0")
    assert apply()["changed"]
    assert (node.shows("ens4"), origin.records("qos"), apply()["changed"]) == (("pcp", "1,1,0,0,0,0,0,0"), [], False)


def test_a_reset_leaves_what_was_changed_since(node: Node) -> None:
    """Without the program there is nothing to restore."""
    apply(pfc=THREE)
    node.set("ens4", "--pfc=1,1,0,0,0,0,0,0")
    changed = f"leave pfc of ens4 at 1,1,0,0,0,0,0,0, which was changed since (originally {NONE})"
    assert reset(node) == ([], [changed])

    node.has_tool = False
    assert reset(node) == ([], [])


def test_a_bond_has_the_settings_of_the_cards_below_it(node: Node) -> None:
    """What a card does not have is reported."""
    done = apply("bond0", trust="dscp", ecn=THREE)

    assert (node.shows("ens4")[0], node.shows("ens5")[0], node.ecn("roce_rp")) == ("dscp", "dscp", THREE)
    assert done["left_out"] == ["ECN of ens5 skipped: its driver has no such setting"]


def test_without_the_program_its_settings_are_reported(node: Node) -> None:
    """ECN needs none; records of an earlier change are not lost."""
    apply(pfc=THREE)
    node.has_tool = False

    done = apply(trust="dscp", pfc=THREE, ecn=THREE)
    assert (done["changed"], node.ecn("roce_np")) == (True, THREE)
    assert done["left_out"] == ["trust and PFC of ens4 skipped: mlnx_qos is missing"]
    assert {doc["setting"] for doc in origin.records("qos")} == {"pfc", *POINTS}


def test_a_value_that_a_card_does_not_accept_is_an_error(node: Node) -> None:
    """The program can succeed although the card has another value."""
    text = node.tool.read_text()
    node.tool.write_text(text.replace("    values.update(options)\n", ""))

    assert f"ens4: pfc is {NONE} after it was set to {THREE}" in apply(pfc=THREE)["msg"]
    node.tool.write_text(f"#!/bin/sh\n[ $# = 2 ] || exit 3\ncat <<EOF\n{OLDER.replace(': dscp', ': pcp')}EOF\n")
    assert "ens4: trust dscp is refused" in apply(trust="dscp")["msg"]


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("flags", ["3", "0,0,0,1", "0,0,0,2,0,0,0,0", "0,0,0,1,0,0,0,0;reboot"])
@pytest.mark.parametrize("name", ["pfc", "ecn"])
def test_every_priority_has_a_value(name: str, flags: str) -> None:
    """Before anything is changed."""
    assert f"fabric_host_roce_{name}" in apply(**{name: flags})["msg"]


def test_output_of_older_programs_is_read() -> None:
    """Output of another form has no values."""
    assert qos.parse(OLDER) == {"trust": "dscp", "pfc": THREE}
    assert qos.parse("PFC is not supported on your system\n") == {}


def test_the_script_sets_the_same_values_at_boot_and_facts_read_them(node: Node) -> None:
    """An interface that does not exist any more is skipped; what the node cannot set has no value."""
    rows = [
        *apply("bond0", trust="dscp", pfc=THREE, ecn=THREE)["boot"],
        {"interface": "ens9", "setting": "trust", "value": "dscp"},
    ]
    reset(node)
    environment = jinja2.Environment(trim_blocks=True)  # noqa: S701 - a script, no HTML
    environment.filters["quote"] = str
    template = environment.from_string((ROLES / "fabric_host/templates/fabric-setup.j2").read_text())
    text = template.render(__fabric_host_hugepages={}, __fabric_host_qos_boot=rows)
    script = node.root / "fabric-setup"
    script.write_text(text.replace("/sys/class/net", str(node.root / "net")))
    path = {"PATH": f"{node.tool.parent}:/usr/bin:/bin"}

    done = subprocess.run(["sh", script], capture_output=True, text=True, check=False, env=path)
    assert (done.returncode, "ens9: no such interface; skipped" in done.stderr) == (0, True), done.stderr
    assert (node.shows("ens4"), node.shows("ens5"), node.ecn("roce_np")) == (("dscp", THREE), ("dscp", THREE), THREE)

    command = FabricFact.command.replace("/usr/local/lib/provision/fabric-setup", str(script))
    command = command.replace("/sys/class/net", str(node.root / "net"))
    output = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, env=path)
    card = {"trust": "dscp", "pfc": THREE}
    facts = FabricFact().parse(RawOutput(output.stdout, 0, ""))
    assert facts.qos == {"ens4": {**card, **dict.fromkeys(POINTS, THREE)}, "ens5": card}
