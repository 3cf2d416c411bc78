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
    """A folder with a file, a link, a sub-folder and awkward names."""
    folder = tmp_path / "my project"
    (folder / "sub").mkdir(parents=True)
    (folder / "train.py").write_text("print()")
    (folder / "train.py").chmod(0o750)
    (folder / "sub" / "a b\nc").write_bytes(b"\0\1")
    (folder / "link").symlink_to("sub/nowhere")
    return folder


@pytest.fixture
def request_for(tmp_path, monkeypatch):
    """A job on this machine, whose container is this machine as well: `docker exec` runs its command here."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nshift\n[ "$1" != -i ] || shift\nshift\nexec "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    node = Node("gpu1", Connection("localhost", local=True, become=False))
    return lambda folder: JobRequest(("true",), (), {"gpu1": node}, "gpu1", sync=folder)


def listing(folder):
    """What the listing script prints about a folder, run here instead of in a container."""
    done = subprocess.run(["sh", NODE / "code/sync-list.sh", str(folder)], capture_output=True, check=True)
    return parse_listing(done.stdout)


def test_a_copy_is_equal_and_needs_nothing(project):
    """Names, kinds, permissions, link targets and contents read on a node are those read here."""
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
    """One changed byte, permission or missing file is enough."""
    wanted, _ = manifest(project)
    change(project)

    assert compare(wanted, listing(project)).copy == ("train.py",)


def test_what_only_the_container_has_stays(project):
    """Checkpoints written by a job are neither removed nor counted as a difference."""
    wanted, _ = manifest(project)
    (project / "checkpoint").write_text("weights")

    assert not compare(wanted, listing(project)).needed


def test_what_a_former_sync_brought_is_removed_when_it_is_gone_here(project):
    """A file deleted here does not live on in the containers."""
    wanted, _ = manifest(project)
    (project / "old.py").write_text("")
    (project / MARK).write_text("old.py\0train.py\0")
    remote = listing(project)

    assert remote.marked
    assert compare(wanted, remote).remove == ("old.py",)


@pytest.mark.parametrize("kind", ["old", "new"])
def test_a_sync_that_was_killed_between_its_renames_is_repaired(project, kind):
    """The directory comes back under its own name with what the container alone had; half a copy goes away."""
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


def test_what_is_left_after_the_second_rename_is_removed(project):
    """Where the directory is there, the old one beside it is of no use any more."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = project.with_name(f"{project.name}.provision-old.{ended.pid}")
    left.mkdir()
    listing(project)

    assert not left.exists()
    assert (project / "train.py").exists()


def test_a_sync_that_still_runs_is_left_alone(project):
    """What belongs to a living sync of the same directory is not taken from it."""
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


def test_who_works_in_the_directory_is_named(project):
    """A process whose working directory would be deleted is found, one that only looks from elsewhere is not."""
    argv = ["cat"]
    within = subprocess.Popen(argv, cwd=project / "sub", stdin=subprocess.PIPE)
    outside = subprocess.Popen([*argv, "-", project / "train.py"], cwd=project.parent, stdin=subprocess.PIPE)
    remote = listing(project)
    for process in (within, outside):
        process.communicate()

    assert remote.busy == (f"{within.pid} cat",)
    assert listing(project).busy == ()


def test_a_directory_in_use_is_not_replaced(project, request_for, monkeypatch):
    """The process is named before anything changes."""
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
    """A change of kind removes the old thing first."""
    wanted, _ = manifest(project)
    (project / "link").unlink()
    (project / "link").mkdir()
    change = compare(wanted, listing(project))

    assert change.copy == change.remove == ("link",)


def test_a_folder_that_is_not_there_lacks_everything(project, tmp_path):
    """The first sync copies all and overwrites nothing."""
    wanted, _ = manifest(project)
    remote = listing(tmp_path / "nope")

    assert remote == EMPTY
    assert set(compare(wanted, remote).copy) == set(wanted)
    assert compare(wanted, remote).overwrites == ()


def test_unpacking_swaps_and_keeps_what_only_the_container_has(project, tmp_path):
    """The unpacking script brings new files, removes stale ones, and never writes through to an old file."""
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
    """No typo can replace a container's system."""
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    with pytest.raises(UsageError) as caught:
        check_target(Path(name))

    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["/workspace", "/home/me/project", "/tmp/x", "/usr/local/src/x", "/data"])
def test_a_project_folder_is_accepted(name, monkeypatch):
    """Ordinary places for projects work."""
    monkeypatch.setattr(Path, "is_dir", lambda _: True)

    assert check_target(Path(name)) is None


def test_a_folder_that_is_not_here_is_said(tmp_path):
    """A typo in the folder is found before any node is asked."""
    with pytest.raises(UsageError, match="no such folder"):
        check_target(tmp_path / "nope")


def request_with(folder):
    """A job on this machine that brings a folder along."""
    return JobRequest(
        command=("true",),
        entries=(HostEntry("n1", "127.0.0.1", 1, "cpu"),),
        nodes={"n1": make_node("n1", local=True)},
        head="n1",
        sync=folder,
    )


@pytest.mark.parametrize("unreadable", [PermissionError, FileNotFoundError])
def test_a_file_that_cannot_be_read_is_a_sentence(project, monkeypatch, unreadable):
    """The file is named; root may read all files, so that the refusal is made here."""
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
def test_a_file_that_changes_while_it_is_sent_is_a_sentence(project, change):
    """Gone or shorter than it was: nothing is guessed, and the node is named."""
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
    """What tar knew of the file before it shrank."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def test_any_file_trouble_of_this_machine_is_the_nodes_reason(tmp_path):
    """No traceback, and the other nodes have their results."""
    nodes = [make_node("a", local=True), make_node("b", local=True)]
    result = each(nodes, lambda c: (tmp_path / "none").read_text() if c.name == "a" else "fine")

    assert "none: No such file" in result["a"].message
    assert result["b"] == "fine"
