"""The seed of a virtual node: the settings in which it differs from other nodes of its image.

It is a tar archive on a second disk, which the node unpacks at its first boot, before network and sshd.
"""

from __future__ import annotations

from dataclasses import dataclass

from provision.lab.vm_recipe import pack

_HOST_KEY = "etc/ssh/ssh_host_ed25519_key"
_AUTHORIZED_KEYS = "root/.ssh/authorized_keys"
_PREFIX = 24


@dataclass(frozen=True)
class Identity:
    """The identity of a node."""

    name: str
    data_address: str
    """Its address on the private data network, without prefix length."""
    management_mac: str
    data_mac: str
    host_key: str
    """Private host key, as written by ssh-keygen."""
    host_key_public: str
    authorized_keys: tuple[str, ...]


def seed_archive(identity: Identity) -> bytes:
    """Return the content of the seed disk; the host name resolves to the data address, not to a loopback address."""
    files: dict[str, str | bytes] = {
        "etc/hostname": f"{identity.name}\n",
        "etc/hosts": (
            f"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{identity.data_address} {identity.name}\n"
        ),
        "etc/systemd/network/10-management.network": (
            f"[Match]\nMACAddress={identity.management_mac}\n\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=no\n"
            "IPv6AcceptRA=no\n\n[DHCPv4]\nUseDNS=no\n"
        ),
        "etc/systemd/network/20-data.network": (
            f"[Match]\nMACAddress={identity.data_mac}\n\n[Link]\nMTUBytes=1500\n\n[Network]\n"
            f"Address={identity.data_address}/{_PREFIX}\nLinkLocalAddressing=ipv6\nIPv6AcceptRA=no\n"
        ),
        _HOST_KEY: identity.host_key,
        f"{_HOST_KEY}.pub": f"{identity.host_key_public}\n",
        _AUTHORIZED_KEYS: "".join(f"{key}\n" for key in identity.authorized_keys),
    }
    return pack(files, private=frozenset({_HOST_KEY, _AUTHORIZED_KEYS}))
