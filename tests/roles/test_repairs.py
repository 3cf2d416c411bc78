"""Manual changes of a node are reverted by the role that manages it, and its next run changes nothing."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from tests.support.expressions import Role
from tests.support.modules import load, run

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def edited(path: Path) -> None:
    path.write_text("{}\n")


def opened(path: Path) -> None:
    path.chmod(0o666)


def given_away(path: Path) -> None:
    os.chown(path, 54321, 54321)


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


DAMAGES = [edited, Path.unlink, opened, pytest.param(given_away, marks=as_root)]
"""Kinds of damage to a file."""


def state(path: Path) -> tuple[str, int, int]:
    """All of a file that a role sees to."""
    return path.read_text(), path.lstat().st_mode, path.stat().st_uid


def repaired(path: Path, damage: Callable[[Path], None], apply: Callable[[], dict[str, Any]]) -> tuple[Any, list[bool]]:
    """Apply, damage, and apply twice; return the file before and after, and whether the two runs changed anything."""
    apply()
    before = state(path)
    damage(path)
    done = [apply()["changed"] for _ in range(2)]
    return (before, state(path)), done


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_is_repaired(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Content, mode and owner of a completely managed file are restored."""
    files, path = load("platform", "platform_files"), tmp_path / "some"

    (before, after), done = repaired(path, damage, lambda: run(files, files=[{"path": str(path), "content": "x\n"}]))

    assert (after, done) == (before, [True, False])


@pytest.mark.parametrize("damage", [*DAMAGES, linked])
def test_the_sysctl_file_is_repaired(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """It comes back as the file that it was."""
    sysctl, path = load("base_system", "base_system_sysctl"), tmp_path / "90.conf"
    live = Path("/proc/sys/kernel/ostype").read_text().strip()

    (before, after), done = repaired(path, damage, lambda: run(sysctl, path=str(path), values={"kernel.ostype": live}))

    assert (after, done) == (before, [True, False])


@pytest.mark.parametrize("damage", DAMAGES)
def test_daemon_json_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    """Our settings are restored, writable by root only; a stricter mode of the site is preserved."""
    config, path = load("docker_engine", "docker_engine_config"), tmp_path / "daemon.json"
    monkeypatch.setattr(config, "LAST_SETTINGS", str(tmp_path / "written.json"))
    monkeypatch.setattr(config.AnsibleModule, "get_bin_path", lambda *_args, **_more: None)

    (before, after), done = repaired(path, damage, lambda: run(config, path=str(path), settings={"debug": True}))

    assert (after, done) == (before, [True, False])


@pytest.mark.parametrize("damage", [opened, pytest.param(given_away, marks=as_root)])
def test_permissions_of_registry_credentials_are_repaired(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """The file with passwords is root's alone again, without asking a registry."""
    login, path = load("docker_engine", "docker_engine_login"), tmp_path / "config.json"
    path.write_text('{"auths": {"r.example.org": {"auth": "bWU6cHc="}}}')
    logins = [{"registry": "r.example.org", "username": "me", "password_secret": "pw"}]

    umask = os.umask(0o022)

    (before, after), done = repaired(path, damage, lambda: run(login, logins=logins, folder=str(tmp_path)))
    os.umask(umask)

    assert (after, done) == (before, [True, False])
    assert [stat.S_IMODE(item.stat().st_mode) for item in (tmp_path, path)] == [0o700, 0o600]


def program(folder: Path, name: str, text: str) -> None:
    """Put a stand-in for a program into a folder."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


class Programs:
    """The search path for programs that modules run."""

    no_log_values: ClassVar[set[str]] = set()

    get_bin_path = staticmethod(shutil.which)

    @staticmethod
    def run_command(command: list[str]) -> tuple[int, str, str]:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that are found first."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_downgraded_packages_are_detected(tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older than a receipt recorded, by the package system's own order; newer ones, and those on hold, are wanted."""
    platform = load("platform", "platform_node")
    package_manager = importlib.import_module("ansible.module_utils.platform_package_manager").package_manager
    monkeypatch.setattr(platform, "RECEIPTS", str(tmp_path / "*.json"))
    versions = {"older": "1.10", "newer": "1.2", "same": "1", "held": "2", "gone": "1", "never": None}
    (tmp_path / "some.json").write_text(json.dumps({"packages": versions, "images": {"training:1": "sha256:aa"}}))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "old.json").write_text('{"packages": ["same"]}')
    program(programs, "dpkg", '[ "$1 $3" = "--compare-versions lt" ] && [ "$2 $4" = "1.9 1.10" -o "$2 $4" = "1 2" ]')
    program(programs, "dpkg-query", "printf 'older install\\nheld hold\\nnewer install\\n'")
    installed = {"older": "1.9", "newer": "1.10", "same": "1", "held": "1", "never": "5"}

    apt = package_manager(Programs(), "apt")
    assert apt.downgraded(platform.recorded_values("packages"), installed) == ["older"]
    assert platform.recorded_values("images") == {"training:1": "sha256:aa"}


def test_downgraded_packages_are_upgraded(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are upgraded in the transaction for missing packages; packages of other roles are not changed."""
    apt = load("platform", "platform_packages")
    manager = importlib.import_module("ansible.module_utils.platform_package_apt")
    monkeypatch.setattr(manager.Apt, "is_fresh", lambda _self: True)
    program(programs, "dpkg-query", "printf 'older installed 1\\nfine installed 1\\n'")
    program(programs, "apt-get", f'echo "$@" >>{programs}/calls')

    result = run(apt, packages=["fine", "older", "gone"], outdated=["older", "others"])

    assert result["installed"] == ["gone", "older"]
    assert (programs / "calls").read_text().splitlines()[-1].endswith("install gone older")


@pytest.mark.parametrize(
    ("downgraded", "installed", "good"),
    [([], [], True), (["docker.io"], [], False), (["docker.io"], ["docker.io"], True)],
)
def test_a_downgraded_package_is_not_accepted(
    downgraded: list[str],
    installed: list[str],
    good: bool,  # noqa: FBT001
) -> None:
    """The package program runs only if a package is missing or too old, and once per run."""
    role = Role(
        "platform",
        platform_packages=["docker.io"],
        platform_installed=installed,
        platform_node={"packages": {"docker.io": "1"}, "downgraded": downgraded},
    )
    task = role.task("install", "Install missing packages and upgrade downgraded ones")

    assert role.value(task["when"]) is not good


@pytest.mark.parametrize(
    ("version", "left_out", "expected"),
    [("2", [], []), ("1", [], ["docker.io"]), ("1", ["docker_engine"], []), (None, [], [])],
    ids=["at the lock", "older", "waits", "not installed"],
)
def test_a_package_in_another_version_than_the_lock_is_installed(
    version: str | None, left_out: list[str], expected: list[str]
) -> None:
    """Only packages of the roles of this run, so that a step that waits keeps its versions."""
    lock = {"packages": {"docker_engine": {"docker.io": "2"}}, "image": ""}
    role = Role(
        "platform",
        _platform_lock=lock,
        __platform_selected_roles=["docker_engine"],
        __platform_left_out=left_out,
        platform_node={
            "packages": {"docker.io": version} if version else {},
            "downgraded": [],
            "package_manager": "apt",
            "repository_files": [],
        },
    )
    task = role.task("packages", "Install packages in one transaction")["platform_packages"]

    assert role.value("__platform_deviating_packages") == expected
    assert role.templar.template(task["versions"]) == {"docker.io": "2"}
    assert role.templar.template(task["outdated"]) == expected


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"cluster_takes_jobs": False},
        {"platform_node": {"package_manager": "dnf", "packages": {"docker.io": "1"}, "downgraded": []}},
    ],
    ids=["plain Ansible", "no jobs", "dnf"],
)
def test_without_a_lock_no_version_is_required(variables: dict[str, Any]) -> None:
    """Plain Ansible does not know the lock; nodes without jobs and those of dnf have none."""
    lock = {} if not variables else {"_platform_lock": {"packages": {"docker_engine": {"docker.io": "2"}}, "image": ""}}
    node = {"packages": {"docker.io": "1"}, "downgraded": [], "package_manager": "apt"}
    role = Role("platform", **{"platform_node": node, **lock, **variables})

    assert role.value("__platform_deviating_packages") == []
    assert role.value("__platform_locked_versions") == {}


SYSTEMCTL = """
cd {folder}
case "$1" in
  show) echo "LoadState=$([ -e masked ] && echo masked || echo loaded)"
        echo "ActiveState=$([ -e active ] && echo active || echo inactive)"
        echo "UnitFileState=$([ -e enabled ] && echo enabled || echo disabled)"; echo MainPID=0;;
  is-enabled) [ -e enabled ];;
  unmask) rm -f masked;;
  start) [ ! -e masked ] && touch active;;
  *) [ "$*" != "--no-reload enable docker.service" ] || touch enabled;;
esac
"""


@pytest.fixture
def service(tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that runs docker, with a systemd whose units are files."""
    module = load("docker_engine", "docker_engine_service")
    monkeypatch.setattr(module, "START_RECORD", str(tmp_path / "mark.json"))
    monkeypatch.setattr(module, "LAST_SETTINGS", str(tmp_path / "written.json"))
    monkeypatch.setattr(module, "running_jobs", list)
    program(programs, "systemctl", SYSTEMCTL.format(folder=tmp_path))
    (tmp_path / "daemon.json").write_text("{}")
    return module


@pytest.mark.parametrize("damage", [["active"], ["enabled"], ["active", "enabled"]])
@pytest.mark.parametrize("masked", [True, False])
def test_docker_is_started_and_enabled_again(
    service: ModuleType,
    tmp_path: Path,
    masked: bool,  # noqa: FBT001
    damage: list[str],
) -> None:
    """Docker that was stopped, disabled or masked runs again and starts at boot."""
    for name in {"active", "enabled"} - set(damage):
        (tmp_path / name).touch()
    if masked:
        (tmp_path / "masked").touch()

    done = [run(service, config=str(tmp_path / "daemon.json"), settings={})["changed"] for _ in range(2)]

    assert done == [True, False]
    assert [(tmp_path / name).exists() for name in ("active", "enabled", "masked")] == [True, True, False]


def test_docker_is_not_unmasked_under_a_job(
    service: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Systemd rereads all units for it, which can take GPUs away: it waits, unless the operator allows it."""
    for name in ("active", "enabled", "masked"):
        (tmp_path / name).touch()
    monkeypatch.setattr(service, "running_jobs", lambda: ["process 7 (python3 of root) holds /dev/nvidia0"])
    parameters = {"config": str(tmp_path / "daemon.json"), "settings": {}}

    refused = run(service, **parameters)
    allowed = run(service, restart_allowed=True, **parameters)

    assert (
        "docker: must be unmasked (docker.service is masked), but a job runs on this node (process 7" in refused["msg"]
    )
    assert (allowed["changed"], (tmp_path / "masked").exists()) == (True, False)


@pytest.mark.parametrize("damage", [*DAMAGES, linked])
def test_the_cdi_file_is_generated_again(tmp_path: Path, programs: Path, damage: Callable[[Path], None]) -> None:
    """The CDI file has the content of the toolkit, is a regular file, and belongs to root."""
    cdi, path = load("nvidia_container", "nvidia_container_cdi"), tmp_path / "cdi" / "nvidia.yaml"
    program(programs, "systemctl", "exit 1")
    program(programs, "nvidia-ctk", 'case "$*" in *--output=*) echo gpus >"${3#--output=}";; esac')

    (before, after), done = repaired(path, damage, lambda: run(cdi, path=str(path)))

    assert (after, done) == (before, [True, False])


@pytest.mark.parametrize(
    ("settings", "present", "expected"),
    [
        ({}, ["sha256:aa"], True),
        ({}, ["sha256:bb"], False),
        ({}, [], False),
        ({"training_image_reference": "training:2"}, ["sha256:bb"], True),
        ({"training_image_digest": "sha256:bb"}, ["sha256:bb"], True),
        ({"training_image_digest": "sha256:bb"}, ["sha256:aa"], False),
    ],
)
def test_a_retagged_image_is_repaired(settings: dict[str, Any], present: list[str], expected: bool) -> None:  # noqa: FBT001
    """The inventory decides; without a setting, the image of the last successful run is desired."""
    role = Role(
        "training_image",
        platform_node={"recorded_images": {"training:1": "sha256:aa"}},
        __training_image_result={"images": [{"Id": name} for name in present], "identities": present},
        **{"training_image_reference": "training:1", **settings},
    )

    assert role.value("__training_image_is_present") is expected


@pytest.mark.parametrize(
    ("options", "foreign"),
    [
        ({}, []),
        ({"Memory": 0, "PidMode": "", "SecurityOpt": None, "Tmpfs": {}}, []),
        ({"Privileged": True, "SecurityOpt": ["label=disable"]}, []),
        ({"PidMode": "host", "SecurityOpt": ["seccomp=unconfined"], "Memory": 1}, ["Memory", "PidMode", "SecurityOpt"]),
    ],
)
def test_manually_changed_container_options_are_detected(options: dict[str, Any], foreign: list[str]) -> None:
    """A container that was recreated manually with an option that the role never sets is replaced."""
    node = load("training_container", "training_container_node")

    assert node.unmanaged_options({"HostConfig": options}) == foreign


def test_deleted_mount_folders_of_the_container_are_detected(tmp_path: Path) -> None:
    """The container is recreated for them, not for another file or an unmanaged mount."""
    module = load("training_container", "training_container_node")
    for folder in ("a", "b c", "docker"):
        (tmp_path / "7/root" / folder).mkdir(parents=True)
    rows = [("/srv/a//deleted", "/a"), ("/srv/b//deleted", r"/b\040c"), ("/srv/f//deleted", "/f"),
            ("/h//deleted", "/etc/hosts"), ("/srv/d", "/d"), ("/x//deleted", "/docker")]  # fmt: skip
    table = "".join(f"{number} 1 8:1 {root} {target} rw - ext4 x rw\n" for number, (root, target) in enumerate(rows))
    (tmp_path / "7/mountinfo").write_text(f"odd\n{table}")
    (tmp_path / "7/root/f").touch()
    binds = ["/srv/a:/a/:ro", "/srv/b:/b c", "/srv/f:/f", "/h:/etc/hosts:ro", "/srv/d:/d", "volume"]
    container = {"State": {"Pid": 7}, "HostConfig": {"Binds": binds}}

    assert module.deleted_mounts(container, str(tmp_path)) == ["/srv/a", "/srv/b", "/h"]
    assert module.deleted_mounts({}, str(tmp_path)) == []
    assert module.deleted_mounts({"State": {"Pid": 0}, "HostConfig": {"Binds": None}}, str(tmp_path)) == []


@pytest.mark.parametrize(
    ("foreign", "deleted", "recreate"), [([], [], False), (["Memory"], [], True), ([], ["/a"], True)]
)
def test_a_container_is_recreated_for_differences_that_docker_does_not_compare(
    foreign: list,
    deleted: list,
    recreate: bool,  # noqa: FBT001
) -> None:
    """The role detects them itself, so a run of plain Ansible does as well."""
    node = {"image": True, "foreign": foreign, "deleted": deleted, "jobs": []}
    role = Role("training_container", __training_container_node={"node": node}, __training_container_plan={})
    task = role.task("service", "Compare the container with its settings")
    differences = [*foreign, *(f"{path} was deleted on the node" for path in deleted)]

    assert role.templar.template(task["training_container"]["recreate"]) is recreate
    assert role.value("__training_container_differences") == differences


@pytest.mark.parametrize(
    ("loaded", "written", "reload"), [("id", [], False), ("other", [], True), ("id", ["/x/sshd_config"], True)]
)
def test_sshd_reloads_changed_settings(loaded: str, written: list[str], reload: bool) -> None:  # noqa: FBT001
    """If sshd has read other settings, or if the file was changed: sshd may have read the changed file."""
    role = Role(
        "container_ssh",
        _container_ssh_folder="/x",
        __container_ssh_settings_id="id",
        __container_ssh_keys={"configured": True, "loaded": loaded},
        __container_ssh_written={"changed_paths": written},
    )

    assert role.value("__container_ssh_reload") is reload
