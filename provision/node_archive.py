"""Builds the programs that run on nodes into one archive, and returns the shell scripts that copy and run it.

The archive is the same, byte by byte, for the same sources and version of zlib. A node stores it under its SHA-256
hash; each start verifies the hash. Nothing is executed here. Ansible loads this module as a filter plugin of the role
`base_system`, so it imports nothing from `provision`.
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
INCOMPLETE_PYTHON = 96
"""Exit status of `run_script` and `memory_script` if the interpreter lacks modules, as that of python3-minimal."""
OLD_PYTHON = 95
"""Exit status of `run_script` and `memory_script` if the interpreter is older than Python 3.6."""
NO_MEMORY_FILES = 94
"""Exit status of `memory_script` if the node has no files in memory: its kernel or its libc is too old."""
READ_ONLY = 93
"""Exit status of `store_archive_script` if `/run` is read-only."""
NO_SPACE = 92
"""Exit status of `store_archive_script` if `/run` is full, or the folder cannot be created."""
DAMAGED = 91
"""Exit status of `store_archive_script` and `memory_script` if the archive arrived incomplete or changed."""
NO_PYTHON = 90
"""Exit status of `run_script` and `memory_script` on a node without the interpreter."""
_SOURCES = Path(__file__).resolve().with_name("node")

_CHECK = f"""import sys
if sys.version_info < (3, 6):
    sys.stderr.write("Python %d.%d\\n" % sys.version_info[:2])
    sys.exit({OLD_PYTHON})
try:
    import hashlib, json, select, socket, zlib
except ImportError:
    sys.stderr.write("%s\\n" % sys.exc_info()[1])
    sys.exit({INCOMPLETE_PYTHON})
"""
_MAIN = f"{_CHECK}from provision.node.main import main\nsys.exit(main())\n"

_FROM_MEMORY = f"""{_CHECK}import os
try:
    try:
        archive = os.memfd_create("provision")
    except AttributeError:
        from ctypes import CDLL
        archive = CDLL(None).memfd_create(b"provision", 1)
except (ImportError, AttributeError, OSError):
    archive = -1
if archive < 0:
    sys.exit({NO_MEMORY_FILES})
left = int(sys.argv.pop(1))
while left:
    data = os.read(0, min(left, 65536))
    left -= os.write(archive, data or sys.exit({DAMAGED}))
sys.argv[0] = "/proc/self/fd/%d" % archive
sys.path.insert(0, sys.argv[0])
from provision.node.main import main
sys.exit(main())"""


def build(folder: str | Path = _SOURCES) -> bytes:
    """Return the archive of the package in `folder`: a zip file that python3 runs.

    The first file is not compressed, so that a Python without zlib can run its check.
    """
    files = {"__main__.py": _MAIN, "provision/__init__.py": ""}
    for path in sorted(Path(folder).rglob("*.py")):
        files[f"provision/node/{path.relative_to(folder).as_posix()}"] = path.read_text(encoding="utf-8")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as target:
        for name, text in sorted(files.items()):
            kind = zipfile.ZIP_STORED if name == "__main__.py" else zipfile.ZIP_DEFLATED
            target.writestr(zipfile.ZipInfo(name), text, kind, compresslevel=9)
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
    """Return the shell script that ends with 0 on a node with the archive, else with `MISSING` or `NO_PYTHON`."""
    return (
        f"{_python_script(python)}\n"
        f"echo '{_digest()}  {archive_path()}' | sha256sum -c --status 2>/dev/null ||\n"
        f"{{ echo '{archive_path()} is missing' >&2; exit {MISSING}; }}"
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

    It needs files in memory: Linux 3.17, and Python 3.8 or glibc 2.27. Parameters are those of `run_script`.
    """
    words = shlex.join((python, "-I", "-S", "-c", _FROM_MEMORY, str(len(archive())), program, *arguments))
    return f"{_python_script(python)}\nexec {words}"


def store_archive_script() -> str:
    """Return the shell script that stores the archive, which it reads from standard input.

    It ends with `READ_ONLY`, `NO_SPACE` or `DAMAGED` if it fails. It removes archives of other versions that are older
    than a day if no process runs from them, and remains of copies that broke off.
    """
    return f"""umask 077
part=
trap 'rm -f "$part"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p {FOLDER} && part=$(mktemp {FOLDER}/part.XXXXXX) || {{ [ -w {Path(FOLDER).parents[1]} ] && exit {NO_SPACE}; exit {READ_ONLY}; }}
cat >"$part" || exit {NO_SPACE}
echo "{_digest()}  $part" | sha256sum -c --status || exit {DAMAGED}
mv -f "$part" {archive_path()} || exit {NO_SPACE}
find {FOLDER} -maxdepth 1 -type f -mtime +0 ! -name {_digest()}.pyz | while IFS= read -r old; do
  grep -qsF "${{old##*/}}" /proc/[0-9]*/cmdline || rm -f "$old"
done
"""  # noqa: E501


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
