"""Rules for the unit tests themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

UNIT = Path(__file__).parent
ROOT = UNIT.parents[1]
CLOCKS = {f"{prefix}{clock}" for prefix in ("time.", "") for clock in ("monotonic", "perf_counter")}
CLOCKS |= {f"{clock}_ns" for clock in CLOCKS}


def test_no_unit_test_measures_elapsed_time() -> None:
    """A busy machine must not fail a test: wait for a condition, or count what is done (a deadline is allowed)."""
    measured = [
        f"{path.relative_to(UNIT)}:{part.lineno}: {ast.unparse(part)}"
        for path in sorted(UNIT.rglob("*.py"))
        for part in _elapsed_times(ast.parse(path.read_text(encoding="utf-8")))
    ]

    assert measured == []


def _elapsed_times(tree: ast.AST) -> Iterator[ast.BinOp]:
    """Yield the differences of a clock, and in assertions those of the time of day, in each function of a module."""
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        asserted = {part for node in ast.walk(function) if isinstance(node, ast.Assert) for part in ast.walk(node)}
        stored = {
            ast.unparse(target)
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and _is_clock(node.value, CLOCKS)
            for target in node.targets
        }
        for node in ast.walk(function):
            clocks = CLOCKS | {"time.time"} if node in asserted else CLOCKS
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
                continue
            if _is_clock(node.left, clocks) or ast.unparse(node.left) in stored:
                yield node


def _is_clock(node: ast.AST, clocks: set[str]) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in clocks


@pytest.mark.parametrize(
    ("line", "measures"),
    [
        ("assert time.monotonic() - begun < 3", True),
        ("assert time.time() - begun < 3", True),
        ("took = time.perf_counter() - begun", True),
        ("ended = time.monotonic()\n    assert ended - begun < 3", True),
        ("assert time.monotonic() < end", False),
        ("age = time.time() - 60", False),
    ],
)
def test_rule_finds_elapsed_time(line: str, *, measures: bool) -> None:
    """The rule above reports what it forbids, and allows a deadline."""
    assert any(_elapsed_times(ast.parse(f"def test():\n    {line}"))) is measures


def test_no_unit_test_reads_outside_the_repository() -> None:
    """Tests give the same result in any folder; what needs recorded outputs is in `tests/recorded`."""
    violations = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("unit", "roles", "molecule", "integration", "baremetal", "hostile", "support")
        for path in sorted((ROOT / "tests" / folder).rglob("*.py"))
        for line in _outside(path, path.read_text(encoding="utf-8"))
    ]

    assert violations == []


def _outside(path: Path, text: str) -> list[int]:
    """Return the lines with `parents[N]` of the file itself that lead above the repository."""
    depth = len(path.relative_to(ROOT).parts)
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Subscript)
        and ast.unparse(node.value).startswith("Path(__file__)")
        and isinstance(node.slice, ast.Constant)
        and node.slice.value >= depth
    ]


def test_rule_finds_paths_above_the_repository() -> None:
    """The rule above reports what it forbids, and allows the root of the repository."""
    path = UNIT / "facts" / "test_x.py"

    assert _outside(path, "DATA = Path(__file__).resolve().parents[4] / 'shared'") == [1]
    assert _outside(path, "ROOT = Path(__file__).parents[3]") == []
