"""Sign data with SSH keys and verify such signatures, in OpenSSH's SSHSIG format (``ssh-keygen -Y``).

The format is PROTOCOL.sshsig of OpenSSH. Signatures are exchanged as the base64 text of the binary blob, without
the armour lines; `armour` adds them for ``ssh-keygen -Y verify``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import textwrap
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from provision.errors import ProvisionError, UsageError

if TYPE_CHECKING:
    import paramiko

__all__ = [
    "InvalidSignature",
    "SigningKey",
    "armour",
    "choose_signing_key",
    "own_signing_key",
    "public_key_of",
    "public_keys_of_user",
    "sign",
    "signer",
]

KEY_VARIABLE = "PROVISION_SIGNING_KEY"
KEY_FILES = ("id_ed25519", "id_ecdsa", "id_rsa")
SIZE_LIMIT = 8192
"""Characters of a signature; one of a 16384-bit RSA key has about 6000."""

_MAGIC = b"SSHSIG"
_VERSION = 1
_HASHES = {"sha256": hashlib.sha256, "sha512": hashlib.sha512}
_KEY_TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
)
_RSA_ALGORITHMS = ("rsa-sha2-256", "rsa-sha2-512")
_RSA_BITS = 2048


class InvalidSignature(ProvisionError):
    """A signature is malformed, of a key type that is not accepted, or does not match the data."""


@dataclass(frozen=True)
class SigningKey:
    """A private key that this process can sign with, from a file or held by the SSH agent."""

    key: paramiko.PKey
    where: str
    """Where it comes from, for messages."""

    @property
    def public(self) -> str:
        """The public key as ``TYPE BASE64``."""
        return public_text(self.key.asbytes())


def public_text(blob: bytes) -> str:
    """Return a public key as ``TYPE BASE64``.

    Raises:
        InvalidSignature: the bytes are not a public key of an accepted type.
    """
    length = int.from_bytes(blob[:4], "big")
    name = blob[4 : 4 + length].decode("ascii", errors="replace")
    if name not in _KEY_TYPES:
        accepted = ", ".join(_KEY_TYPES)
        shown = name[:40] if name.isprintable() else "unknown"
        raise InvalidSignature(f"keys of the type {shown!r} cannot sign jobs (accepted: {accepted})")
    return f"{name} {base64.b64encode(blob).decode()}"


def sign(data: bytes, key: SigningKey, namespace: str) -> str:
    """Return the signature of `data` as base64 text.

    Raises:
        ProvisionError: the key cannot sign, e.g. the agent refused.
    """
    import paramiko

    algorithm = "rsa-sha2-512" if key.public.startswith("ssh-rsa ") else None
    try:
        made = key.key.sign_ssh_data(_signed_data(data, namespace, "sha512"), algorithm)
    except (paramiko.SSHException, OSError, ValueError) as error:
        raise ProvisionError(
            f"{key.where} cannot sign the job: {error}",
            remedy=f"Check the SSH agent, or set {KEY_VARIABLE} to another private key file.",
        ) from error
    signature = made if isinstance(made, bytes) else made.asbytes()
    blob = _MAGIC + _VERSION.to_bytes(4, "big")
    for part in (key.key.asbytes(), namespace.encode(), b"", b"sha512", signature):
        blob += _string(part)
    return base64.b64encode(blob).decode()


def signer(data: bytes, signature: str, namespace: str) -> str:
    """Return the public key (``TYPE BASE64``) that signed `data`. The caller decides whether it trusts this key.

    Raises:
        InvalidSignature: the signature is malformed, made for another purpose, or does not match the data.
    """
    import paramiko

    blob, name, reserved, algorithm, made = _parts(signature)
    if name != namespace.encode():
        raise InvalidSignature("the signature was made for another purpose")
    if reserved or algorithm not in _HASHES:
        raise InvalidSignature("the signature uses a hash algorithm or an extension that is not supported")
    public = public_text(blob)
    try:
        key = paramiko.PKey.from_type_string(public.split()[0], blob)
        canonical = key.asbytes() == blob
        bits = key.get_bits()
        valid = key.verify_ssh_sig(_signed_data(data, namespace, algorithm), paramiko.Message(made))
    except Exception as error:  # libraries raise many types for malformed keys and signatures
        raise InvalidSignature("the signature or its public key is malformed") from error
    if not canonical:
        raise InvalidSignature("the signature's public key is not encoded canonically")
    _check_algorithm(public, bits, made)
    if not valid:
        raise InvalidSignature("the signature does not match the document")
    return public


def armour(signature: str) -> str:
    """Return the signature as ``ssh-keygen -Y verify`` reads it from a file."""
    lines = "\n".join(textwrap.wrap(signature, 70))
    return f"-----BEGIN SSH SIGNATURE-----\n{lines}\n-----END SSH SIGNATURE-----\n"


def choose_signing_key(listed: Collection[str], own: Path) -> SigningKey:
    """Return the key that this user signs with.

    In this order: the key that PROVISION_SIGNING_KEY names; a key of the inventory that the SSH agent or an
    unencrypted key file of the user holds; this controller's own key, which is made if it does not exist.

    Args:
        listed: public keys of the inventory (``TYPE BASE64``).
        own: the file of this controller's own key.

    Raises:
        UsageError: PROVISION_SIGNING_KEY names a key that cannot be used.
        ProvisionError: the own key cannot be read or written.
    """
    named = os.environ.get(KEY_VARIABLE, "")
    if named:
        return _named_key(Path(named).expanduser())
    for key in _available_keys() if listed else ():
        with suppress(InvalidSignature):
            if key.public in listed:
                return key
    return own_signing_key(own)


def public_keys_of_user(own: Path) -> set[str]:
    """Return the public keys that this user can sign with: the named one, those of agent and key files, and `own`."""
    found = set()
    named = os.environ.get(KEY_VARIABLE)
    for path in (Path(named).expanduser() if named else None, own):
        if path is not None and path.exists():
            with suppress(ProvisionError):
                found.add(public_key_of(path))
    for key in _available_keys():
        with suppress(InvalidSignature):
            found.add(key.public)
    for name in KEY_FILES:  # also of private keys with a passphrase
        with suppress(UsageError):
            found.add(" ".join(_public_words(Path("~/.ssh", f"{name}.pub").expanduser())))
    return found


def own_signing_key(path: Path) -> SigningKey:
    """Return this controller's own Ed25519 key; make it (readable by its owner alone) if it does not exist."""
    with suppress(FileExistsError):
        if not path.exists():
            _make_key(path)
    try:
        if path.stat().st_mode & 0o077:
            raise ProvisionError(f"{path}: other users can read this private key", remedy=f"Run: chmod 600 {path}")
    except OSError as error:
        raise ProvisionError(f"{path}: {error.strerror}") from error
    return _file_key(path)


def public_key_of(path: Path) -> str:
    """Return the public key of a private key file or a .pub file, as ``TYPE BASE64``.

    Raises:
        ProvisionError: it cannot be read.
    """
    if path.suffix != ".pub":
        return _file_key(path).public
    return " ".join(_public_words(path))


def _make_key(path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    text = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    new = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(handle)
        os.link(new, path)  # fails where another process made one meanwhile
    except FileExistsError:
        raise
    except OSError as error:
        raise ProvisionError(
            f"{path}: the key that signs jobs cannot be written: {error.strerror}",
            remedy=f"Make room there, or set {KEY_VARIABLE} to a private key file.",
        ) from error
    finally:
        new.unlink(missing_ok=True)


def _named_key(path: Path) -> SigningKey:
    """Return the key that PROVISION_SIGNING_KEY names."""
    if path.suffix != ".pub":
        return _file_key(path)
    words = _public_words(path)
    for key in _agent_keys():
        with suppress(InvalidSignature):
            if key.public.split() == words:
                return key
    raise UsageError(f"{KEY_VARIABLE}={path}: the SSH agent does not hold this key", remedy="Run: ssh-add")


def _public_words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()[:2]
    except (OSError, ValueError) as error:
        raise UsageError(f"{KEY_VARIABLE}={path}: the file cannot be read: {error}") from error


def _available_keys() -> Iterator[SigningKey]:
    """Yield the keys of the SSH agent, then the user's unencrypted key files."""
    yield from _agent_keys()
    for name in KEY_FILES:
        with suppress(UsageError):
            yield _file_key(Path("~/.ssh", name).expanduser())


def _agent_keys() -> Iterator[SigningKey]:
    if "SSH_AUTH_SOCK" not in os.environ:
        return
    import paramiko

    try:
        keys = paramiko.Agent().get_keys()
    except (paramiko.SSHException, OSError):
        return
    for key in keys:
        if key.get_name() in _KEY_TYPES:
            yield SigningKey(key, "the SSH agent's key")


def _file_key(path: Path) -> SigningKey:
    import paramiko

    try:
        return SigningKey(paramiko.PKey.from_path(path), str(path))
    except (paramiko.PasswordRequiredException, TypeError) as error:
        raise UsageError(
            f"{path}: the private key needs a passphrase",
            remedy=f"Run `ssh-add {path}`, and set {KEY_VARIABLE} to {path}.pub.",
        ) from error
    except OSError as error:
        raise UsageError(f"{path}: the private key cannot be read: {error.strerror}") from error
    except (paramiko.SSHException, paramiko.pkey.UnknownKeyType, ValueError) as error:
        raise UsageError(f"{path}: this is not a private key that can sign") from error


def _check_algorithm(public: str, bits: int, made: bytes) -> None:
    name, _ = _strings(made, 2)
    if not public.startswith("ssh-rsa "):
        return
    if name.decode("ascii", errors="replace") not in _RSA_ALGORITHMS:
        raise InvalidSignature("RSA keys sign with SHA-256 or SHA-512 alone")
    if bits < _RSA_BITS:
        raise InvalidSignature(f"RSA keys need at least {_RSA_BITS} bits, this one has {bits}")


def _parts(signature: str) -> tuple[bytes, bytes, bytes, str, bytes]:
    """Return public key, namespace, reserved field, hash algorithm and signature of a blob."""
    if len(signature) > SIZE_LIMIT:
        raise InvalidSignature(f"the signature has more than {SIZE_LIMIT} characters")
    try:
        blob = base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidSignature("the signature is not base64") from error
    head = len(_MAGIC) + 4
    if blob[: len(_MAGIC)] != _MAGIC or int.from_bytes(blob[len(_MAGIC) : head], "big") != _VERSION:
        raise InvalidSignature("this is not an SSH signature of version 1")
    key, namespace, reserved, algorithm, made = _strings(blob[head:], 5)
    return key, namespace, reserved, algorithm.decode("ascii", errors="replace"), made


def _strings(data: bytes, count: int) -> list[bytes]:
    """Return exactly `count` strings of SSH's encoding."""
    strings = []
    for _ in range(count):
        length = int.from_bytes(data[:4], "big")
        if len(data) < 4 + length:
            raise InvalidSignature("the signature is cut off")
        strings.append(data[4 : 4 + length])
        data = data[4 + length :]
    if data:
        raise InvalidSignature("the signature has trailing data")
    return strings


def _signed_data(data: bytes, namespace: str, algorithm: str) -> bytes:
    digest = _HASHES[algorithm](data).digest()
    return _MAGIC + b"".join(_string(part) for part in (namespace.encode(), b"", algorithm.encode(), digest))


def _string(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data
