"""What nodes answer of their locks, whatever that is."""

from __future__ import annotations

import pytest

from provision.commands import node_lock
from provision.errors import NodeError
from provision.model.history import Holder

HOLDER = Holder("id-1", "gpu1", "alice", "ops1", 4711, "provision apply", "2026-11-22T10:03:11Z")
ODD = [7, "word", {"a": 1}, [1, None, []], [{"id": "x", "started": "y", "pid": float("inf")}], None]


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_answer_is_read_as_far_as_it_makes_sense(odd):
    """A node that lies, or runs another version, breaks no command for the others."""
    look = node_lock.read_look("gpu1", {"held": True, "holder": odd, "working": odd, "entries": odd})
    error, _ = node_lock.read_keeper("gpu1", {"held": True, "holder": odd}, "id-2")
    told = node_lock.read_unlocked("gpu1", {"unlocked": True, "working": odd, "trouble": odd}, HOLDER)

    assert (look.held, look.entries) == (True, ())
    assert error.exit_code == 4
    assert told.result == "unlocked"


def test_nothing_in_an_answer_can_do_anything_to_a_terminal():
    """The names of processes and files are others'."""
    evil = "\x1b[2Jgone\nall is well"
    look = node_lock.read_look("gpu1", {"held": True, "working": [evil]})
    error, _ = node_lock.read_keeper("gpu1", {"failed": evil}, "id-2")
    _, warning = node_lock.read_keeper("gpu1", {"locked": evil}, "id-2")
    told = node_lock.read_unlocked("gpu1", {"unlocked": True, "working": [evil], "trouble": evil}, HOLDER)

    assert isinstance(error, NodeError)
    assert all(text.isprintable() for text in (*look.working, str(error), warning, told.reason))
