"""Names of Open MPI's MCA parameters in version 4 (ORTE) and version 5 (PRRTE)."""

from __future__ import annotations

import re
from dataclasses import dataclass

PRRTE = 5
"""From this major version on, PRRTE starts the ranks and has its own parameters."""

_RUNTIME = {"oob_tcp_if_include": "prte_if_include", "oob_tcp_if_exclude": "prte_if_exclude"}
_RUNTIME_FAMILIES = {"plm_rsh_": "plm_ssh_", "orte_": "prte_"}
_COMPONENTS = {"vader": "sm"}


@dataclass(frozen=True)
class Parameter:
    """One parameter on a command line."""

    flag: str
    """``--mca``, or ``--prtemca`` for the runtime of version 5."""
    name: str
    value: str


def spelled(name: str, value: str, version: int) -> Parameter:
    """Return a parameter of version 4 for `version`; a parameter that both support is unchanged.

    Version 5 has no openib component. A list that only excludes openib becomes a list of TCP and shared memory.
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
    """Return PRRTE's name of an ORTE parameter; empty for a parameter of the MPI library."""
    for old, new in _RUNTIME_FAMILIES.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return _RUNTIME.get(name, "")


def _transports(value: str) -> str:
    excluding = value.startswith("^")
    components = [_COMPONENTS.get(word, word) for word in value.removeprefix("^").split(",") if word != "openib"]
    if excluding:
        return "^" + ",".join(components) if components else "self,sm,tcp"
    return ",".join(components)


def is_gone(name: str, version: int) -> bool:
    """Return whether a parameter of version 4 has no successor in `version` because its component was removed."""
    return version >= PRRTE and not _runtime_name(name) and bool(re.match(r"oob(_|$)|btl_openib_", name))
