"""One at a time on this machine: a lock that says who holds it, since when and for what."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from provision.documents import decode
from provision.documents.state import LocalHolder
from provision.errors import InvalidDocument, LockedError

__all__ = ["held", "user"]


@contextmanager
def held(path: Path, what: str, purpose: str) -> Iterator[None]:
    """Hold the lock at `path` for this process; the lock ends with the process at the latest.

    Raises:
        LockedError: another process holds it; the message says which, since when and for what.
    """
    file = _take(path, what)
    try:
        file.seek(0)
        file.truncate()
        json.dump({"pid": os.getpid(), "user": user(), "since": int(time.time()), "purpose": purpose}, file)
        file.flush()
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


def _take(path: Path, what: str) -> IO[str]:
    """Lock the file that is at `path` now, not one that its last holder removed meanwhile."""
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(path)
            file.close()
            raise LockedError(f"{what} is in use: {holder}", remedy="Wait until it has ended.") from None
        try:
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        except FileNotFoundError:
            pass
        file.close()


def _holder(path: Path) -> str:
    try:
        found = decode(path.read_bytes(), LocalHolder, node="", what=str(path))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.since))
    except (OSError, OverflowError, InvalidDocument):
        return "another process has just begun"
    return f"process {found.pid} of {found.user}, since {since}, for `{found.purpose}`"


def user() -> str:
    """Return who runs this process, by number where the account has no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
