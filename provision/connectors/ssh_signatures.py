"""Create and verify signatures with SSH keys in OpenSSH's SSHSIG format (``ssh-keygen -Y``).

The format is defined in OpenSSH's PROTOCOL.sshsig. Signatures are exchanged as base64 text of the binary blob, without
armor lines; `armour` adds them for ``ssh-keygen -Y verify``.
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

KEY_VARIABLE = "PROVISION_SIGNING_KEY"
KEY_FILES = ("id_ed25519", "id_ecdsa", "id_rsa")
SIZE_LIMIT = 8192
"""Maximum number of characters of a signature; one of a 16384-bit RSA key has about 6000."""

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
    """A signature is malformed, has an unsupported key type, or does not match the data."""


@dataclass(frozen=True)
class SigningKey:
    """A private key for signatures, from a file or in the SSH agent."""

    key: paramiko.PKey
    where: str
    """Source of the key, for messages."""

    @property
    def public(self) -> str:
        """The public key as ``TYPE BASE64``."""
        return public_text(self.key.asbytes())


def public_text(blob: bytes) -> str:
    """Return a public key as ``TYPE BASE64``.

    Raises:
        InvalidSignature: The bytes are not a public key of a supported type.
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
        ProvisionError: The key cannot sign, for example because the agent refused.
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
        InvalidSignature: The signature is malformed, made for another purpose, or does not match the data.
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
    """Return the signature in the file format of ``ssh-keygen -Y verify``."""
    lines = "\n".join(textwrap.wrap(signature, 70))
    return f"-----BEGIN SSH SIGNATURE-----\n{lines}\n-----END SSH SIGNATURE-----\n"


def choose_signing_key(listed: Collection[str], own: Path) -> SigningKey:
    """Return the signing key of this user.

    The first that exists: the key in PROVISION_SIGNING_KEY; a key of the inventory in the SSH agent or in an
    unencrypted key file; this controller's own key, which is created if it does not exist.

    Args:
        listed: Public keys of the inventory (``TYPE BASE64``).
        own: File of this controller's own key.

    Raises:
        UsageError: The key in PROVISION_SIGNING_KEY is not usable.
        ProvisionError: The own key cannot be read or written.
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
    """Return the public keys with which this user can sign: PROVISION_SIGNING_KEY, agent, key files, and `own`."""
    matches = set()
    named = os.environ.get(KEY_VARIABLE)
    for path in (Path(named).expanduser() if named else None, own):
        if path is not None and path.exists():
            with suppress(ProvisionError):
                matches.add(public_key_of(path))
    for key in _available_keys():
        with suppress(InvalidSignature):
            matches.add(key.public)
    for name in KEY_FILES:  # including private keys with a passphrase
        with suppress(UsageError):
            matches.add(" ".join(_public_words(Path("~/.ssh", f"{name}.pub").expanduser())))
    return matches


def own_signing_key(path: Path) -> SigningKey:
    """Return this controller's own Ed25519 key; create it with mode 0600 if it does not exist."""
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
        ProvisionError: The file cannot be read.
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
        os.link(new, path)  # fails if another process has created one
    except FileExistsError:
        raise
    except OSError as error:
        raise ProvisionError(
            f"{path}: the signing key cannot be written: {error.strerror}",
            remedy=f"Free disk space there, or set {KEY_VARIABLE} to a private key file.",
        ) from error
    finally:
        new.unlink(missing_ok=True)


def _named_key(path: Path) -> SigningKey:
    """Return the key in PROVISION_SIGNING_KEY."""
    if path.suffix != ".pub":
        return _file_key(path)
    words = _public_words(path)
    for key in _agent_keys():
        with suppress(InvalidSignature):
            if key.public.split() == words:
                return key
    raise UsageError(f"{KEY_VARIABLE}={path}: the SSH agent does not have this key", remedy="Run: ssh-add")


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
            f"{path}: the private key requires a passphrase",
            remedy=f"Run `ssh-add {path}`, and set {KEY_VARIABLE} to {path}.pub.",
        ) from error
    except OSError as error:
        raise UsageError(f"{path}: the private key cannot be read: {error.strerror}") from error
    except (paramiko.SSHException, paramiko.pkey.UnknownKeyType, ValueError) as error:
        raise UsageError(f"{path}: not a private key that can sign") from error


def _check_algorithm(public: str, bits: int, made: bytes) -> None:
    name, _ = _strings(made, 2)
    if not public.startswith("ssh-rsa "):
        return
    if name.decode("ascii", errors="replace") not in _RSA_ALGORITHMS:
        raise InvalidSignature("RSA keys must sign with SHA-256 or SHA-512")
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
        raise InvalidSignature("not an SSH signature of version 1")
    key, namespace, reserved, algorithm, made = _strings(blob[head:], 5)
    return key, namespace, reserved, algorithm.decode("ascii", errors="replace"), made


def _strings(data: bytes, count: int) -> list[bytes]:
    """Return exactly `count` strings in SSH's encoding."""
    strings = []
    for _ in range(count):
        length = int.from_bytes(data[:4], "big")
        if len(data) < 4 + length:
            raise InvalidSignature("the signature is truncated")
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
