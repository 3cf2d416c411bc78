"""Errors of this machine are reported once; a node without a login is not a node on which a command failed."""

from __future__ import annotations

import json
import socket

import pytest


@pytest.fixture
def inventory(tmp_path, monkeypatch):
    """Write an inventory of two nodes on which nothing listens, with a private key."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    key = tmp_path / "key"
    key.write_text("x")
    key.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    hosts = "".join(f"    gpu{n}:\n      ansible_host: 127.0.0.{n}\n" for n in (1, 2))
    (tmp_path / "hosts.yml").write_text(
        f"gpu_nodes:\n  hosts:\n{hosts}  vars:\n    ansible_user: root\n    ansible_port: {port}\n"
        f"    ansible_ssh_private_key_file: {key}\n    ansible_ssh_common_args: -F none\n"
    )
    return tmp_path / "hosts.yml"


@pytest.mark.parametrize(
    "verb",
    [("plan",), ("apply", "--yes"), ("verify",), ("exec", "--", "true"), ("list",), ("reset", "--yes"), ("gdr",)],
    ids=lambda words: words[0],
)
def test_an_exposed_private_key_is_one_error(typed, inventory, verb):
    """It is the same for all nodes, and no node has anything to do with it."""
    key = inventory.with_name("key")
    key.chmod(0o777)
    code, out, err = typed(verb[0], "-i", str(inventory), *verb[1:])

    assert (code, out) == (2, "")
    assert err.count(str(key)) == 2
    assert f"error: {key}: SSH ignores this private key, because other users may read it (mode 0777" in err
    assert f"hint: Restrict it to its owner: chmod 600 {key}\n" in err
    assert "gpu1" not in err


def test_a_missing_private_key_is_one_error(typed, inventory):
    inventory.with_name("key").unlink()
    code, _, err = typed("plan", "-i", str(inventory))

    assert code == 2
    assert err.startswith("error: ansible_ssh_private_key_file: the private key ")
    assert err.count("error") == 1


def test_verbs_without_connections_work_without_a_key(typed, inventory):
    inventory.with_name("key").unlink()

    assert typed("history", "--local", "-i", str(inventory))[0] == 0
    assert typed("data", "list", "-i", str(inventory))[0] == 0


def test_other_nodes_are_reached_when_one_has_an_unusable_key(typed, inventory):
    """Then the key is an error of that node alone."""
    text = inventory.read_text()
    inventory.write_text(text.replace("    gpu2:\n", "    gpu2:\n      ansible_ssh_private_key_file: /nowhere/key\n"))
    code, out, _ = typed("exec", "--json", "-i", str(inventory), "--", "true")
    errors = {node["name"]: node["error"]["message"] for node in json.loads(out)["nodes"]}

    assert code == 1
    assert errors["gpu2"] == "the key file /nowhere/key does not exist"
    assert "refuses connections" in errors["gpu1"]


def test_a_command_on_unreachable_nodes_is_reported_as_not_run(typed, inventory):
    code, out, err = typed("exec", "-i", str(inventory), "--", "true")
    document = json.loads(typed("exec", "--json", "-i", str(inventory), "--", "true")[1])

    assert code == 1
    assert out.count(" (not started):\n") == 2
    assert "the command: not run on 2 of 2 nodes (no login)" in err
    assert "failed" not in err
    assert [node["started"] for node in document["nodes"]] == [False, False]
