"""Folders and files of this program on this machine: where they are, and how they are written."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LEFT_SECONDS = 2 * 24 * 3600
"""Age of a temporary folder that no running command uses; an apply takes hours at most."""


def state_folder() -> Path:
    """Return ``$XDG_STATE_HOME/provision``: logs, history, locks, drained nodes, labs, keys."""
    return _base("XDG_STATE_HOME", ".local/state") / "provision"


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/provision``: files that can be made again at any time."""
    return _base("XDG_CACHE_HOME", ".cache") / "provision"


def config_folder() -> Path:
    """Return ``$XDG_CONFIG_HOME/provision``: settings of the operator."""
    return _base("XDG_CONFIG_HOME", ".config") / "provision"


def private_folder(path: Path) -> Path:
    """Make a folder that only its owner can enter, and return it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Create a private folder below the state folder and remove it afterwards.

    It can contain passwords of the inventory, so folders that killed commands left are removed, too. Where the state
    folder cannot be written, it is created in the system's folder for temporary files.
    """
    parent = state_folder() / "tmp"
    try:
        private_folder(parent)
    except OSError:
        parent = Path(tempfile.gettempdir())
    else:
        _remove_left(parent)
    with tempfile.TemporaryDirectory(prefix="provision-", dir=parent) as folder:
        yield folder


def _remove_left(parent: Path) -> None:
    for old in parent.iterdir():
        with suppress(OSError):  # another command may remove it, too
            if old.stat().st_mtime < time.time() - _LEFT_SECONDS:
                shutil.rmtree(old)


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
