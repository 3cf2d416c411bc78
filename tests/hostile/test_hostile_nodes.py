"""Whatever nodes answer: every verb ends with one of our errors, changes nothing of the operator's, and goes on."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.support.hostile.mutation import FORGED, MARK, changes
from tests.support.hostile.verbs import CASES, NO_NODES, VERBS
from tests.support.hostile.world import World

ANSWERS = int(os.environ.get("HOSTILE_ANSWERS", "500"))
"""Malicious answers that each verb gets at least."""
_EXAMPLES = max(2 * ANSWERS, 140)
"""Changes that are drawn at most: not each of them reaches an answer, and to draw one takes time."""
_CODES = frozenset({0, 1, 2, 3, 4, 5, 6, 7, 125, 130})
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def test_every_case_names_a_verb_that_connects_to_nodes() -> None:
    """A verb without a row is tried with the examples of its help."""
    assert CASES.keys() >= VERBS.keys()
    assert not VERBS.keys() & NO_NODES.keys()
    assert all(case.lines for case in CASES.values())


@pytest.mark.parametrize("verb", CASES)
def test_the_verb_succeeds_with_honest_nodes(world: World, verb: str) -> None:
    """Else it would be refused before it reads what nodes say."""
    for line in CASES[verb].lines:
        done = world.try_line(line)
        assert done.problem == "", line
        assert not world.guard.problems, (line, world.guard.problems)
        assert CASES[verb].good is None or CASES[verb].good(done), done
        assert done.code in CASES[verb].codes, (line, done)
    assert not world.cluster.missed


@pytest.mark.parametrize("verb", CASES)
def test_the_verb_survives_hostile_nodes(world: World, verb: str) -> None:
    """So many malicious answers: our own errors and exit codes, no foreign file, option or control character."""
    world.spoiled = 0
    tried = [0]

    @settings(
        max_examples=_EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(changes)
    def survives(todo: Any) -> None:
        if world.spoiled >= ANSWERS:
            return
        case = CASES[verb]
        line = case.lines[tried[0] % len(case.lines)]
        tried[0] += 1
        _judge(world, verb, line, todo)

    survives()
    assert world.spoiled >= ANSWERS


def _judge(world: World, verb: str, line: str, todo: Any) -> None:
    case = CASES[verb]
    done = world.try_line(line, todo)
    assert not done.problem, f"{line}: {done.problem}"
    assert case.anycode or done.code in _CODES, (line, done.code)
    assert not world.guard.problems, (line, world.guard.problems)
    assert not list(Path("/tmp").glob(f"*{MARK}*"))
    printed = done.err if case.raw else done.out + done.err
    match = _CONTROL.search(printed)
    assert match is None, (line, printed[max(0, match.start() - 200) : match.end() + 50])
    forged = [text for text in printed.splitlines() if text.lstrip().startswith(FORGED)]
    assert not forged, (line, printed[-2000:])
    if case.good is not None:
        assert case.good(done), (line, done.out[-3000:], done.err[-1000:])
