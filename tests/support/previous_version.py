"""The recorded state of the previous version; tests/data/state-0.1/README.md describes it."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["STATE", "private_copy"]

STATE = Path(__file__).parents[1] / "data/state-0.1"


def private_copy(source: Path, target: Path) -> Path:
    """Copy a folder of private files, whose modes git does not record, and return the copy."""
    shutil.copytree(source, target)
    target.chmod(0o700)
    for path in target.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return target
