"""``provision bootstrap`` as it is typed: the preflight and the plan come before the question."""

from __future__ import annotations

import dataclasses

import pytest

from provision import workflow
from provision.cli import main
from provision.model import ApplyReport, PreflightCode
from provision.model.preflight import PreflightProblem
from tests.unit.test_preflight import look

PROBLEM = PreflightProblem(
    PreflightCode.VARIABLE_MISSING, "docker_engine", "docker_mirror", "it is not defined", "Define it."
)


@pytest.fixture
def applied(monkeypatch):
    """Return a function that gives the node steps and problems, and the list of applies."""
    applies = []

    def with_plan(*roles, problems=()):
        seen = look(*roles, nodes=("gpu1",))
        (node,) = seen.plan.nodes
        plan = dataclasses.replace(seen.plan, nodes=(dataclasses.replace(node, problems=problems),))
        monkeypatch.setattr(workflow, "probe_and_plan", lambda *_a, **_k: seen)
        monkeypatch.setattr(workflow, "preflight", lambda *_a, **_k: dataclasses.replace(seen, plan=plan))
        return applies

    def apply(*_words, **_more):
        applies.append("apply")
        return ApplyReport((), 0.0)

    monkeypatch.setattr(workflow, "apply", apply)
    return with_plan


def typed(capsys, *words):
    with pytest.raises(SystemExit) as stopped:
        main.main(["bootstrap", *words])
    said = capsys.readouterr()
    return stopped.value.code, said.out, said.err


def test_the_plan_is_shown_before_the_question(applied, capsys):
    """Without a terminal nothing is changed, and the plan says what would be."""
    applies = applied("docker_engine")
    code, _, err = typed(capsys)

    assert (code, applies) == (2, [])
    assert "docker_engine" in err
    assert err.index("docker_engine") < err.index("Change this node?")
    assert typed(capsys, "--yes")[0] == 0
    assert applies == ["apply"]


def test_a_problem_of_the_preflight_is_reported_without_a_question(applied, capsys):
    applied("docker_engine", problems=(PROBLEM,))
    _, out, err = typed(capsys)

    assert "Change this node?" not in err
    assert "docker_mirror" in out
    assert "Nothing was changed." in out


def test_a_converged_plan_needs_no_confirmation(applied, capsys):
    applied()

    assert "Change this node?" not in typed(capsys)[2]
