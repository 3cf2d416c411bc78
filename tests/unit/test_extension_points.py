"""What `docs/architecture.md` promises: how many files a thing to add touches.

Each test adds one in a copy of the program. `test_launchers.py` adds a launcher, and a role is added in
`tests/integration/test_new_role.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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
CHECK = '''"""Greetings."""

from __future__ import annotations

from provision.checks.base import check
from provision.components.check import Scene, Verdict, fail, known, passed

__all__: list[str] = []


@check("greeting.kernel")
def _kernel(scene: Scene) -> Verdict:
    system = known(scene.facts.system)
    if system.kernel.startswith("6."):
        return fail("greeting.kernel.quiet", kernel=system.kernel)
    return passed("greeting.kernel.ok")
'''
NODE = """
import json, sys
from provision import connectors
from provision.cli.main import main
from provision.errors import ProvisionError
from provision.testing import FakeConnector
from tests.support.probe import DEBIAN, answer

name, version = sys.argv[1].split()
system = DEBIAN.replace("ID=debian", f"ID={name}").replace('"12"', f'"{version}"')
answers = {
    ".pyz probe": answer({"system": system}),
    ".pyz package-preflight": json.dumps({"packages": {}, "install": [], "sources": [], "conflict": ""}),
    "sha256sum": "",
}

def each(nodes, function, **_):
    results = {}
    for node in nodes:
        try:
            results[node.name] = function(FakeConnector(answers, node.name))
        except ProvisionError as error:
            results[node.name] = error
    return results

connectors.each = each
main(sys.argv[2:])
"""
"""A command with a bare node of a system: SYSTEM WORDS."""
SYSTEM = {
    "trixie": "noble",
    "archive: debian": "archive: ubuntu",
    "kernel: linux-image-amd64": "kernel: linux-image-generic",
    "docker.io": "docker-noble",
}
"""The differences between the file of a new system and that of Debian 13."""
ROW = '    "ubuntu_24.04": Row(\'ID=ubuntu\\nVERSION_ID="24.04"\\n\', "ubuntu24.04", "noble"),\n'
READ = """
import subprocess
from provision.facts import ALL_FACTS, parse, request
from provision.node_archive import archive, memory_script
asked = archive() + request(ALL_FACTS, read_only=True)
text = subprocess.run(["sh", "-c", memory_script("probe")], input=asked, capture_output=True, check=True).stdout
print(parse(text.decode(errors="replace")).greeting)
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


def insert(file: Path, line: str, new: str) -> None:
    """Insert a text after a line."""
    edit(file, line, line + new)


def python(tree: Path, *words: str, code: int = 0, **variables: str) -> str:
    """Return the output of a Python that imports the copy."""
    paths = {
        "PYTHONPATH": f"{tree}:{ROOT}",
        "XDG_STATE_HOME": str(tree / "state"),
        "XDG_CACHE_HOME": str(tree / "cache"),
    }
    environment = {**os.environ, **paths, **variables}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=tree, env=environment
    )
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout


def on_node(tree: Path, system: str, *words: str) -> Any:
    """Return the answer in JSON of a command that fails, with one bare node of a system."""
    (tree / "node.py").write_text(NODE, encoding="utf-8")
    (tree / "hosts.yml").write_text("all: {hosts: {gpu1: {}}}\n", encoding="utf-8")
    return json.loads(python(tree, "node.py", system, *words, "-i", "hosts.yml", "--json", code=1))


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


def test_a_new_operating_system_is_a_file_of_variables_and_a_row(tree: Path) -> None:
    """It is planned with its packages, and the lab has recipes for it, which the row tests."""
    assert "is not supported" in on_node(tree, "ubuntu 24.04", "plan")["nodes"][0]["error"]
    text = (tree / "roles/platform/vars/debian_13.yml").read_text(encoding="utf-8")
    for old, new in SYSTEM.items():
        assert old in text
        text = text.replace(old, new)
    (tree / "roles/platform/vars/ubuntu_24.04.yml").write_text(text, encoding="utf-8")
    rows = tree / "test_operating_systems.py"
    shutil.copy(ROOT / "tests/unit/test_operating_systems.py", rows)
    insert(rows, "ROWS = {\n", ROW)

    planned = on_node(tree, "ubuntu 24.04", "plan")
    assert planned["nodes"][0]["error"] is None
    missing = {problem["role"]: problem["object"] for problem in planned["problems"]}
    assert "docker-noble" in missing["docker_engine"]
    assert "ubuntu24.04" in python(tree, "-m", "provision", "lab", "up", "--help")
    refused = json.loads(python(tree, "-m", "provision", "lab", "up", "x", "--distro", "arch", "--json", code=1))
    assert "ubuntu24.04" in refused["error"]["remedy"]
    assert "[ubuntu_24.04] PASSED" in python(tree, "-m", "pytest", "-v", "-p", "no:cacheprovider", rows.name)
    assert files_of("an operating system") == "2"


def test_a_new_check_is_a_module_and_its_wording(tree: Path) -> None:
    """`verify` judges it, and prints and documents its message and remedy."""
    (tree / "provision/checks/greeting.py").write_text(CHECK, encoding="utf-8")
    wording = tree / "provision/checks/reasons.py"
    described = '    "greeting.kernel": ("the kernel greets", "fail"),\n'
    insert(wording, "DESCRIPTIONS: Mapping[str, tuple[str, str]] = {\n", described)
    quiet = '    "greeting.kernel.quiet": Wording("kernel {kernel} is quiet", "Run on {node}: echo hello"),\n'
    insert(wording, "REASONS: Mapping[str, Wording] = {\n", f'{quiet}    "greeting.kernel.ok": Wording("it greets"),\n')

    [node] = on_node(tree, "debian 12", "verify")["nodes"]
    [judged] = [one for one in node["checks"] if one["id"] == "greeting.kernel"]
    assert (judged["status"], judged["reason"]) == ("fail", "kernel 6.1.0-40-amd64 is quiet")
    assert "Run on gpu1: echo hello" in python(tree, "node.py", "debian 12", "verify", "-i", "hosts.yml", code=1)
    page = python(tree, "-m", "provision.report.reasons_page")
    assert "## Check `greeting.kernel`" in page
    assert "Passes when: the kernel greets. Otherwise: fail." in page
    assert files_of("a check") == "2 or 1"
