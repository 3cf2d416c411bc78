"""The SSH transport against a server in this process, on loopback."""

# ruff: noqa: ARG002 - paramiko calls the server's methods with names

import configparser
import contextlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import paramiko
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from paramiko.common import MSG_KEXINIT

from provision.commands.ssh import JOB_AGENT
from provision.connectors import connect, each, ssh_algorithms, ssh_packets, ssh_transport
from provision.errors import ConnectionFailed, UsageError
from provision.inventory.connection import connection_of
from provision.model import Connection, Node, Secret
from tests.support.ssh_server import ssh_server

RELAY = """
import os, socket, sys, threading
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def up():
    while data := os.read(0, 65536):
        peer.sendall(data)
threading.Thread(target=up, daemon=True).start()
while data := peer.recv(65536):
    os.write(1, data)
"""


class Server(paramiko.ServerInterface):
    """Knows one user, one key and one password, and runs commands here."""

    def __init__(self, key):
        self.key = key

    def get_allowed_auths(self, username):
        return "publickey,password"

    def check_auth_publickey(self, username, key):
        return paramiko.AUTH_SUCCESSFUL if (username, key) == ("root", self.key) else paramiko.AUTH_FAILED

    def check_auth_password(self, username, password):
        return paramiko.AUTH_SUCCESSFUL if password == "right" else paramiko.AUTH_FAILED

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel, command):
        threading.Thread(target=serve, args=(channel, command), daemon=True).start()
        return True


def serve(channel, command):
    channel.settimeout(5)
    data = b""
    while piece := channel.recv(65536):
        data += piece
    done = subprocess.run(["sh", "-c", command], input=data, capture_output=True, check=False)
    channel.sendall(done.stdout)
    channel.sendall_stderr(done.stderr)
    channel.send_exit_status(done.returncode)
    channel.close()


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    """Keys of a user, a stranger and two host key types, made once."""
    folder = tmp_path_factory.mktemp("keys")
    for name, kind in (("user", "ed25519"), ("stranger", "ed25519"), ("host", "ed25519"), ("host2", "ecdsa")):
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", folder / name], check=True)
    return folder


@pytest.fixture
def to_drop():
    """One entry for each connection that the server drops before it says a word."""
    return []


@pytest.fixture
def outdated():
    """The algorithms that the server offers alone, by the name of paramiko's security options."""
    return {}


@pytest.fixture
def port(keys, to_drop, outdated):
    """A server with an ed25519 and an ecdsa host key."""

    def transport_of(peer):
        if to_drop:
            to_drop.pop()
            peer.close()
            return None
        transport = paramiko.Transport(peer)
        for name, algorithms in outdated.items():
            setattr(transport.get_security_options(), name, algorithms)
        for name in ("host", "host2"):
            transport.add_server_key(paramiko.PKey.from_path(keys / name))
        return transport

    with ssh_server(transport_of, lambda: Server(paramiko.PKey.from_path(keys / "user"))) as port:
        yield port


@pytest.fixture
def node(keys, port, tmp_path, monkeypatch):
    """Make a node that reaches the server; `trust` names the host key in known_hosts."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.delenv("KRB5CCNAME", raising=False)

    def make(trust="host", **changes):
        known = tmp_path / "known_hosts"
        public = " ".join((keys / f"{trust}.pub").read_text().split()[:2]) if trust else ""
        known.write_text(f"[127.0.0.1]:{port} {public}\n" if trust else "")
        values = {
            "user": "root",
            "port": port,
            "key_file": keys / "user",
            "known_hosts": known,
            "ssh_args": ("-F", "none"),
        }
        return Node("n1", Connection("127.0.0.1", **{**values, **changes}))

    return make


def test_a_known_host_runs_a_script_with_input(node):
    """With a known key and the right login, script, input, output and status all pass."""
    connector = connect(node())
    result = connector.run("cat; echo bad >&2; exit 4", stdin=b"data")
    connector.close()

    assert (result.stdout, result.stderr, result.exit_code) == ("data", "bad\n", 4)


def test_the_end_of_a_command_is_reported_immediately(node):
    """No thread has to wait for it."""
    connector = connect(node())
    process = connector.start("read line; exit 4")
    before = process.ended()
    process.close_stdin()
    code = process.wait()
    after = process.ended()
    connector.close()

    assert (before, code, after) == (False, 4, True)


def test_a_session_of_a_lost_connection_can_be_closed(node):
    """paramiko raises EOFError there while its thread has not yet noticed that the connection is lost."""
    connector = connect(node())
    process = connector.start("read line")
    connector._ends[0].sock.shutdown(socket.SHUT_WR)
    process.close()
    connector.close()

    assert process.ended()


@pytest.fixture
def stalled(node, monkeypatch):
    """A command on a node that sends output, then begins a key exchange and does not end it."""
    started, ended = threading.Event(), threading.Event()

    def stall(channel, _command):
        started.wait(60)
        transport = channel.get_transport()
        channel.sendall(b"x" * 500_000)
        transport._handler_table = {**transport._handler_table, MSG_KEXINIT: lambda *_: ended.wait(60)}
        transport._send_kex_init()

    monkeypatch.setitem(globals(), "serve", stall)
    connector = connect(node())
    process = connector.start("true")
    started.set()
    transport = connector._ends[0]
    transport.clear_to_send_timeout = 0.2
    while transport.clear_to_send.is_set():
        transport.clear_to_send.wait(0)
    yield process
    ended.set()
    connector.close()


@pytest.mark.parametrize(
    "use",
    [
        lambda process: list(process.output()),
        lambda process: process.write(b"data"),
        lambda process: process.result(b"data", 60),
    ],
    ids=["read", "write", "result"],
)
def test_a_node_that_does_not_end_a_key_exchange_is_an_error_of_that_node(stalled, use):
    """paramiko raises SSHException then, which would end the command for all nodes."""
    with pytest.raises(ConnectionFailed):
        use(stalled)


@pytest.mark.parametrize("end", ["close_stdin", "close"])
def test_a_command_can_be_closed_during_a_key_exchange(stalled, end):
    """The error of the command itself is reported, not that of closing it."""
    getattr(stalled, end)()


def test_a_connection_through_a_jump_host_can_be_closed_during_its_key_exchange(stalled):
    """The link to the node is a channel of the jump host, which does not end the key exchange."""
    through = paramiko.Transport(stalled._channel)
    through.active = True
    ssh_transport.close_transport(through)

    assert not through.active


def test_the_host_is_asked_for_its_recorded_key_type(node):
    """A host known by its ECDSA key is accepted although it also has an Ed25519 key."""
    connector = connect(node(trust="host2"))
    connector.close()

    assert connector.reason == "paramiko can make this connection"


def test_an_unknown_host_key_is_refused_with_its_fingerprint(node, keys):
    """Nothing is trusted on first use: the sentence has the fingerprint and where to add the key."""
    with pytest.raises(ConnectionFailed) as caught:
        connect(node(trust=None))
    shown = subprocess.run(["ssh-keygen", "-lf", keys / "host.pub"], capture_output=True, text=True, check=True)

    assert shown.stdout.split()[1] in caught.value.message
    assert "known_hosts" in str(caught.value.remedy)


def test_a_changed_host_key_is_refused_with_both_fingerprints(node):
    """Another key than the one on record is named as such, old and new."""
    with pytest.raises(ConnectionFailed, match="CHANGED") as caught:
        connect(node(trust="stranger"))

    assert caught.value.message.count("SHA256:") == 2
    assert "ssh-keygen -R" in str(caught.value.remedy)


@pytest.mark.parametrize("program", [False, True], ids=["paramiko", "OpenSSH"])
def test_a_changed_key_of_an_inventory_has_a_remedy_with_the_command(node, port, keys, tmp_path, program):
    """Whichever transport sees it; `ssh-keygen -R` would leave a backup file in the inventory's folder."""
    folder = tmp_path / "prod"
    folder.mkdir()
    public = " ".join((keys / "stranger.pub").read_text().split()[:2])
    (folder / "known_hosts.txt").write_text(f"[127.0.0.1]:{port} {public}\n")
    words = ["-F", "none", "-o", f'UserKnownHostsFile="{folder}/known_hosts.txt"', "-o", "StrictHostKeyChecking=yes"]
    words += ["-o", f"ProxyCommand={sys.executable} -c {shlex.quote(RELAY)} %h %p"] if program else []
    with pytest.raises(ConnectionFailed, match="CHANGED") as caught:
        connect(node(known_hosts=folder / "known_hosts.txt", ssh_args=tuple(words)))

    assert f"provision init n1 --replace-key -i {folder}" in str(caught.value.remedy)
    assert "ssh-keygen -R" not in str(caught.value.remedy)


@pytest.mark.parametrize("program", [False, True], ids=["paramiko", "OpenSSH"])
@pytest.mark.parametrize("mode", [0o777, 0o640, 0o604])
def test_a_private_key_readable_by_others_is_refused_by_both_transports(node, keys, tmp_path, mode, program):
    """Ansible's ssh ignores it; so the first connection of any verb says so, before anything is changed."""
    key = tmp_path / "key"
    shutil.copy(keys / "user", key)
    key.chmod(mode)
    words = ["-F", "none"]
    words += ["-o", f"ProxyCommand={sys.executable} -c {shlex.quote(RELAY)} %h %p"] if program else []

    error = each([node(key_file=key, ssh_args=tuple(words))], lambda connector: connector.run("true"))["n1"]

    assert isinstance(error, ConnectionFailed)
    assert (
        f"SSH ignores private keys that other users may read: {key} (mode {mode:04o}; needs chmod 600)" in error.message
    )
    assert error.remedy == f"Restrict the private key to its owner: chmod 600 {key}"
    key.chmod(0o600)
    assert each([node(key_file=key, ssh_args=tuple(words))], lambda connector: connector.run("echo in"))["n1"].ok


def test_host_key_checking_cannot_be_disabled_by_the_inventory(node):
    """StrictHostKeyChecking=no in ansible_ssh_common_args does not make an unknown host trusted."""
    arguments = ("-F", "none", "-o", "StrictHostKeyChecking=no")
    with pytest.raises(ConnectionFailed, match="is not known"):
        connect(node(trust=None, ssh_args=arguments))


def test_a_refused_login_reports_user_and_keys(node, keys):
    """Who tried to log in, and with what, is in the sentence."""
    with pytest.raises(ConnectionFailed) as caught:
        connect(node(key_file=keys / "stranger"))

    assert "login as root" in caught.value.message
    assert str(keys / "stranger") in caught.value.message


def test_a_password_of_the_inventory_is_used_and_never_shown(node, keys):
    """ansible_password logs in; a wrong one is not repeated in the error."""
    connect(node(key_file=keys / "stranger", password=Secret("right"))).close()
    with pytest.raises(ConnectionFailed) as caught:
        connect(node(key_file=keys / "stranger", password=Secret("wrong-one")))

    assert "password of the inventory" in caught.value.message
    assert "wrong-one" not in caught.value.message


def test_a_missing_key_file_is_reported(node, tmp_path):
    """A typo in the key's path is not taken for a refused login."""
    with pytest.raises(ConnectionFailed, match="does not exist"):
        connect(node(key_file=tmp_path / "nope"))


def test_a_key_with_a_passphrase_is_reported(node, tmp_path):
    """A key that cannot be used without its passphrase is named, with ssh-add as the way out."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", tmp_path / "locked"], check=True)
    with pytest.raises(ConnectionFailed, match="requires a passphrase: load it with ssh-add"):
        connect(node(key_file=tmp_path / "locked"))


def test_a_closed_port_is_a_refused_connection(node):
    """A refused connection and an unreachable host have different reasons."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        free = unused.getsockname()[1]
    with pytest.raises(ConnectionFailed, match=f"refuses connections on port {free}"):
        connect(node(port=free))


def test_a_dropped_connection_is_retried(node, to_drop):
    """An sshd with too many logins (MaxStartups) drops connections; it is not given up for that."""
    to_drop.extend([1, 1, 1])
    connector = connect(node())
    connector.close()

    assert to_drop == []


def test_a_node_that_drops_all_connections_is_unreachable(node, to_drop, monkeypatch):
    """After the time limit the reason is shown, with MaxStartups as what to check."""
    monkeypatch.setattr(ssh_transport, "_KNOCK_SECONDS", 0.5)
    to_drop.extend([1] * 100)
    with pytest.raises(ConnectionFailed, match="failed the SSH handshake") as caught:
        connect(node())

    assert "MaxStartups" in str(caught.value.remedy)
    assert len(to_drop) < 99


def test_the_thread_of_a_closed_connection_ends(node):
    """Its thread ends at once, and does not wait for the next time that it would look up."""
    before = set(threading.enumerate())
    connector = connect(node())
    new = [thread for thread in threading.enumerate() if thread not in before]
    mine = [thread for thread in new if isinstance(thread, paramiko.Transport) and not thread.server_mode]
    connector.close()
    mine[0].join(ssh_transport._IDLE_SECONDS / 2)

    assert len(mine) == 1
    assert not mine[0].is_alive()


def test_the_ssh_agent_is_queried_once_for_all_nodes(node, tmp_path, monkeypatch):
    """Whether it holds a hardware key is asked for all together; each connection asks for the keys that it tries."""
    wanted, asked = node(), []
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(tmp_path / "agent"))
        agent.listen()

        def refuse():
            with contextlib.suppress(OSError):
                while True:
                    agent.accept()[0].close()
                    asked.append(1)

        threading.Thread(target=refuse, daemon=True).start()
        nodes = [Node(f"n{number}", wanted.connection) for number in range(3)]
        results = each(nodes, lambda connector: connector.run("true").exit_code)
        agent.shutdown(socket.SHUT_RDWR)

    assert results == {"n0": 0, "n1": 0, "n2": 0}
    assert len(asked) == 1 + 3


def test_authenticated_ciphers_are_preferred(node):
    """They cost least; what else OpenSSH offers by default is still offered."""
    connector = connect(node())
    transport = connector._transports[-1]
    connector.close()

    assert (transport.local_cipher, transport.remote_cipher) == ("aes128-gcm@openssh.com",) * 2
    assert set(transport.get_security_options().ciphers) == {
        f"aes{bits}-{mode}" for bits, mode in ((128, "gcm@openssh.com"), (256, "gcm@openssh.com"),
                                               (128, "ctr"), (192, "ctr"), (256, "ctr"))
    }  # fmt: skip


OUTDATED = re.compile(r"sha1|md5|cbc|arcfour|ssh-rsa|ssh-dss|group1-|group14-sha1|-96")


def test_outdated_algorithms_are_not_offered(port):
    """Neither for the key exchange, host keys, ciphers and MACs, nor for the signature of a login."""
    with socket.create_connection(("127.0.0.1", port)) as link:
        transport = paramiko.Transport(link, disabled_algorithms=ssh_algorithms.DISABLED)
        ssh_algorithms.restrict(transport)
        options = transport.get_security_options()
        offered = [*options.kex, *options.key_types, *options.ciphers, *options.digests, *transport.preferred_pubkeys]
        transport.close()

    assert [name for name in offered if OUTDATED.search(name)] == []
    assert all((options.kex, options.key_types, options.ciphers, options.digests, transport.preferred_pubkeys))


@pytest.mark.parametrize(
    ("transport", "offered"),
    [
        ("paramiko", {"ciphers": ("aes128-cbc",)}),
        ("paramiko", {"digests": ("hmac-sha1", "hmac-md5"), "ciphers": ("aes128-ctr",)}),
        ("openssh", {"ciphers": ("aes128-cbc",)}),
    ],
)
def test_a_node_with_only_outdated_algorithms_is_refused(node, outdated, transport, offered):
    """The sentence names what does not fit, and the remedy where to correct it; both transports say the same."""
    outdated.update(offered)
    arguments = ("-F", "none", *(("-o", "IPQoS=none") if transport == "openssh" else ()))
    with pytest.raises(ConnectionFailed, match=r"offers only outdated SSH algorithms: .*(cipher|mac)") as caught:
        connect(node(ssh_args=arguments))

    assert "sshd_config" in str(caught.value.remedy)


@pytest.mark.parametrize("at", [5, 40, -1])
def test_a_modified_packet_closes_the_connection(at):
    """As one whose MAC is wrong: paramiko's own word for it, which every caller knows."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender, receiver = ssh_packets.Packets(ours), ssh_packets.Packets(theirs)
        cipher = AESGCM(b"k" * 16)
        sender.set_outbound_cipher(cipher, 16, None, 16, None, aead=True, iv_out=b"v" * 12)
        receiver.set_inbound_cipher(cipher, 16, None, 16, None, aead=True, iv_in=b"v" * 12)
        message = paramiko.Message()
        message.add_bytes(b"\x02" + b"data" * 20)
        sender.send_message(message)
        sender.send_message(message)
        assert receiver.read_message()[0] == 2
        packet = bytearray(theirs.recv(1000))
        packet[at] ^= 1
        ours.sendall(packet)
        with pytest.raises(paramiko.SSHException, match="modified in transit"):
            receiver.read_message()


def test_a_node_that_stops_during_the_handshake_is_unreachable():
    """It says who it is and then nothing: the time limit holds without a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport = paramiko.Transport(
            socket.create_connection(listener.getsockname()), packetizer_class=ssh_packets.Packets
        )
        transport.handshake_timeout = 0.1
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"SSH-2.0-slow\r\n")
            with pytest.raises(EOFError):
                transport.start_client(timeout=5)
        transport.close()


def test_a_replaced_key_file_is_used_immediately(node, keys, tmp_path):
    """What was read of a key is kept only as long as the file is the same."""
    key = tmp_path / "key"
    shutil.copyfile(keys / "user", key)
    key.chmod(0o600)
    connect(node(key_file=key)).close()
    shutil.copyfile(keys / "stranger", key)
    with pytest.raises(ConnectionFailed, match="was refused"):
        connect(node(key_file=key))


def test_a_certificate_authority_in_known_hosts_selects_openssh(node, keys, port):
    """@cert-authority is what paramiko lacks; the ssh program is taken, and its refusal is worded the same way."""
    wanted = node()
    public = (keys / "stranger.pub").read_text()
    wanted.connection.known_hosts.write_text(f"@cert-authority [127.0.0.1]:{port} {public}")
    with pytest.raises(ConnectionFailed, match="is not known"):
        connect(wanted)


def test_the_host_key_of_a_jump_host_is_checked(node, port):
    """An unknown key of a jump host ends the connection."""
    with pytest.raises(ConnectionFailed, match="is not known"):
        connect(node(trust=None, jump=f"root@localhost:{port}"))


def test_known_hosts_of_the_inventory_does_not_apply_to_jump_hosts(node, port):
    """Trust that an inventory gives a node is not lent to the jump host, as the ssh program does not lend it."""
    behind = node(jump=f"root@localhost:{port}")
    known = behind.connection.known_hosts
    known.write_text(known.read_text().replace("[127.0.0.1]", "[127.0.0.1],[localhost]").replace("],[", f"]:{port},["))
    with pytest.raises(ConnectionFailed, match="is not known"):
        connect(behind)


@pytest.mark.parametrize("value", ["no", "false", "off", "accept-new"])
def test_an_ssh_config_without_host_key_checking_is_refused_with_inventory_arguments(node, tmp_path, value):
    """Where ansible_ssh_args replaces ours, what ssh itself makes of them and of the config that they name counts."""
    config = tmp_path / "config"
    config.write_text(f"Host *\n  StrictHostKeyChecking {value}\n")
    arguments = ("-F", str(config))

    with pytest.raises(ConnectionFailed, match="would accept any host key") as caught:
        connect(node(ssh_args=arguments, own_ssh_args=True))
    connect(node(ssh_args=arguments)).close()

    assert "StrictHostKeyChecking=yes" in str(caught.value.remedy)
    connect(node(ssh_args=("-o", "StrictHostKeyChecking=yes", *arguments), own_ssh_args=True)).close()


def test_default_ssh_arguments_of_ansible_override_ssh_config(tmp_path):
    """With playbooks/ansible.cfg no ssh_config and no later argument makes ssh take an unknown key."""
    settings = configparser.ConfigParser(interpolation=None)
    assert settings.read(Path(__file__).parents[3] / "playbooks/ansible.cfg")
    config = tmp_path / "config"
    config.write_text("Host *\n  StrictHostKeyChecking no\n")
    ours = settings["ssh_connection"]["ssh_args"].split()
    argv = ["ssh", "-G", *ours, "-F", config, "-o", "StrictHostKeyChecking=no", "n1"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    assert "stricthostkeychecking true" in said.splitlines()


def test_a_proxy_command_of_ansible_ssh_args_is_used(node, tmp_path):
    """The knock goes the way that Ansible will go."""
    used = tmp_path / "used"
    values = {"ansible_ssh_args": f"-F none -o ProxyCommand='touch {used}; false'"}
    arguments = connection_of("n1", values).ssh_args
    with pytest.raises(ConnectionFailed):
        connect(node(ssh_args=arguments))

    assert used.exists()


@pytest.mark.parametrize("program", [False, True])
def test_the_job_agent_gets_only_a_request(node, tmp_path, monkeypatch, program):
    """No script goes to an account that only answers requests about jobs, and nothing else is tried there."""
    agent = tmp_path / JOB_AGENT
    agent.write_text("#!/bin/sh\ncat; exit 3\n")
    agent.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    arguments = ("-F", "none", "-o", "ProxyCommand=none", "-o", "GSSAPIDelegateCredentials=no") if program else ()
    connector = connect(node(agent=True, become=True, **({"ssh_args": arguments} if program else {})))
    try:
        done = connector.run(JOB_AGENT, stdin=b'{"do": "report"}\n')
        with pytest.raises(UsageError, match="requires an operator"):
            connector.run("id")
        with pytest.raises(UsageError, match="requires an operator"):
            connector.put(agent, "/etc/x")
    finally:
        connector.close()

    assert (done.stdout, done.exit_code) == ('{"do": "report"}\n', 3)
    assert ("ssh program" in connector.reason or "OpenSsh" in type(connector).__name__) == program
