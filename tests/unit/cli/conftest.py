"""For commands as they are typed."""

from __future__ import annotations

import pytest

from provision.cli import levels
from provision.cli.main import main


@pytest.fixture
def typed(capsys):
    """Type a command; return exit code, stdout and stderr."""

    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            main(list(words))
        out, err = capsys.readouterr()
        return stopped.value.code, out, err

    return call


@pytest.fixture
def own_level(monkeypatch, tmp_path):
    """Restore the level of output afterwards; cache and state are in a folder of the test."""
    monkeypatch.setitem(levels._chosen, "level", "info")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
