"""State of labs on the controller: one private folder per lab, and a lock for creation and removal."""

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

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?")


def check_name(name: str) -> str:
    """Return `name` if it is valid in host names, container names and paths.

    Raises:
        UsageError: the name is invalid.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"invalid lab name {name!r}",
            remedy="Use at most 30 lower-case letters, digits and dashes; begin with a letter, end without dash.",
        )
    return name


def labs_folder() -> Path:
    """Return the folder with a folder for each lab."""
    return state_folder() / "labs"


def lab_folder(name: str) -> Path:
    """Return the folder of a lab, which may not exist."""
    return labs_folder() / check_name(name)


def known_labs() -> list[str]:
    """Return the names of all labs of this user, including incomplete ones."""
    folder = labs_folder()
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and _NAME.fullmatch(path.name))


def save_spec(folder: Path, spec: LabSpec) -> None:
    """Store the lab's options before anything is created."""
    write_private(private_folder(folder) / "lab.json", json.dumps(asdict(spec), indent=2) + "\n")


def load_spec(folder: Path) -> LabSpec | None:
    """Return the stored options, or None if the lab does not exist.

    Raises:
        LabError: the file is damaged.
    """
    path = folder / "lab.json"
    try:
        return decode(path.read_bytes(), LabSpec, node="", what=str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except InvalidDocument as error:
        raise LabError(
            f"{path} is damaged: {error.message}", remedy=f"Run: provision lab down {folder.name}"
        ) from error


@contextmanager
def locked(name: str, purpose: str) -> Iterator[None]:
    """Hold the lab's lock; it ends at the latest with the process.

    Raises:
        LockedError: another process holds it; the message names process, time and purpose.
    """
    with held(private_folder(labs_folder()) / f".{check_name(name)}.lock", f"lab {name}", purpose):
        yield
