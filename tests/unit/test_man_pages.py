"""The manual pages: current, one for each command, and without warnings of groff."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from provision.cli.main import GROUPS, VERBS
from tools.man_pages import FOLDER, pages

PAGES = pages()


def test_manual_pages_are_current():
    """`make docs` writes them, with the same bytes each time."""
    files = {file.name: file.read_text(encoding="utf-8") for file in FOLDER.iterdir()}

    assert sorted(files) == sorted(PAGES), "out of date: run make docs"
    assert [name for name, text in files.items() if text != PAGES[name]] == [], "out of date: run make docs"


def test_every_command_has_a_manual_page():
    assert set(PAGES) == {"provision.1", *(f"provision-{verb}.1" for verb in [*VERBS, *GROUPS])}


def test_manual_pages_have_no_warnings_and_print_examples_unchanged():
    """An example can be copied from the terminal: quotes, dashes and tildes are those of the shell."""
    if shutil.which("man") is None:
        pytest.skip("man is missing: install Debian's package man-db")
    words = ["man", "--warnings", "-l", *(str(FOLDER / name) for name in PAGES)]
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "100"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)

    assert (done.returncode, done.stderr) == (0, "")
    assert "provision init 'gpu[01-16]' --name train --user ubuntu --key ~/.ssh/key\n" in done.stdout
