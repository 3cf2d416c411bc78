"""Rules for the unit tests themselves."""

from __future__ import annotations

import ast
from pathlib import Path

UNIT = Path(__file__).parent
ROOT = UNIT.parents[1]
CLOCKS = {"time.monotonic", "time.perf_counter", "monotonic", "perf_counter"}


def test_no_unit_test_measures_elapsed_time() -> None:
    """A busy machine must not fail a test: wait for a condition, or count what is done (a deadline is allowed)."""
    comparisons = [
        f"{path.relative_to(UNIT)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted(UNIT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if _measures(node)
    ]

    assert comparisons == []


def _measures(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return any(_is_elapsed(part, CLOCKS | {"time.time"}) for part in ast.walk(node.test))
    return _is_elapsed(node, CLOCKS)


def _is_elapsed(node: ast.AST, clocks: set[str]) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return False
    return isinstance(node.left, ast.Call) and ast.unparse(node.left.func) in clocks


def test_rule_finds_elapsed_time() -> None:
    """The rule above reports what it forbids, and allows a deadline."""
    assert _measures(ast.parse("assert time.monotonic() - begun < 3").body[0])
    assert _measures(ast.parse("time.perf_counter() - begun", mode="eval").body)
    assert not _measures(ast.parse("assert time.monotonic() < end").body[0])


def test_no_test_of_make_test_reads_outside_the_repository() -> None:
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
