"""The module platform_files with real files of the controller."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.support.modules import load

files = load("platform", "platform_files")


class FakeModule:
    """The attributes of AnsibleModule that the writer uses."""

    check_mode = False


@pytest.fixture(autouse=True)
def own_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user who runs the tests replaces root."""
    monkeypatch.setattr(files.pwd, "getpwnam", lambda _: type("P", (), {"pw_uid": os.getuid()}))
    monkeypatch.setattr(files.grp, "getgrnam", lambda _: type("G", (), {"gr_gid": os.getgid()}))


def apply(path: Path, **item: Any) -> list[str]:
    """Bring one file to its desired state and return the changed paths."""
    defaults = {name: option.get("default") for name, option in files.SUBOPTIONS.items()}
    writer = files.Writer(FakeModule())
    writer.apply({**defaults, "path": str(path), **item})
    changed: list[str] = writer.changed
    return changed


def test_a_file_is_written_once_with_its_mode(tmp_path: Path) -> None:
    """The second time nothing is changed; a wrong mode alone is put right."""
    path = tmp_path / "new" / "x.conf"

    assert apply(path, content="a\n", mode="0600") == [str(path)]
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("a\n", 0o600)
    assert apply(path, content="a\n", mode="0600") == []
    path.chmod(0o644)
    assert apply(path, content="a\n", mode="0600") == [str(path)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["x.conf"]


@pytest.mark.parametrize("state", ["file", "directory"])
def test_a_link_is_not_followed(tmp_path: Path, state: str) -> None:
    """A link at a managed path is an error that names it, and its target keeps content and mode."""
    target = tmp_path / "target"
    target.mkdir() if state == "directory" else target.write_text("same\n")
    target.chmod(0o700)
    (tmp_path / "link").symlink_to(target)

    with pytest.raises(files.UnexpectedTypeError, match=r"it is a link to .*target.* apply again"):
        apply(tmp_path / "link", state=state, content="same\n")

    assert stat.S_IMODE(target.stat().st_mode) == 0o700
    assert (tmp_path / "link").is_symlink()


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    """A pipe in place of a file is refused at once."""
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(files.UnexpectedTypeError, match="not a regular file"):
        apply(tmp_path / "pipe", content="a\n")


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    """Nothing is written into or over a folder."""
    with pytest.raises(files.UnexpectedTypeError, match="not a regular file"):
        apply(tmp_path, content="a\n")


def test_a_block_follows_a_link(tmp_path: Path) -> None:
    """/etc/hosts may be a link: the file that it leads to is edited, and the link stays."""
    target = tmp_path / "hosts.real"
    target.write_text("127.0.0.1 localhost\n")
    target.chmod(0o640)
    (tmp_path / "hosts").symlink_to(target)

    assert apply(tmp_path / "hosts", state="block", content="10.0.0.1 a\n") == [str(tmp_path / "hosts")]

    assert (tmp_path / "hosts").is_symlink()
    assert target.read_text() == "127.0.0.1 localhost\n# BEGIN provision\n10.0.0.1 a\n# END provision\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_mount_point_is_rewritten_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file cannot be replaced, as /etc/hosts in a container node, the same file gets the shorter text."""
    path, rename = tmp_path / "hosts", os.rename

    def busy(source: str, target: str) -> None:
        if target == str(path):
            raise OSError(errno.EBUSY, "busy")
        rename(source, target)

    path.write_text("a long line that goes\n")
    before = path.stat().st_ino
    monkeypatch.setattr(files.os, "rename", busy)

    assert apply(path, content="short\n") == [str(path)]
    assert (path.read_text(), path.stat().st_ino) == ("short\n", before)


def test_a_folder_is_created_with_its_mode(tmp_path: Path) -> None:
    """A folder gets its mode, and is unchanged if it has it."""
    path = tmp_path / "a" / "b"

    assert apply(path, state="directory", mode="0700") == [str(path)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert apply(path, state="directory", mode="0700") == []
