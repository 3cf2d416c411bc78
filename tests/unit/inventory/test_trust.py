import base64
import hashlib
import subprocess
from pathlib import Path

import pytest

from provision.errors import ConnectionFailed, NodeError, UsageError
from provision.inventory.data_network import address_in, checked_networks
from provision.inventory.hostkeys import HostKey, Target, known_keys, line_for, preferred
from provision.inventory.trust import KeySource, PinnedKey, all_or_error, keys_from_file, shared_keys
from provision.model import Connection

BLOB = base64.b64encode(b"\0\0\0\x0bssh-ed25519" + bytes(36)).decode()
OTHER = base64.b64encode(b"\0\0\0\x0bssh-ed25519" + bytes(35) + b"x").decode()
RSA = base64.b64encode(b"\0\0\0\x07ssh-rsa" + bytes(40)).decode()


def target(name, host, port=22):
    """A node as ssh_config leaves it."""
    known = host if port == 22 else f"[{host}]:{port}"
    return Target(name, Connection(host, port=port), host, port, "root", names=(known,))


def test_keys_are_read_from_hashed_and_plain_files(tmp_path):
    """A known_hosts file may hash its names; ports other than 22 have names of their own."""
    file = tmp_path / "known_hosts"
    file.write_text(f"10.0.0.1 ssh-rsa {RSA}\n10.0.0.1 ssh-ed25519 {BLOB}\n[10.0.0.2]:2222 ssh-ed25519 {OTHER}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)

    pinned = keys_from_file([target("a", "10.0.0.1"), target("b", "10.0.0.2", 2222)], file)

    assert "10.0.0.1" not in file.read_text()
    assert [(p.key.blob, p.source) for p in pinned] == [(BLOB, KeySource.FILE), (OTHER, KeySource.FILE)]


def test_all_hosts_missing_in_a_file_are_reported(tmp_path):
    """--known-hosts with missing hosts is one error that names all of them."""
    file = tmp_path / "known_hosts"
    file.write_text(f"10.0.0.1 ssh-ed25519 {BLOB}\n@revoked 10.0.0.9 ssh-ed25519 {OTHER}\n")
    nodes = [target("a", "10.0.0.1"), target("b", "10.0.0.2"), target("c", "10.0.0.9")]

    with pytest.raises(UsageError, match="2 of 3 nodes") as caught:
        keys_from_file(nodes, file)

    assert "b: " in caught.value.message
    assert "c: " in caught.value.message
    assert known_keys(nodes[2], [file])[0].revoked


def test_fingerprints_are_those_of_ssh():
    """A person compares it with what ssh-keygen -l prints on the node."""
    digest = base64.b64encode(hashlib.sha256(base64.b64decode(BLOB)).digest()).decode().rstrip("=")

    assert HostKey("ssh-ed25519", BLOB).fingerprint == f"SHA256:{digest}"


def test_the_preferred_key_is_pinned_under_every_name_of_the_host():
    """One key a node: ed25519 before RSA; the line's comment is the inventory name."""
    key = preferred([HostKey("ssh-rsa", RSA), HostKey("ssh-ed25519", BLOB)])

    assert line_for(target("gpu1", "10.0.0.1", 2222), key) == f"[10.0.0.1]:2222 ssh-ed25519 {BLOB} gpu1"


def test_machines_with_the_same_host_key_are_reported():
    """Nodes that show the same host key are named together."""
    same = [PinnedKey(target(n, n), HostKey("ssh-ed25519", BLOB), KeySource.NEW) for n in ("a", "b")]
    other = PinnedKey(target("c", "c"), HostKey("ssh-ed25519", OTHER), KeySource.NEW)

    assert shared_keys([*same, other]) == [("a", "b")]


def test_a_single_unreachable_node_is_reported_with_its_own_message():
    """A single failure is not wrapped into a list."""
    with pytest.raises(ConnectionFailed) as caught:
        all_or_error([ConnectionFailed("is down", node="a")], "Nothing was written.")

    assert str(caught.value) == "a: is down"
    assert caught.value.remedy == "Nothing was written."


IP = """\
1: lo    inet 127.0.0.1/8 scope host lo
2: eth0    inet 192.168.1.5/24 brd 192.168.1.255 scope global eth0
3: ib0    inet 10.10.0.7/16 brd 10.10.255.255 scope global ib0
3: ib0    inet6 fd10::7/64 scope global
4: tun0    inet 10.20.0.1 peer 10.20.0.2/32 scope global tun0
"""


@pytest.mark.parametrize(
    ("networks", "address"),
    [
        (["10.10.0.0/16"], "10.10.0.7"),
        (["172.16.0.0/12", "192.168.0.0/16"], "192.168.1.5"),
        (["fd10::/64"], "fd10::7"),
        (["10.20.0.0/24"], "10.20.0.1"),
    ],
)
def test_the_data_address_is_selected_by_the_network(networks, address):
    """--data-network picks the node's own address out of all that it has."""
    assert address_in(IP, networks, "a") == address


def test_a_node_without_an_address_in_the_network_is_reported():
    """The error names the node and the addresses that it does have."""
    with pytest.raises(NodeError, match=r"10\.99\.0\.0/16; it has 127\.0\.0\.1, 192\.168\.1\.5") as caught:
        address_in(IP, ["10.99.0.0/16"], "gpu3")

    assert caught.value.node == "gpu3"


@pytest.mark.parametrize("text", ["10.0.0.0/33", "ten", "10.0.0.1/32"])
def test_an_invalid_network_is_refused(text):
    """--data-network wants a CIDR."""
    with pytest.raises(UsageError, match="--data-network"):
        checked_networks([text])


def test_networks_are_normalised():
    """An address with its prefix length means its network."""
    assert checked_networks(["10.0.0.5/24", "10.0.0.0/24"]) == ("10.0.0.0/24",)


def test_a_missing_file_is_reported():
    """--known-hosts with a wrong path is a sentence."""
    with pytest.raises(UsageError, match="file not found"):
        keys_from_file([target("a", "10.0.0.1")], Path("/nonexistent/known_hosts"))
