"""The records of the original state and their use by a reset, with real files and modules."""

from __future__ import annotations

import importlib
import json
import os
import stat
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.modules import load, provide_utils, run

provide_utils()
origin = importlib.import_module("ansible.module_utils.platform_origin")
undo = importlib.import_module("ansible.module_utils.platform_undo_files")
DROP = r"^127\.0\.1\.1\s"


@pytest.fixture(autouse=True)
def own_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user who runs the tests replaces root."""
    files = load("platform", "platform_files")
    monkeypatch.setattr(files.pwd, "getpwnam", lambda _: type("P", (), {"pw_uid": os.getuid()}))
    monkeypatch.setattr(files.grp, "getgrnam", lambda _: type("G", (), {"gr_gid": os.getgid()}))


def write(*items: dict[str, Any], check: bool = False) -> dict[str, Any]:
    """Run platform_files."""
    done = run(load("platform", "platform_files"), check=check, files=list(items))
    assert "msg" not in done, done
    return done


def reset() -> list[str]:
    """Perform the steps of a reset for recorded files and folders; return their sentences."""
    steps = [step for step in map(undo.file_step, origin.records("files")) if step]
    steps += undo.folder_steps(origin.records("folders"))
    assert [step.act() for step in steps] == [None] * len(steps)
    return [step.sentence for step in steps]


def look(top: Path) -> dict[str, Any]:
    """Content, mode and time of every file below a folder, and every folder."""
    return {
        str(path.relative_to(top)): (path.read_bytes(), oct(path.stat().st_mode), path.stat().st_mtime_ns)
        if path.is_file()
        else "folder"
        for path in sorted(top.rglob("*"))
    }


def test_a_replaced_file_is_restored_byte_for_byte(tmp_path: Path) -> None:
    """Content, mode and time are the first ones, however often we wrote since; a second reset has nothing to do."""
    path = tmp_path / "x.conf"
    path.write_bytes(b"mine \xff\xfe without newline")
    path.chmod(0o640)
    os.utime(path, ns=(1_000_000_000, 1_000_000_000))
    before = look(tmp_path)

    for text in ("a\n", "b\n", "c\n"):
        write({"path": str(path), "content": text, "mode": "0600"})
    said = reset()

    assert look(tmp_path) == before
    assert (said, reset()) == ([f"restore {path}"], [])


def test_created_files_and_folders_are_removed(tmp_path: Path) -> None:
    """New files and folders are removed; a folder with other files stays."""
    write({"path": str(tmp_path / "a" / "b" / "x.conf"), "content": "a\n"})
    write({"path": str(tmp_path / "c"), "state": "directory"}, {"path": str(tmp_path / "c" / "y"), "content": "y\n"})
    (tmp_path / "c" / "theirs").write_text("z\n")

    reset()

    assert sorted(look(tmp_path)) == ["c", "c/theirs"]


def test_check_mode_records_nothing(tmp_path: Path, origins: Path) -> None:
    """Neither in check mode nor in a run that changes nothing."""
    item = {"path": str(tmp_path / "x"), "content": "a\n"}
    write(item, check=True)
    checked = origins.exists()
    write(item)
    noted = look(origins)
    write(item)

    assert not checked
    assert look(origins) == noted


def test_origin_records_are_readable_by_root_only(tmp_path: Path, origins: Path) -> None:
    """A file may have contained a password: other users can read neither its record nor its copy."""
    (tmp_path / "x").write_text("password\n")
    write({"path": str(tmp_path / "x"), "content": "a\n"})

    modes = {path.name[-7:]: stat.S_IMODE(path.stat().st_mode) for path in origins.rglob("*")}
    assert stat.S_IMODE(origins.stat().st_mode) == 0o700
    assert all(mode & 0o077 == 0 for mode in modes.values()), modes


def test_a_file_edited_later_is_preserved(tmp_path: Path) -> None:
    """A pre-existing file that was edited later stays, and its original is written to a second file."""
    path = tmp_path / "x.conf"
    path.write_text("first\n")
    write({"path": str(path), "content": "ours\n"})
    path.write_text("ours, and edited\n")

    (said,) = reset()

    assert path.read_text() == "ours, and edited\n"
    assert (tmp_path / "x.conf.provision-before").read_text() == "first\n"
    assert "edited since" in said


def test_an_edited_file_of_provision_is_moved_aside(tmp_path: Path) -> None:
    """The file has no effect, and the edits are not lost."""
    path = tmp_path / "90-provision.conf"
    write({"path": str(path), "content": "ours\n"})
    path.write_text("ours, and edited\n")

    reset()

    assert {entry.name: entry.read_text() for entry in tmp_path.iterdir()} == {
        "90-provision.conf.provision-edited": "ours, and edited\n"
    }


def test_an_interrupted_write_is_attributed_to_provision(tmp_path: Path) -> None:
    """The content is marked before it is written: whichever of the two is there, the first one comes back."""
    path = tmp_path / "x"
    path.write_text("first\n")
    write({"path": str(path), "content": "ours\n"})
    origin.record_file(str(path), "next\n")  # and then the power goes

    reset()

    assert path.read_text() == "first\n"


def test_a_removed_file_is_restored(tmp_path: Path) -> None:
    """A file that a role removed is restored, unless there is a new one."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"{name}\n")
        write({"path": str(tmp_path / name), "state": "absent"})
    (tmp_path / "two").write_text("another\n")

    reset()

    assert (tmp_path / "one").read_text() == "one\n"
    assert (tmp_path / "two").read_text() == "another\n"


@pytest.mark.parametrize(
    "before", ["127.0.0.1 localhost\n127.0.1.1 gpu1 alias\n::1 ip6\n", "127.0.1.1 x", "", "a\n\n\n"]
)
def test_a_block_is_removed_byte_for_byte(tmp_path: Path, before: str) -> None:
    """Lines that we took away for it are back in their place, and a missing newline at the end is missing again."""
    path = tmp_path / "hosts"
    path.write_text(before)
    for address in ("10.0.0.1", "10.0.0.2"):
        block = {"path": str(path), "state": "block", "content": f"{address} gpu1\n", "at_start": True, "drop": DROP}
        write(block)

    reset()

    assert path.read_text() == before


def test_lines_of_others_are_preserved_when_a_block_is_removed(tmp_path: Path) -> None:
    """Lines that were added later stay, and the line that the role dropped is restored."""
    path = tmp_path / "hosts"
    path.write_text("127.0.0.1 localhost\n127.0.1.1 gpu1\n")
    write({"path": str(path), "state": "block", "content": "10.0.0.1 gpu1\n", "at_start": True, "drop": DROP})
    path.write_text(path.read_text() + "10.9.9.9 printer\n")

    said = reset()

    assert path.read_text() == "127.0.0.1 localhost\n127.0.1.1 gpu1\n10.9.9.9 printer\n"
    assert "edited since" in said[0]
    assert reset() == []


def test_only_a_changed_mode_is_restored(tmp_path: Path) -> None:
    """A file that had the wanted content and another mode gets its mode again."""
    path = tmp_path / "x"
    path.write_text("same\n")
    path.chmod(0o604)
    write({"path": str(path), "content": "same\n", "mode": "0600"})

    reset()

    assert stat.S_IMODE(path.stat().st_mode) == 0o604


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that writes daemon.json, on a node whose dockerd cannot check it."""
    module = load("docker_engine", "docker_engine_config")
    monkeypatch.setattr(module, "LAST_SETTINGS", str(tmp_path.parent / "written.json"))
    monkeypatch.setattr(module.AnsibleModule, "get_bin_path", lambda *_args, **_more: None)
    return module


OWN = '{ "log-driver": "journald",\n   "log-opts": {"tag": "x"},  "experimental": true }'
OURS = {"log-driver": "json-file", "log-opts": {"max-size": "10m"}, "live-restore": True, "default-ulimits": {}}


def test_daemon_json_is_restored_byte_for_byte(config: ModuleType, tmp_path: Path) -> None:
    """A file with settings and spaces of the site is restored exactly; no copy remains."""
    path = tmp_path / "daemon.json"
    path.write_text(OWN)
    path.chmod(0o600)
    before = look(tmp_path)
    run(config, path=str(path), settings=OURS)
    run(config, path=str(path), settings={**OURS, "debug": True})

    reset()

    assert look(tmp_path) == before


def test_a_created_daemon_json_is_removed(config: ModuleType, tmp_path: Path) -> None:
    """Where there was none there is none."""
    run(config, path=str(tmp_path / "docker" / "daemon.json"), settings=OURS)

    reset()

    assert look(tmp_path) == {}


def test_settings_of_others_in_daemon_json_are_preserved(config: ModuleType, tmp_path: Path) -> None:
    """Later additions and changes are preserved and the rest is restored, even after another run."""
    path = tmp_path / "daemon.json"
    path.write_text(OWN)
    run(config, path=str(path), settings=OURS)
    edited = json.loads(path.read_text())
    edited.update({"icc": False, "live-restore": False})
    edited["log-opts"]["max-size"] = "99m"
    path.write_text(json.dumps(edited))
    run(config, path=str(path), settings={"debug": True})

    said = reset()

    expected = {"log-driver": "journald", "log-opts": {"tag": "x", "max-size": "99m"}, "experimental": True}
    assert json.loads(path.read_text()) == {**expected, "icc": False, "live-restore": False}
    assert f"remove the role's settings from {path}, which was edited since" in said


def test_only_the_registry_credential_of_provision_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docker's own file of logins loses our registry alone."""
    login = load("docker_engine", "docker_engine_login")
    path = tmp_path / "config.json"
    path.write_text('{"auths": {"theirs": {"auth": "eA=="}}}')

    def docker(_self: Any, command: list[str], **_more: Any) -> tuple[int, str, str]:
        document = json.loads(path.read_text())
        document["auths"][command[-1]] = {"auth": "b3VyczpodW50ZXIy"}
        path.write_text(json.dumps(document))
        return 0, "", ""

    monkeypatch.setattr(login.AnsibleModule, "run_command", docker)
    run(login, folder=str(tmp_path), logins=[{"registry": "r:5000", "username": "ours", "password_secret": "hunter2"}])
    assert "r:5000" in path.read_text()

    reset()

    assert path.read_text() == '{"auths": {"theirs": {"auth": "eA=="}}}'


def test_a_sysctl_is_restored_unless_changed_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The running kernel gets its original values; a value that was changed since is reported and stays."""
    kernel = importlib.import_module("ansible.module_utils.platform_undo_kernel")
    sysctl = load("base_system", "base_system_sysctl")
    monkeypatch.setattr(sysctl, "live_path", lambda key: str(tmp_path / key))
    for key in ("vm.one", "vm.two"):
        (tmp_path / key).write_text("1\t2\n")
    run(sysctl, path=str(tmp_path / "90.conf"), values={"vm.one": 5, "vm.two": 6})
    (tmp_path / "vm.two").write_text("7\n")
    left: list[str] = []

    steps = kernel.sysctl_steps(left)
    for step in steps:
        step.act()

    assert [step.sentence for step in steps] == ["set vm.one back to 1 2"]
    assert (tmp_path / "vm.one").read_text() == "1 2"
    assert "vm.two at 7" in left[0]


def test_a_replaced_folder_is_restored(tmp_path: Path) -> None:
    """The sources of a vendor's module that the role replaces are saved completely."""
    sources = tmp_path / "nv_peer_mem-1.0"
    (sources / "a").mkdir(parents=True)
    (sources / "a" / "x.c").write_text("theirs\n")
    origin.record_file(str(sources))
    (sources / "a" / "x.c").write_text("ours\n")
    (sources / "new").write_text("ours\n")

    reset()

    assert {path.name for path in sources.iterdir()} == {"a"}
    assert (sources / "a" / "x.c").read_text() == "theirs\n"
    assert reset() == []
