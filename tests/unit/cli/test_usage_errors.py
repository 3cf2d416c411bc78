"""Errors of the command line name the command, the word and the problem, and show what is right."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("words", "problem", "remedy"),
    [
        (("logs",), "provision logs: JOB is missing", "For example: provision logs mnist"),
        (("lab", "power"), "provision lab power: NAME is missing", "For example: provision lab power demo demo-2 off"),
        (("place",), "provision place: --gpus is missing", "For example: provision place --gpus 8"),
        (("plan", "--nosuch"), "provision plan: unknown option --nosuch", "provision plan --help"),
        (("plan", "extra"), "provision plan: unexpected argument: extra", "Omit it."),
        (("apply", "--waves"), "provision apply: --waves requires a value", "provision apply --help"),
        (("plna",), "provision: unknown command plna", "Similar: place, plan. All: provision --help"),
        (("exec", "--fanout", "0", "--", "x"), "provision exec: --fanout 0: must be at least 1", "provision exec"),
        (("history", "-n=x"), "provision history: -n x: not a whole number", "provision history --help"),
        (("verify", "--level=x"), "provision verify: --level x: not one of 'quick', 'full'", "provision verify"),
        (("submit", "-n", "x"), "provision submit: no such option -n", "Name the job with --name"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_an_error_contains_object_problem_and_remedy(typed, words, problem, remedy):
    code, out, err = typed(*words)
    error, hint = err.splitlines()[-2:]

    assert (code, out) == (2, "")
    assert error == f"error: {problem}"
    assert hint.startswith("hint: ")
    assert remedy in hint


def test_a_group_without_a_verb_prints_its_help(typed):
    """That is no error message."""
    code, out, err = typed("lab")

    assert code == 2
    assert out.startswith("Usage: provision lab ")
    assert err == ""
