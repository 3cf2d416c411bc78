"""Every reason has a wording, with the parameters that it needs; no wording is unused."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.model.reason import Reason, Wording, reason
from provision.report import reasons
from provision.report.reasons import CURRENT_NODE, catalogue, fields, message, remedy
from provision.report.reasons_page import page

ROOT = Path(__file__).parents[2]
MAKERS = frozenset({"reason", "fail", "warn", "passed", "skip", "judge", "verdict"})
"""Functions that make a reason, or a verdict with one; `judge` and `verdict` are variables for one of them."""
FLAGS = frozenset({"simulated"})


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls in `provision` that make a reason from a constant code."""
    for path in sorted((ROOT / "provision").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in MAKERS
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def strings() -> set[str]:
    """Return all string constants of `provision` outside of catalogues."""
    values: set[str] = set()
    for path in (ROOT / "provision").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        keys = {id(key) for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in _wording_keys(node)}
        values |= {
            str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in keys
        }
    return values


def _wording_keys(node: ast.Dict) -> Iterator[ast.expr]:
    for key, value in zip(node.keys, node.values, strict=True):
        if key is not None and isinstance(value, ast.Call) and getattr(value.func, "id", "") == "Wording":
            yield key


def test_every_reason_is_in_a_catalogue():
    """A code without a wording could not be shown."""
    unknown = [f"{place}: {call.args[0].value}" for place, call in calls() if call.args[0].value not in catalogue()]

    assert unknown == []


def test_every_wording_is_used():
    """A wording of no reason is dead text."""
    assert sorted(catalogue().keys() - strings()) == []


def test_every_reason_has_the_parameters_of_its_wording():
    """A missing parameter would end a report with an error."""
    wrong = []
    for place, call in calls():
        wording = catalogue().get(call.args[0].value)
        if wording is None or any(keyword.arg is None for keyword in call.keywords):
            continue
        given = {keyword.arg for keyword in call.keywords} - FLAGS
        missing = (fields(wording.message) | fields(wording.remedy)) - given - {CURRENT_NODE}
        wrong += [f"{place}: {call.args[0].value} lacks {sorted(missing)}"] if missing else []

    assert wrong == []


def test_every_wording_is_one_sentence_part_with_a_remedy_that_starts_with_a_verb():
    """`OBJECT: problem` and a remedy: the object is printed by the report."""
    for code, wording in catalogue().items():
        assert not wording.message.endswith("."), code
        assert not wording.remedy or wording.remedy[0] in "{[d" or wording.remedy[0].isupper(), code


@pytest.fixture
def wording(monkeypatch):
    """Render a template with some parameters."""

    def render(template: str, **params: object) -> str:
        entries = {"a.b": Wording(template), "part": Wording("part {n}")}
        monkeypatch.setattr(reasons, "catalogue", lambda: entries)
        return message(reason("a.b", **params), "gpu1")

    return render


@pytest.mark.parametrize(
    ("template", "params", "text"),
    [
        ("{n} of {m}", {"n": 1, "m": 2}, "1 of 2"),
        ("on {node}", {}, "on gpu1"),
        ("{names}", {"names": ["a", "b"]}, "a, b"),
        ("{names:;}", {"names": ["a", "b"]}, "a; b"),
        ("{names:,}", {"names": ["a", "b"]}, "a,b"),
        ("{names: }", {"names": ["a.", "b."]}, "a. b."),
        ("{names:and}", {"names": ["a", "b"]}, "a and b"),
        ("{names:few}", {"names": "abcdef"[0:0] or list("abcdef")}, "a; b; c; d; and 2 more"),
        ("{names:names}", {"names": list("abcdefgh")}, "a, b, c, d, e, f and 2 more"),
        ("x[ since {s}]", {"s": None}, "x"),
        ("x[ since {s}]", {"s": 0}, "x since 0"),
        ("x[ of {s}]", {"s": ()}, "x"),
        ("pip install 'x[y]'", {}, "pip install 'x[y]'"),
        ("{s:span}", {"s": 7384}, "2 hours"),
        ("{n:times step}", {"n": 1}, "1 step"),
        ("{n:times step}", {"n": 2}, "2 steps"),
        ("{p}", {"p": Reason("part", {"n": 1})}, "part 1"),
        ("{p:;}", {"p": [Reason("part", {"n": 1}), Reason("part", {"n": 2})]}, "part 1; part 2"),
        ("{f:.0%}", {"f": 0.5}, "50%"),
        ("{text}", {"text": "{node} [x]"}, "{node} [x]"),
    ],
)
def test_a_template_is_rendered(wording, template, params, text):
    """Lists, optional parts, parts of messages, times and counts; values are never templates."""
    assert wording(template, **params) == text


def test_a_missing_parameter_is_an_error(wording):
    """Nothing is shown with a hole."""
    with pytest.raises(KeyError):
        wording("{missing}")


def test_a_remedy_contains_the_node():
    """So equal results of several nodes can share a remedy."""
    assert remedy(reason("docker_engine.service.not_installed"), "gpu[1-8]") == (
        "Run: provision apply --limit gpu[1-8]"
    )


def test_parameters_are_json():
    """Lists, and parts of messages with their own codes."""
    value = reason("a.b", names=["x"], part=reason("c", n=1))

    assert value.as_document() == {
        "code": "a.b",
        "params": {"names": ["x"], "part": {"code": "c", "params": {"n": 1}}},
    }


def test_the_page_of_all_reasons_is_current_and_has_an_anchor_for_each():
    """`make docs` writes it."""
    text = (ROOT / "docs/reference/reasons.md").read_text(encoding="utf-8")

    assert text == page(), "out of date: run make docs"
    assert [code for code in catalogue() if f'<a id="{code}"></a>' not in text] == []


TEXTS = frozenset({"reason", "message", "remedy", "problem"})
"""Attributes that hold text for people."""
METHODS = frozenset({"startswith", "endswith", "partition", "rpartition", "removeprefix", "removesuffix", "split"})


def text_matches(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that decide by the text of a message."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[ast.Attribute(attr=attribute)]):
                if attribute in TEXTS and not (isinstance(left, ast.Constant) and left.value == "\n"):
                    yield node.lineno
            case ast.Compare(left=ast.Attribute(attr=attribute), ops=[ast.Eq() | ast.NotEq()], comparators=[other]):
                if attribute in TEXTS and isinstance(other, ast.Constant | ast.Name):
                    yield node.lineno
            case ast.Call(func=ast.Attribute(attr=method, value=ast.Attribute(attr=attribute))):
                if method in METHODS and attribute in TEXTS:
                    yield node.lineno


def test_no_logic_matches_the_text_of_a_message():
    """Codes and types decide; messages may change."""
    matches = {
        path.relative_to(ROOT).as_posix(): [*text_matches(ast.parse(path.read_text(encoding="utf-8")))]
        for path in (ROOT / "provision").rglob("*.py")
    }

    assert {path: lines for path, lines in matches.items() if lines} == {}
