"""Keys and ssh commands for lab nodes."""

import hashlib
import stat
import subprocess

import pytest

from provision.errors import ConnectionFailed, LabError
from provision.lab import access
from provision.lab.base import LabNode, NodeState

NODE = LabNode("lab-1", "127.0.0.1", 1, "10.77.3.1", NodeState.RUNNING)


def test_private_keys_are_readable_by_their_owner_only(tmp_path):
    """Other users of the controller cannot read a lab's keys."""
    access.make_operator_key(tmp_path)
    private, _ = access.make_host_key(tmp_path, "lab-1")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (private, tmp_path / "id_ed25519")}
    assert modes == {0o600}


def test_keys_are_created_once_and_differ_between_nodes(tmp_path):
    """A second `lab up` keeps every host key, and no two nodes share one."""
    first, second = (access.make_host_key(tmp_path, name)[1] for name in ("lab-1", "lab-2"))
    assert access.make_host_key(tmp_path, "lab-1")[1] == first
    assert first != second


def test_an_incomplete_key_is_created_again(tmp_path):
    """A crash between the two halves of a key leaves a lab that still comes up."""
    private, _ = access.make_host_key(tmp_path, "lab-1")
    private.unlink()
    _, public = access.make_host_key(tmp_path, "lab-1")
    derived = subprocess.run(["ssh-keygen", "-y", "-f", private], capture_output=True, text=True, check=True).stdout
    assert derived.split()[:2] == public.split()


def test_known_hosts_holds_one_line_per_node(tmp_path):
    """A node made anew on the same port replaces its old key and leaves the others alone."""
    for key in ("ssh-ed25519 AAAA", "ssh-ed25519 BBBB"):
        access.remember_host_key(tmp_path, "127.0.0.1", 2201, key)
        access.remember_host_key(tmp_path, "172.18.0.2", 22, "ssh-ed25519 CCCC")
    lines = (tmp_path / "known_hosts").read_text().splitlines()
    assert sorted(lines) == ["172.18.0.2 ssh-ed25519 CCCC", "[127.0.0.1]:2201 ssh-ed25519 BBBB"]


def test_ssh_accepts_the_options_and_checks_host_keys_strictly(tmp_path):
    """OpenSSH confirms that a lab connection uses only the lab's known_hosts, with strict checking."""
    folder = tmp_path / "a lab 100%d"
    folder.mkdir()
    argv = access.ssh_argv(folder, NODE)
    done = subprocess.run([argv[0], "-G", *argv[1:]], capture_output=True, text=True, check=True)
    settings = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert settings["stricthostkeychecking"] in {"true", "yes"}
    assert settings["userknownhostsfile"] == str(folder / "known_hosts")
    assert (settings["user"], settings["hostname"], settings["port"]) == ("root", "127.0.0.1", "1")


def test_an_unreachable_node_is_reported(tmp_path):
    """If ssh fails, the error has the node and the message of ssh."""
    access.make_operator_key(tmp_path)
    with pytest.raises(ConnectionFailed, match="refused") as caught:
        access.run_script(tmp_path, NODE, "true")
    assert caught.value.node == "lab-1"


def test_waiting_ends_when_the_node_has_stopped(tmp_path):
    """A node that died is reported at once with the reason, not after the whole time limit."""
    access.make_operator_key(tmp_path)
    with pytest.raises(LabError, match="kernel panic"):
        access.wait_for_ssh(tmp_path, NODE, limit_seconds=600, alive=lambda: "kernel panic")


def test_script_and_input_are_separate_on_the_node(tmp_path, monkeypatch):
    """The script is on no command line, and what follows it arrives as its input, byte for byte."""
    seen = []

    def as_the_node_does(argv, node, data, timeout):  # noqa: ARG001 - the real one's parameters
        seen.append(argv)
        done = subprocess.run(["sh", "-c", argv[-1]], input=data, capture_output=True, check=False, timeout=timeout)
        return subprocess.CompletedProcess(argv, done.returncode, done.stdout.decode(), done.stderr.decode())

    monkeypatch.setattr(access, "_ssh", as_the_node_does)
    data = bytes(range(256)) * 99
    done = access.run_script(tmp_path, NODE, "echo 'hush ü'\nmd5sum; exit 7\n", stdin=data)
    assert done.stdout == f"hush ü\n{hashlib.md5(data, usedforsecurity=False).hexdigest()}  -\n"
    assert done.returncode == 7
    assert "hush" not in " ".join(map(str, seen[0]))
