"""The files of the role base_system for the people of an inventory, and the roles that a queue host skips."""

from __future__ import annotations

import base64
import importlib
import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from provision import node_archive
from provision.components import JOB_ROLES
from provision.inventory.load import AGENT_ACCOUNT
from tests.support.expressions import ROLES, Role
from tests.support.modules import load, provide_utils, run
from tests.unit.inventory.test_people import ALICE, BOB

provide_utils()
origin = importlib.import_module("ansible.module_utils.platform_origin")

PEOPLE = {
    "cluster_operators": [{"name": "alice", "key": f"{ALICE} alice@office"}],
    "cluster_submitters": [{"name": "bob", "key": BOB, "user": "1001:1001"}],
}


def files(**variables: Any) -> dict[str, dict[str, Any]]:
    """Return the files of the job agent by path."""
    return {one["path"]: one for one in Role("base_system", **variables).value("__base_system_agent_files")}


def test_the_role_has_the_same_program_files_as_the_package() -> None:
    """A part that is added or removed is so in the role's folder too, by which a plan sees that the role changed."""
    assert node_archive.build(ROLES / "base_system/files/node") == node_archive.archive()


def test_each_key_runs_only_the_job_agent_for_its_user() -> None:
    """No shell, no forwarding, and no line of a key that could be another option."""
    made = files(**PEOPLE)

    keys = made["/var/lib/provision-jobs/.ssh/authorized_keys"]
    assert keys.get("mode", "0644") == "0644"
    assert "owner" not in keys
    program = "/usr/local/lib/provision/job-agent"
    assert keys["content"].splitlines()[1:] == [
        f'restrict,command="/usr/bin/sudo -n {program} alice" {ALICE} alice',
        f'restrict,command="/usr/bin/sudo -n {program} bob" {BOB} bob',
    ]
    sudoers = made["/etc/sudoers.d/provision-jobs"]
    assert (sudoers["mode"], sudoers["validate"]) == ("0440", "/usr/sbin/visudo -cf %s")
    assert sudoers["content"].splitlines()[2:] == [
        f"provision-jobs ALL=(root) NOPASSWD: {program} alice",
        f"provision-jobs ALL=(root) NOPASSWD: {program} bob",
    ]
    archive = made["/usr/local/lib/provision/node.pyz"]
    assert made[program]["mode"] == "0700"
    assert made[program]["content"].endswith('node.pyz agent "$@"\n')
    assert base64.b64decode(archive["content"]) == node_archive.archive()
    assert (archive["encoding"], archive["mode"]) == ("base64", "0600")
    people = json.loads(made["/etc/provision/job-agent.json"]["content"])["people"]
    assert people["bob"] == {"name": "bob", "key": BOB, "role": "submitter", "user": "1001:1001"}
    assert people["alice"]["role"] == "operator"


def test_the_job_agent_starts_with_an_empty_environment(tmp_path: Path) -> None:
    """A variable that sudo passes, e.g. by another sudoers file of the site, does not reach root's Python."""
    archive, wrapper = tmp_path / "node.pyz", tmp_path / "job-agent"
    with zipfile.ZipFile(archive, "w") as stream:
        stream.writestr("__main__.py", "import os, sys; print(sorted(os.environ), sys.argv[1:])")
    rendered = files(**PEOPLE, _base_system_agent_archive=str(archive))["/usr/local/lib/provision/job-agent"]
    wrapper.write_text(rendered["content"])

    done = subprocess.run(
        ["/bin/sh", wrapper, "bob; id"],
        env={"PATH": "/tmp", "PYTHONPATH": "/tmp", "LD_LIBRARY_PATH": "/tmp", "DOCKER_HOST": "tcp://192.0.2.1"},
        capture_output=True,
        text=True,
        check=True,
    )

    names, arguments = done.stdout.strip().split("] [")
    assert "PATH" in names
    assert not {"PYTHONPATH", "LD_LIBRARY_PATH", "DOCKER_HOST"} & set(names.replace("'", "").strip("[").split(", "))
    assert arguments == "'agent', 'bob; id']"


def test_without_users_the_job_agent_is_removed() -> None:
    """A user removed from the inventory loses access; without any users there is nothing to remove."""
    assert {one["state"] for one in files().values()} == {"absent"}
    assert not [path for path in files() if path not in files(**PEOPLE)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"cluster_operators": [{"name": 'a",command="sh', "key": ALICE}]},
        {"cluster_operators": [{"name": "a", "key": f"{ALICE}\n{BOB}"}]},
        {"cluster_operators": [{"name": "a", "key": f'command="sh" {ALICE}'}]},
        {"cluster_submitters": [{"name": "a", "key": ALICE, "user": "0:0"}]},
        {"cluster_agent_account": "root"},
        {"cluster_agent_account": "a ALL=(ALL) ALL\nb"},
    ],
)
def test_plain_ansible_refuses_invalid_users(wrong: dict[str, Any]) -> None:
    """The role validates people with the same rules as the command."""
    with pytest.raises(Exception, match=r"name:|key:|user:|cluster_agent_account"):
        files(**wrong)


ACCOUNT = "provision-jobs:x:999:997::/var/lib/provision-jobs:/bin/sh"


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run the module against a passwd and a shadow file; return its result and the programs that it ran."""
    module = load("base_system", "base_system_account")
    monkeypatch.setattr(origin, "FOLDER", str(tmp_path / "origins"))
    monkeypatch.setattr(module, "record", origin.record)

    def call(passwd: str, shadow: str = "provision-jobs:*:1::::::", *, check: bool = False, **more: Any) -> Any:
        for name, text in (("PASSWD", passwd), ("SHADOW", shadow)):
            (tmp_path / name).write_text(f"root:x:0:0::/root:/bin/bash\n{text}\n")
            monkeypatch.setattr(module, name, str(tmp_path / name))
        ran: list[list[str]] = []
        monkeypatch.setattr(
            module.AnsibleModule, "run_command", lambda _self, words: (ran.append(words), (0, "", ""))[1]
        )
        result = run(module, check=check, name="provision-jobs", home="/var/lib/provision-jobs", **more)
        return (result if "failed" in result else result["changed"]), ran

    return call


def test_the_account_has_no_password_and_is_created_once(account: Any) -> None:
    """It is a system account with a home that it does not own; a second run changes nothing."""
    result, ran = account("")
    assert result is True
    assert ran[0][0] == "useradd"
    assert {"--system", "--no-create-home"} <= set(ran[0])
    assert ran[0][ran[0].index("--password") + 1] == "*"
    assert origin.records("accounts")[0]["existed"] is False
    assert account(ACCOUNT) == (False, [])
    assert account(ACCOUNT, check=True)[1] == []


@pytest.mark.parametrize(("passwd", "shadow"), [(ACCOUNT, "provision-jobs:$6$x:1::::::"), (ACCOUNT + "-x", "")])
def test_a_password_or_another_shell_is_removed(account: Any, passwd: str, shadow: str) -> None:
    """Drift of the account is repaired when the role runs."""
    result, ran = account(passwd, shadow)

    assert result is True
    assert ran == [["usermod", "--shell", "/bin/sh", "--password", "*", "provision-jobs"]]


@pytest.mark.parametrize(
    "passwd", ["provision-jobs:x:1000:1000::/home/provision-jobs:/bin/sh", ACCOUNT.replace(":999:", ":0:")]
)
def test_an_account_with_the_name_of_the_agent_is_not_changed(account: Any, passwd: str) -> None:
    """A person's account, or root by another name, never gets the keys."""
    result, ran = account(passwd)

    assert (result["failed"], ran) == (True, [])
    assert "cluster_agent_account" in result["msg"]
    assert account(passwd, state="absent") == (False, [])


def test_the_account_is_removed_with_the_last_user(account: Any) -> None:
    """Nothing is done where there is none."""
    assert account(ACCOUNT, state="absent")[1] == [["userdel", "--force", "provision-jobs"]]
    assert account("", state="absent") == (False, [])


def test_role_and_package_use_the_same_names() -> None:
    """The role uses the paths that the command assumes."""
    role = Role("base_system")

    assert role.value("cluster_agent_account") == AGENT_ACCOUNT


def test_roles_for_jobs_do_not_run_on_a_dedicated_queue_host() -> None:
    """They do not run there, install no packages there, and the containers of other nodes do not expect its keys."""
    hostvars = {"head": {"cluster_takes_jobs": "no"}, "gpu1": {}}
    shared: dict[str, Any] = {
        "hostvars": hostvars,
        "groups": {"gpu_nodes": ["head", "gpu1"], "all": ["head", "gpu1"]},
        "ansible_play_role_names": ["platform", "base_system", *JOB_ROLES],
        "ansible_play_hosts_all": ["head", "gpu1"],
        "ansible_run_tags": ["all"],
        "platform_node": {"gpus_present": True},
    }
    head = Role("platform", inventory_hostname="head", cluster_takes_jobs="no", **shared)
    gpu1 = Role("platform", inventory_hostname="gpu1", **shared)

    assert set(head.value("__platform_left_out")) == set(JOB_ROLES)
    assert head.value("__platform_selected_roles") == ["platform", "base_system"]
    assert gpu1.value("__platform_left_out") == []
    assert gpu1.value("__platform_job_nodes") == ["gpu1"]
    taking_part = gpu1.value("__platform_taking_part")
    assert taking_part["base_system"] == ["head", "gpu1"]
    assert taking_part["docker_engine"] == ["gpu1"]
