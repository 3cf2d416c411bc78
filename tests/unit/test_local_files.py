"""Files of this program on this machine."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from provision import local_files


def test_an_interrupted_write_preserves_the_old_file(tmp_path: Path) -> None:
    """A file is replaced whole: what cannot be written leaves the old content and no draft."""
    target = tmp_path / "state.json"
    local_files.write_private(target, "old")
    with pytest.raises(UnicodeEncodeError):
        local_files.write_private(target, "\udcff")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_written_file_has_the_given_mode(tmp_path: Path, mode: int) -> None:
    """Whatever the umask and the mode of the file before."""
    target = tmp_path / "file"
    target.write_text("older")
    local_files.write_private(target, b"new", mode=mode, durable=True)

    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == mode


def test_a_failed_replacement_leaves_no_temporary_file(tmp_path: Path) -> None:
    """A folder in the place of the file is an error of the system, and nothing is left behind."""
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="directory"):
        local_files.write_private(tmp_path / "file", "text")

    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("variable", "value", "folder"),
    [
        ("XDG_STATE_HOME", "/s", "/s/provision"),
        ("XDG_STATE_HOME", "", "~/.local/state/provision"),
        ("XDG_STATE_HOME", "relative", "~/.local/state/provision"),
    ],
)
def test_the_state_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, folder: str
) -> None:
    """A relative path is ignored, as the XDG specification demands."""
    monkeypatch.setenv(variable, value)

    assert local_files.state_folder() == Path(folder).expanduser()


def test_a_temporary_folder_is_private_and_removed_with_those_of_killed_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the state folder; a folder that another command may still use remains."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    parent = tmp_path / "provision/tmp"
    for name, age in (("old", 3), ("recent", 1)):
        (parent / name / "env").mkdir(parents=True)
        then = time.time() - age * 24 * 3600
        os.utime(parent / name, (then, then))

    with local_files.temporary_folder() as name:
        folder = Path(name)
        assert {path.name for path in parent.iterdir()} == {"recent", folder.name}
        assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(parent.stat().st_mode) == 0o700

    assert [path.name for path in parent.iterdir()] == ["recent"]
