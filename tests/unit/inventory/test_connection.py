from pathlib import Path

import pytest

from provision.inventory.connection import connection_of, connection_problems
from provision.model import Connection, Secret


def test_a_host_without_variables_uses_ssh_config():
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
def test_a_jump_host_is_parsed_in_every_spelling(arguments):
    """-J and -o ProxyJump are the same to us as to ssh."""
    assert connection_of("a", {"ansible_ssh_extra_args": arguments}).jump == "me@jump:2200"


def test_a_prompted_password_applies_to_nodes_without_their_own():
    """--ask-become-pass counts where no variable holds a password, as with Ansible."""
    assert connection_of("a", {}, Secret("asked")).become_password == Secret("asked")


def test_local_connections_and_become_are_supported():
    """A node may be this machine, and may be set not to use sudo."""
    connection = connection_of("a", {"ansible_connection": "local", "ansible_become": "no"})

    assert (connection.local, connection.become) == (True, False)


@pytest.mark.parametrize(
    ("value", "python"),
    [
        (None, "python3"),
        ("auto_silent", "python3"),
        ("/opt/python/bin/python3", "/opt/python/bin/python3"),
        ("python3.11", "python3.11"),
    ],
)
def test_the_interpreter_of_the_inventory_is_used(value, python):
    """A path, or a name in the PATH of root; with `auto` and without the variable python3."""
    variables = {} if value is None else {"ansible_python_interpreter": value}

    assert connection_of("a", variables).python == python
    assert list(connection_problems("a", variables)) == []


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
        ("ansible_ssh_common_args", "-o StrictHostKeyChecking=no", "disables host key checking"),
        ("ansible_ssh_extra_args", "-oUserKnownHostsFile=/dev/null", "disables host key checking"),
        ("ansible_host_key_checking", False, "disables host key checking"),
        ("ansible_python_interpreter", "/opt/my python", "'/opt/my python' is not the path of a program"),
        ("ansible_python_interpreter", "bin/python", "such as /usr/bin/python3"),
        ("ansible_python_interpreter", ["python3"], "such as /usr/bin/python3"),
    ],
)
def test_unsafe_connections_are_refused(key, value, says):
    """Unsupported ways in, and ways that trust unknown host keys, are named with their variable."""
    problems = list(connection_problems("gpu1", {key: value}))

    assert [(p.host, p.key) for p in problems] == [("gpu1", key)]
    assert says in problems[0].text


@pytest.mark.parametrize("key", ["ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args"])
@pytest.mark.parametrize(
    "arguments",
    [
        "-o StrictHostKeyChecking=no",
        "-oStrictHostKeyChecking=off",
        "-o StrictHostKeyChecking=false",
        "-o stricthostkeychecking=FALSE",
        "-o StrictHostKeyChecking=accept-new",
        """-o 'StrictHostKeyChecking="no"'""",
        "-o 'StrictHostKeyChecking no'",
        "-o 'StrictHostKeyChecking = no'",
        "-o 'StrictHostKeyChecking\tno'",
        "-qo StrictHostKeyChecking=no",
        "-4qoStrictHostKeyChecking=no",
        "-b 10.0.0.9 -o StrictHostKeyChecking=no",
        "-o UserKnownHostsFile=none",
        """-o 'UserKnownHostsFile "/dev/null"'""",
    ],
)
def test_host_key_checking_cannot_be_disabled_in_any_spelling(key, arguments):
    """Whatever ssh reads as trusting any key is refused, in whichever variable Ansible reads it from."""
    problems = list(connection_problems("gpu1", {key: arguments}))

    assert [(p.key, "disables host key checking" in p.text) for p in problems] == [(key, True)]


@pytest.mark.parametrize("key", ["ansible_sftp_extra_args", "ansible_scp_extra_args"])
@pytest.mark.parametrize("arguments", ["-o StrictHostKeyChecking=no", "-qF /elsewhere/config"])
def test_arguments_for_copies_cannot_disable_host_key_checking(key, arguments):
    """Arguments for sftp and scp alone neither turn checking off nor name an ssh_config that is never read."""
    assert [p.key for p in connection_problems("gpu1", {key: arguments})] == [key]


@pytest.mark.parametrize(
    "arguments",
    [
        "-o StrictHostKeyChecking=yes",
        "-o StrictHostKeyChecking=ask",
        "-F /my/config -C",
        "-b StrictHostKeyChecking=no -i no",
        "-o 'UserKnownHostsFile=/a/no /dev/null2'",
    ],
)
def test_safe_arguments_are_accepted(arguments):
    """What leaves checking on is not refused."""
    assert list(connection_problems("gpu1", {"ansible_ssh_args": arguments})) == []


def test_ansible_ssh_args_come_first_and_are_marked():
    """As with Ansible they stand before the common ones, and they replace those of ansible.cfg."""
    values = {"ansible_ssh_common_args": "-o Port=3", "ansible_ssh_args": "-o ProxyCommand=run"}
    connection = connection_of("a", values)

    assert connection.ssh_args == ("-o", "ProxyCommand=run", "-o", "Port=3")
    assert connection.own_ssh_args
    assert not connection_of("a", {"ansible_ssh_common_args": "-o Port=3"}).own_ssh_args
