"""Mounts of instances that are processes of their node: real namespaces and accounts, systemd is a STAND-IN."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node.archive import ARCHIVE
from tests.support.node.node import HERE, FakeNode, assignment, container, prepare, start


def can_mount() -> bool:
    """Whether this process may make mounts of its own."""
    return (
        os.geteuid() == 0
        and subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0
    )


pytestmark = pytest.mark.skipif(not can_mount(), reason="mounts of one's own are root's to make")
ACCOUNT = "65534:65534"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other accounts can enter, as pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def run(folder: Path, line: str, user: str = ACCOUNT, **changes: object) -> tuple[dict, list[str]]:
    """Run a line as an instance; return how it ended, and what it printed."""
    unit = {
        "user": user,
        "folder": "/",
        "command": ["sh", "-c", line],
        "limits": {},
        "binds": [],
        "private": [],
        **changes,
    }
    with FakeNode(folder / "node") as node:
        prepare(node, [assignment("j-worker-0", "a", 0)])
        config = container("j-worker-0", env={}, unit=unit)
        start(node, [config], clean="All")
        result = node.result()
        log = node.attempt() / "j-worker-0.log"
        return result, [line[30:] for line in log.read_text().splitlines()] if log.exists() else []


def test_an_instance_alone_sees_its_mounts(folder: Path) -> None:
    """One within another, read-only with what is mounted below, and one in memory; on the node nothing is left."""
    for name in ("data/sub", "scratch", "top"):
        (folder / name).mkdir(parents=True)
        (folder / name).chmod(0o777)
    (folder / "data/file").write_text("data\n")
    (folder / "scratch/file").write_text("scratch\n")
    binds = [[str(folder / "scratch"), f"{folder}/top/in/sub", "rw"], [str(folder / "data"), f"{folder}/top/in", "ro"]]
    line = (
        f"cd {folder}/top; cat in/file in/sub/file; touch in/x 2>/dev/null || echo read-only; "
        "touch in/sub/y && echo ok; touch memory/z && echo in memory; stat -f -c %T memory"
    )
    subprocess.run(["mount", "-t", "tmpfs", "none", folder / "data/sub"], check=True)
    try:
        result, said = run(folder, line, "", binds=binds, private=[f"{folder}/top/memory"])
    finally:
        subprocess.run(["umount", folder / "data/sub"], check=True)

    assert said == ["data", "scratch", "read-only", "ok", "in memory", "tmpfs"]
    assert result["status"] == "SUCCEEDED"
    assert list((folder / "top").iterdir()) == []
    assert [path.name for path in (folder / "scratch").iterdir()] == ["file", "y"]


def test_what_an_account_cannot_reach_is_not_mounted_for_it(folder: Path) -> None:
    """Files that others may read are closed all the same where a folder above them is, as a home or another job's."""
    (folder / "closed/open").mkdir(parents=True)
    (folder / "closed").chmod(0o700)
    (folder / "theirs").mkdir()
    os.chown(folder / "theirs", 65534, 65534)
    result, said = run(folder, "ls", binds=[[f"{folder}/closed/open", f"{folder}/theirs/in", "ro"]])

    assert result["status"] == "FAILED"
    assert "Permission denied" in result["reason"]
    assert said == []


def test_root_makes_nothing_for_an_account_where_that_could_not_make_it(folder: Path) -> None:
    """A file such as /etc/nologin would close the node to everybody."""
    (folder / "roots").mkdir()
    for target in (f"{folder}/roots/nologin", "/etc/provision-test-nologin", "/.provision-test"):
        result, _ = run(folder, "true", binds=[["/etc/hostname", target, "ro"]])
        assert "does not exist, and the account may not create it" in result["reason"]
        assert not os.path.lexists(target)
        subprocess.run(["rm", "-rf", folder / "node"], check=True)


def test_a_setuid_program_gains_nothing_in_an_instance_of_an_account(folder: Path) -> None:
    """The account chooses what is mounted, also upon the files that such a program trusts."""
    program = folder / "whoami"
    program.write_bytes(Path("/usr/bin/id").read_bytes())
    program.chmod(0o4755)
    result, said = run(folder, f"{program} -u; grep NoNewPrivs /proc/self/status")

    assert result["reason"] == ""
    assert said == ["65534", "NoNewPrivs:\t1"]


def test_an_account_that_exchanges_its_mount_point_has_nothing_made_mounted_or_removed_elsewhere(folder: Path) -> None:
    """In 100 attempts here, in 1,000 on the container lab: root's folders stay as they are, inside and outside."""
    argv = [sys.executable, str(HERE / "mount_race.py"), str(ARCHIVE), f"{folder}/race", ACCOUNT, "100", "shim"]
    done = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE, timeout=120).stdout)

    assert done["roots"] == ["victim/made", "victim/made/deep", "victim/mark"]
    assert set(done["seen"]) <= {"refused", "why", "root's\ndeep", "root's\ndeep\nthe account's"}
    done["seen"].pop("why", None)
    assert sum(done["seen"].values()) == 100
    assert done["units"] == []


def test_docker_gets_an_accounts_mounts_below_a_folder_of_roots(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the account could open them, even if their paths change; the job's own mounts are unchanged."""
    from provision.node.supervisor import mounts as container_mounts

    monkeypatch.setattr(container_mounts, "MOUNTS", str(folder / "mounts"))
    (folder / "open/data").mkdir(parents=True)
    (folder / "open/data/mark").touch()
    (folder / "closed/data").mkdir(parents=True)
    (folder / "closed").chmod(0o700)
    command = ["image", "docker", "run", "--volume", "/a:/b"]
    words = ["--init", "--volume", f"{folder}/open/data:/data:ro", "--volume", "/jobs/j/code/x:/x", "--group-add", "7"]
    mounts = container_mounts.Mounts("c-1", "/jobs/j", ACCOUNT, words + command)

    assert mounts.words == ["--init", "--volume", f"{folder}/mounts/c-1/0:/data:ro", *words[3:], *command]
    with mounts:
        (folder / "open").rename(folder / "elsewhere")
        assert [path.name for path in (folder / "mounts/c-1/0").iterdir()] == ["mark"]
        assert (folder / "mounts/c-1/0").stat().st_ino == (folder / "elsewhere/data").stat().st_ino
    assert list((folder / "mounts").iterdir()) == []
    for source in (f"{folder}/closed/data", "/jobs/j/../other/code", f"{folder}/nothing"):
        with pytest.raises(OSError, match="the account cannot mount"):
            container_mounts.Mounts("c-2", "/jobs/j", ACCOUNT, ["--volume", f"{source}:/x", "i"]).__enter__()
    assert list((folder / "mounts").iterdir()) == []


def test_docker_follows_no_link_in_the_code_of_an_account(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account may commit a link to what it cannot reach, and ask for a mount of that link."""
    from provision.node.supervisor import mounts as container_mounts

    monkeypatch.setattr(container_mounts, "MOUNTS", str(folder / "mounts"))
    (folder / "other/code/x").mkdir(parents=True)
    (folder / "other").chmod(0o700)
    job = folder / "j"
    for name in ("code/x", "logs", "attempts/1/ssh"):
        (job / name).mkdir(parents=True)
        (job / name / "link").symlink_to(folder / "other/code/x")
    job.chmod(0o700)
    for name in ("code/x/link", "logs/link", "attempts/1/ssh/link", "attempts/1", "code/..", "code"):
        with pytest.raises(OSError, match="the account cannot mount"):
            container_mounts.Mounts("c", str(job), ACCOUNT, ["--volume", f"{job}/{name}:/x", "i"]).__enter__()
    for name in ("code/x", "logs", "attempts/1/ssh", "attempts/1/mount", "attempts/1/config/0"):
        words = ["--volume", f"{job}/{name}:/x", "i"]
        assert container_mounts.Mounts("c", str(job), ACCOUNT, words).words == words
