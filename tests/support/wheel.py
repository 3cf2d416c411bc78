"""Builds the wheel of the working tree, without what git ignores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.command import ROOT

_BUILD = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"


def tracked(*folders: str) -> list[str]:
    """Return the files of some folders that git tracks, and new ones that it does not ignore."""
    words = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", *folders]
    names = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split("\0")
    return [name for name in names if name and os.path.lexists(ROOT / name)]


def build_wheel(folder: Path) -> Path:
    """Build the wheel in a copy of the tree below `folder`."""
    tree = folder / "tree"
    for name in tracked():
        copy = tree / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy, follow_symlinks=False)
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(folder)], cwd=tree, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    shutil.rmtree(tree)
    [wheel] = folder.glob("*.whl")
    return wheel
