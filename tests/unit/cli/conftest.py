"""For commands as they are typed."""

from __future__ import annotations

import pytest

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
