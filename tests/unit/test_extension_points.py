"""What `docs/architecture.md` promises: how many files a new verb and a new fact touch."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")

VERB = '''"""Greet the user."""

from __future__ import annotations

import typer

from provision.cli.common import JsonOption, print_json, say


def greet_me(name: str = typer.Argument("you", help="Name to greet."), as_json: JsonOption = False) -> None:
    """Greet the user.

    \\b
    Example:
      provision greet-me gpu1
    """
    if as_json:
        print_json({"name": name})
    else:
        say(f"hello {name}")
'''
FACT = '''"""The name of the node's terminal database."""

from __future__ import annotations

from typing import ClassVar

from provision.facts.base import RawOutput


class GreetingFact:
    """Reads a greeting."""

    name: ClassVar[str] = "greeting"
    label: ClassVar[str] = "echo"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = "echo hello"

    def parse(self, raw: RawOutput) -> str:
        """Return the greeting."""
        return raw.stdout.strip()
'''
READ = """
import subprocess
from provision.facts import ALL_FACTS, parse
from provision.facts.script import script
text = subprocess.run(["sh", "-c", script(ALL_FACTS)], capture_output=True, text=True, check=True).stdout
print(parse(text).greeting)
"""


def files_of(what: str) -> str:
    """Return the number of files that the page gives for a thing to add."""
    row = re.search(rf"^\| {re.escape(what)} \|.*\| ([^|]+) \|$", PAGE, re.MULTILINE)
    assert row, what
    return row[1].strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the program."""
    for name in ("provision", "roles", "playbooks"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    return tmp_path


def edit(file: Path, old: str, new: str) -> None:
    """Replace the only occurrence of a text."""
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, (file, old)
    file.write_text(text.replace(old, new), encoding="utf-8")


def python(tree: Path, *words: str) -> str:
    """Return the output of a Python that imports the copy."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=tree, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_verb_requires_a_module_and_an_entry(tree: Path) -> None:
    """It is in the help, has its options and answers in JSON."""
    (tree / "provision/cli/greet_me.py").write_text(VERB, encoding="utf-8")
    edit(tree / "provision/cli/main.py", '"bench lab demo"', '"bench lab demo greet-me"')

    assert "greet-me" in python(tree, "-m", "provision", "--help")
    assert "provision greet-me gpu1" in python(tree, "-m", "provision", "greet-me", "--help")
    assert json.loads(python(tree, "-m", "provision", "greet-me", "gpu1", "--json")) == {"name": "gpu1"}
    assert files_of("a verb") == "2"


def test_a_new_fact_requires_a_module_and_its_registration(tree: Path) -> None:
    """The probe runs its command in the node's shell, and the snapshot of the node has its value."""
    (tree / "provision/facts/greeting.py").write_text(FACT, encoding="utf-8")
    node = tree / "provision/facts/node.py"
    edit(
        node,
        "from provision.facts.kernel import",
        "from provision.facts.greeting import GreetingFact\nfrom provision.facts.kernel import",
    )
    edit(node, "    ClockFact(),\n", "    ClockFact(),\n    GreetingFact(),\n")
    edit(node, "    clock: int | Unknown", "    greeting: str | Unknown = _NOT_REQUESTED\n    clock: int | Unknown")

    assert python(tree, "-c", READ).strip() == "hello"
    assert files_of("a fact") == "2"
