"""Directories of labs and caches on the controller."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder", "labs_folder", "private_folder"]


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/provision``, for images that can be rebuilt at any time."""
    return _base("XDG_CACHE_HOME", ".cache") / "provision"


def labs_folder() -> Path:
    """Return ``$XDG_STATE_HOME/provision/labs``, with one folder per lab."""
    return _base("XDG_STATE_HOME", ".local/state") / "provision" / "labs"


def private_folder(path: Path) -> Path:
    """Create a folder that only its owner can access, and return it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def _base(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    return Path(value) if value.startswith("/") else Path.home() / default
