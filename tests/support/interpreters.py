"""The Python interpreters of this machine, for tests of programs that run on nodes with an older Python."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

__all__ = ["INTERPRETERS", "NODE_PYTHON", "OLDEST", "interpreter"]

MINORS = range(6, 15)
"""The versions 3.6 to 3.14, which nodes may have."""


def _path(minor: int) -> str | None:
    """Return an interpreter in PATH or of pyenv, None if the machine has none of this version."""
    if sys.version_info[:2] == (3, minor):
        return sys.executable
    installed = sorted((Path.home() / ".pyenv/versions").glob(f"3.{minor}.*/bin/python3"))
    return str(installed[-1]) if installed else shutil.which(f"python3.{minor}")


INTERPRETERS = {f"3.{minor}": _path(minor) for minor in MINORS}
"""Version -> path, None for a version that the machine does not have."""
NODE_PYTHON = os.environ.get("NODE_PYTHON") or sys.executable
"""What runs the programs of nodes in most tests; `make unit-oldest` sets it to the oldest Python of the machine."""
OLDEST = next(path for path in INTERPRETERS.values() if path)


def interpreter(version: str) -> str:
    """Return the interpreter of a version; skip the test if the machine does not have it."""
    path = INTERPRETERS[version]
    if path is None:
        pytest.skip(f"this machine has no Python {version}")
    return path
