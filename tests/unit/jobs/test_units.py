"""Instances that are processes of their node: the real shim and supervisor as processes, systemd is a STAND-IN."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import pytest

from provision.node import files as node_files
from provision.node.jobs import gpus as node_gpus
from provision.node.jobs import mountpoints as node_mountpoints
from provision.node.jobs import units as node_units
from provision.node.unit.command_line import unit_words
from tests.support.node.node import FakeNode, assignment, container, prepare, start

ROOT_ALONE = pytest.mark.skipif(os.geteuid() != 0, reason="an account is taken, which root alone can")


def unit(instance, *command, **more):
    """Return a unit's entry of the request to the job supervisor."""
    unit = {"user": "", "folder": "/", "command": list(command), "limits": {}, "binds": [], "private": []}
    return container(instance, **{"env": {}, **more}, unit=unit)


@ROOT_ALONE
@pytest.mark.row(12)
def test_a_process_of_the_node_is_supervised_like_a_container(tmp_path):
    """Its output by stream and time, its code, its lines of several words; nothing secret is left, nor its lease."""
    with FakeNode(tmp_path) as node:
        prepare(node, [assignment("j-worker-0", "a", 0)])
        line = "printf '%s' \"$TOKEN\" | tr a-z A-Z; printf '\\377\\n' >&2; echo \"$LINES\"; exit 7"
        env = {"TOKEN": "hunter2", "LINES": "one\ntwo"}
        start(node, [unit("j-worker-0", "sh", "-c", line, env=env)], clean="All")
        result = node.result()
        lines = (node.attempt() / "j-worker-0.log").read_bytes().splitlines()
        record = node.record("j-worker-0")

    assert (result["status"], result["exit_code"], result["first_failure"]) == ("FAILED", 7, "j-worker-0")
    assert (record["status"], record["exit_code"], record["reason"]) == ("Error", 7, "exit code 7")
    assert sorted(line[28:] for line in lines) == [b"e \xff", b"o HUNTER2one", b"o two"]
    assert list((node.run / "units").iterdir()) == []
    assert [path for path in tmp_path.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()] == []


@pytest.mark.long
@ROOT_ALONE
def test_what_the_node_has_not_is_named(tmp_path):
    """As the job's end: a program that is not there."""
    with FakeNode(tmp_path) as node:
        prepare(node, [assignment("j-worker-0", "a", 0)])
        start(node, [unit("j-worker-0", "nosuch", "-x")], clean="All")
        assert node.result()["reason"].endswith("nosuch: there is no such program on the node")


def test_systemd_gets_the_limits_and_no_mounts():
    """The shim makes the mounts: systemd would follow links of the account."""
    unit = {"limits": {"memlock": "-1", "nofile": "1024:-1"}, "binds": [["/a b:'c%n", "/d\\e", "ro"]], "private": []}
    words = unit_words("u", unit)
    assert not any("Bind" in word for word in words)
    assert {"--property=LimitMEMLOCK=infinity", "--property=LimitNOFILE=1024:infinity"} <= set(words)


@ROOT_ALONE
@pytest.mark.parametrize("below", ["", "/data"])
def test_nothing_is_mounted_by_way_of_another_accounts_link(tmp_path, monkeypatch, below):
    """It could lead to the node's own programs, which root's part of the unit would run as that account wants them."""
    monkeypatch.setattr(node_mountpoints, "MADE", str(tmp_path / "made"))
    monkeypatch.setattr(node_mountpoints, "LeaseLock", contextlib.nullcontext)
    (tmp_path / "system").mkdir()
    for name, owner in (("theirs", 2042), ("roots", 0)):
        (tmp_path / name).symlink_to("system")
        os.lchown(tmp_path / name, owner, owner)
    with pytest.raises(node_files.Refused, match="theirs is a link"):
        node_mountpoints.make([("", f"{tmp_path}/theirs{below}")])
    assert list((tmp_path / "system").iterdir()) == []
    node_mountpoints.make([("", f"{tmp_path}/roots{below}")])


@ROOT_ALONE
def test_a_mount_point_that_root_cannot_create_is_reported(monkeypatch):
    """As on homes of an NFS server that squashes root; what was made before that is known, and goes again."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:  # pytest's own are closed to other accounts
        folder = Path(made)
        (folder / "home").mkdir(0o755)
        os.chown(folder, 65534, 65534)
        monkeypatch.setattr(node_mountpoints, "MADE", f"{folder}/made")
        monkeypatch.setattr(node_mountpoints, "LeaseLock", contextlib.nullcontext)
        os.seteuid(65534)
        try:
            with pytest.raises(node_files.Refused, match=r"home/code .* --working-dir"):
                node_mountpoints.make([("", f"{folder}/a/b"), ("", f"{folder}/home/code")])
        finally:
            os.seteuid(0)
        assert node_files.read_json(f"{folder}/made") == {"made": [f"{folder}/a", f"{folder}/a/b"]}
        node_mountpoints.remove_unused()
        assert [path.name for path in folder.iterdir()] == ["home"]


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A driver with two GPUs and all its parts, as /proc shows it."""
    for number in range(2):
        place = tmp_path / f"gpus/0000:0{number}:00.0"
        place.mkdir(parents=True)
        text = f"Model: \t\t SIMULATED\nGPU UUID: \t GPU-{number}\nDevice Minor: \t {number}\n"
        (place / "information").write_text(text)
    kinds = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n\nBlock devices:\n  8 sd\n"
    (tmp_path / "devices").write_text(kinds)
    monkeypatch.setattr(node_units, "DRIVER", str(tmp_path / "gpus"))
    monkeypatch.setattr(node_units, "PROC", str(tmp_path))
    return tmp_path


def test_a_unit_is_excluded_from_the_gpus_of_other_jobs_only(driver):
    """Where the driver's parts are loaded; what would be loaded later would be denied."""
    devices = [word.partition("DeviceAllow=")[2] for word in node_units.device_words(["GPU-1"])]
    assert {"/dev/nvidia1 rwm", "char-mem rwm", "char-nvidia-uvm rwm", "block-* rwm"} <= set(devices)
    assert not {"/dev/nvidia0 rwm", "char-nvidia rwm", "char-nvidiactl rwm"} & set(devices)
    assert node_units.device_words(["MIG-1"]) == []
    (driver / "devices").write_text("Character devices:\n195 nvidia\n")
    assert node_units.device_words(["GPU-1"]) == []


@pytest.mark.parametrize("owner", [("j", "t1", "1"), ("j", "t2", "1"), ("k", "t1", "1")])
def test_a_process_of_a_unit_is_foreign_only_on_gpus_of_other_jobs(tmp_path, monkeypatch, owner):
    """By the unit that the kernel names."""
    unit_name = node_units.unit_of("j-worker-0", 1)
    (tmp_path / "4711").mkdir()
    (tmp_path / "4711/cgroup").write_text(f"0::/system.slice/{unit_name}/below\n")
    monkeypatch.setattr(node_gpus, "PROC", str(tmp_path))
    monkeypatch.setattr(node_gpus, "all_leases", lambda: {"GPU-0": {"job": "j", "id": "t1", "attempt": 1}})
    result = node_gpus.foreign_uses("GPU-0, 4711\n", [{"uuid": "GPU-0", "mig": []}], {unit_name: owner})
    assert list(result) == ([] if owner[:2] == ("j", "t1") else ["GPU-0"])
