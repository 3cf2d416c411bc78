"""Folders and files of this program on this machine: where they are, and how they are written."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from provision.errors import ProvisionError


def state_folder() -> Path:
    """Return ``$XDG_STATE_HOME/provision``: logs, history, locks, drained nodes, labs, keys."""
    return _base("XDG_STATE_HOME", ".local/state") / "provision"


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/provision``: files that can be made again at any time."""
    return _base("XDG_CACHE_HOME", ".cache") / "provision"


def config_folder() -> Path:
    """Return ``$XDG_CONFIG_HOME/provision``: settings of the operator."""
    return _base("XDG_CONFIG_HOME", ".config") / "provision"


def roles_folder() -> Path:
    """Return the folder of the roles of this package."""
    beside = Path(__file__).resolve().parents[1] / "roles"
    shared = Path(sys.prefix) / "share" / "provision" / "roles"
    for folder in (beside, shared):
        if folder.is_dir():
            return folder
    raise ProvisionError(
        f"{beside}: roles not found",
        remedy="Run provision from a checkout of its repository: pip install -e .",
    )


def private_folder(path: Path) -> Path:
    """Make a folder that only its owner can enter, and return it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_private(path: Path, content: str | bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """Replace a file as a whole: an interruption leaves the old file or the new one, never a part.

    Args:
        path: the file; its folder exists.
        content: text is written as UTF-8.
        mode: permissions; by default its owner alone can read it.
        durable: wait until it is on the disk.

    Raises:
        OSError: it cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as draft:
        try:
            draft.write(data)
            draft.flush()
            os.fchmod(draft.fileno(), mode)
            if durable:
                os.fsync(draft.fileno())
            Path(draft.name).replace(path)
        except BaseException:
            Path(draft.name).unlink(missing_ok=True)
            raise


def _base(variable: str, default: str) -> Path:
    """Return a base folder; the XDG specification ignores relative paths."""
    value = os.environ.get(variable, "")
    return Path(value) if value.startswith("/") else Path.home() / default
