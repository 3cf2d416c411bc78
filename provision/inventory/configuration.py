"""The operator's configuration files: ``provision.toml`` of the working folder or a parent, and a file of the user.

    inventory = "inventories/prod"    # relative to the folder of the file

Keys are strict: a misspelt one is an error, because its effect would be another cluster than the operator means.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from provision.errors import UsageError
from provision.local_files import config_folder

__all__ = ["PROJECT_FILE", "configured_inventory"]

PROJECT_FILE = "provision.toml"
_KEYS = ("inventory",)
_OTHERS_WRITE = 0o002


def configured_inventory() -> Path | None:
    """Return the inventory that the nearest file with the key names; None where no file does.

    Raises:
        UsageError: a file is not valid, or others could have written it.
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
                remedy="Correct the path, which is relative to the file's folder, or choose one with -i PATH.",
            )
        return path
    return None


def _files() -> Iterator[Path]:
    """Yield the files that exist, the nearest first."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / PROJECT_FILE).is_file():
            yield folder / PROJECT_FILE
            break
    own = config_folder() / "config.toml"
    if own.is_file():
        yield own


def _refuse_foreign(file: Path) -> None:
    """Refuse a file that others wrote or may replace: an inventory runs programs as the operator."""
    status, folder = file.stat(), file.parent.stat()
    if status.st_uid not in (0, os.getuid()):
        raise UsageError(f"{file} belongs to another user", remedy=f"Remove it, or take it over: chown $USER {file}")
    for path, mode in ((file, status.st_mode), (file.parent, folder.st_mode)):
        if mode & _OTHERS_WRITE:
            raise UsageError(f"{file} is not used: everybody may write {path}", remedy=f"Run: chmod o-w {path}")


def _read(file: Path) -> dict[str, object]:
    import tomllib

    try:
        values: dict[str, object] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}", remedy='It holds one line: inventory = "PATH"') from error
    unknown = [key for key in values if key not in _KEYS]
    if unknown:
        raise UsageError(f"{file}: unknown key {', '.join(unknown)}", remedy=f"Keys are {', '.join(_KEYS)}.")
    return values
