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
from tests.support.recorded_systems import SystemRecorder, commit_under_test

# A shell starts what it puts into the background deaf to Ctrl-C, `nohup` makes deaf to a closed terminal, and every
# program that a test starts would inherit that. A handler is not inherited; the tests themselves stay as they are.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda _number, _frame: None)

# Nearly all that thousands of tests leave lives to the end: looking for rubbish as often as usual only costs time.
gc.set_threshold(100_000, 50, 100)

RECORDER = pytest.StashKey[SystemRecorder]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that records which roles were tested on which systems."""
    parser.addoption("--record-systems", action="store_true", help="write docs/data/systems.json if all tests succeed")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to record results that no commit describes."""
    try:
        commit = commit_under_test() if config.getoption("--record-systems") else ""
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[RECORDER] = SystemRecorder(commit)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the results of a run without failures."""
    if exitstatus == pytest.ExitCode.OK:
        try:
            session.config.stash[RECORDER].write()
        except ValueError as error:
            pytest.exit(str(error), returncode=1)


@pytest.fixture(scope="session")
def record_system(request: pytest.FixtureRequest) -> SystemRecorder:
    """Record roles as tested on a system; without `--record-systems` the call has no effect."""
    return request.config.stash[RECORDER]


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
