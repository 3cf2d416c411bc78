"""Each check of `provision doctor` passes on a good controller and reports its fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provision.checks.controller import (
    CONTROLLER_CHECKS,
    Agent,
    ControllerFacts,
    LabFacts,
    PrivateFile,
    judge_controller,
)
from provision.checks.controller_reasons import CONTROLLER_DESCRIPTIONS
from provision.model import CheckStatus
from provision.report.reasons import message, remedy

KNOWN_HOSTS, STATE, CACHE = "/h/.ssh/known_hosts", "/h/.local/state/provision", "/h/.cache/provision"
LAB = LabFacts(
    has_docker_sdk=True,
    docker_host="unix:///var/run/docker.sock",
    docker_answers=True,
    engine_problem="",
    missing_packages=(),
    missing_vm_packages=(),
    qemu="QEMU emulator version 7.2.22",
    has_kvm=True,
)
GOOD = ControllerFacts(
    python=(3, 11, 2),
    python_path="/venv/bin/python3",
    packages=9,
    wrong_packages=(),
    data_folder="/venv/provision/data",
    data_problem="",
    data_remedy="",
    missing_program="",
    ansible="2.19.14",
    ansible_problem="",
    ssh="OpenSSH_9.2p1",
    agent=Agent("/tmp/agent", answers=True, keys=1),
    key_folder="/h/.ssh",
    key_files=("/h/.ssh/id_ed25519",),
    known_hosts=PrivateFile(KNOWN_HOSTS, 0o644),
    known_keys=3,
    invalid_lines=(),
    vault=(PrivateFile("/h/vault", 0o600),),
    vault_problem="",
    state=PrivateFile(STATE, 0o700),
    cache=PrivateFile(CACHE, 0o700),
    free_bytes=5 << 30,
    port_problem="",
    missing_code_packages=(),
    lab=LAB,
)
CASES = {
    "controller.python.old": ("fail", {"python": (3, 10, 14)}),
    "controller.packages.unknown": ("skip", {"packages": None}),
    "controller.packages.wrong": ("fail", {"wrong_packages": ("paramiko>=3.5 (3.4)",)}),
    "controller.files.missing": ("fail", {"data_problem": "/x/roles: missing", "data_remedy": "Install it."}),
    "controller.ansible.missing": ("fail", {"missing_program": "ansible-inventory"}),
    "controller.ansible.broken": ("fail", {"ansible_problem": "ModuleNotFoundError: ansible"}),
    "controller.ssh.missing": ("fail", {"ssh": ""}),
    "controller.ssh_agent.files": ("pass", {"agent": Agent()}),
    "controller.ssh_agent.unreachable": ("warn", {"agent": Agent("/tmp/gone")}),
    "controller.ssh_agent.no_program": ("warn", {"agent": Agent("/tmp/agent", program_missing=True)}),
    "controller.ssh_agent.none": ("warn", {"agent": Agent("/tmp/agent", answers=True), "key_files": ()}),
    "controller.known_hosts.missing": ("warn", {"known_hosts": PrivateFile(KNOWN_HOSTS, problem="No such file")}),
    "controller.known_hosts.folder": ("fail", {"known_hosts": PrivateFile(KNOWN_HOSTS, 0o755, is_folder=True)}),
    "controller.known_hosts.unreadable": ("fail", {"known_hosts": PrivateFile(KNOWN_HOSTS, 0, "permission denied")}),
    "controller.known_hosts.writable": ("fail", {"known_hosts": PrivateFile(KNOWN_HOSTS, 0o664)}),
    "controller.known_hosts.invalid": ("warn", {"invalid_lines": (3, 9)}),
    "controller.vault.none": ("skip", {"vault": ()}),
    "controller.vault.unreadable": ("fail", {"vault": (PrivateFile("/h/vault", problem="No such file"),)}),
    "controller.vault.readable_by_others": ("fail", {"vault": (PrivateFile("/h/vault", 0o640),)}),
    "controller.vault.settings": ("fail", {"vault_problem": "ansible-config cannot read your ansible.cfg"}),
    "controller.folders.unwritable": ("fail", {"cache": PrivateFile(CACHE, problem="Permission denied")}),
    "controller.folders.writable": ("fail", {"state": PrivateFile(STATE, 0o777)}),
    "controller.disk.low": ("warn", {"free_bytes": 100 << 20}),
    "controller.ports.none": ("fail", {"port_problem": "Address already in use"}),
    "controller.code.missing": ("warn", {"missing_code_packages": ("rsync",)}),
    "controller.docker.starts": ("pass", {"lab": replace(LAB, docker_answers=False)}),
    "controller.docker.no_sdk": ("warn", {"lab": replace(LAB, has_docker_sdk=False)}),
    "controller.docker.no_engine": ("warn", {"lab": replace(LAB, docker_answers=False, engine_problem="only root")}),
    "controller.lab_programs.missing": ("warn", {"lab": replace(LAB, missing_packages=("gnupg",))}),
    "controller.qemu.missing": ("warn", {"lab": replace(LAB, missing_vm_packages=("qemu-utils",))}),
    "controller.kvm.none": ("skip", {"lab": replace(LAB, has_kvm=False)}),
}


def test_a_good_controller_passes_every_check() -> None:
    """No warning, and nothing is left out."""
    results = judge_controller(GOOD)

    assert {result.id: result.status for result in results} == dict.fromkeys(CONTROLLER_CHECKS, CheckStatus.PASS)
    assert CONTROLLER_DESCRIPTIONS.keys() == CONTROLLER_CHECKS.keys()


@pytest.mark.parametrize(("code", "status", "facts"), [(code, *case) for code, case in CASES.items()])
def test_each_fault_is_reported_alone_and_has_a_remedy(code: str, status: str, facts: dict[str, object]) -> None:
    """One fact differs from the good controller: one result differs, with its code."""
    good = {result.id: result for result in judge_controller(GOOD)}
    [other] = [one for one in judge_controller(replace(GOOD, **facts)) if one != good[one.id]]

    assert (other.reason.code, other.status) == (code, status)
    assert code.startswith(f"{other.id}.")
    assert message(other.reason)
    assert bool(remedy(other.reason)) == (status in {"warn", "fail"})


def test_a_program_that_prints_the_vault_password_may_be_readable() -> None:
    """It contains no password."""
    results = judge_controller(replace(GOOD, vault=(PrivateFile("/h/vault-client", 0o755),)))

    assert {result.status for result in results if result.id == "controller.vault"} == {CheckStatus.PASS}
