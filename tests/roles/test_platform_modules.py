"""The modules of the role platform, run for real on files of the test."""

from __future__ import annotations

import importlib
import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from provision.report.package_remedies import REMEDIES
from tests.support.modules import load, provide_utils, run

HOLD = """
import fcntl, sys, time
stream = open(sys.argv[1], "w")
fcntl.lockf(stream, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


class Module:
    """A module of Ansible on a node without packages."""

    def __init__(self) -> None:
        self.no_log_values: set[str] = set()

    def run_command(self, _command: list[str]) -> tuple[int, str, str]:
        """Answer no program."""
        return 1, "", ""

    def get_bin_path(self, name: str) -> str:
        """Have every program."""
        return f"/usr/bin/{name}"


provide_utils()
base = importlib.import_module("ansible.module_utils.platform_package_base")
manager = importlib.import_module("ansible.module_utils.platform_package_manager")
apt_get = importlib.import_module("ansible.module_utils.platform_package_apt")


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that installs packages, on a node of Debian."""
    monkeypatch.setattr(manager, "MANAGERS", {"apt": "/"})
    return load("platform", "platform_packages")


def test_the_holder_of_the_package_lock_is_reported(tmp_path: Path) -> None:
    """The message has process ID, program and account, without arguments; a free lock has no holder."""
    lock = tmp_path / "lock-frontend"
    lock.touch()
    locks = (str(lock), str(tmp_path / "absent"))
    free = base.holder_of(locks)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock), "--password=hunter2"], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout
        child.stdout.readline()
        held = base.title_of(base.holder_of(locks))
        child.kill()

    program = Path(sys.executable).name
    assert free == ""
    assert held == f"process {child.pid} ({program[:15]} of {pwd.getpwuid(os.getuid()).pw_name})"


@pytest.mark.parametrize(
    ("program", "title"),
    [("unattended-upgrade", "unattended-upgrades"), ("packagekitd", "PackageKit"), ("other", "")],
)
def test_a_lock_holder_is_reported_by_the_service_that_started_it(tmp_path: Path, program: str, title: str) -> None:
    """dpkg holds the lock while unattended-upgrades, a script, waits for it."""
    script = tmp_path / program
    script.write_text("import subprocess, sys\nsubprocess.run([sys.executable, *sys.argv[1:]])\n")
    lock = tmp_path / "lock"
    with subprocess.Popen([sys.executable, script, "-c", HOLD, str(lock)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        parent.stdout.readline()
        pid = base.holder_of([str(lock)])
        held = base.title_of(pid)
        os.kill(int(pid), signal.SIGKILL)

    process = f"process {pid} ({Path(sys.executable).name[:15]} of {pwd.getpwuid(os.getuid()).pw_name})"
    assert held == (f"{title} ({process})" if title else process)


def test_a_lock_that_is_not_released_is_reported_with_its_holder(
    apt: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the timeout the message contains the lock holder reported by apt, and the remedy."""
    err = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4321 (unattended-upgr)\n"
    answer(apt, monkeypatch, lambda command: (100, "", err) if command[0] == "apt-get" else (1, "", ""))
    monkeypatch.setattr(apt_get.Apt, "lock_files", ())

    result = run(apt, packages=["rdma-core"], lock_timeout=0)

    assert "locked by process 4321 (unattended-upgr)" in result["msg"]
    assert result["reason"] == "packages.locked"
    assert "Wait until the lock holder has finished" in result["remedy"]


def answer(apt: ModuleType, monkeypatch: pytest.MonkeyPatch, of: Callable[[list[str]], tuple[int, str, str]]) -> None:
    """Make commands of the module end with the results in `of`, on a node without package lists."""
    monkeypatch.setattr(apt.AnsibleModule, "run_command", lambda _self, command, **_more: of(command))
    monkeypatch.setattr(apt_get.Apt, "is_fresh", lambda _self: False)


def test_packages_of_a_lock_are_installed_in_exactly_their_versions() -> None:
    """Also older ones than those that are installed; the others get their newest version."""
    commands: list[list[str]] = []

    class Programs(Module):
        def run_command(self, command: list[str]) -> tuple[int, str, str]:
            commands.append(command)
            return 0, "", ""

    apt_get.Apt(Programs()).install(["docker.io", "pigz"], (), {"docker.io": "1:2.0~b+1", "absent": "1"})
    apt_get.Apt(Programs()).install(["pigz"], (), {"docker.io": "2"})

    first, second = [command for command in commands if command[0] == "apt-get"]
    assert first[-3:] == ["--allow-downgrades", "docker.io=1:2.0~b+1", "pigz"]
    assert second[-1] == "pigz"
    assert "--allow-downgrades" not in second


def test_a_version_that_no_repository_has_is_missing(apt: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lists are fetched again before."""
    err = "E: Version '9' for 'docker.io' was not found"
    commands: list[list[str]] = []

    def of(command: list[str]) -> tuple[int, str, str]:
        commands.append(command)
        return (100, "", err) if "install" in command else (0, "", "")

    answer(apt, monkeypatch, of)
    monkeypatch.setattr(apt, "begin_packages", lambda *_: "")
    monkeypatch.setattr(apt, "end_packages", lambda *_: None)

    result = run(apt, packages=["docker.io"], versions={"docker.io": "9"})

    assert result["reason"] == "packages.missing"
    assert any("update" in command for command in commands)


def test_only_incomplete_or_missing_packages_are_installed(apt: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is only configured, or half installed, counts as missing."""
    listed = "kmod installed 30\nrdma-core half-configured 44\nprocps config-files 4\n"
    answer(apt, monkeypatch, lambda command: (0 if command[0] == "apt-get" else 1, listed, ""))

    result = run(apt, packages=["kmod", "rdma-core", "procps", "pigz"], check=True)

    assert result["installed"] == ["rdma-core", "procps", "pigz"]


OF_DPKG = (
    "dpkg: error processing package x (--configure):\n installed x package post-installation script subprocess failed"
)
CONFLICT = " x : Depends: y but it is not installable\nE: Unable to correct problems, you have held broken packages.\n"


@pytest.mark.parametrize(
    ("output", "part", "reason"),
    [
        ("E: Unable to locate package rdma-core\n", "Unable to locate package rdma-core", "packages.missing"),
        ("dpkg: error: cannot write: No space left on device\n", "the disk is full: ", "packages.disk_full"),
        ("Err:1 https://m.example.org bookworm\nE: Failed to fetch\n", "Failed to fetch", "packages.unreachable"),
        (
            "W: GPG error: https://m NO_PUBKEY 1234\nE: The repository is not signed.\n",
            "not signed",
            "packages.signature",
        ),
        ("E: Held packages were changed and -y was used\n", "Held packages", "packages.held"),
        (CONFLICT, "Unable to correct problems", "packages.conflict"),
        (OF_DPKG, "error processing package x", "packages.scriptlet"),
        ("something odd\n", "something odd", "packages.failed"),
    ],
)
def test_the_cause_of_a_failed_installation_is_reported(
    apt: ModuleType, monkeypatch: pytest.MonkeyPatch, output: str, part: str, reason: str
) -> None:
    """The message contains the cause from apt; the reason code selects the remedy."""
    installs = [0]

    def of(command: list[str]) -> tuple[int, str, str]:
        installs[0] += "install" in command
        return (100, "", output) if "install" in command else (0 if "update" in command else 1, "", "")

    answer(apt, monkeypatch, of)

    result = run(apt, packages=["rdma-core"])

    assert result["msg"].startswith("packages rdma-core: cannot install them (")
    assert part in result["msg"]
    assert (result["reason"], result["remedy"]) == (reason, REMEDIES[reason])
    assert installs[0] <= 2


def test_a_script_that_cannot_build_modules_is_reported_with_the_line_of_the_compiler(
    apt: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DKMS itself names only the file that contains it."""
    base = importlib.import_module("ansible.module_utils.platform_package_base")
    log = "/var/lib/dkms/nvidia-current-open/535.261.03/build/make.log"
    line = "/var/lib/dkms/x/nv-pci.c:223:9: error: too few arguments to function 'pci_resize_resource'"
    monkeypatch.setattr(
        base, "read_lines", lambda path: ["make[1]: x", line, "make: *** Error 2"] if path == log else []
    )
    output = f"Consult {log} for more information.\n{OF_DPKG}"
    answer(
        apt,
        monkeypatch,
        lambda command: (100, "", output) if "install" in command else (int("update" not in command), "", ""),
    )

    result = run(apt, packages=["rdma-core"])
    assert result["reason"] == "packages.scriptlet"
    assert line in result["msg"]


@pytest.mark.parametrize(
    ("state", "is_repaired"),
    [("installed ok", False), ("config-files ok", False), ("half-configured ok", True), ("installed reinstreq", True)],
)
def test_only_interrupted_transactions_are_repaired(
    apt: ModuleType, monkeypatch: pytest.MonkeyPatch, *, state: str, is_repaired: bool
) -> None:
    """`dpkg --audit` also lists complete packages, for example those without checksums; a repair may remove others."""
    ran: list[list[str]] = []

    def of(command: list[str]) -> tuple[int, str, str]:
        ran.append(command)
        listed = f"odd {state}\n" if "Eflag" in command[-1] and "Status-Status" in command[-1] else ""
        return 0, "odd: missing the md5sums control file\n" if "--audit" in command else listed, ""

    answer(apt, monkeypatch, of)
    run(apt, packages=["pigz"])

    assert any("--fix-broken" in command for command in ran) is is_repaired


def test_packages_that_apt_does_not_know_any_more_are_not_purged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their source is gone by then; only packages with configuration files are left to purge."""
    ran: list[list[str]] = []

    class Programs(Module):
        """Programs of a node from which the packages were removed."""

        def run_command(self, command: list[str], **_more: Any) -> tuple[int, str, str]:
            """Record one program."""
            ran.append(command)
            return 0, "docker-ce\tconfig-files\t1\t\t\n" if command[0] == "dpkg-query" else "", ""

    monkeypatch.setattr(apt_get, "NUKE", "/no/such/file")

    apt_get.Apt(Programs()).remove(["docker-ce", "docker-ce-cli"], data=False)

    changes = [command for command in ran if command[0] == "apt-get" and "-s" not in command]
    assert [command[5:] for command in changes] == [["remove", "docker-ce", "docker-ce-cli"], ["purge", "docker-ce"]]


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


def test_package_lists_are_fresh_until_a_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are fetched when there are none, when they are old or of the future, and when a source is newer."""
    lists, sources = tmp_path / "lists", tmp_path / "sources.list.d"
    (lists / "partial").mkdir(parents=True)
    sources.mkdir()
    monkeypatch.setattr(apt_get, "LISTS", str(lists))
    monkeypatch.setattr(apt_get, "SOURCE_FILES", (str(sources / "*"),))
    monkeypatch.setattr(apt_get, "KEY_FILES", ())

    def is_fresh(seconds: int) -> bool:
        return bool(apt_get.Apt(Module(), valid_seconds=seconds).is_fresh())

    (sources / "provision-docker.sources").touch()
    now = time.time()

    none = is_fresh(3600)
    (lists / "x_InRelease").touch()
    os.utime(lists / "partial", (time.time(), time.time()))
    fresh, old = is_fresh(3600), is_fresh(-10)
    os.utime(lists / "partial", (now + 7200, now + 7200))
    future = is_fresh(3600)
    os.utime(lists / "partial", (now - 5, now - 5))
    changed = is_fresh(3600)

    assert [none, fresh, old, future, changed] == [False, True, False, False, False]


def test_the_proxy_password_reaches_only_apt(apt: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies are passed to apt in its environment; the result does not contain the password, even if apt prints it."""
    seen: list[dict[str, str]] = []

    def command(self: Any, command: list[str], **_more: Any) -> tuple[int, str, str]:
        seen.append(dict(self.run_command_environ_update))
        return (100, "", "E: proxy said: hunter2 is wrong\n") if "update" in command else (1, "", "")

    monkeypatch.setattr(apt.AnsibleModule, "run_command", command)
    monkeypatch.setattr(apt_get.Apt, "is_fresh", lambda _self: False)

    result = run(apt, packages=["kmod"], http_proxy="http://me:hunter2@proxy.example.org:3128", no_proxy="gpu1")

    assert seen[-1]["http_proxy"] == "http://me:hunter2@proxy.example.org:3128"
    assert seen[-1]["no_proxy"] == "gpu1"
    assert "https_proxy" not in seen[-1]
    assert "hunter2" not in json.dumps(result)


def test_an_interrupted_transaction_does_not_block_services_permanently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker does not start while its packages are installed, but it does after a power cut or a kill."""
    policy, holder = tmp_path / "policy-rc.d", tmp_path / "run" / "package-transaction"
    monkeypatch.setattr(apt_get, "POLICY", str(policy))
    monkeypatch.setattr(apt_get, "HOLDER", str(holder))

    def says(service: str) -> int:
        return subprocess.run([policy, service, "start"], check=False).returncode

    with apt_get.HeldServices(["docker"]):
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
    node = load("platform", "platform_node")
    policy, holder, copy = tmp_path / "policy-rc.d", tmp_path / "holder", tmp_path / "image"
    monkeypatch.setattr(apt_get, "POLICY", str(policy))
    monkeypatch.setattr(apt_get, "HOLDER", str(holder))
    monkeypatch.setattr(manager, "MANAGERS", {"apt": "/"})
    monkeypatch.setattr(node, "IMAGE_COPY", str(copy))
    policy.write_text("#!/bin/sh\nexit 101\n")

    def leftovers() -> list[str]:
        return list(node.packages(Module())["leftovers"])

    of_the_site = leftovers()
    policy.unlink()

    with apt_get.HeldServices(["docker"]):
        during = leftovers()
        holder.unlink()
        copy.mkdir()
        after_reboot = leftovers()

    assert (of_the_site, during, after_reboot) == ([], [], [str(policy), str(copy)])


@pytest.mark.parametrize(
    ("state", "text", "firewall"),
    [
        (0, "ENABLED=yes\n", "firewalld"),
        (3, "X=low\nENABLED=yes\n", "ufw"),
        (3, "ENABLED=no\n", ""),
        (3, None, ""),
    ],
)
def test_the_active_firewall_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: int, text: str | None, firewall: str
) -> None:
    """An installed firewall that is not active blocks nothing."""
    node = load("platform", "platform_node")
    monkeypatch.setattr(node, "UFW_CONF", str(tmp_path / "ufw.conf"))
    monkeypatch.setattr(node, "SEARCH", str(tmp_path))
    for name in ("firewall-cmd", "ufw"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    if text is not None:
        (tmp_path / "ufw.conf").write_text(text)
    module = Module()
    monkeypatch.setattr(module, "run_command", lambda _command: (state, "", ""))

    assert node.active_firewall(module) == firewall


def test_docker_of_podman_is_detected(tmp_path: Path) -> None:
    """A large file is the program itself; it is not read."""
    node = load("platform", "platform_node")
    texts = {"podman": '#!/bin/sh\nexec /usr/bin/podman "$@"\n', "other": "#!/bin/sh\nexec docker\n"}
    texts["large"] = texts["podman"] + "\n" * 70000
    for name, text in texts.items():
        (tmp_path / name).write_text(text)

    assert [node.is_podman(str(tmp_path / name)) for name in texts] == [True, False, False]
    assert not node.is_podman(None)
