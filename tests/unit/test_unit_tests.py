"""Rules for the unit tests themselves."""

from __future__ import annotations

import ast
from pathlib import Path

UNIT = Path(__file__).parent
CLOCKS = {"time.monotonic", "time.perf_counter", "monotonic", "perf_counter"}


def test_no_unit_test_measures_elapsed_time() -> None:
    """A busy machine must not fail a test: wait for a condition, or count what is done (a deadline is allowed)."""
    found = [
        f"{path.relative_to(UNIT)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted(UNIT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if _measures(node)
    ]

    assert found == []


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
