"""The all-reduce programs that a training container contains."""

from __future__ import annotations

import shlex

from provision.commands.docker import exec_argv
from provision.facts.base import Unknown

NCCL_TESTS = ("all_reduce_perf_mpi", "all_reduce_perf")
"""Some images use the first name for the program that is built with MPI."""
_MODULES = ("torch", "mpi4py", "numpy")
_KNOWN = frozenset({*NCCL_TESTS, *_MODULES, "python3", "timeout"})


def tools_script(container: str) -> str:
    """Return the shell script that lists the available tools. Modules are not imported, because that takes seconds."""
    find_modules = f"import importlib.util as u; [print('has', n) for n in {_MODULES!r} if u.find_spec(n)]"
    names = " ".join((*NCCL_TESTS, "python3", "timeout"))
    inner = f"""for name in {names}; do command -v $name >/dev/null 2>&1 && echo "has $name"; done
python3 -c "{find_modules}" 2>/dev/null
echo asked"""
    return shlex.join(["timeout", "-k", "5", "60", *exec_argv(container, ["sh", "-c", inner])]) + " </dev/null"


def parse_tools(text: str, error: str = "") -> frozenset[str] | Unknown:
    """Return the programs and modules that the container has; Unknown if it did not answer."""
    rows = [line.split() for line in text.splitlines()]
    if ["asked"] not in rows:
        messages = [line for line in error.splitlines() if line.strip()]
        return Unknown(messages[-1].strip() if messages else "the container did not answer")
    return frozenset(row[1] for row in rows if len(row) == 2 and row[0] == "has" and row[1] in _KNOWN)  # noqa: PLR2004
