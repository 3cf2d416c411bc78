"""Dollar signs in commands and variables survive Kubernetes' expansion of references."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from provision.batch.export.expansion import expanded, literal, references

TEXTS = st.text(alphabet="$()aA ", max_size=12)


def expand_as_kubelet(text, variables):
    """Expand references character by character, as the kubelet's documentation describes."""
    out, at = "", 0
    while at < len(text):
        rest = text[at + 1 :]
        if text[at] != "$" or not rest:
            out, at = out + text[at], at + 1
        elif rest[0] == "$":
            out, at = out + "$", at + 2
        elif rest[0] == "(" and ")" in rest:
            name = rest[1 : rest.index(")")]
            out, at = out + variables.get(name, f"$({name})"), at + len(name) + 3
        else:
            out, at = out + text[at : at + 2], at + 2
    return out


@given(TEXTS)
def test_a_literal_text_reaches_the_container_unchanged(text):
    """A shell line such as ``echo $$ $(date)`` is not what the kubelet would pass on."""
    assert expand_as_kubelet(literal(text), {"A": "other", "a": "other"}) == text


@given(TEXTS)
def test_references_are_expanded_as_the_kubelet_does(text):
    """A manifest that was read starts the same command as in a pod."""
    variables = {"A": "x", "a": "$$"}

    assert expanded(text, variables) == expand_as_kubelet(text, variables)


def test_texts_without_references_stay_readable():
    """Only dollar signs that would be interpreted are doubled."""
    assert literal("echo $HOME $1") == "echo $HOME $1"
    assert literal("echo $$ $(date)") == "echo $$$$ $$(date)"
    assert references("$(A) $$(B)") == ["A"]
