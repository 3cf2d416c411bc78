"""The exchange of SSH keys between the nodes' containers, with a node that sends hostile keys."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.expressions import ROLES, Role

NODES = ["gpu1", "gpu2", "gpu3"]
CHECK = ("keys", "Check that the keys of this node are accepted")


def key(number: int) -> str:
    """Return one of sixteen well-formed keys."""
    return f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'ABCDEFGHIJKLMNOP'[number]}{'x' * 42}"


def role(changes: dict[str, Any] | None = None, recorded: dict[str, dict[str, str]] | None = None, **more: Any) -> Role:
    """Return the role on gpu1 after all nodes sent their keys; `changes` replaces values of gpu2."""
    keys = {
        name: {"ready": True, "user": "root", "host_key": key(n), "client_key": key(n + 8)}
        for n, name in enumerate(NODES, start=1)
    }
    keys["gpu2"] |= changes or {}
    own = {"known_hosts": {}, "authorized_keys": {}, "environment": {}, **(recorded or {})}
    addresses = {name: f"10.0.0.{n}" for n, name in enumerate(NODES, start=1)}
    hostvars = {
        name: {"__container_ssh_keys": keys[name], "platform_node": {"data_address": addresses[name]}} for name in NODES
    }
    given = {
        "hostvars": hostvars,
        "groups": {"all": NODES},
        "inventory_hostname": "gpu1",
        "ansible_check_mode": False,
        "platform_data_addresses": addresses,
        "platform_job_nodes": NODES,
        "platform_node": {"data_address": "10.0.0.1"},
        "__container_ssh_keys": keys["gpu1"] | own,
        **more,
    }
    return Role("container_ssh", **given)


def lines(role: Role, template: str) -> list[str]:
    """Return the lines that the role writes, without comments."""
    text = role.value(f"lookup('ansible.builtin.template', '{template}.j2')")
    return [line for line in text.split("\n") if line and not line.startswith("#")]


def test_keys_of_all_nodes_are_exchanged() -> None:
    """Each node is known by its name and address, and admitted, with one line each."""
    assert lines(role(), "known_hosts") == [
        f"[{name}]:2222,[10.0.0.{n}]:2222 {key(n)} {name}" for n, name in enumerate(NODES, start=1)
    ]
    assert lines(role(), "authorized_keys") == [f"{key(n + 8)} {name}" for n, name in enumerate(NODES, start=1)]


@pytest.mark.parametrize(
    "changes",
    [
        {"host_key": f"{key(2)} x\n[gpu1]:2222,[gpu3]:2222 {key(7)}"},
        {"host_key": f"{key(2)}\r"},
        {"host_key": "ssh-rsa AAAA"},
        {"host_key": ["a", "b"]},
        {"client_key": f"{key(10)}\n{key(15)}"},
        {"client_key": f'command="reboot" {key(10)}'},
        {"client_key": ""},
        {"host_key": key(1)},
        {"client_key": key(9)},
    ],
)
def test_a_malicious_key_reaches_no_other_node(changes: dict[str, Any]) -> None:
    """Whatever gpu2 sends, the files of gpu1 hold one line a node at most, and gpu3 stays known and admitted."""
    evaluated = role(changes)

    for template, number in (("known_hosts", 3), ("authorized_keys", 11)):
        entries = lines(evaluated, template)
        assert not any(line.endswith("gpu2") for line in entries)
        assert [line.split()[-1] for line in entries] in (["gpu1", "gpu3"], ["gpu3"])
        assert key(number) in entries[-1]


def refused(changes: dict[str, Any]) -> dict[str, str]:
    """Return the message of the role about the keys."""
    return dict(role(changes).value("__container_ssh_offers | container_ssh_refused"))


def test_only_the_node_with_an_invalid_key_fails() -> None:
    """The check fails on it with the reason, and passes on the other nodes."""
    problems = refused({"host_key": "* x"})

    assert list(problems) == ["gpu2"]
    for name in NODES:
        checked = role(__container_ssh_refused=problems, inventory_hostname=name)
        assert checked.holds(*CHECK) is (name != "gpu2")
        assert checked.says(*CHECK).startswith(f"{name}: "), "Ansible evaluates the message where the check passes too"
    said = role(__container_ssh_refused=problems, inventory_hostname="gpu2").says(*CHECK)
    assert said.startswith("gpu2: the SSH keys of its container are refused (its public host key is invalid")


def test_two_nodes_with_the_same_key_both_fail() -> None:
    """It is unknown which of them copied the key: both fail, and the third continues."""
    assert refused({"host_key": key(1)}) == dict.fromkeys(
        ["gpu1", "gpu2"], "gpu1 and gpu2 send the same public host key"
    )


def test_a_refused_data_address_is_in_no_known_hosts_file() -> None:
    """The address of a node comes from the role platform, never from the container."""
    evaluated = role(platform_data_addresses={"gpu1": "10.0.0.1", "gpu3": "10.0.0.3"})

    assert [line.split()[-1] for line in lines(evaluated, "known_hosts")] == ["gpu1", "gpu3"]


def test_a_recorded_line_that_impersonates_another_node_is_removed() -> None:
    """Earlier lines of a hostile node are removed if its new key is refused."""
    recorded = {
        "known_hosts": {"gpu2": f"[gpu2]:2222,[10.0.0.3]:2222 {key(2)} gpu2"},
        "authorized_keys": {"gpu2": f"{key(10)} gpu2"},
    }
    evaluated = role({"host_key": "?"}, recorded)

    assert [line.split()[-1] for line in lines(evaluated, "known_hosts")] == ["gpu1", "gpu3"]
    assert [line.split()[-1] for line in lines(evaluated, "authorized_keys")] == NODES


@pytest.mark.parametrize("removal", [True, False])
def test_containers_accept_no_outdated_algorithms(removal: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """Neither the client's settings nor the server's, as OpenSSH itself reads them, for new and old images."""
    evaluated = role()
    evaluated.templar.available_variables["__container_ssh_keys"]["removal"] = removal
    for template in ("ssh_config", "sshd_config"):
        text = evaluated.value(f"lookup('ansible.builtin.template', '{template}.j2')")
        wanted = ("KexAlgorithms", "Ciphers", "MACs", "HostKeyAlgorithms", "PubkeyAcceptedKeyTypes")
        lines = [line for line in text.splitlines() if line.split()[:1] and line.split()[0] in wanted]
        config = tmp_path / template
        config.write_text("\n".join(lines))
        done = subprocess.run(["ssh", "-G", "-F", config, "host"], capture_output=True, text=True, check=True)
        algorithms = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)

        for key in ("kexalgorithms", "ciphers", "macs"):
            assert algorithms[key]
            assert not re.search(r"sha1|md5|cbc|arcfour|ripemd|group1-", algorithms[key])
        assert algorithms["hostkeyalgorithms"] == "ssh-ed25519"
        assert template == "ssh_config" or algorithms["pubkeyacceptedalgorithms"] == "ssh-ed25519"


def test_role_and_package_use_the_same_key_checks() -> None:
    """The role's filters are a link to the module that checks the keys of jobs."""
    link = ROLES / "container_ssh" / "filter_plugins" / "container_ssh_public_keys.py"

    assert link.is_symlink()
    assert link.resolve() == ROLES.parent / "provision" / "commands" / "ssh_keys.py"
