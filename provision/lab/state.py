"""What this machine remembers of its labs: one private folder each, and a lock while a lab is made or removed."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO

from provision.errors import LabError, LockedError, UsageError
from provision.lab.access import write_private
from provision.lab.base import DriverName, LabSpec
from provision.lab.paths import labs_folder, private_folder

__all__ = ["check_name", "known_labs", "lab_folder", "load_spec", "locked", "save_spec"]

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?")


def check_name(name: str) -> str:
    """Return `name` when it can be part of host names, container names and paths.

    Raises:
        UsageError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a lab's name",
            remedy="Use at most 30 of: small letters, digits, dashes; first a letter, no dash at the end.",
        )
    return name


def lab_folder(name: str) -> Path:
    """The folder of the lab called `name`, which may not exist."""
    return labs_folder() / check_name(name)


def known_labs() -> list[str]:
    """Names of all labs of this user, also of half-made ones."""
    folder = labs_folder()
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and _NAME.fullmatch(path.name))


def save_spec(folder: Path, spec: LabSpec) -> None:
    """Write what the lab was asked for, before anything of it is made."""
    write_private(private_folder(folder) / "lab.json", json.dumps(asdict(spec), indent=2) + "\n")


def load_spec(folder: Path) -> LabSpec | None:
    """Read it back; None when the lab was never begun.

    Raises:
        LabError: the file is damaged.
    """
    path = folder / "lab.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return LabSpec(**{**found, "driver": DriverName(found["driver"])})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(f"{path} is damaged: {error}", remedy=f"provision lab down {folder.name}") from error


@contextmanager
def locked(name: str, purpose: str) -> Iterator[None]:
    """Hold the lab for this process; the lock ends with the process at the latest.

    Raises:
        LockedError: another process holds it; the message says which, since when and for what.
    """
    path = private_folder(labs_folder()) / f".{check_name(name)}.lock"
    file = _take(path, name)
    try:
        file.seek(0)
        file.truncate()
        json.dump({"pid": os.getpid(), "user": _user(), "since": int(time.time()), "purpose": purpose}, file)
        file.flush()
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


def _take(path: Path, name: str) -> IO[str]:
    """Lock the file that is at `path` now, not one that its last holder removed meanwhile."""
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(path)
            file.close()
            raise LockedError(f"lab {name} is in use: {holder}", remedy="Wait until it has ended.") from None
        try:
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        except FileNotFoundError:
            pass
        file.close()


def _holder(path: Path) -> str:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["since"]))
        return f"process {found['pid']} of {found['user']}, since {since}, for `{found['purpose']}`"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process has just begun"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
