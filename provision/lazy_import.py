"""Import the modules of a package at first use, so that a command imports only what it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def parts(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package (PEP 562).

    Args:
        package: Its ``__name__``.
        names: Module of the package -> the names it provides. No module may have the same name as one of these.
    """
    modules = {name: f"{package}.{part}" for part, provided in names.items() for name in provided}

    def load_attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load_attribute
