"""`provision doctor` on this machine, with a home folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.report.json_documents.probes import Check
from provision.workflow import controller_probe
from tests.support.command import ROOT, Done

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIE4pdV1CiV5TLZO9YoLyjPxpWPlWMOBPxR2iRvzqYvcC"


class Controller:
    """The command of an operator with a home folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ssh = home / ".ssh"
        self.ssh.mkdir(mode=0o700)
        (self.ssh / "known_hosts").write_text(f"gpu1 ssh-ed25519 {KEY}\n")
        (self.ssh / "known_hosts").chmod(0o600)
        left_out = ("ANSIBLE_", "XDG_", "SSH_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        self.environment = {
            **inherited,
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "DOCKER_HOST": f"unix://{home}/docker",
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the verb."""
        argv = [sys.executable, "-m", "provision", "doctor", *words]
        return subprocess.run(
            argv, cwd=self.home, env=self.environment, capture_output=True, text=True, check=False, timeout=120
        )

    def checks(self, code: int) -> dict[str, Check]:
        """Return the checks of the JSON document, which follows its schema; the exit code is as expected."""
        done = self.run("--json")
        assert done.returncode == code, done.stdout + done.stderr
        document = Done(done.returncode, done.stdout, done.stderr, ("doctor", "--json")).document
        assert document["ok"] == (code == 0)
        return {check["id"].removeprefix("controller."): check for check in document["checks"]}


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    """A good controller without keys."""
    return Controller(tmp_path)


@pytest.fixture
def agent(controller: Controller) -> Iterator[None]:
    """A real SSH agent with a key."""
    place = controller.home / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(place)], stdout=subprocess.DEVNULL)
    controller.environment["SSH_AUTH_SOCK"] = str(place)
    key = controller.home / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    try:
        add = ["ssh-add", "-q", str(key)]
        while subprocess.run(add, env=controller.environment, capture_output=True, check=False).returncode == 2:
            assert process.poll() is None
        yield
    finally:
        process.terminate()
        process.wait()


def test_this_machine_is_good(controller: Controller) -> None:
    """The development environment has everything that a controller needs; optional parts are warnings."""
    checks = controller.checks(0)

    assert {name: checks[name]["status"] for name in ("python", "files", "ansible", "ssh", "folders", "ports")} == {
        "python": "pass", "files": "pass", "ansible": "pass", "ssh": "pass", "folders": "pass", "ports": "pass"
    }  # fmt: skip
    assert checks["ssh_agent"]["code"] == "controller.ssh_agent.none"
    assert checks["known_hosts"]["params"] == {"path": str(controller.ssh / "known_hosts"), "n": 1}
    assert checks["vault"]["code"] == "controller.vault.none"


def test_the_keys_of_a_real_agent_are_counted(controller: Controller, agent: None) -> None:
    """A key in the agent is enough."""
    assert agent is None
    assert controller.checks(0)["ssh_agent"]["params"] == {"n": 1}


def test_a_dead_agent_is_reported(controller: Controller) -> None:
    """A socket without a listener is a warning with the socket's path."""
    controller.environment["SSH_AUTH_SOCK"] = str(controller.home / "gone")

    assert controller.checks(0)["ssh_agent"]["code"] == "controller.ssh_agent.unreachable"


def test_a_known_hosts_file_that_others_can_change_is_a_failure(controller: Controller) -> None:
    """The exit code is 1, and the text has the remedy."""
    (controller.ssh / "known_hosts").chmod(0o666)

    assert controller.checks(1)["known_hosts"]["code"] == "controller.known_hosts.writable"
    done = controller.run()
    assert done.returncode == 1
    assert "chmod go-w" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_folder_in_place_of_known_hosts_is_a_failure_of_its_own(controller: Controller) -> None:
    """Container engines make a folder where the file to mount does not exist; its mode is not the cause."""
    (controller.ssh / "known_hosts").unlink()
    (controller.ssh / "known_hosts").mkdir()

    check = controller.checks(1)["known_hosts"]
    assert check["code"] == "controller.known_hosts.folder"
    assert "chmod" not in check["remedy"]


def test_a_wrong_folder_of_playbooks_has_its_own_remedy(controller: Controller) -> None:
    """The installation is complete."""
    controller.environment["PROVISION_PLAYBOOKS"] = str(controller.home)

    check = controller.checks(1)["files"]
    assert check["code"] == "controller.files.missing"
    assert "PROVISION_PLAYBOOKS" in check["remedy"]
    assert "Install" not in check["remedy"]


def test_a_missing_ssh_add_says_nothing_about_the_agent(controller: Controller) -> None:
    """The agent may answer."""
    programs = controller.home / "bin"
    programs.mkdir()
    controller.environment |= {"PATH": str(programs), "SSH_AUTH_SOCK": str(controller.home / "agent")}

    assert controller.checks(1)["ssh_agent"]["code"] == "controller.ssh_agent.no_program"


def test_invalid_lines_of_known_hosts_are_numbered(controller: Controller) -> None:
    """Comments and blank lines are valid."""
    with (controller.ssh / "known_hosts").open("a") as file:
        file.write("# comment\n\ngpu2 ssh-ed25519 AAAA!\ngpu3\n")

    assert controller.checks(0)["known_hosts"]["params"]["lines"] == ["4", "5"]


@pytest.mark.parametrize(("mode", "expected"), [(0o600, "ok"), (0o644, "readable_by_others"), (None, "unreadable")])
def test_the_configured_vault_file_is_judged(controller: Controller, mode: int | None, expected: str) -> None:
    """The setting is that of the operator's ansible.cfg."""
    (controller.home / "ansible.cfg").write_text("[defaults]\nvault_password_file = vault\n")
    if mode is not None:
        (controller.home / "vault").write_text("secret\n")
        (controller.home / "vault").chmod(mode)

    check = controller.checks(0 if expected == "ok" else 1)["vault"]
    assert check["code"] == f"controller.vault.{expected}"
    assert "secret" not in check["reason"]


def test_a_state_folder_that_cannot_be_written_is_a_failure(controller: Controller) -> None:
    """Its path and the cause are named."""
    (controller.home / "file").touch()
    controller.environment["XDG_STATE_HOME"] = str(controller.home / "file/state")

    check = controller.checks(1)["folders"]
    assert (check["code"], check["params"]["cause"]) == ("controller.folders.unwritable", "Not a directory")


def test_a_folder_that_cannot_be_looked_up_does_not_end_the_report(tmp_path: Path) -> None:
    """HOME or XDG_STATE_HOME of another account: here, the system refuses the name in place of the access."""
    beyond = tmp_path / ("a" * 300) / "provision"

    assert controller_probe._free(beyond) > 0
    assert controller_probe._key_files(beyond) == ()


def test_a_missing_ansible_does_not_end_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of Ansible reports it, while the settings of the vault are unknown."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", "vault")

    files, problem = controller_probe._vault()
    assert (files, "ansible-config" in problem) == ((), True)


def test_an_old_package_is_named(controller: Controller) -> None:
    """An installed package of a version that pyproject.toml excludes is a failure."""
    other = controller.home / "site/paramiko-1.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: paramiko\nVersion: 1.0\n")
    controller.environment["PYTHONPATH"] = f"{other.parent}:{ROOT}"

    assert controller.checks(1)["packages"]["params"] == {"requirements": ["paramiko>=3.5 (1.0)"]}
