"""Builds the programs that run on nodes into one archive, and returns the shell scripts that copy and run it.

The archive is the same for the same sources, byte by byte. A node stores it under its SHA-256 hash; each start verifies
the hash. Nothing is executed here. Ansible loads this module as a filter plugin of the role `base_system`, so it
imports nothing from `provision`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import shlex
import zipfile
from collections.abc import Callable
from pathlib import Path

FOLDER = "/run/provision/programs"
"""The folder of archives on a node; only root can read or write it, and a reboot empties it."""
MISSING = 97
"""Exit status of `run_script` on a node that does not have the archive, or has a damaged copy."""
NO_PYTHON = 127
"""Exit status of `run_script` and `memory_script` on a node without the interpreter."""
_SOURCES = Path(__file__).resolve().with_name("node")
_MAIN = "import sys\nfrom provision.node.main import main\nsys.exit(main())\n"

_FROM_MEMORY = """import os, sys
left, archive = int(sys.argv.pop(1)), os.memfd_create("provision")
while left:
    data = os.read(0, min(left, 65536))
    left -= os.write(archive, data or sys.exit("the archive is incomplete"))
sys.argv[0] = "/proc/self/fd/%d" % archive
sys.path.insert(0, sys.argv[0])
from provision.node.main import main
sys.exit(main())"""


def build(folder: str | Path = _SOURCES) -> bytes:
    """Return the archive of the package in `folder`: a zip file that python3 runs."""
    files = {"__main__.py": _MAIN, "provision/__init__.py": ""}
    for path in sorted(Path(folder).rglob("*.py")):
        files[f"provision/node/{path.relative_to(folder).as_posix()}"] = path.read_text(encoding="utf-8")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        for name, text in sorted(files.items()):
            target.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


@functools.cache
def archive() -> bytes:
    """Return the archive of this version."""
    return build()


@functools.cache
def _digest() -> str:
    return hashlib.sha256(archive()).hexdigest()


def archive_path() -> str:
    """Return the path of the archive on nodes; its name is its hash."""
    return f"{FOLDER}/{_digest()}.pyz"


def check_script(python: str = "python3") -> str:
    """Return the shell script that ends with 0 where a node has the archive, `MISSING` else, 127 without Python."""
    return (
        f"{_python_script(python)}\n"
        f"echo '{_digest()}  {archive_path()}' | sha256sum -c --status 2>/dev/null || exit {MISSING}"
    )


def _python_script(python: str) -> str:
    absent = shlex.quote(f"there is no {python} on this node")
    return f"command -v {shlex.quote(python)} >/dev/null 2>&1 || {{ echo {absent} >&2; exit {NO_PYTHON}; }}"


def run_script(program: str, *arguments: str, python: str = "python3") -> str:
    """Return the shell script that runs a program of the archive as root.

    It ends with `MISSING`, and reads nothing, where the archive has to be copied first.
    """
    words = shlex.join((python, "-I", "-S", archive_path(), program, *arguments))
    return f"{check_script(python)}\nexec {words}"


def memory_script(program: str, *arguments: str, python: str = "python3") -> str:
    """Return the shell script that runs a program without storing the archive, which begins its standard input.

    It needs Python 3.8; parameters are those of `run_script`.
    """
    words = shlex.join((python, "-I", "-S", "-c", _FROM_MEMORY, str(len(archive())), program, *arguments))
    return f"{_python_script(python)}\nexec {words}"


def install_script() -> str:
    """Return the shell script that stores the archive, which it reads from standard input."""
    return (
        f"umask 077; mkdir -p {FOLDER} && part=$(mktemp {FOLDER}/part.XXXXXX) || exit 1\n"
        "trap 'rm -f \"$part\"' EXIT\n"
        'cat >"$part" && '
        f'echo "{_digest()}  $part" | sha256sum -c --status && mv -f "$part" {archive_path()}'
    )


def source(module: str) -> str:
    """Return the text of one module, such as ``run/share``, for a container; containers cannot read the archive."""
    return (_SOURCES / f"{module}.py").read_text(encoding="utf-8")


def shell_script(name: str) -> str:
    """Return a shell script of the package, such as ``run/sweep.sh``; they also run in containers."""
    return (_SOURCES / name).read_text(encoding="utf-8")


class FilterModule:
    """Ansible's entry point for filters."""

    def filters(self) -> dict[str, Callable[..., str]]:
        """Return the filters by name."""
        return {"node_archive": lambda folder: base64.b64encode(build(folder)).decode()}
