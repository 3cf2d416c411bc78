"""Write the outputs of the examples in docs/export.md and of other pages anew: `python tools/export_page.py`.

A block ```` ```yaml title="NAME" ```` is a file. A block ```` ```console ```` starts with ``$ COMMAND``; its output
follows.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/export.md"
PAGES = (PAGE, ROOT / "docs/how-to/gdr-verdicts.md")
_FILE = re.compile(r"^```yaml title=\"(\S+)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"^```console\n\$ (provision [^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """Return the commands of the examples."""
    return [match[1] for match in _EXAMPLE.finditer(text)]


def files(text: str) -> dict[str, str]:
    """Return the files of a page, by name."""
    return {match[1]: match[2] for match in _FILE.finditer(text)}


def output(command: str, folder: Path) -> str:
    """Return what a command prints on stdout in a folder with the files of the page."""
    words = [sys.executable, "-m", "provision", *shlex.split(command)[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def rewritten(text: str) -> str:
    """Return a page with the present outputs of its examples."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in files(text).items():
            (folder / file).write_text(content, encoding="utf-8")
        return _EXAMPLE.sub(lambda match: f"```console\n$ {match[1]}\n{output(match[1], folder)}```", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")
