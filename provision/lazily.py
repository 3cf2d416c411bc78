"""Packages whose parts are imported when they are asked for: a command that needs one does not wait for all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["parts"]


def parts(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package (PEP 562).

    Args:
        package: its ``__name__``.
        names: module of the package -> what is taken from it. No module may have the name of something that is taken.
    """
    home = {name: f"{package}.{part}" for part, taken in names.items() for name in taken}

    def take(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return take
