"""Lock files on the controller that name their holder, its start time and its purpose."""

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


@contextmanager
def held(path: Path, what: str, purpose: str) -> Iterator[None]:
    """Hold the lock file `path` in the context. The lock is released at the latest when the process ends.

    Raises:
        LockedError: Another process holds the lock. The message names the process, its start time and its purpose.
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
    """Lock the file that is at `path` now, not one that its last holder has removed."""
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
        current = decode(path.read_bytes(), LocalHolder, node="", what=str(path))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(current.since))
    except (OSError, OverflowError, InvalidDocument):
        return "another process has just started"
    return f"process {current.pid} of {current.user}, since {since}, for `{current.purpose}`"


def user() -> str:
    """Return the name of this process's user, or the UID of an account without a name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
