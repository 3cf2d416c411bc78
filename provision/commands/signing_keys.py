"""OpenPGP keys that sign package repositories: read from files and identified by their full fingerprint."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provision.errors import UsageError
from provision.resources import package_path

NVIDIA_REPOSITORY = "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)"
"""The repository of the NVIDIA Container Toolkit; apt replaces $(ARCH) on each node."""
NVIDIA_FINGERPRINT = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
"""Fingerprint of its key: NVIDIA CORPORATION (Open Source Projects) <cudatools@nvidia.com>."""

_NVIDIA_FILE = package_path("commands", "files", "nvidia-container-toolkit.asc")
_BLOCK = re.compile(
    r"-----BEGIN PGP PUBLIC KEY BLOCK-----[ \t]*\r?\n(.*?)\r?\n-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL
)
_SIZE_LIMIT = 256 * 1024
_PUBLIC_KEY, _USER_ID = 6, 13
_VERSION = 4
_OLD_LENGTHS = (1, 2, 4)


@dataclass(frozen=True)
class SigningKey:
    """One public key."""

    text: str
    """Armored, as in the ``key`` variable of a repository."""
    fingerprint: str
    """40 hexadecimal digits in upper case."""
    owner: str
    """First user ID of the key. Its owner chose it, so it proves nothing."""

    @property
    def spaced(self) -> str:
        """Return the fingerprint in the format of ``gpg --show-keys``."""
        groups = [self.fingerprint[start : start + 4] for start in range(0, 40, 4)]
        return " ".join(groups[:5]) + "  " + " ".join(groups[5:])


def nvidia_key() -> SigningKey:
    """Return the key of NVIDIA's repository after its fingerprint has been verified."""
    key = parse_key(_NVIDIA_FILE.read_text(encoding="ascii"), str(_NVIDIA_FILE))
    if key.fingerprint != NVIDIA_FINGERPRINT:
        raise UsageError(
            f"{_NVIDIA_FILE}: the fingerprint is {key.fingerprint}, not NVIDIA's {NVIDIA_FINGERPRINT}",
            remedy="Reinstall provision; the file was modified.",
        )
    return key


def read_key(path: Path) -> SigningKey:
    """Read one armored public key.

    Raises:
        UsageError: The file cannot be read or does not contain exactly one key.
    """
    try:
        with path.expanduser().open("rb") as stream:
            data = stream.read(_SIZE_LIMIT + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})", remedy="Specify a file with the key.") from error
    if len(data) > _SIZE_LIMIT:
        raise UsageError(f"{path}: not a public key (larger than {_SIZE_LIMIT} bytes)")
    return parse_key(data.decode(errors="replace"), str(path))


class InvalidKey(ValueError):
    """A text is not one usable public key; the message is the problem."""

    remedy = "Give the armored public key (-----BEGIN PGP PUBLIC KEY BLOCK-----); gpg --armor --export makes one."


class SeveralKeys(InvalidKey):
    """A text contains several keys, or none in its block."""

    remedy = "Export the one key that signs the repository: gpg --armor --export FINGERPRINT"


def parse_key(text: str, where: str) -> SigningKey:
    """Return the only public key in an armored text.

    Raises:
        UsageError: There is no key, more than one key, or a key version without a 40-digit fingerprint.
    """
    try:
        return parse_armored(text)
    except InvalidKey as error:
        raise UsageError(f"{where}: {error}", remedy=error.remedy) from error


def parse_armored(text: str) -> SigningKey:
    """Return the one public key in an armored text.

    Raises:
        InvalidKey: there is no key, more than one, or one of a version without a 40-digit fingerprint.
    """
    blocks = _BLOCK.findall(text)
    if not blocks:
        raise InvalidKey("no armored OpenPGP public key")
    try:
        packets = [packet for block in blocks for packet in _packets(_unarmored(block))]
    except (binascii.Error, ValueError, IndexError) as error:
        raise InvalidKey(f"the OpenPGP key is damaged ({error})") from error
    keys = [body for tag, body in packets if tag == _PUBLIC_KEY]
    if len(keys) != 1:
        raise SeveralKeys(f"holds {len(keys)} public keys; apt would trust each of them")
    if keys[0][:1] != bytes([_VERSION]):
        raise InvalidKey(f"unsupported OpenPGP key version {keys[0][0] if keys[0] else '?'}")
    owner = next((body.decode(errors="replace") for tag, body in packets if tag == _USER_ID), "")
    shown = "".join(letter if letter.isprintable() else "?" for letter in owner)[:200]
    armored = "\n".join(line.rstrip() for line in _BLOCK.search(text)[0].splitlines())  # type: ignore[index]
    return SigningKey(armored, _fingerprint(keys[0]), shown)


def parse_fingerprint(text: str) -> str:
    """Return a full fingerprint in upper case without spaces.

    Raises:
        UsageError: It does not have 40 hexadecimal digits. A short key ID can be forged.
    """
    digits = re.sub(r"[\s:]", "", text).removeprefix("0x").upper()
    if not re.fullmatch("[0-9A-F]{40}", digits):
        raise UsageError(
            f"'{text}' is not a full key fingerprint",
            remedy="Specify all 40 hexadecimal digits, as printed by: gpg --show-keys FILE",
        )
    return digits


def _fingerprint(body: bytes) -> str:
    """Return the fingerprint of a version 4 key (RFC 4880, section 12.2), which is defined by SHA-1."""
    return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False).hexdigest().upper()


def _unarmored(block: str) -> bytes:
    """Return the content of an armored block; headers end at an empty line, ``=`` starts a checksum."""
    lines = [line.strip() for line in block.splitlines()]
    if "" in lines and any(":" in line for line in lines[: lines.index("")]):
        lines = lines[lines.index("") :]
    return base64.b64decode("".join(line for line in lines if line and not line.startswith("=")), validate=True)


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and body of each packet (RFC 4880, section 4.2)."""
    at = 0
    while at < len(data):
        head = data[at]
        if not head & 0x80:
            raise ValueError("not an OpenPGP packet")
        at += 1
        if head & 0x40:
            tag = head & 0x3F
            size, at = _new_length(data, at)
        else:
            tag = (head >> 2) & 0x0F
            if head & 3 == len(_OLD_LENGTHS):
                raise ValueError("a packet without a length")
            width = _OLD_LENGTHS[head & 3]
            size, at = int.from_bytes(data[at : at + width], "big"), at + width
        if at + size > len(data):
            raise ValueError("it ends early")
        yield tag, data[at : at + size]
        at += size


def _new_length(data: bytes, at: int) -> tuple[int, int]:
    """Return the length in the new packet format, and the start of the body."""
    first = data[at]
    if first < 192:  # noqa: PLR2004 - RFC 4880, section 4.2.2
        return first, at + 1
    if first < 224:  # noqa: PLR2004
        return ((first - 192) << 8) + data[at + 1] + 192, at + 2
    if first == 255:  # noqa: PLR2004
        return int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
    raise ValueError("a packet in parts")
