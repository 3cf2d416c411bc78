"""Programs for nodes under each Python that this machine has, from 3.6 on."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provision.facts import ALL_FACTS, Parameters, as_data, parse, request
from provision.node.main import PROGRAMS
from tests.support.interpreters import INTERPRETERS, interpreter
from tests.support.node.archive import ARCHIVE

IMPORT_ALL = """
import importlib, sys, zipfile
sys.path.insert(0, sys.argv[1])
files = [name for name in zipfile.ZipFile(sys.argv[1]).namelist() if name.startswith("provision/node")]
for name in files:
    importlib.import_module(name.replace("/__init__.py", "").replace(".py", "").replace("/", "."))
print(len(files))
"""

ROOT = Path(__file__).parents[2]
LOCK = str(ARCHIVE.parent / "lock")
REQUESTS: dict[tuple[str, ...], str] = {
    ("agent", "nobody"): "{}",
    ("attach", "/no/such/unit", "true"): "",
    ("code",): json.dumps({"do": "resolve", "ref": "0" * 40, "url": "", "secrets": {}, "seconds": 9}),
    ("data-check",): json.dumps({"volumes": [{"name": "data", "path": "/proc", "read_only": True}]}),
    ("image-peers",): json.dumps({"do": "unknown"}),
    ("jobs",): json.dumps({"do": "unknown"}),
    ("lock",): json.dumps({"do": "look", "folders": [LOCK], "history": LOCK, "marks": [], "entries": 9}),
    ("package-preflight",): json.dumps({"packages": [], "repositories": [], "seconds": 5}),
    ("reload",): "",
    ("run",): "",
    ("sampler",): "no JSON",
    ("slurm-epilog",): "",
    ("slurm-health",): "",
    ("slurm-login",): json.dumps({"do": "unknown"}),
    ("supervisor", "/no/such/attempt"): "",
    ("unit", "/no/such/unit"): "",
}
"""Arguments and standard input of programs: requests that change nothing."""
CHANGES = {"slurm-prolog", "tensorboard"}
"""Programs whose shortest request changes this machine, and `probe`, which has its own test."""

MOVING = {"boot", "clock", "disks", "listening"}
"""Facts with times, free space, and the ports of other programs."""

NEWER_METHODS = re.compile(
    r"\.(isascii|removeprefix|removesuffix|fromisoformat|is_relative_to|with_stem|hardlink_to|bit_count|add_note)\("
    r"|\bmissing_ok=|\.hex\([^)]|(?<!os)\.readlink\("
)
"""Methods and parameters that vermin misses, because it does not know the type of a variable."""

ELSEWHERE = {"el_node.py", "provision_allreduce_bench.py", "provision_smoke.py", "serve_repository.py"}
"""Programs that run in containers, on the controller, or under the Python of a lab's files."""

BY_VERSION = pytest.mark.parametrize("version", INTERPRETERS)


@BY_VERSION
def test_every_module_for_nodes_can_be_imported(version: str) -> None:
    command = [interpreter(version), "-I", "-S", "-c", IMPORT_ALL, str(ARCHIVE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert done.stderr == ""
    assert int(done.stdout) > 50


def answer(python: str, words: tuple[str, ...]) -> tuple[int, str, str]:
    """Return exit status, output and the last line of errors of a program, without what differs between versions."""
    command = [python, "-I", "-S", str(ARCHIVE), *words]
    done = subprocess.run(
        command, input=f"{REQUESTS[words]}\n" if REQUESTS[words] else "",
        capture_output=True, text=True, timeout=300, check=False, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    return done.returncode, done.stdout.replace(",)", ")"), done.stderr.strip().rpartition("\n")[2]


@functools.cache
def expected(words: tuple[str, ...]) -> tuple[int, str, str]:
    """Return the answer under the Python of the tests."""
    return answer(sys.executable, words)


@BY_VERSION
def test_programs_answer_alike(version: str) -> None:
    """A small request has the same answer under each Python; none ends with a traceback."""
    python = interpreter(version)
    answers = {words[0]: answer(python, words) for words in REQUESTS}

    assert set(PROGRAMS) == {words[0] for words in REQUESTS} | CHANGES | {"probe"}
    assert answers == {words[0]: expected(words) for words in REQUESTS}


def facts(python: str) -> dict[str, Any]:
    """Return the facts of this machine, read with an interpreter."""
    asked = request(ALL_FACTS, Parameters(names=("localhost",)), read_only=True)
    done = subprocess.run(
        [python, "-I", "-S", str(ARCHIVE), "probe"], input=asked, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    data: dict[str, Any] = as_data(parse(done.stdout.decode(errors="replace"), keep=False))
    return data


@functools.cache
def stable_facts() -> dict[str, Any]:
    """Return the facts that two probes under the Python of the tests report alike, without those of `MOVING`."""
    first, second = facts(sys.executable), facts(sys.executable)
    return {name: value for name, value in first.items() if value == second[name] and name not in MOVING}


@BY_VERSION
def test_a_probe_reports_the_same_facts(version: str) -> None:
    """All facts but those that change between two probes, such as the time."""
    reported = facts(interpreter(version))
    stable = stable_facts()

    assert len(stable) > len(ALL_FACTS) // 2
    assert {name: reported[name] for name in stable} == stable


def test_no_code_for_nodes_calls_newer_methods() -> None:
    folders = ("provision/node/**", "roles/*/library", "roles/*/module_utils", "provision/lab/files")
    paths = [path for folder in folders for path in ROOT.glob(f"{folder}/*.py") if path.name not in ELSEWHERE]
    calls = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in paths
        for match in NEWER_METHODS.finditer(path.read_text(encoding="utf-8"))
    ]

    assert len(paths) > 100
    assert calls == []
