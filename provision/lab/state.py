"""What this machine remembers of its labs: one private folder each, and a lock while a lab is made or removed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from provision.documents import decode
from provision.errors import InvalidDocument, LabError, UsageError
from provision.lab.base import LabSpec
from provision.local_files import private_folder, state_folder, write_private
from provision.locks import held

__all__ = ["check_name", "known_labs", "lab_folder", "labs_folder", "load_spec", "locked", "save_spec"]

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


def labs_folder() -> Path:
    """Return the folder with a folder for each lab."""
    return state_folder() / "labs"


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
        return decode(path.read_bytes(), LabSpec, node="", what=str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except InvalidDocument as error:
        raise LabError(f"{path} is damaged: {error.message}", remedy=f"provision lab down {folder.name}") from error


@contextmanager
def locked(name: str, purpose: str) -> Iterator[None]:
    """Hold the lab for this process; the lock ends with the process at the latest.

    Raises:
        LockedError: another process holds it; the message says which, since when and for what.
    """
    with held(private_folder(labs_folder()) / f".{check_name(name)}.lock", f"lab {name}", purpose):
        yield
