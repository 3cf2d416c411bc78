"""The module that admits the other nodes in the firewall, and the reset of its rules."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.modules import load, provide_utils, run

provide_utils()
origin = importlib.import_module("ansible.module_utils.platform_origin")
rules = importlib.import_module("ansible.module_utils.platform_firewall")
kernel = importlib.import_module("ansible.module_utils.platform_undo_kernel")
NETWORK, PEER = "10.77.0.0/24", "10.78.0.2"


class Node:
    """The programs of firewalld and ufw on a node, with their rules."""

    def __init__(self, folder: Path) -> None:
        self.rules = folder / "user.rules"
        self.rules.write_text(f"### tuple ### route:deny any any 0.0.0.0/0 any {PEER} in\n")
        self.running, self.is_running = set[str](), True
        self.saved = set[str]()
        self.bound, self.refused = set[str](), set[str]()
        self.ran: list[str] = []
        self.processes = 0

    def run_command(self, command: list[str], **_more: Any) -> tuple[int, str, str]:
        """Answer as the programs do; record the commands that change a rule."""
        if command[1:] == ["--state"]:
            return (0, "running\n", "") if self.is_running else (252, "", "FirewallD is not running\n")
        self.processes += 1
        if "--list" not in command[-1] and "--get" not in command[-1]:
            self.ran.append(" ".join(command))
        return self._ufw(command[1:]) if command[0] == "ufw" else self._firewalld(command)

    def get_bin_path(self, name: str, **_more: Any) -> str:
        """Have every program."""
        return f"/usr/bin/{name}"

    def _firewalld(self, command: list[str]) -> tuple[int, str, str]:
        options = [word.partition("=") for word in command[1:]]
        if command[0] == "firewall-cmd" and not self.is_running:
            return 252, "", "FirewallD is not running\n"
        sources = self.saved if {"--permanent", "firewall-offline-cmd"} & set(command) else self.running
        if options[-1][0] == "--list-sources":
            return 0, " ".join(sorted(sources)) + "\n", ""
        if options[-1][0] == "--get-active-zones":
            lines = [f"work (default)\n  interfaces: eth0\n  sources: {' '.join(sorted(self.bound))}\n"]
            return 0, "".join([*lines, f"trusted\n  sources: {' '.join(sorted(self.running))}\n"]), ""
        refused = [source for *_, source in options if source in self.refused]
        for option, _, source in options:
            if option == "--add-source" and source not in self.refused:
                sources.add(source)
            elif option == "--remove-source":
                sources.remove(source)
        if refused:  # an error only if all are refused, as firewalld's client
            message = f"Error: ZONE_CONFLICT: '{refused[0]}' already bound to a zone\n"
            return (0 if len(options) - 1 > len(refused) else 36), "", message
        return 0, "success\n", ""

    def _ufw(self, words: list[str]) -> tuple[int, str, str]:
        source = words[words.index("from") + 1]
        line, comment = f"### tuple ### allow any any 0.0.0.0/0 any {source} in", " comment=70726f766973696f6e"
        text = self.rules.read_text()
        if words[0] == "delete":
            self.rules.write_text(text.replace(f"{line}{comment}\n", "").replace(f"{line}\n", ""))
        else:
            self.rules.write_text(f"{text}{line}{comment}\n")
        return 0, "Rule added\n", ""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Return a node without rules of ours."""
    made = Node(tmp_path)
    monkeypatch.setattr(
        firewall().AnsibleModule, "run_command", lambda _self, command, **_more: made.run_command(command)
    )
    monkeypatch.setattr(rules, "UFW_RULES", (str(made.rules), str(tmp_path / "user6.rules")))
    return made


MODULE: list[ModuleType] = []


def firewall() -> ModuleType:
    """Return the module, which is loaded once."""
    if not MODULE:
        MODULE.append(load("base_system", "base_system_firewall"))
    return MODULE[0]


def apply(program: str, *sources: str, check: bool = False, complete: bool = True) -> dict[str, Any]:
    """Run the module."""
    return run(firewall(), check=check, program=program, sources=list(sources), complete=complete)


def reset(node: Node) -> list[str]:
    """Undo the rules; return the steps."""
    steps = kernel.firewall_steps(node)
    assert [message for step in steps if (message := step.act())] == []
    return [step.sentence for step in steps]


@pytest.mark.parametrize("program", ["firewalld", "ufw"])
def test_the_other_nodes_are_admitted_once(node: Node, program: str) -> None:
    """Check mode lists the rules and adds none; a second run changes nothing; a reset removes exactly these rules."""
    before = node.rules.read_text()
    planned = apply(program, NETWORK, PEER, check=True)
    assert (planned["changed"], planned["diff"][0]["after"]) == (True, f"admit {NETWORK}\nadmit {PEER}\n")
    assert node.ran == []

    assert apply(program, NETWORK, PEER)["changed"]
    assert not apply(program, NETWORK, PEER)["changed"]
    assert node.running == node.saved == ({NETWORK, PEER} if program == "firewalld" else set())
    assert node.rules.read_text().count("allow any") == 2 * (program == "ufw")

    assert sorted(reset(node)) == [f"remove the rule of {program} that admits {source}" for source in (NETWORK, PEER)]
    assert (node.running, node.saved, node.rules.read_text()) == (set(), set(), before)
    assert reset(node) == []


def test_rules_of_the_operator_stay(node: Node) -> None:
    """A reset removes no rule that existed before; one that is only saved takes effect."""
    node.saved.add(NETWORK)
    node.rules.write_text(f"### tuple ### allow any any 0.0.0.0/0 any {NETWORK} in comment=6d696e65\n")

    assert apply("firewalld", NETWORK)["changed"]
    assert not apply("ufw", NETWORK)["changed"]

    assert (node.running, node.saved) == ({NETWORK}, {NETWORK})
    assert reset(node) == []


@pytest.mark.parametrize("program", ["firewalld", "ufw"])
def test_a_node_that_left_the_cluster_is_no_longer_admitted(node: Node, program: str) -> None:
    """Its address may belong to another machine now. A run that does not know all addresses removes no rule."""
    apply(program, NETWORK, PEER)
    assert not apply(program, NETWORK, complete=False)["changed"]

    result = apply(program, NETWORK)

    assert (result["changed"], result["diff"][0]["before"]) == (True, f"admit {PEER}\n")
    assert PEER not in node.saved | node.running
    assert f" allow any any 0.0.0.0/0 any {PEER}" not in node.rules.read_text()
    assert len(origin.records("firewall")) == 1


def test_a_source_in_another_zone_stays_there(node: Node) -> None:
    """The check reports it; firewalld would refuse the rule."""
    node.bound.add(NETWORK)

    result = apply("firewalld", NETWORK, PEER)

    assert result["decided"] == [NETWORK]
    assert node.saved == node.running == {PEER}


@pytest.mark.parametrize("action", ["deny", "reject_log", "limit", "allow_log"])
def test_a_rule_of_the_operator_about_the_same_source_stays(node: Node, action: str) -> None:
    """The program ufw replaces a rule that differs only in its action."""
    line = f"### tuple ### {action} any any 0.0.0.0/0 any {NETWORK} in comment=6d696e65\n"
    node.rules.write_text(line)

    result = apply("ufw", NETWORK, PEER)

    assert result["decided"] == [NETWORK]
    assert line in node.rules.read_text()
    assert [command for command in node.ran if NETWORK in command] == []


def test_a_rule_that_firewalld_refuses_is_an_error_with_a_remedy(node: Node) -> None:
    """The saved configuration may differ from that in effect."""
    node.refused.add(NETWORK)

    result = apply("firewalld", NETWORK)

    assert result["failed"]
    assert "ZONE_CONFLICT" in result["msg"]
    assert "cluster_firewall" in result["msg"]


def test_a_reset_removes_rules_while_firewalld_is_stopped(node: Node) -> None:
    """Its client does not work then."""
    apply("firewalld", NETWORK)
    node.is_running, node.running = False, set()

    assert reset(node) == [f"remove the rule of firewalld that admits {NETWORK}"]
    assert node.saved == set()


def test_replaced_files_get_the_labels_of_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where SELinux is enabled: a file that replaces another one has the label of its folder."""
    files = load("platform", "platform_files")
    replacing, log, enforce = (
        importlib.import_module("ansible.module_utils.platform_replace"),
        tmp_path / "log",
        tmp_path / "enforce",
    )
    program = tmp_path / "restorecon"
    program.write_text(f'#!/bin/sh\necho "$@" >>{log}\n')
    program.chmod(0o755)
    monkeypatch.setattr(replacing, "SELINUX", str(enforce))
    monkeypatch.setattr(replacing, "RESTORECON", str(program))
    (tmp_path / "etc").mkdir()
    wanted = [{"path": str(tmp_path / "etc" / "hosts"), "content": "x\n"}]

    run(files, files=wanted)
    assert not log.exists()
    enforce.write_text("1")
    run(files, files=wanted)
    assert not log.exists()
    run(files, files=[{**wanted[0], "content": "y\n"}])

    assert log.read_text() == f"-i {tmp_path / 'etc'} {tmp_path / 'etc' / 'hosts'}\n"


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("program", ["firewalld", "ufw"])
def test_the_node_can_revert_its_rules(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The saved rules are those before the change; commands undo what is in effect. Nothing waits without a change."""
    apply(program, NETWORK)
    armed: list[Any] = []
    monkeypatch.setattr(firewall().Rescue, "arm", lambda _self, *saved, **_more: armed.append(saved))
    monkeypatch.setattr(rules, "ZONE_FILE", str(tmp_path / "trusted.xml"))
    apply(program, NETWORK)
    assert armed == []

    apply(program, PEER)

    (files, commands) = armed[0]
    zone = ["firewall-cmd", "--zone=trusted"]
    expected = {
        "firewalld": [[*zone, f"--remove-source={PEER}"], [*zone, f"--add-source={NETWORK}"]],
        "ufw": [["ufw", "reload"]],
    }
    assert commands == expected[program]
    assert files == (rules.UFW_RULES if program == "ufw" else (str(tmp_path / "trusted.xml"),))


def test_rules_are_read_after_other_changes_have_ended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules of a dead controller look complete until the node reverts them."""
    apply("ufw", NETWORK)
    monkeypatch.setattr(firewall().Rescue, "begin", lambda _self: node.rules.write_text(""))

    assert apply("ufw", NETWORK)["changed"]


def test_a_refused_rule_reverts_the_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the rules could cut off the operator."""
    reverted: list[str] = []
    monkeypatch.setattr(firewall().Rescue, "revert", lambda self: reverted.append(self.what))
    node.refused.add(PEER)

    assert apply("firewalld", NETWORK, PEER)["failed"]
    assert reverted == ["rules of firewalld"]


def test_the_rules_of_many_nodes_need_few_processes(node: Node) -> None:
    """A client of firewalld takes half a second."""
    peers = [f"10.78.0.{number}" for number in range(64)]

    assert apply("firewalld", *peers)["changed"]
    assert (node.running, node.saved) == (set(peers), set(peers))
    assert node.processes < 16
    assert len(node.ran) == 2

    assert apply("firewalld", NETWORK)["changed"]
    assert (node.running, node.saved) == ({NETWORK}, {NETWORK})
    assert len(node.ran) == 6


def test_a_part_that_firewalld_refuses_is_an_error(node: Node) -> None:
    """Its client reports an error only if it refuses all sources of a call."""
    node.refused.add(PEER)

    result = apply("firewalld", NETWORK, PEER)

    assert result["failed"]
    assert f"{PEER}: Error: ZONE_CONFLICT" in result["msg"]


def test_many_rules_are_reverted_by_one_process_each(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of a revert have a time limit."""
    apply("firewalld", "10.1.0.1", "10.1.0.2")
    armed: list[Any] = []
    monkeypatch.setattr(firewall().Rescue, "arm", lambda _self, *saved, **_more: armed.append(saved))
    monkeypatch.setattr(rules, "ZONE_FILE", str(tmp_path / "trusted.xml"))
    node.saved.add("10.1.0.3")

    apply("firewalld", "10.1.0.3", "10.1.0.4")

    zone = ["firewall-cmd", "--zone=trusted"]
    assert armed[0][1] == [
        [*zone, "--remove-source=10.1.0.3", "--remove-source=10.1.0.4"],
        [*zone, "--add-source=10.1.0.1", "--add-source=10.1.0.2"],
    ]


@pytest.mark.parametrize("program", ["firewalld", "ufw"])
@pytest.mark.usefixtures("node")
def test_a_revert_restores_the_records_of_rules(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that comes back without its record would never be removed."""
    apply(program, NETWORK)
    armed: list[Any] = []
    monkeypatch.setattr(firewall().Rescue, "arm", lambda *_, records=(), **_more: armed.extend(records))

    apply(program, PEER)

    names = [Path(origin.record_path("firewall", f"{program} {source}")).name for source in (NETWORK, PEER)]
    assert sorted(Path(path).name for path in armed) == sorted(f"{name}.json" for name in names)
