"""The seed disk of a virtual node."""

import io
import tarfile

from provision.lab.seed import Identity, seed_archive

IDENTITY = Identity(
    name="demo-2",
    data_address="10.77.5.2",
    management_mac="52:54:00:10:05:02",
    data_mac="52:54:00:77:05:02",
    host_key="PRIVATE\n",
    host_key_public="ssh-ed25519 AAAA",
    authorized_keys=("ssh-ed25519 BBBB lab",),
)


def unpacked():
    with tarfile.open(fileobj=io.BytesIO(seed_archive(IDENTITY))) as tar:
        return {entry.name: (entry.mode, tar.extractfile(entry).read().decode()) for entry in tar}


def test_the_host_name_resolves_to_the_data_network():
    """Programs that look up a node's own name find its data address, never a loopback address."""
    lines = [line.split() for line in unpacked()["etc/hosts"][1].splitlines()]
    assert [line[0] for line in lines if "demo-2" in line] == ["10.77.5.2"]


def test_the_private_host_key_is_readable_by_root_only():
    """The private host key and the list of logins are unreadable for others on the node; the rest is public."""
    private = sorted(path for path, (mode, _) in unpacked().items() if mode == 0o600)
    assert private == ["etc/ssh/ssh_host_ed25519_key", "root/.ssh/authorized_keys"]


def test_cards_are_identified_by_their_addresses():
    """The management card uses DHCP, the data card its recorded address."""
    files = unpacked()
    assert "MACAddress=52:54:00:10:05:02" in files["etc/systemd/network/10-management.network"][1]
    data = files["etc/systemd/network/20-data.network"][1]
    assert "MACAddress=52:54:00:77:05:02" in data
    assert "Address=10.77.5.2/24" in data


def test_equal_identities_give_equal_seeds():
    """A seed contains no time, so that seeds can be compared."""
    assert seed_archive(IDENTITY) == seed_archive(IDENTITY)
