"""Version and commit of this program."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from provision import __version__
from provision.resources import built_commit, checkout

_GIT_SECONDS = 10


def version_line() -> str:
    """Return name, version and commit."""
    known = commit()
    return f"provision {__version__} (commit {known})" if known else f"provision {__version__}"


def commit() -> str:
    """Return the commit of this program, with ``-dirty`` for changed files; empty if it is unknown."""
    root = checkout()
    return _checked_out(root) if root and (root / ".git").exists() else built_commit()


def _checked_out(root: Path) -> str:
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
