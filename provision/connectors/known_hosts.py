"""OpenSSH's known_hosts files: the trusted keys of a host. Files are only read."""

from __future__ import annotations

import base64
import fnmatch
import functools
import hashlib
import hmac
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.connectors.file_cache import remembered


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
        """Return whether the line applies to `name` (``host`` or ``[host]:port``), hashed or not."""
        if self.patterns.startswith("|1|"):
            return _hash_matches(self.patterns, name)
        words = self.patterns.split(",")
        if any(_fits(name, word[1:]) for word in words if word.startswith("!")):
            return False
        return any(_fits(name, word) for word in words if not word.startswith("!"))


def _fits(name: str, pattern: str) -> bool:
    literal = pattern.replace("[", "[[]")  # known_hosts only supports * and ?; brackets enclose a host with a port
    return fnmatch.fnmatchcase(name.lower(), literal.lower())


def _hash_matches(hashed: str, name: str) -> bool:
    try:
        salt, digest = _salt_and_digest(hashed)
    except ValueError:
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)


@functools.lru_cache(maxsize=65536)
def _salt_and_digest(hashed: str) -> tuple[bytes, bytes]:
    _, _, salt, digest = hashed.split("|")
    return base64.b64decode(salt), base64.b64decode(digest)


def trusted(files: Iterable[str | Path], names: Sequence[str]) -> list[KnownKey]:
    """Return the entries of a host in the files, for the first of its names with entries.

    Missing files and invalid lines are ignored, as OpenSSH does.
    """
    books = [_book(_expanded(file)) for file in files]
    for name in names:
        matches = [entry for book in books for entry in book.entries_for(name)]
        if matches:
            return matches
    return []


def review(file: Path) -> tuple[int, tuple[int, ...]]:
    """Return the number of keys in a file, and the numbers of its invalid lines.

    Raises:
        OSError: it cannot be read.
    """
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    used = {n: line for n, line in enumerate(lines, start=1) if line.strip() and not line.lstrip().startswith("#")}
    invalid = tuple(n for n, line in used.items() if _parse(line, str(file)) is None)
    return len(used) - len(invalid), invalid


def hosts_with(files: Iterable[str | Path], blob: bytes) -> list[str]:
    """Return the unhashed host names for which the files have this key."""
    entries = (entry for file in files for entry in _book(_expanded(file)).entries)
    return sorted({e.patterns for e in entries if e.blob == blob and not e.marker and not e.patterns.startswith("|")})


def _expanded(file: str | Path) -> Path:
    return _path(os.path.expanduser(file))  # noqa: PTH111 - Path takes three times as long


_path = functools.lru_cache(maxsize=64)(Path)


class _Book:
    """The entries of one file in order, with an index of plain names."""

    def __init__(self, entries: Sequence[KnownKey]) -> None:
        self.entries = entries
        self._plain: dict[str, list[tuple[int, KnownKey]]] = {}
        self._others: list[tuple[int, KnownKey]] = []
        for numbered in enumerate(entries):
            patterns = numbered[1].patterns
            if patterns.startswith("|1|") or set(patterns) & set("*?!"):
                self._others.append(numbered)
            else:
                for word in set(patterns.lower().split(",")):
                    self._plain.setdefault(word, []).append(numbered)

    def entries_for(self, name: str) -> list[KnownKey]:
        matches = [*self._plain.get(name.lower(), ()), *(item for item in self._others if item[1].matches(name))]
        return [entry for _, entry in sorted(matches, key=lambda item: item[0])]


@remembered
def _book(path: Path) -> _Book:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return _Book(())
    entries = (_parse(line, f"{path}:{number}") for number, line in enumerate(lines, start=1))
    return _Book([entry for entry in entries if entry is not None])


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
    """Return the names under which OpenSSH searches for a host, the preferred one first."""
    if alias:
        return (alias,)
    return (host,) if port == 22 else (f"[{host}]:{port}", host)  # noqa: PLR2004 - SSH's port


def fingerprint(blob: bytes) -> str:
    """Return the SHA256 fingerprint of a public key in the format of ``ssh-keygen -l``."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
