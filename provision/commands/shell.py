"""Quoting for shells, and names that may stand in an environment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

__all__ = ["is_environment_name", "join", "script_argument"]


def join(argv: Sequence[str]) -> str:
    """One shell line that means exactly `argv`."""
    return shlex.join(argv)


def is_environment_name(name: str) -> bool:
    """True for a name that a shell takes as a variable."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None


def script_argument(command: Sequence[str]) -> str | None:
    """The script file that an interpreter is told to run (``python3 train.py``), if `command` is such a call."""
    if len(command) < 2 or command[1].startswith("-"):  # noqa: PLR2004 - interpreter and script
        return None
    name = command[0].rpartition("/")[2]
    return command[1] if re.fullmatch(r"(python|pypy)[0-9.]*|torchrun|bash|dash|sh|perl|ruby", name) else None
