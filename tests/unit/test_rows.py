"""Every row of docs/reference/job-features.md is shown by a test, or states what is missing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
TABLE = TESTS.parent / "docs/reference/job-features.md"
ROWS = range(1, 63)
STATES = ("holds", "partly", "not yet")
SLURM_STATES = (*STATES, "shared")
LIMITS = TESTS.parent / "docs/slurm-jobs.md"


def rows_of(decorator):
    """The numbers in ``@pytest.mark.row(...)``; none of any other decorator."""
    if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) != "pytest.mark.row":
        return []
    return [ast.literal_eval(number) for number in decorator.args]


@pytest.fixture(scope="module")
def marked():
    """Row -> the files below tests/ with a test that is marked with it, from their source alone."""
    files = defaultdict(set)
    for file in sorted(TESTS.rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.parse(text).body if "mark.row" in text else ():
            for row in [row for decorator in getattr(node, "decorator_list", ()) for row in rows_of(decorator)]:
                assert node.name.startswith("test_"), f"{file}: {node.name} is marked and is no test"
                files[row].add(str(file.relative_to(TESTS)))
    return files


@pytest.fixture(scope="module")
def table():
    """The table's lines: (row, promise, command, state, files, reason)."""
    return [(int(row), *more, re.findall(r"`([^`]+)`", files), why) for row, *more, _, files, why in cells()]


def cells():
    """The cells of the table's lines."""
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if re.match(r"\| *\d", line)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_each_row_has_a_state_with_slurm():
    """Those that do not hold are listed with the reason among the limits of the engine."""
    states = {int(row): state for row, _, _, _, state, *_ in cells()}
    limits = LIMITS.read_text(encoding="utf-8").partition("## Limits")[2]
    listed = {
        int(number) for line in re.findall(r"^\| ([0-9, ]+) \|", limits, re.MULTILINE) for number in line.split(",")
    }

    assert set(states.values()) <= set(SLURM_STATES)
    assert listed == {row for row, state in states.items() if state in {"partly", "not yet"}}


def test_the_table_has_each_row_once(table):
    """In their order, with what is promised and one of the known states."""
    assert [row for row, *_ in table] == list(ROWS)
    assert [line for line in table if not line[1] or line[3] not in STATES] == []


def test_no_test_refers_to_an_unknown_row(marked):
    """A mark with a number of no row shows nothing."""
    assert set(marked) <= set(ROWS)


def test_each_row_has_a_test_or_a_reason(table, marked):
    """What holds, also in part, has a test; what does not, or in part alone, has a reason."""
    unshown = [row for row, _, _, state, _, _ in table if state != "not yet" and not marked.get(row)]
    unsaid = [row for row, _, _, state, _, why in table if state != "holds" and not why]
    shown = [row for row, _, _, state, _, _ in table if state == "not yet" and marked.get(row)]

    assert unshown == [], "mark a test with @pytest.mark.row(N), or call them not yet"
    assert unsaid == [], "add what is missing to the last column"
    assert shown == [], "a test shows them: change the state to partly or holds"


def test_tests_listed_in_the_table_have_the_mark_of_the_row(table, marked):
    """Each file there has a test with the mark."""
    wrong = {row: sorted(set(files) - marked[row]) for row, _, _, _, files, _ in table if set(files) - marked[row]}
    nameless = [row for row, _, _, state, files, _ in table if (state != "not yet") is not bool(files)]

    assert wrong == {}
    assert nameless == []
