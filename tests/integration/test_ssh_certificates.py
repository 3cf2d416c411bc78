"""SSH certificates of hosts and operators, by the commands of docs/ssh-certificates.md, on a node of the lab."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.connectors import connect
from provision.errors import ConnectionFailed
from provision.model import Connection, Node

RECIPE = Path(__file__).resolve().parents[2] / "docs" / "ssh-certificates.md"
PREPARE = "echo PerSourcePenalties no >/etc/ssh/sshd_config.d/test.conf; systemctl reload ssh"
"""The tests are refused on purpose, again and again."""
UNDO = (
    "cd /etc/ssh; rm -rf sshd_config.d/{test,provision-certificates}.conf principals user_ca.pub; systemctl reload ssh"
)


class Site:
    """The folder in which the recipe was run, and the node that it was run for."""

    def __init__(self, folder: Path, node: dict, files: Path, command: str) -> None:
        self.folder, self.node, self.address = folder, node["name"], node["address"]
        tools = folder / "tools"
        tools.mkdir()
        (folder / "ssh_config").write_text(
            f"Host {self.node}\n  HostName {self.address}\n  User root\n  IdentityFile {files}/id_ed25519\n"
            f"  UserKnownHostsFile {files}/known_hosts\n  ConnectionAttempts 20\n"  # sshd starts again when it reloads
        )
        for name in ("ssh", "scp"):
            (tools / name).write_text(f'#!/bin/sh\nexec /usr/bin/{name} -F {folder}/ssh_config "$@"\n')
            (tools / name).chmod(0o755)
        (tools / "provision").write_text(f'#!/bin/sh\nPATH={os.environ["PATH"]}\nexec {command} "$@"\n')
        (tools / "provision").chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
        self.environment.pop("SSH_AUTH_SOCK", None)

    def shell(self, text: str) -> str:
        """Run commands with the example's names replaced by those of the node."""
        text = re.sub(r"\bgpu1\b", self.node, text).replace("10.0.0.11", self.address)
        text = text.replace("10.0.0.*", self.address.rpartition(".")[0] + ".*")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout

    def connection(self, *arguments: str, known_hosts: Path | None = None) -> Node:
        known = known_hosts or self.folder / "known_hosts"
        values = {"user": "root", "key_file": self.folder / "alice", "known_hosts": known}
        return Node(self.node, Connection(self.address, ssh_args=("-F", "none", *arguments), **values))


@pytest.fixture(scope="module")
def site(provision, lab, ssh_files, tmp_path_factory) -> Iterator[Site]:
    """The whole recipe, run once: its last commands are verbs."""
    folder = tmp_path_factory.mktemp("certificates")
    made = Site(folder, lab["nodes"][0], ssh_files, " ".join(provision.argv()))
    made.environment |= provision.environment | {"PATH": made.environment["PATH"]}
    blocks = re.findall(r"^```sh\n(.*?)^```$", RECIPE.read_text(), re.MULTILINE | re.DOTALL)
    made.shell(f"ssh root@gpu1 '{PREPARE}'")
    try:
        made.said = [made.shell(block) for block in blocks]  # type: ignore[attr-defined]
        yield made
    finally:
        made.shell(f"ssh root@gpu1 bash -c \"'{UNDO}'\"")


@pytest.fixture
def lab_trust(ssh_files) -> Path:
    """The node's own key is in this known_hosts: paramiko connects."""
    return ssh_files / "known_hosts"


def both_nodes(site: Site, known_hosts: Path) -> list[Node]:
    return [site.connection(), site.connection(known_hosts=known_hosts)]


def test_verbs_work_after_the_documented_certificate_setup(site) -> None:
    """`history --nodes` and `exec` reach the node: the key is in no authorized_keys, the host key in no known_hosts."""
    assert len(site.said) == 6
    done = site.shell("provision exec -i hosts.yml --json -- true")

    assert '"exit_code": 0' in done
    keys = site.shell("ssh root@gpu1 cat /root/.ssh/authorized_keys")
    assert (site.folder / "alice.pub").read_text().split()[1] not in keys
    assert (site.folder / "known_hosts").read_text().startswith("@cert-authority ")


def test_both_transports_log_in_with_the_operators_certificate(site, lab_trust) -> None:
    """The ssh program where the host has a certificate, paramiko where its key is known."""
    reasons = []
    for node in both_nodes(site, lab_trust):
        connector = connect(node)
        assert connector.run("id -u").stdout == "0\n"
        connector.close()
        reasons.append(connector.reason)

    assert "certificate authority" in reasons[0]
    assert "paramiko" in reasons[1]


@pytest.fixture
def sign(site) -> Iterator[object]:
    """Sign the operator's key in another way; the good certificate comes back."""
    good = (site.folder / "alice-cert.pub").read_bytes()
    yield lambda words: site.shell(f"ssh-keygen -q -s user_ca -I alice {words} alice.pub")
    (site.folder / "alice-cert.pub").write_bytes(good)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("-n provision-operators -V -2h:-1h", r"was refused.*alice-cert\.pub expired on \d{4}-\d\d-\d\d \d\d:\d\d UTC"),
        ("-n provision-operators -V +1h:+2h", r"was refused.*alice-cert\.pub is not valid before \d{4}"),
        ("-n interns -V +8h", r"was refused.*alice-cert\.pub is for the principals interns"),
    ],
)
def test_an_invalid_user_certificate_is_refused_with_the_reason(site, lab_trust, sign, words, reason) -> None:
    """Expired, too early, or of another principal: both transports say so, and a new certificate counts at once."""
    good = (site.folder / "alice-cert.pub").read_bytes()
    sign(words)
    for node in both_nodes(site, lab_trust):
        with pytest.raises(ConnectionFailed, match=reason) as caught:
            connect(node).run("true")
        assert caught.value.remedy

    (site.folder / "alice-cert.pub").write_bytes(good)
    for node in both_nodes(site, lab_trust):
        connect(node).close()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("-n gpu1,10.0.0.11 -V -2h:-1h", "expired"),
        ("-n gpu2,10.0.0.12 -V +52w", "not a listed principal"),
    ],
)
def test_an_invalid_host_certificate_is_refused_with_the_reason(site, words, reason) -> None:
    """An expired certificate, or that of another node: the login ends before any key of ours is offered."""
    certificate = "/etc/ssh/ssh_host_ed25519_key-cert.pub"
    install = f"scp gpu1-cert.pub root@gpu1:{certificate}; ssh root@gpu1 systemctl restart ssh"
    good = (site.folder / f"{site.node}-cert.pub").read_bytes()
    try:
        site.shell(f"ssh-keygen -q -s host_ca -h -I gpu1 {words} gpu1.pub; {install}")
        with pytest.raises(ConnectionFailed, match=f"the host certificate of .* is invalid: .*{reason}"):
            connect(site.connection()).run("true")
    finally:
        (site.folder / f"{site.node}-cert.pub").write_bytes(good)
        site.shell(install)


WEAK = {
    "ciphers": "Ciphers aes128-cbc,aes256-cbc,3des-cbc",
    "macs": "MACs hmac-sha1,hmac-md5\nCiphers aes128-ctr",
    "key exchange": "KexAlgorithms diffie-hellman-group14-sha1,diffie-hellman-group1-sha1",
    "host keys": "HostKeyAlgorithms ssh-rsa\nHostKey /run/weak/rsa",
}


@pytest.mark.parametrize("name", WEAK)
def test_an_sshd_with_only_outdated_algorithms_is_refused(lab, ssh_files, tmp_path, name) -> None:
    """A real sshd that offers nothing else: the sentence says what, and the remedy where to correct it."""
    first = lab["nodes"][0]
    values = {"user": "root", "key_file": ssh_files / "id_ed25519", "known_hosts": ssh_files / "known_hosts"}
    good = connect(Node(first["name"], Connection(first["address"], **values)))
    config = f"Port 2022\nPidFile /run/weak/pid\n{WEAK[name]}\n"
    if "HostKey " not in config:
        config += "HostKey /etc/ssh/ssh_host_ed25519_key\n"
    start = (
        "mkdir -p /run/weak /run/sshd; [ -e /run/weak/rsa ] || ssh-keygen -q -t rsa -b 2048 -N '' -f /run/weak/rsa\n"
        f"cat >/run/weak/config <<'END'\n{config}END\n/usr/sbin/sshd -f /run/weak/config || exit\n"
        "while [ ! -e /run/weak/pid ]; do sleep 0.1; done"
    )
    started = good.run(start, timeout=30)
    assert started.ok, started.stderr
    try:
        known = tmp_path / "known_hosts"
        known.write_text("")
        node = Node(first["name"], Connection(first["address"], port=2022, **{**values, "known_hosts": known}))
        with pytest.raises(ConnectionFailed, match="offers only outdated SSH algorithms") as caught:
            connect(node)
    finally:
        good.run("kill $(cat /run/weak/pid); while [ -e /run/weak/pid ]; do sleep 0.1; done", timeout=30)
        good.close()

    assert "sshd_config" in str(caught.value.remedy)


def test_the_ssh_agent_of_the_operator_is_not_forwarded_to_nodes(lab, ssh_files, tmp_path) -> None:
    """Root on a node could log in to every other node with it: ForwardAgent of ssh_config does not count."""
    first = lab["nodes"][0]
    config = tmp_path / "config"
    config.write_text("Host *\n  ForwardAgent yes\n")
    words = {"user": "root", "key_file": ssh_files / "id_ed25519", "known_hosts": ssh_files / "known_hosts"}
    socket = tmp_path / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL) as agent:
        try:
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv("SSH_AUTH_SOCK", str(socket))
                for arguments in ((), ("-o", "IPQoS=none")):
                    node = Node(
                        first["name"], Connection(first["address"], ssh_args=("-F", str(config), *arguments), **words)
                    )
                    connector = connect(node)
                    output = connector.run('echo "agent=$SSH_AUTH_SOCK"').stdout
                    connector.close()
                    assert output == "agent=\n", connector.reason
        finally:
            agent.terminate()
