import errno
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from provision.connectors import each
from provision.errors import LaunchError, UsageError
from provision.jobs.request import JobRequest
from provision.jobs.syncing import (
    MARK,
    Change,
    Entry,
    Remote,
    _bring,
    check_target,
    compare,
    manifest,
    parse_listing,
    sync,
)
from provision.launchers import HostEntry
from provision.model import CommandResult, Connection, Node
from provision.testing import FakeProcess, make_node
from tests.support.node.archive import NODE

MORE = {"new.py": Entry("f", 0o644, "0" * 64)}
EMPTY = Remote({}, marked=False, brought=frozenset(), mounts=())


@pytest.fixture
def project(tmp_path):
    """A folder with a file, a link, a subfolder and unusual names."""
    folder = tmp_path / "my project"
    (folder / "sub").mkdir(parents=True)
    (folder / "train.py").write_text("print()")
    (folder / "train.py").chmod(0o750)
    (folder / "sub" / "a b\nc").write_bytes(b"\0\1")
    (folder / "link").symlink_to("sub/nowhere")
    return folder


@pytest.fixture
def request_for(tmp_path, monkeypatch):
    """A job on this machine, which is also its container: `docker exec` runs its command here."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nshift\n[ "$1" != -i ] || shift\nshift\nexec "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    node = Node("gpu1", Connection("localhost", local=True, become=False))
    return lambda folder: JobRequest(("true",), (), {"gpu1": node}, "gpu1", sync=folder)


def listing(folder):
    """The output of the listing script for a folder, run here instead of in a container."""
    done = subprocess.run(["sh", NODE / "code/sync-list.sh", str(folder)], capture_output=True, check=True)
    return parse_listing(done.stdout)


def test_an_equal_copy_needs_no_sync(project):
    """Names, kinds, permissions, link targets and contents are compared."""
    wanted, passed_over = manifest(project)

    assert listing(project).entries == wanted
    assert not compare(wanted, listing(project)).needed
    assert passed_over == []


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "train.py").write_text("other"),
        lambda folder: (folder / "train.py").chmod(0o640),
        lambda folder: (folder / "train.py").unlink(),
    ],
    ids=["content", "mode", "missing"],
)
def test_any_difference_is_detected(project, change):
    """One changed byte or permission, or a missing file."""
    wanted, _ = manifest(project)
    change(project)

    assert compare(wanted, listing(project)).copy == ("train.py",)


def test_files_that_only_the_container_has_are_preserved(project):
    """Checkpoints of a job are neither removed nor counted as a difference."""
    wanted, _ = manifest(project)
    (project / "checkpoint").write_text("weights")

    assert not compare(wanted, listing(project)).needed


def test_files_of_an_earlier_sync_are_removed_if_the_source_lacks_them(project):
    wanted, _ = manifest(project)
    (project / "old.py").write_text("")
    (project / MARK).write_text("old.py\0train.py\0")
    remote = listing(project)

    assert remote.marked
    assert compare(wanted, remote).remove == ("old.py",)


@pytest.mark.parametrize("kind", ["old", "new"])
def test_a_sync_that_was_killed_between_its_renames_is_repaired(project, kind):
    """The directory gets its name back, with the files that only the container had; an incomplete copy is removed."""
    wanted, _ = manifest(project)
    (project / "checkpoint").write_text("weights")
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = project.with_name(f"{project.name}.provision-{kind}.{ended.pid}")
    project.rename(left)
    if kind == "new":
        project.mkdir()
    remote = listing(project)

    assert (not compare(wanted, remote).needed) is (kind == "old")
    assert (project / "checkpoint").exists() is (kind == "old")
    assert not left.exists()


def test_the_old_directory_is_removed_after_a_sync_that_was_killed_at_the_end(project):
    """The new directory has its name already."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = project.with_name(f"{project.name}.provision-old.{ended.pid}")
    left.mkdir()
    listing(project)

    assert not left.exists()
    assert (project / "train.py").exists()


def test_files_of_a_running_sync_are_not_removed(project):
    """Of the same directory."""
    script = "echo ready; read -r line"
    other = subprocess.Popen(
        ["sh", "-c", script, "sh", str(project), "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout.readline() == b"ready\n"
    left = project.with_name(f"{project.name}.provision-new.{other.pid}")
    left.mkdir()
    listing(project)
    other.communicate(b"\n")

    assert left.exists()


def test_processes_that_use_the_directory_are_named(project):
    """Those whose working directory would be deleted, and not those that only read it from elsewhere."""
    argv = ["cat"]
    within = subprocess.Popen(argv, cwd=project / "sub", stdin=subprocess.PIPE)
    outside = subprocess.Popen([*argv, "-", project / "train.py"], cwd=project.parent, stdin=subprocess.PIPE)
    remote = listing(project)
    for process in (within, outside):
        process.communicate()

    assert remote.busy == (f"{within.pid} cat",)
    assert listing(project).busy == ()


def test_a_directory_in_use_is_not_replaced(project, request_for, monkeypatch):
    """The process is reported before a change."""
    request = request_for(project)
    monkeypatch.setattr(sys.modules[check_target.__module__], "manifest", lambda _: (MORE, []))
    within = subprocess.Popen(["cat"], cwd=project, stdin=subprocess.PIPE)
    with pytest.raises(LaunchError) as caught:
        sync(request, confirm=lambda _: None)
    within.communicate()

    assert f"process {within.pid} (cat)" in caught.value.message
    assert caught.value.node == "gpu1"
    assert (project / "train.py").exists()


def test_a_folder_that_became_a_file_is_replaced(project):
    """The old folder is removed first."""
    wanted, _ = manifest(project)
    (project / "link").unlink()
    (project / "link").mkdir()
    change = compare(wanted, listing(project))

    assert change.copy == change.remove == ("link",)


def test_a_missing_folder_needs_all_files(project, tmp_path):
    """The first sync copies all files and overwrites none."""
    wanted, _ = manifest(project)
    remote = listing(tmp_path / "nope")

    assert remote == EMPTY
    assert set(compare(wanted, remote).copy) == set(wanted)
    assert compare(wanted, remote).overwrites == ()


def test_unpacking_replaces_the_folder_and_preserves_other_files(project, tmp_path):
    """The script adds new files, removes old ones, and never writes into an old file."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "stale").write_text("x")
    (target / "train.py").write_text("old")
    (target / "checkpoint").write_text("weights")
    held = (target / "train.py").open()
    tar = subprocess.run(["tar", "-c", "-C", project, "."], capture_output=True, check=True).stdout
    subprocess.run(["sh", NODE / "code/sync-unpack.sh", str(target), "6"], input=b"stale\0" + tar, check=True)
    old = held.read()
    held.close()

    assert sorted(path.name for path in target.iterdir()) == ["checkpoint", "link", "sub", "train.py"]
    assert (target / "train.py").read_text() == "print()"
    assert old == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my project", "target"]


@pytest.mark.parametrize(
    "name", ["/", "/etc", "/etc/ssh", "/usr", "/usr/lib", "/root", "/tmp", "/var/lib/docker", "/proc"]
)
def test_a_system_folder_is_refused(name, monkeypatch):
    """A typing mistake must not replace a system folder of the container."""
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    with pytest.raises(UsageError) as caught:
        check_target(Path(name))

    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["/workspace", "/home/me/project", "/tmp/x", "/usr/local/src/x", "/data"])
def test_a_project_folder_is_accepted(name, monkeypatch):
    """The usual paths of projects."""
    monkeypatch.setattr(Path, "is_dir", lambda _: True)

    assert check_target(Path(name)) is None


def test_a_missing_local_folder_is_reported(tmp_path):
    """Before a node is contacted."""
    with pytest.raises(UsageError, match="no such folder"):
        check_target(tmp_path / "nope")


def request_with(folder):
    """A job on this machine with a folder to copy."""
    return JobRequest(
        command=("true",),
        entries=(HostEntry("n1", "127.0.0.1", 1, "cpu"),),
        nodes={"n1": make_node("n1", local=True)},
        head="n1",
        sync=folder,
    )


@pytest.mark.parametrize("unreadable", [PermissionError, FileNotFoundError])
def test_an_unreadable_file_is_reported_by_name(project, monkeypatch, unreadable):
    """The test refuses the access itself, because root can read all files."""
    real = Path.open

    def refuse(path, *arguments, **options):
        if path.name == "train.py":
            raise unreadable(errno.EACCES, "Permission denied", str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(LaunchError, match=r"train\.py") as caught:
        sync(request_with(project), lambda _: None)

    assert caught.value.remedy


@pytest.mark.parametrize("change", [lambda file: file.unlink(), lambda file: file.write_text("")])
def test_a_file_that_changes_while_it_is_sent_is_reported_by_name(project, change):
    """Also a removed or shortened one; the node is named too."""
    wanted, _ = manifest(project)
    big = project / "train.py"
    process = FakeProcess(CommandResult("", "", 0))
    connector = SimpleNamespace(name="n1", start=lambda _: process)
    size = os.lstat(big)
    change(big)
    with pytest.MonkeyPatch.context() as patch:
        if big.exists():
            patch.setattr(tarfile.TarFile, "gettarinfo", lambda *_, arcname, **__: _info(arcname, size.st_size))
        with pytest.raises(LaunchError, match="changed while it was copied") as caught:
            _bring(connector, "c", project, wanted, Change(("train.py",), (), ()))

    assert caught.value.node == "n1"
    assert process.closed


def _info(name, size):
    """The metadata that tar read before the file was shortened."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def test_a_local_file_error_is_the_reason_of_one_node_only(tmp_path):
    """Without a traceback, and the other nodes have results."""
    nodes = [make_node("a", local=True), make_node("b", local=True)]
    result = each(nodes, lambda c: (tmp_path / "none").read_text() if c.name == "a" else "fine")

    assert "none: No such file" in result["a"].message
    assert result["b"] == "fine"
