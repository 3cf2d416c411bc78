"""A CPython of the controller, packed for lab nodes whose system has an older one than their files.

It is packed with all its libraries and their loader, because those of the node may be older than its own. The node's
image sets their paths in the programs (``provision/lab/files/el_node.py``).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from provision.errors import LabError

_LEFT_OUT = frozenset(
    {"__pycache__", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests", "tkinter", "turtledemo"}
)
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)
_SECONDS = 60


def python_program(version: str) -> str:
    """Return the path of an interpreter on the controller, in PATH or in pyenv's folder; empty if there is none."""
    program = shutil.which(f"python{version}")
    if program and "/shims/" not in program:
        return program
    versions = [path for path in Path.home().glob(f".pyenv/versions/{version}.*") if path.name.split(".")[-1].isdigit()]
    versions.sort(key=lambda path: int(path.name.split(".")[-1]), reverse=True)
    programs = (str(path / "bin" / f"python{version}") for path in versions)
    return next((path for path in programs if os.access(path, os.X_OK)), "")


def folder_on_nodes(version: str) -> str:
    """Return where nodes have the interpreter: ``bin/pythonVERSION`` below it, libraries in ``libraries``."""
    return f"/usr/lib/lab-python{version}"


def pack(program: str, version: str, archive: Path) -> None:
    """Write a tar file with the interpreter, its modules and libraries, as paths on a node.

    Raises:
        LabError: the interpreter does not run.
    """
    prefix = Path(_output([program, "-ISc", "import sys; print(sys.base_prefix)"]).strip())
    top = folder_on_nodes(version).lstrip("/")
    modules = prefix / "lib" / f"python{version}"
    extensions = [path for path in (modules / "lib-dynload").glob("*.so") if not path.name.startswith("_tkinter")]
    with tarfile.open(archive, "w") as tar:
        tar.add(os.path.realpath(program), f"{top}/bin/python{version}", filter=_needed)
        tar.add(modules, f"{top}/lib/python{version}", filter=_needed)
        for name, path in _libraries([Path(os.path.realpath(program)), *extensions]):
            tar.add(os.path.realpath(path), f"{top}/libraries/{name}", filter=_needed)


def _needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what programs do not need, and record root as the owner."""
    name = Path(member.name).name
    if name in _LEFT_OUT or name.startswith(("config-", "_tkinter")):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _libraries(programs: list[Path]) -> Iterator[tuple[str, str]]:
    """Yield name and path of each library that the programs load, and of their loader."""
    text = _output(["ldd", *map(str, programs)])
    for path in sorted(set(_LIBRARY.findall(text))):
        yield Path(path).name, path


def _output(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except OSError as error:
        raise LabError(f"{argv[0]}: does not run ({error.strerror})") from error
    if done.returncode:
        raise LabError(f"{argv[0]}: failed (exit code {done.returncode})", output=done.stderr)
    return done.stdout
