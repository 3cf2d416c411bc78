"""Quote words for shells, and verify names of environment variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence


def join(argv: Sequence[str]) -> str:
    """Return one shell line that means exactly `argv`."""
    return shlex.join(argv)


def is_environment_name(name: str) -> bool:
    """Return whether a shell accepts the name as a variable."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None


def script_argument(command: Sequence[str], launchers: Collection[str] = ()) -> str | None:
    """Return the script file of a call of an interpreter or launcher (``python3 train.py``), if `command` is one."""
    if len(command) < 2 or command[1].startswith("-"):  # noqa: PLR2004 - interpreter and script
        return None
    name = command[0].rpartition("/")[2]
    interpreter = re.fullmatch(r"(python|pypy)[0-9.]*|bash|dash|sh|perl|ruby", name)
    return command[1] if interpreter or name in launchers else None
