"""OpenSSH's known_hosts files: which keys of a host the operator trusts. Reads files, changes none."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["KnownKey", "fingerprint", "host_names", "keys_for", "read"]


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file."""

    marker: str
    """Empty, ``@cert-authority`` or ``@revoked``."""
    patterns: str
    type: str
    blob: bytes
    where: str
    """``FILE:LINE``."""

    def matches(self, name: str) -> bool:
        """True when the line speaks about `name` (``host`` or ``[host]:port``), hashed or not."""
        if self.patterns.startswith("|1|"):
            return _hash_matches(self.patterns, name)
        words = self.patterns.split(",")
        if any(_fits(name, word[1:]) for word in words if word.startswith("!")):
            return False
        return any(_fits(name, word) for word in words if not word.startswith("!"))


def _fits(name: str, pattern: str) -> bool:
    literal = pattern.replace("[", "[[]")  # known_hosts knows * and ? only; brackets enclose the host of a port
    return fnmatch.fnmatchcase(name.lower(), literal.lower())


def _hash_matches(hashed: str, name: str) -> bool:
    try:
        _, _, salt, digest = hashed.split("|")
        wanted = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(wanted, base64.b64decode(digest))
    except ValueError:
        return False


def read(files: Iterable[str | Path]) -> list[KnownKey]:
    """All entries of the files that exist; lines that are no entries are passed over, as OpenSSH does."""
    return [key for name in files for key in _read_one(Path(name).expanduser())]


def _read_one(path: Path) -> list[KnownKey]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    entries = (_parse(line, f"{path}:{number}") for number, line in enumerate(lines, start=1))
    return [entry for entry in entries if entry is not None]


def _parse(line: str, where: str) -> KnownKey | None:
    words = line.split()
    if not words or words[0].startswith("#"):
        return None
    marker = words.pop(0) if words[0].startswith("@") else ""
    if len(words) < 3:  # noqa: PLR2004 - names, type, key
        return None
    try:
        return KnownKey(marker, words[0], words[1], base64.b64decode(words[2], validate=True), where)
    except ValueError:
        return None


def host_names(host: str, port: int, alias: str | None = None) -> tuple[str, ...]:
    """The names under which OpenSSH looks a host up, the first being the one it prefers."""
    if alias:
        return (alias,)
    return (host,) if port == 22 else (f"[{host}]:{port}", host)  # noqa: PLR2004 - SSH's port


def keys_for(entries: Sequence[KnownKey], names: Sequence[str]) -> list[KnownKey]:
    """The entries for a host: those of the first of its names that has any."""
    for name in names:
        found = [entry for entry in entries if entry.matches(name)]
        if found:
            return found
    return []


def fingerprint(blob: bytes) -> str:
    """The SHA256 fingerprint of a public key, as ``ssh-keygen -l`` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
