"""The modules of the role platform, run for real on files of the test."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.modules import load, run

HOLD = """
import fcntl, sys, time
stream = open(sys.argv[1], "w")
fcntl.lockf(stream, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def apt() -> ModuleType:
    """The module that installs packages."""
    return load("platform", "platform_apt")


def test_the_holder_of_the_package_lock_is_reported(
    apt: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has process ID, program and account, without arguments; a free lock has no holder."""
    lock = tmp_path / "lock-frontend"
    lock.touch()
    monkeypatch.setattr(apt, "LOCKS", (str(lock), str(tmp_path / "absent")))
    free = apt.lock_holder()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock), "--password=hunter2"], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout
        child.stdout.readline()
        held = apt.lock_holder()
        child.kill()

    program = Path(sys.executable).name
    assert free == ""
    assert held == f"process {child.pid} ({program[:15]} of {pwd.getpwuid(os.getuid()).pw_name})"


def test_a_lock_that_is_not_released_is_reported_with_its_holder(
    apt: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the timeout the message contains the lock holder reported by apt, and the remedy."""
    err = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4321 (unattended-upgr)\n"
    answer(apt, monkeypatch, lambda command: (100, "", err) if command[0] == "apt-get" else (1, "", ""))
    monkeypatch.setattr(apt, "LOCKS", ())

    result = run(apt, packages=["rdma-core"], lock_timeout=0)

    assert "locked by process 4321 (unattended-upgr)" in result["msg"]
    assert "Wait until it has finished" in result["msg"]


def answer(apt: ModuleType, monkeypatch: pytest.MonkeyPatch, of: Callable[[list[str]], tuple[int, str, str]]) -> None:
    """Make commands of the module end with the results in `of`, on a node without package lists."""
    monkeypatch.setattr(apt.AnsibleModule, "run_command", lambda _self, command, **_more: of(command))
    monkeypatch.setattr(apt, "lists_are_fresh", lambda _seconds: False)


def test_only_incomplete_or_missing_packages_are_installed(apt: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is only configured, or half installed, counts as missing."""
    listed = "kmod installed\nrdma-core half-configured\nprocps config-files\n"
    answer(apt, monkeypatch, lambda command: (0 if command[0] == "apt-get" else 1, listed, ""))

    result = run(apt, packages=["kmod", "rdma-core", "procps", "pigz"], check=True)

    assert result["installed"] == ["rdma-core", "procps", "pigz"]


@pytest.mark.parametrize(
    ("output", "part"),
    [
        ("E: Unable to locate package rdma-core\n", "Correct platform_extra_repositories"),
        ("dpkg: error: cannot write: No space left on device\n", "the disk is full ("),
        ("Err:1 https://m.example.org bookworm\nE: Failed to fetch\n", "Failed to fetch"),
    ],
)
def test_the_cause_of_a_failed_installation_is_reported(
    apt: ModuleType, monkeypatch: pytest.MonkeyPatch, output: str, part: str
) -> None:
    """The message contains the cause from apt, and a remedy for known causes."""
    installs = [0]

    def of(command: list[str]) -> tuple[int, str, str]:
        installs[0] += "install" in command
        return (100, "", output) if "install" in command else (0 if "update" in command else 1, "", "")

    answer(apt, monkeypatch, of)

    result = run(apt, packages=["rdma-core"])

    assert part in result["msg"]
    assert installs[0] <= 2


@pytest.mark.row(46)
def test_downloads_from_a_failing_mirror_are_retried(apt: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file by apt itself, and when that was in vain all of it once more, with new lists."""
    asked: list[str] = []
    installed = (100, "", "Err:1 https://m.example.org bookworm\nE: Failed to fetch\n"), (0, "", "")

    def of(command: list[str]) -> tuple[int, str, str]:
        if command[0] != "apt-get":
            return 1, "", ""
        assert "Acquire::Retries=3" in command
        asked.append("install" if "install" in command else "update")
        return installed[asked.count("install") - 1] if asked[-1] == "install" else (0, "", "")

    answer(apt, monkeypatch, of)

    result = run(apt, packages=["docker.io"])

    assert result["changed"]
    assert asked == ["update", "install", "update", "install"]


def test_package_lists_are_fresh_until_a_source_changes(
    apt: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists are fetched when there are none, when they are old or of the future, and when a source is newer."""
    lists, sources = tmp_path / "lists", tmp_path / "sources.list.d"
    (lists / "partial").mkdir(parents=True)
    sources.mkdir()
    monkeypatch.setattr(apt, "LISTS", str(lists))
    monkeypatch.setattr(apt, "SOURCES", (str(sources / "*"),))
    (sources / "provision-docker.sources").touch()
    now = time.time()

    none = apt.lists_are_fresh(3600)
    (lists / "x_InRelease").touch()
    os.utime(lists / "partial", (time.time(), time.time()))
    fresh, old = apt.lists_are_fresh(3600), apt.lists_are_fresh(-10)
    os.utime(lists / "partial", (now + 7200, now + 7200))
    future = apt.lists_are_fresh(3600)
    os.utime(lists / "partial", (now - 5, now - 5))
    changed = apt.lists_are_fresh(3600)

    assert [none, fresh, old, future, changed] == [False, True, False, False, False]


def test_the_proxy_password_reaches_only_apt(apt: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies are passed to apt in its environment; the result does not contain the password, even if apt prints it."""
    seen: list[dict[str, str]] = []

    def command(self: Any, command: list[str], **_more: Any) -> tuple[int, str, str]:
        seen.append(dict(self.run_command_environ_update))
        return (100, "", "E: proxy said: hunter2 is wrong\n") if "update" in command else (1, "", "")

    monkeypatch.setattr(apt.AnsibleModule, "run_command", command)
    monkeypatch.setattr(apt, "lists_are_fresh", lambda _seconds: False)

    result = run(apt, packages=["kmod"], http_proxy="http://me:hunter2@proxy.example.org:3128", no_proxy="gpu1")

    assert seen[-1]["http_proxy"] == "http://me:hunter2@proxy.example.org:3128"
    assert seen[-1]["no_proxy"] == "gpu1"
    assert "https_proxy" not in seen[-1]
    assert "hunter2" not in json.dumps(result)


def test_an_interrupted_transaction_does_not_block_services_permanently(
    apt: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker does not start while its packages are installed, but it does after a power cut or a kill."""
    policy, holder = tmp_path / "policy-rc.d", tmp_path / "run" / "package-transaction"
    monkeypatch.setattr(apt, "POLICY", str(policy))
    monkeypatch.setattr(apt, "HOLDER", str(holder))

    def says(service: str) -> int:
        return subprocess.run([policy, service, "start"], check=False).returncode

    with apt.HeldServices(["docker"]):
        during = [says("docker"), says("docker.socket"), says("ssh")]
        holder.rename(tmp_path / "kept")
        after_reboot = says("docker")
        with subprocess.Popen(["true"]) as gone:
            pass
        holder.write_text(f"{gone.pid}\n")
        after_kill = says("docker")

    assert (during, after_reboot, after_kill) == ([101, 101, 0], 0, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "run"]


def test_remains_of_an_interrupted_run_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy of the role and the copy of an image archive are; a policy of the site, and one in use, are not."""
    apt, node = load("platform", "platform_apt"), load("platform", "platform_node")
    policy, holder, copy = tmp_path / "policy-rc.d", tmp_path / "holder", tmp_path / "image"
    for module in (apt, node):
        monkeypatch.setattr(module, "POLICY", str(policy))
        monkeypatch.setattr(module, "HOLDER", str(holder))
    monkeypatch.setattr(node, "IMAGE_COPY", str(copy))
    policy.write_text("#!/bin/sh\nexit 101\n")
    of_the_site = node.leftovers()
    policy.unlink()

    with apt.HeldServices(["docker"]):
        during = node.leftovers()
        holder.unlink()
        copy.mkdir()
        after_reboot = node.leftovers()

    assert (of_the_site, during, after_reboot) == ([], [], [str(policy), str(copy)])


def test_both_modules_use_the_same_policy_marker() -> None:
    """Modules are single files, so the texts that they share are defined twice and must be equal."""
    apt, node = load("platform", "platform_apt"), load("platform", "platform_node")

    names = ("POLICY", "POLICY_MARK", "HOLDER")
    assert [getattr(apt, name) for name in names] == [getattr(node, name) for name in names]
