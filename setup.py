"""Copy the files that are beside the package in the repository into the wheel, where provision/resources.py reads them.

All other settings are in pyproject.toml. An editable installation uses the files of the checkout.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
FOLDERS = ("roles", "playbooks", "inventories/example")
FILES = ("requirements.lock",)
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


class BuildWithData(build_py):
    """Build step that adds the folder ``provision/data``; links become the files that they lead to."""

    def run(self) -> None:
        """Build the modules, then copy the other files."""
        super().run()
        if self.editable_mode:
            return
        data = Path(self.build_lib, "provision", "data")
        shutil.rmtree(data, ignore_errors=True)
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, data / folder, ignore=LEFT_OUT)
        for name in FILES:
            shutil.copyfile(ROOT / name, data / name)
        (data / "commit").write_text(commit(), encoding="ascii")


class ArchiveWithLinks(sdist):
    """Archive of the sources with the links of the repository; setuptools follows only the first link to a folder."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files, then replace what links lead to by the links."""
        super().make_release_tree(base_dir, files)
        for link in filter(Path.is_symlink, (ROOT / "roles").rglob("*")):
            copy = Path(base_dir) / link.relative_to(ROOT)
            if copy.is_symlink():
                continue
            if copy.is_dir():
                shutil.rmtree(copy)
            copy.unlink(missing_ok=True)
            copy.parent.mkdir(exist_ok=True)
            copy.symlink_to(link.readlink())


def commit() -> str:
    """Return the commit of the sources: that of the archive, or of the checkout; empty if neither is known."""
    archived = (ROOT / "commit.txt").read_text(encoding="ascii").strip()
    if re.fullmatch("[0-9a-f]{40}", archived):
        return archived
    if not (ROOT / ".git").exists():
        return ""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


setup(cmdclass={"build_py": BuildWithData, "sdist": ArchiveWithLinks})
