"""What nodes answer of their locks, whatever that is."""

from __future__ import annotations

import pytest

from provision.commands import node_lock
from provision.documents import convert
from provision.documents.locks import LockAnswer, LookAnswer, UnlockAnswer
from provision.errors import InvalidDocument, NodeError
from provision.model.history import Holder

HOLDER = Holder("id-1", "gpu1", "alice", "ops1", 4711, "provision apply", "2026-11-22T10:03:11Z")
ODD = [7, "word", {"a": 1}, [1, None, []], [{"id": "x", "started": "y", "pid": float("inf")}]]


def read(kind, **answer):
    """An answer as it comes from a node."""
    return convert(answer, kind, node="gpu1", what="answer")


@pytest.mark.parametrize("odd", ODD)
def test_an_answer_with_wrong_types_is_an_error_of_its_node(odd):
    """A node that lies, or runs another version, breaks no command for the others."""
    for kind, part in (
        (LookAnswer, "holder"),
        (LookAnswer, "working"),
        (LockAnswer, "holder"),
        (UnlockAnswer, "trouble"),
    ):
        if (part, odd) != ("trouble", "word"):
            with pytest.raises(InvalidDocument, match=part):
                read(kind, held=True, unlocked=True, **{part: odd})


def test_incomplete_records_are_ignored():
    """The others count."""
    good = {"id": "x", "started": "y"}
    look = node_lock.read_lock_state("gpu1", read(LookAnswer, held=False, entries=[*ODD, None, good]))

    assert [entry.id for entry in look.entries] == ["x"]


def test_control_characters_in_an_answer_are_removed():
    """The names of processes and files are others'."""
    evil = "\x1b[2Jgone\nall is well"
    look = node_lock.read_lock_state("gpu1", read(LookAnswer, held=True, working=[evil]))
    error, _ = node_lock.read_lock("gpu1", read(LockAnswer, failed=evil), "id-2")
    _, warning = node_lock.read_lock("gpu1", read(LockAnswer, locked=evil), "id-2")
    unlocked = node_lock.read_unlocked("gpu1", read(UnlockAnswer, unlocked=True, working=[evil], trouble=evil), HOLDER)

    assert isinstance(error, NodeError)
    assert all(text.isprintable() for text in (*look.working, str(error), warning, unlocked.reason))
