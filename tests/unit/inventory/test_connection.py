from pathlib import Path

import pytest

from provision.inventory.connection import connection_of, connection_problems
from provision.model import Connection, Secret


def test_a_host_without_variables_is_left_to_ssh_config():
    """What the inventory does not say stays None, so that ssh_config decides."""
    assert connection_of("gpu1", {}) == Connection("gpu1")


def test_ansible_variables_become_a_connection():
    """Address, port, user, key, known_hosts, jump host and passwords are taken from Ansible's own variables."""
    values = {
        "ansible_host": "10.0.0.1",
        "ansible_port": "2222",
        "ansible_user": "op",
        "ansible_ssh_private_key_file": "/k/id",
        "ansible_ssh_common_args": "-o 'UserKnownHostsFile=\"/a b/known_hosts\"' -o ProxyJump=bastion",
        "ansible_become_password": "s3cret",
    }

    connection = connection_of("gpu1", values, Secret("other"))

    assert connection == Connection(
        "10.0.0.1",
        port=2222,
        user="op",
        key_file=Path("/k/id"),
        known_hosts=Path("/a b/known_hosts"),
        jump="bastion",
        ssh_args=("-o", 'UserKnownHostsFile="/a b/known_hosts"', "-o", "ProxyJump=bastion"),
        become_password=Secret("s3cret"),
    )


@pytest.mark.parametrize("arguments", ["-J me@jump:2200", "-Jme@jump:2200", "-o 'ProxyJump me@jump:2200'"])
def test_a_jump_host_is_found_in_every_spelling(arguments):
    """-J and -o ProxyJump are the same to us as to ssh."""
    assert connection_of("a", {"ansible_ssh_extra_args": arguments}).jump == "me@jump:2200"


def test_the_asked_password_is_for_nodes_without_their_own():
    """--ask-become-pass counts where no variable holds a password, as with Ansible."""
    assert connection_of("a", {}, Secret("asked")).become_password == Secret("asked")


def test_local_connections_and_become_are_understood():
    """A node may be this machine, and may be told not to use sudo."""
    connection = connection_of("a", {"ansible_connection": "local", "ansible_become": "no"})

    assert (connection.local, connection.become) == (True, False)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("ansible_port", 99999, "not a TCP port"),
        ("ansible_port", "ssh", "not a TCP port"),
        ("ansible_host", ["a"], "must be text"),
        ("ansible_connection", "winrm", "not supported"),
        ("ansible_become_method", "su", "sudo"),
        ("ansible_become", "maybe", "true or false"),
        ("ansible_ssh_common_args", "-o 'x", "split into words"),
        ("ansible_ssh_common_args", "-o StrictHostKeyChecking=no", "host-key checking off"),
        ("ansible_ssh_extra_args", "-oUserKnownHostsFile=/dev/null", "host-key checking off"),
        ("ansible_host_key_checking", False, "host-key checking off"),
    ],
)
def test_what_cannot_be_connected_safely_is_refused(key, value, says):
    """Unsupported ways in, and ways that trust unknown host keys, are named with their variable."""
    problems = list(connection_problems("gpu1", {key: value}))

    assert [(p.host, p.key) for p in problems] == [("gpu1", key)]
    assert says in problems[0].text
