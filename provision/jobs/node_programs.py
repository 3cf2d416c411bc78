"""What goes to a node for batch jobs: the program that answers requests, and others, each with its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

__all__ = ["FILES", "FilterModule", "agent_program", "code_program", "jobs_program", "keeper_programs", "unit_programs"]

FILES = Path(__file__).with_name("files")
_OF_UNIT = ("keeper_endings", "keeper_output", "node_docker", "node_files", "node_paths", "node_records", "node_units")
"""Parts that the first program of a unit imports beside its own."""
_OF_KEEPER = (
    *("node_docker", "node_files", "node_keepers", "node_leases", "node_mountpoints", "node_paths", "node_records"),
    *("node_units", "unit_mounts", "unit_words"),
)
"""Parts that the keeper imports beside its own."""

_PACKAGE = "provision.jobs.files"

# Parts are imported from the text that came along, and only then compiled.
_PROGRAM = """import sys
from importlib.machinery import ModuleSpec
PARTS = {parts!r}
class Parts:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, origin=name + ".py", is_package=not PARTS[name]) if name in PARTS else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        exec(compile(PARTS[name], name + ".py", "exec"), module.__dict__)
sys.meta_path.insert(0, Parts())
exec(compile(PARTS["{main}"], "{main}.py", "exec"))
"""


@cache
def jobs_program() -> bytes:
    """Return the program that answers one request: ``node_jobs.py`` with its parts."""
    return _program("node_jobs", _jobs_parts(FILES)).encode()


def _jobs_parts(folder: Path) -> list[str]:
    return [*(path.stem for path in folder.glob("node_*.py")), "code_folders"]


def agent_program(folder: str | Path = FILES) -> str:
    """Return the program that people without a root login reach: ``job_agent.py`` with all that answers requests."""
    program = _program("job_agent", ["job_agent", *_jobs_parts(Path(folder))], Path(folder))
    return f"#!/usr/bin/python3 -IS\n# Written by the role base_system.\n{program}"


@cache
def code_program() -> bytes:
    """Return the program that brings code: ``code_sync.py`` with its parts, which the submitter's machine imports too.

    So they have the names there that they have here, of modules in packages.
    """
    names = {f"{_PACKAGE}.{path.stem}": path.stem for path in FILES.glob("code_*.py")}
    parts = {name: (FILES / f"{stem}.py").read_text(encoding="utf-8") for name, stem in sorted(names.items())}
    words = _PACKAGE.split(".")
    packages = {".".join(words[: at + 1]): "" for at in range(len(words))}
    return _PROGRAM.format(parts=packages | parts, main=f"{_PACKAGE}.code_sync").encode()


@cache
def keeper_programs() -> dict[str, str]:
    """Return the files of the keeper by name, ``programs`` of the request ``start``: one, that starts soonest."""
    own = (path.stem for path in FILES.glob("keeper*.py"))
    return {"keeper.py": _program("keeper", (*own, *_OF_KEEPER))}


@cache
def unit_programs() -> dict[str, str]:
    """Return the files of what stays with an instance that is a process of its node, beside those of the keeper."""
    own = (path.stem for path in FILES.glob("unit_*.py"))
    return {"unit.py": _program("unit_shim", (*own, *_OF_UNIT))}


def _program(main: str, names: Iterable[str], folder: Path = FILES) -> str:
    parts = {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in sorted(names)}
    return _PROGRAM.format(parts=parts, main=main)


class FilterModule:
    """What Ansible loads: a role has a link to this file among its filters."""

    def filters(self) -> dict[str, Callable[..., str]]:
        """Return the filters by name."""
        return {"job_agent_program": agent_program}
