"""The probe's program with changed constants, as a folder that python3 runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.interpreters import NODE_PYTHON
from tests.support.node.archive import NODE

__all__ = ["managed_command", "probe_command", "probe_output"]

_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); "


def probe_command(folder: Path, change: str = "", python: str = NODE_PYTHON) -> list[str]:
    """Return the command that runs the program ``probe``.

    Args:
        folder: where a copy of the program is written.
        change: sed commands for its modules, separated by semicolons; each has to change something.
        python: the interpreter.
    """
    start = f"{_START}from provision.node.main import main; sys.exit(main())"
    return [python, "-I", "-S", "-c", start, _written(folder, change), "probe"]


def managed_command(folder: Path, receipts: Path | str, change: str = "") -> list[str]:
    """Return the command that prints the answer of the probe's function ``managed`` for a folder of receipts."""
    start = (
        f"{_START}import json; from provision.node.probe.engine import managed_and_engine; "
        "print(json.dumps(managed_and_engine(sys.argv[1])))"
    )
    return [NODE_PYTHON, "-I", "-S", "-c", start, _written(folder, change), str(receipts)]


def _written(folder: Path, change: str) -> str:
    package = folder / "provision"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(NODE / "probe", package / "node/probe", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(NODE / "main.py", package / "node")
    files = sorted((package / "node/probe").glob("*.py"))
    for command in filter(None, change.split(";")):
        before = [file.read_bytes() for file in files]
        subprocess.run(["sed", "-i", "-e", command, *map(str, files)], check=True)
        assert before != [file.read_bytes() for file in files], f"nothing matches {command}"
    return str(folder)


def probe_output(command: list[str], request: bytes, env: dict[str, str] | None = None) -> str:
    """Run the program and return what it prints."""
    done = subprocess.run(command, input=request, capture_output=True, timeout=30, check=False, env=env)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode(errors="replace")
