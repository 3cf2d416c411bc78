"""Every way to a real sshd: paramiko, the ssh program, a jump host, sudo with and without a password."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from provision.connectors import connect, each
from provision.errors import ConnectionFailed
from provision.model import Connection, Node, Secret
from provision.threads import outcomes

SETUP = """
set -e
for user in free asked plain; do
  id "$user" >/dev/null 2>&1 || useradd -m -s /bin/sh "$user"
  install -d -m 700 -o "$user" "/home/$user/.ssh"
  install -m 600 -o "$user" /root/.ssh/authorized_keys "/home/$user/.ssh/authorized_keys"
  echo "$user:right" | chpasswd
done
echo 'free ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/test
echo 'asked ALL=(ALL) ALL' >>/etc/sudoers.d/test
chmod 440 /etc/sudoers.d/test
"""
EXTRA = "/etc/ssh/sshd_config.d/test.conf"
RESTART = "systemctl reset-failed ssh; systemctl restart ssh"
"""It ends when sshd listens again (its unit is of type notify); sessions that are open stay."""
TRANSPORTS = {"paramiko": (), "openssh": ("-o", "IPQoS=none")}


@pytest.fixture(scope="module")
def make(lab, ssh_files):
    """Make a node that reaches the lab's first machine, whose users are set up."""
    first = lab["nodes"][0]

    def node(**changes) -> Node:
        values = {
            "host": first["address"],
            "port": first["port"],
            "user": "root",
            "key_file": ssh_files / "id_ed25519",
            "known_hosts": ssh_files / "known_hosts",
        }
        return Node(first["name"], Connection(**{**values, **changes}))

    connector = connect(node())
    done = connector.run(SETUP)
    connector.close()
    assert done.ok, done.stderr
    return node


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("user", "password"), [("root", None), ("free", None), ("asked", "right")])
def test_commands_run_as_root_with_every_login_method(make, transport, user, password):
    """As root, by sudo, and by sudo with a password: script, input, output and status are the same."""
    connector = connect(
        make(user=user, become_password=Secret(password) if password else None, ssh_args=TRANSPORTS[transport])
    )
    result = connector.run("id -u; cat; echo err >&2; exit 3", stdin=b"in\n")
    connector.close()

    assert ("IPQoS" in connector.reason) is (transport == "openssh")
    assert (result.stdout, result.stderr, result.exit_code) == ("0\nin\n", "err\n", 3)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"user": "plain"}, "sudo requires a password of plain"),
        ({"user": "asked", "become_password": Secret("wrong")}, "sudo does not accept the password"),
        ({"user": "plain", "become_password": Secret("right")}, "plain is not allowed to become root"),
        ({"user": "nobody-here"}, "login as nobody-here"),
        ({"port": 1}, "refuses connections on port 1"),
        ({"host": "no-such-name.invalid"}, "cannot be resolved"),
        ({"known_hosts": Path("/dev/null")}, "is not known"),
    ],
)
def test_each_cause_of_a_failed_connection_has_its_own_message(make, transport, changes, words):
    """Whichever transport is used, each cause has its own sentence and remedy, and no secret in it."""
    with pytest.raises(ConnectionFailed, match=words) as caught:
        connect(make(ssh_args=TRANSPORTS[transport], **changes)).run("true")

    assert caught.value.remedy
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_files_are_copied_to_and_from_a_node(make, transport, tmp_path):
    """A file arrives whole with its permissions, as root by sudo, and comes back the same."""
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 8192)
    source.chmod(0o640)
    connector = connect(make(user="free", ssh_args=TRANSPORTS[transport]))
    connector.run("rm -rf /root/into && mkdir /root/into")
    connector.put(source, "/root/into/copy")
    connector.get("/root/into/copy", tmp_path / "back")
    output = connector.run("cd /root/into && stat -c '%a %U' copy; ls -A").stdout.split()
    connector.close()

    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    assert output == ["640", "root", "copy"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_node_behind_a_jump_host_is_reached(make, lab, ssh_files, tmp_path, transport):
    """ProxyJump of ssh_config is followed, and the second host sees the first one knocking."""
    first, second = lab["nodes"]
    config = tmp_path / "config"
    config.write_text(
        f"Host *\n  User root\n  IdentityFile {ssh_files}/id_ed25519\n  UserKnownHostsFile {ssh_files}/known_hosts\n"
        f"Host far\n  HostName {second['address']}\n  Port {second['port']}\n  ProxyJump near\n"
        f"Host near\n  HostName {first['address']}\n  Port {first['port']}\n"
    )
    node = Node("far", Connection("far", ssh_args=("-F", str(config), *TRANSPORTS[transport])))
    result = each([node], lambda connector: connector.run("hostname; echo $SSH_CLIENT"))["far"]

    assert not isinstance(result, Exception), result
    name, client = result.stdout.split()[:2]
    assert name == second["name"]
    assert client == first["address"]
    assert make is not None


@pytest.fixture
def sessions(make):
    """Set how many concurrent commands sshd accepts on a connection; open connections keep their limit."""
    connector = connect(make())
    yield lambda most: connector.run(f"echo MaxSessions {most} >{EXTRA}; {RESTART}")
    connector.run(f"rm -f {EXTRA}; {RESTART}")
    connector.close()


def test_more_concurrent_commands_than_max_sessions_are_possible(make, sessions):
    """None is refused, nor waits for another one that goes on for long."""
    sessions(3)
    connector = connect(make())
    lasting = [connector.start("cat") for _ in range(7)]
    results = outcomes(lambda number: connector.run(f"echo {number}"), range(20), limit=20)
    for process in lasting:
        process.close()
    connector.close()

    assert [getattr(one, "stdout", one) for one in results] == [f"{number}\n" for number in range(20)]


def test_an_sshd_that_refuses_sessions_is_an_error_with_a_remedy(make, sessions):
    """With what to do about it."""
    sessions(0)
    connector = connect(make())
    with pytest.raises(ConnectionFailed, match="refuses sessions") as caught:
        connector.run("true")
    connector.close()

    assert "MaxSessions" in (caught.value.remedy or "")


def test_a_host_certificate_is_trusted_through_its_authority(make, tmp_path):
    """@cert-authority in known_hosts is honoured by the ssh program, and the choice is stated."""
    connector = connect(make())
    connector.get("/etc/ssh/ssh_host_ed25519_key.pub", tmp_path / "host.pub")
    node = make()
    authority = tmp_path / "authority"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", authority], check=True)
    sign = ["ssh-keygen", "-q", "-s", authority, "-I", "node", "-h", "-n", node.connection.host, tmp_path / "host.pub"]
    subprocess.run(sign, check=True)
    connector.put(tmp_path / "host-cert.pub", "/etc/ssh/host-cert.pub")
    on = f"echo 'HostCertificate /etc/ssh/host-cert.pub' >{EXTRA}; {RESTART}"
    off = f"rm -f {EXTRA}; {RESTART}"
    assert connector.run(on).ok
    try:
        known = tmp_path / "known_hosts"
        known.write_text(f"@cert-authority * {(tmp_path / 'authority.pub').read_text()}")
        by_certificate = connect(make(known_hosts=known))
        result = by_certificate.run("id -u")
        by_certificate.close()
    finally:
        connector.run(off)
        connector.close()

    assert "certificate authority" in by_certificate.reason
    assert result.stdout == "0\n"
