"""For all tests."""

from __future__ import annotations

import gc
import json
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from provision.cli import common, main
from tests.support.json_documents import require_valid

# A shell starts what it puts into the background deaf to Ctrl-C, `nohup` makes deaf to a closed terminal, and every
# program that a test starts would inherit that. A handler is not inherited; the tests themselves stay as they are.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda _number, _frame: None)

# Nearly all that thousands of tests leave lives to the end: looking for rubbish as often as usual only costs time.
gc.set_threshold(100_000, 50, 100)


@pytest.fixture(autouse=True)
def _documents_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every JSON document that a command prints in this process is valid."""
    typed: list[Sequence[str]] = []
    normalise, json_text = main.normalise, common.json_text

    def recorded(words: Sequence[str]) -> list[str]:
        typed.append(words)
        return normalise(words)

    def validated(document: Any) -> str:
        text = json_text(document)
        require_valid(json.loads(text), typed[-1] if typed else ())
        return text

    monkeypatch.setattr(main, "normalise", recorded)
    monkeypatch.setattr(common, "json_text", validated)
