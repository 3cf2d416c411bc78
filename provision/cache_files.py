"""Private files in the operator's cache folder, each with a hash of its content.

A file with another owner, mode or hash is ignored. The content can always be computed again, so a file that cannot
be read or written is not an error.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path

from provision.local_files import cache_folder, write_private

MOST_BYTES = 32 * 1024 * 1024
"""Maximum size of one file."""
_MOST_FILES = 50
"""Maximum number of files of one kind; the oldest ones are removed."""


def inventory_place(inventory: Path) -> Path:
    """Return the folder of an inventory, given the folder, the hosts file in it, or a link to either."""
    place = inventory.resolve()
    return place.parent if place.is_file() and place.stem in {"hosts", "inventory"} else place


def inventory_key(inventory: Path) -> str:
    """Return the key under which files about an inventory are cached."""
    return hashlib.sha256(str(inventory_place(inventory)).encode()).hexdigest()[:32]


def read(kind: str, key: str) -> bytes | None:
    """Return the cached content of `key`; None without a valid file."""
    folder = _folder(kind)
    try:
        descriptor = os.open(folder / f"{key}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        private = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        if not private or status.st_size > MOST_BYTES or not _is_ours(folder):
            return None
        try:
            digest, _, content = stream.read().partition(b"\n")
            if hashlib.sha256(content).hexdigest() != digest.decode("ascii"):
                return None
        except (OSError, ValueError):
            return None
    with suppress(OSError):
        os.utime(folder / f"{key}.json")
    return content


def write(kind: str, key: str, content: bytes) -> None:
    """Store `content` atomically. Failures are ignored."""
    if len(content) > MOST_BYTES:
        return
    folder = _folder(kind)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_ours(folder):
            return
        write_private(folder / f"{key}.json", hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        _remove_old(folder)
    except OSError:
        return


def _remove_old(folder: Path) -> None:
    by_age = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in [*by_age[_MOST_FILES:], *_abandoned(folder)]:
        file.unlink(missing_ok=True)


def _abandoned(folder: Path) -> list[Path]:
    """Return temporary files of interrupted writes, at least one hour older than the newest file."""
    parts = list(folder.glob(".*.json.*"))
    newest = max((file.stat().st_mtime for file in folder.iterdir()), default=0.0)
    return [part for part in parts if part.stat().st_mtime < newest - 3600]


def _folder(kind: str) -> Path:
    return cache_folder() / kind


def _is_ours(folder: Path) -> bool:
    status = os.lstat(folder)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
