"""SSH keys for servers and users of tests."""

from __future__ import annotations

import io

import paramiko
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

__all__ = ["new_key", "public"]


def new_key() -> str:
    """Return a private key as text."""
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()


def public(private: str) -> str:
    """Return its public key in the format of known_hosts."""
    key = paramiko.Ed25519Key(file_obj=io.StringIO(private))
    return f"{key.get_name()} {key.get_base64()}"
