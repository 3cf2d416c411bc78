"""Commands and files on all nodes of the container lab, through real sshd."""

from __future__ import annotations

import re

import pytest


def test_equal_output_is_grouped_and_failed_nodes_are_reported(provision, lab):
    """One command on all nodes; the exit code says whether it succeeded everywhere."""
    names = [node["name"] for node in lab["nodes"]]
    same = provision.ok("exec", "--lab", lab["name"], "--", "uname -s; echo x | wc -c")
    failing = provision("exec", "--lab", lab["name"], "--json", "--", f"test $(uname -n) != {names[0]} || exit 3")

    assert re.fullmatch(r"\S+, \S+:\n  Linux\n  2\n", same.out), same.out
    assert failing.code == 1
    assert {node["name"]: node["exit_code"] for node in failing.document["nodes"]} == {
        name: 3 if name == names[0] else 0 for name in names
    }


def test_arguments_of_a_command_reach_the_program_unchanged(provision, lab):
    """Several words are a program and its arguments; no shell changes them."""
    done = provision.ok("exec", "--lab", lab["name"], "--json", "--", "printf", "%s|", "a b", "$HOME", "'")

    assert {node["stdout"] for node in done.document["nodes"]} == {"a b|$HOME|'|"}


def test_streamed_lines_are_prefixed_with_the_name_of_their_node(provision, lab):
    """Lines carry the node's name while the command runs."""
    names = [node["name"] for node in lab["nodes"]]
    done = provision.ok("exec", "--lab", lab["name"], "--stream", "--", "echo one; echo two")

    assert sorted(done.out.splitlines()) == sorted(f"{name}: {text}" for name in names for text in ("one", "two"))


def test_unlimited_output_of_a_command_is_an_error_of_its_node(provision, lab):
    """The controller's memory is bounded; the output limit is in the message."""
    done = provision("exec", "--lab", lab["name"], "--json", "--", "yes")

    assert done.code == 1
    assert all("4 MiB" in node["error"]["message"] for node in done.document["nodes"])


def test_a_command_over_its_time_limit_is_an_error(provision, lab):
    """A command that hangs does not hang the operator's shell."""
    done = provision("exec", "--lab", lab["name"], "--json", "--timeout", "1", "--", "sleep 600")

    assert done.code == 1
    assert all("time" in node["error"]["message"] for node in done.document["nodes"])


def test_exec_with_the_name_of_a_job_is_attach(provision, lab):
    """The word that docker and kubectl use still works for jobs."""
    done = provision("exec", "nosuch", "--lab", lab["name"], "--", "true")

    assert done.code == 3
    assert "nosuch" in done.err


@pytest.mark.parametrize("target", ["/var/tmp/provision-copy/", "/var/tmp/provision-copy/renamed"])
def test_a_file_is_copied_to_all_nodes_with_its_mode(provision, lab, tmp_path, target):
    """A path that ends in a slash is a folder."""
    source = tmp_path / "nccl.conf"
    source.write_text("NCCL_DEBUG=WARN\n")
    source.chmod(0o640)
    path = target + source.name if target.endswith("/") else target
    where = ("--lab", lab["name"])
    provision.ok("exec", *where, "--", "mkdir -p /var/tmp/provision-copy")
    try:
        provision.ok("copy", *where, str(source), target)
        shown = provision.ok("exec", *where, "--json", "--", f"stat -c %a {path}; cat {path}")
    finally:
        provision.ok("exec", *where, "--", "rm -r /var/tmp/provision-copy")

    assert {node["stdout"] for node in shown.document["nodes"]} == {"640\nNCCL_DEBUG=WARN\n"}
