import configparser
import subprocess
from pathlib import Path

import pytest

from provision.commands.ssh import (
    SudoProblem,
    explain_ssh,
    explain_sudo,
    openssh_reason,
    parse_settings,
    script_command,
    script_stdin,
    settings_argv,
    ssh_argv,
)
from provision.model import Connection

SETTINGS = """\
host gpu1
user ops
hostname 10.0.0.1
port 2200
identitiesonly yes
identityfile ~/.ssh/id_a
identityfile ~/.ssh/id_b
globalknownhostsfile /etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2
userknownhostsfile "/home/me/my hosts"
proxyjump bastion,inner:2222
gssapiauthentication yes
addressfamily any
"""


def test_the_ssh_configuration_is_evaluated_by_openssh():
    """User, address, port, keys, trust and jump hosts are what OpenSSH itself would use."""
    settings = parse_settings(SETTINGS)

    assert (settings.user, settings.host, settings.port) == ("ops", "10.0.0.1", 2200)
    assert settings.identity_files == ("~/.ssh/id_a", "~/.ssh/id_b")
    assert settings.identities_only
    assert settings.known_hosts == ("/home/me/my hosts", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
    assert settings.jumps == ("bastion", "inner:2222")


def test_the_inventory_overrides_ssh_config():
    """What the inventory says stands before what ssh_config says."""
    argv = settings_argv(Connection("h", port=22, user="u", known_hosts=Path("/k h"), ssh_args=("-F", "/x")))

    assert argv == [
        "ssh",
        "-G",
        "-o",
        'UserKnownHostsFile="/k h"',
        "-o",
        "Port=22",
        "-o",
        "User=u",
        "-F",
        "/x",
        "--",
        "h",
    ]


def test_the_ssh_program_is_always_strict():
    """Strict checking comes first, where a later word of the inventory cannot undo it."""
    argv = ssh_argv(Connection("h", ssh_args=("-o", "StrictHostKeyChecking=no")), "true")

    assert argv[:3] == ["ssh", "-o", "StrictHostKeyChecking=yes"]
    assert argv[3:5] == ["-o", "BatchMode=yes"]


def test_the_ssh_agent_of_the_operator_is_not_forwarded(tmp_path):
    """Neither the connector's nor Ansible's, though ssh_config asks for it: OpenSSH itself says what counts."""
    config = tmp_path / "config"
    config.write_text("ForwardAgent yes\n")
    settings = configparser.RawConfigParser()
    settings.read(Path(__file__).resolve().parents[3] / "playbooks" / "ansible.cfg")
    ansible = ["ssh", *settings["ssh_connection"]["ssh_args"].split(), "-F", str(config), "h"]
    ours = ssh_argv(Connection("h", ssh_args=("-F", str(config))), "true")

    for argv in (ours, ansible):
        done = subprocess.run([argv[0], "-G", *argv[1:]], capture_output=True, text=True, check=True)
        assert "forwardagent no" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("proxycommand nc %h %p", "ProxyCommand"),
        ("pkcs11provider /lib/p.so", "PKCS11Provider"),
        ("certificatefile ~/.ssh/c", "CertificateFile"),
        ("knownhostscommand /bin/k", "KnownHostsCommand"),
        ("addressfamily inet6", "AddressFamily"),
    ],
)
def test_options_that_paramiko_lacks_select_openssh_with_the_reason(line, words):
    """The ssh program connects where ssh_config asks for more than paramiko can, and the reason is named."""
    reason = openssh_reason(Connection("h"), parse_settings(SETTINGS.replace("addressfamily any\n", "") + line))

    assert reason is not None
    assert words in reason


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("-o", "UserKnownHostsFile=/x", "-o", "StrictHostKeyChecking=yes", "-F", "/c", "-q"), None),
        (("-oProxyJump=b",), None),
        (("-o", "Ciphers=aes256-ctr"), "Ciphers"),
        (("-L", "1:h:2"), "-L"),
    ],
)
def test_unsupported_arguments_select_openssh(arguments, reason):
    """Known options of the inventory are honoured by paramiko; any other goes to the program that knows it."""
    actual = openssh_reason(Connection("h", ssh_args=arguments), parse_settings(SETTINGS))

    assert (actual is None) if reason is None else (actual is not None and reason in actual)


def test_gssapi_counts_only_with_a_ticket():
    """Debian's ssh_config always enables GSSAPI; without a ticket that has no effect."""
    assert openssh_reason(Connection("h"), parse_settings(SETTINGS)) is None
    assert "Kerberos" in (openssh_reason(Connection("h"), parse_settings(SETTINGS), has_ticket=True) or "")


def test_script_and_input_are_separate():
    """The script is read to its last byte, and what follows is its input, untouched."""
    script = "printf '<%s>' 'é'; cat"
    command = script_command(script, sudo=False)
    done = subprocess.run(
        ["sh", "-c", command], input=script_stdin(script) + b"\x00data\n", capture_output=True, check=False
    )

    assert done.stdout == "<é>".encode() + b"\x00data\n"


@pytest.mark.parametrize("missing", [1, len("rm -rf /tmp/some/folder\n"), 60])
def test_nothing_of_an_incomplete_script_runs(missing):
    """A connection that breaks off must not turn `rm -rf /tmp/some/folder` into `rm -rf /tmp`."""
    script = "echo ran\nrm -rf /tmp/some/folder\n"
    done = subprocess.run(
        ["sh", "-c", script_command(script, sudo=False)],
        input=script_stdin(script)[:-missing],
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (1, b"")


def test_a_script_keeps_its_exit_status_and_gets_no_variable_of_ours():
    script = "set | grep -c '^s='; (exit 7)"
    done = subprocess.run(
        ["sh", "-c", script_command(script, sudo=False)], input=script_stdin(script), capture_output=True, check=False
    )

    assert (done.returncode, done.stdout) == (7, b"0\n")


def test_an_unused_sudo_password_is_discarded(tmp_path):
    """Where sudo needs no password, the line with the password is thrown away and not given to the script."""
    sudo = tmp_path / "sudo"
    sudo.write_text('#!/bin/sh\nshift 4\nexec "$@"\n')
    sudo.chmod(0o755)
    script = "cat"
    command = script_command(script, sudo=True, password=True)
    done = subprocess.run(
        ["sh", "-c", f"PATH={tmp_path}:$PATH; {command}"],
        input=script_stdin(script, password="hunter2") + b"input",
        capture_output=True,
        check=False,
    )

    assert done.stdout == b"input"
    assert "hunter2" not in command


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("sudo: a password is required", SudoProblem.PASSWORD_WANTED),
        (
            "Sorry, try again.\nsudo: no password was provided\nsudo: 1 incorrect password attempt",
            SudoProblem.PASSWORD_WRONG,
        ),
        ("bob is not in the sudoers file.", SudoProblem.NOT_ALLOWED),
        ("sudo: sorry, you must have a tty to run sudo", SudoProblem.TTY_WANTED),
        ("sh: 1: exec: sudo: not found", SudoProblem.MISSING),
        ("sudo: unable to initialize policy plugin", SudoProblem.OTHER),
    ],
)
def test_sudo_errors_are_classified(said, kind):
    """Each way in which sudo says no has its own remedy."""
    assert explain_sudo(said) is kind


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("ssh: Could not resolve hostname x: Name or service not known", "resolve"),
        ("ssh: connect to host h port 22: Connection refused", "refused"),
        ("ssh: connect to host h port 22: Connection timed out", "timeout"),
        ("ssh: connect to host h port 22: No route to host", "unreachable"),
        ("No ED25519 host key is known for [n2]:2222 and you have requested strict checking.", "unknown-key"),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", "changed-key"),
        ("root@h: Permission denied (publickey).", "login"),
        ("something else", "other"),
    ],
)
def test_ssh_errors_are_classified(said, kind):
    """Each way in which ssh fails is recognised."""
    assert explain_ssh(said).kind == kind


def test_a_changed_key_is_parsed_with_both_fingerprints():
    """The fingerprint shown and the line on record come out of ssh's warning."""
    problem = explain_ssh(
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
        "The fingerprint for the ED25519 key sent by the remote host is\nSHA256:abcDEF123.\n"
        "Offending ED25519 key in /home/me/.ssh/known_hosts:7\nHost key verification failed.\n"
    )

    assert (problem.key_type, problem.fingerprint, problem.where) == (
        "ED25519",
        "SHA256:abcDEF123",
        "/home/me/.ssh/known_hosts:7",
    )
