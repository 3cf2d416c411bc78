"""Open MPI's MCA parameters in the names of version 4 (ORTE) and of version 5 (PRRTE)."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["PRRTE", "Parameter", "is_gone", "spelled"]

PRRTE = 5
"""From this major version on PRRTE starts the ranks, and has parameters of its own."""

_RUNTIME = {"oob_tcp_if_include": "prte_if_include", "oob_tcp_if_exclude": "prte_if_exclude"}
_RUNTIME_FAMILIES = {"plm_rsh_": "plm_ssh_", "orte_": "prte_"}
_COMPONENTS = {"vader": "sm"}


@dataclass(frozen=True)
class Parameter:
    """One parameter as it is given on a command line."""

    flag: str
    """``--mca``, or ``--prtemca`` for the runtime of version 5."""
    name: str
    value: str


def spelled(name: str, value: str, version: int) -> Parameter:
    """Return a parameter of version 4 as `version` takes it; what both know stays as it is.

    Version 5 has no openib: a list that only excludes it becomes the list of what is left for TCP and shared memory.
    """
    if version < PRRTE:
        return Parameter("--mca", name, value)
    runtime = _runtime_name(name)
    if runtime:
        return Parameter("--prtemca", runtime, value)
    if name == "btl_vader_single_copy_mechanism":
        return Parameter("--mca", "smsc", "^cma" if value == "none" else value)
    return Parameter("--mca", name, _transports(value) if name == "btl" else value)


def _runtime_name(name: str) -> str:
    """Return what PRRTE calls a parameter of ORTE; empty for one of the MPI library."""
    for old, new in _RUNTIME_FAMILIES.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return _RUNTIME.get(name, "")


def _transports(value: str) -> str:
    excluding = value.startswith("^")
    kept = [_COMPONENTS.get(word, word) for word in value.removeprefix("^").split(",") if word != "openib"]
    if excluding:
        return "^" + ",".join(kept) if kept else "self,sm,tcp"
    return ",".join(kept)


def is_gone(name: str, version: int) -> bool:
    """Return whether a parameter of version 4 has no successor in `version`: its component is no longer there."""
    return version >= PRRTE and not _runtime_name(name) and bool(re.match(r"oob(_|$)|btl_openib_", name))
