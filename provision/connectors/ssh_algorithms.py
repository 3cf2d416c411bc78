"""SSH algorithms for nodes and jump hosts: the defaults of OpenSSH 10, without SHA-1.

paramiko's defaults also contain CBC ciphers and MACs with MD5 and SHA-1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import paramiko

_KEY_EXCHANGES = frozenset(
    [
        "mlkem768x25519-sha256",
        "sntrup761x25519-sha512",
        "sntrup761x25519-sha512@openssh.com",
        "curve25519-sha256",
        "curve25519-sha256@libssh.org",
        "ecdh-sha2-nistp256",
        "ecdh-sha2-nistp384",
        "ecdh-sha2-nistp521",
        "diffie-hellman-group16-sha512",
        "diffie-hellman-group18-sha512",
        "diffie-hellman-group-exchange-sha256",
        "diffie-hellman-group14-sha256",
    ]
)
_HOST_KEYS = frozenset(
    ["ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "rsa-sha2-512", "rsa-sha2-256"]
)
_CIPHERS = frozenset(
    [
        "chacha20-poly1305@openssh.com",
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
    ]
)
_MACS = frozenset(
    [
        "umac-64-etm@openssh.com",
        "umac-128-etm@openssh.com",
        "hmac-sha2-256-etm@openssh.com",
        "hmac-sha2-512-etm@openssh.com",
        "umac-64@openssh.com",
        "umac-128@openssh.com",
        "hmac-sha2-256",
        "hmac-sha2-512",
    ]
)
_FIRST = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
"""Preferred ciphers. They authenticate packets themselves; otherwise paramiko compares each packet's MAC in Python."""

DISABLED = {"pubkeys": ["ssh-rsa", "ssh-rsa-cert-v01@openssh.com", "ssh-dss", "ssh-dss-cert-v01@openssh.com"]}
"""Signature algorithms that logins never use: the ``disabled_algorithms`` of a transport."""


def restrict(transport: paramiko.Transport) -> None:
    """Restrict a transport that has not started to these algorithms, in paramiko's order except for ciphers."""
    options = transport.get_security_options()
    options.kex = [name for name in options.kex if name in _KEY_EXCHANGES]
    options.key_types = [name for name in options.key_types if name in _HOST_KEYS]
    options.digests = [name for name in options.digests if name in _MACS]
    ciphers = [name for name in options.ciphers if name in _CIPHERS]
    options.ciphers = sorted(ciphers, key=lambda name: name not in _FIRST)
