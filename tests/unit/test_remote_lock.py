"""The session with a lock holder, and nodes that disturb it."""

from __future__ import annotations

import itertools

import pytest

from provision.documents.locks import LockAnswer
from provision.errors import NodeError
from provision.model import CommandResult
from provision.workflow.remote_lock import RemoteLock


class Talker:
    """A connector, and its process, that says the same for ever."""

    name, python = "gpu1", "python3"

    def __init__(self, chunk, times=None):
        self.chunk, self.times = chunk, times

    def run(self, _script, **_limits):
        return CommandResult("", "", 0)

    def start(self, _script, **_limits):
        return self

    def output(self):
        return itertools.repeat(("stdout", self.chunk), *([self.times] if self.times else []))

    def wait(self):
        return 0

    def close(self):
        pass


def test_an_endless_answer_is_an_error():
    """Not when the time is up, but before it fills the memory of this machine."""
    with pytest.raises(NodeError, match="has no end"):
        RemoteLock(Talker(b"x" * 65536, 1000)).answer(LockAnswer, 60)


def test_an_answer_that_is_nested_too_deeply_is_an_error():
    """The reader of JSON gives up with an error of its own kind."""
    with pytest.raises(NodeError, match="could not be asked for"):
        RemoteLock(Talker(b"[" * 200_000 + b"\n", 1)).answer(LockAnswer, 60)
