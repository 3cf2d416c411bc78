"""The operator's configuration files: ``provision.toml`` in the working folder or a parent, and one per user.

    inventory = "inventories/prod"    # relative to the folder of the file

Unknown keys are errors: after a misspelled key another cluster than intended would be used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from provision.errors import UsageError
from provision.local_files import config_folder

PROJECT_FILE = "provision.toml"
_KEYS = ("inventory",)
_OTHERS_WRITE = 0o002


def configured_inventory() -> Path | None:
    """Return the inventory of the nearest file with this key; None if no file has it.

    Raises:
        UsageError: A file is invalid, or other users could have written it.
    """
    for file in _files():
        _refuse_foreign(file)
        value = _read(file).get("inventory")
        if value is None:
            continue
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{file}: inventory must be a path, not {value!r}")
        path = file.parent / Path(value).expanduser()
        if not path.exists():
            raise UsageError(
                f"{file}: there is no inventory {path}",
                remedy="Correct the path, which is relative to the file's folder, or select an inventory with -i PATH.",
            )
        return path
    return None


def _files() -> Iterator[Path]:
    """Yield the existing files, the nearest first."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / PROJECT_FILE).is_file():
            yield folder / PROJECT_FILE
            break
    own = config_folder() / "config.toml"
    if own.is_file():
        yield own


def _refuse_foreign(file: Path) -> None:
    """Reject a file that other users may write or replace: an inventory runs programs as the operator."""
    status, folder = file.stat(), file.parent.stat()
    if status.st_uid not in (0, os.getuid()):
        raise UsageError(
            f"{file} belongs to another user", remedy=f"Remove it, or change its owner: chown $USER {file}"
        )
    for path, mode in ((file, status.st_mode), (file.parent, folder.st_mode)):
        if mode & _OTHERS_WRITE:
            raise UsageError(f"{file} is not used: all users may write {path}", remedy=f"Run: chmod o-w {path}")


def _read(file: Path) -> dict[str, object]:
    import tomllib

    try:
        values: dict[str, object] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}", remedy='Its only line is: inventory = "PATH"') from error
    unknown = [key for key in values if key not in _KEYS]
    if unknown:
        raise UsageError(f"{file}: unknown key {', '.join(unknown)}", remedy=f"Keys are {', '.join(_KEYS)}.")
    return values
