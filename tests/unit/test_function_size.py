"""Functions stay short, and verbs group their options."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = 60
PARAMETERS = 11
LONGER = {"provision/cli/init.py: init"}
"""Functions that are split next; this verb takes groups of options then."""


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in sorted(path for folder in ("provision", "roles") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}: {node.name}", node


def test_no_function_is_longer_than_a_screen() -> None:
    """A function has at most 60 lines, with its signature and its help text."""
    lengths = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in functions()}

    assert {name: length for name, length in lengths.items() if length > LINES and name not in LONGER} == {}


def test_no_function_has_too_many_parameters() -> None:
    """A verb with more options takes groups of them (provision/cli/option_groups.py)."""
    counts = {
        name: len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs) for name, node in functions()
    }

    assert {name: count for name, count in counts.items() if count > PARAMETERS and name not in LONGER} == {}
