"""Data volumes: entries, mounts in containers, and problems on nodes."""

import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from provision.batch.data import access_mode, as_entry, judge, mount_everywhere, mounts_for, new_volume, volumes_of
from provision.errors import InventoryError, NodeError, UsageError
from provision.model import Cluster
from provision.model.job import JobSpec, Kind
from provision.testing import make_node

NFS = new_volume("training-data", "nfs", "nas:/export/data")
PATH = new_volume("local", "path", "/data")
MOUNTED = {"type": "nfs4", "source": "nas:/export/data", "at": "/mnt/training-data"}
DISK = {"type": "ext4", "source": "/dev/sda1", "at": "/"}
GOOD = {"exists": True, "readable": True, "writable": True, "mount": MOUNTED}


def cluster(*volumes, **raw):
    entries = {volume.name: as_entry(volume) for volume in volumes} | raw
    node = replace(make_node("gpu1"), variables={"cluster_data": entries})
    return Cluster("c", Path("hosts.yml"), (node,))


def job(*data):
    return JobSpec("j", Kind.PYTORCH, ("true",), data=data)


@pytest.mark.row(25)
def test_a_volume_is_mounted_at_its_target():
    """In docker's syntax; read-only volumes are mounted read-only."""
    read_only = replace(PATH, read_only=True)

    mounts = mounts_for(job(("training-data", "/mnist_data/"), ("local", "/scratch")), cluster(NFS, read_only))

    assert mounts == ["/mnt/training-data:/mnist_data", "/data:/scratch:ro"]


@pytest.mark.row(25)
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([("nowhere", "/x")], "unknown volume; known volumes: training-data, local"),
        ([("local", "x")], "not /"),
        ([("local", "/")], "not /"),
        ([("local", "//")], "not /"),
        ([("local", "/x/../etc")], "not /"),
        ([("local", "/x:rw,shared")], "not /"),
        ([("local", "/x"), ("local", "/y")], "twice"),
        ([("local", "/x"), ("training-data", "/x/")], "same target"),
    ],
)
def test_an_invalid_target_is_refused(data, expected):
    """Before the job starts."""
    with pytest.raises(UsageError, match=expected):
        mounts_for(job(*data), cluster(NFS, PATH))


@pytest.mark.parametrize(
    ("kind", "place", "at"),
    [
        ("nfs", "nas", ""),
        ("nfs", "nas:export", ""),
        ("path", "relative", ""),
        ("path", "/", ""),
        ("path", "/a b", ""),
        ("path", "/a/../etc", ""),
        ("path", "/a", "/b"),
        ("lustre", "mgs", ""),
        ("s3fs", "a b", ""),
        ("nfs", "nas:/x", "mnt"),
    ],
)
def test_an_invalid_volume_is_refused(kind, place, at):
    """The message contains the value."""
    with pytest.raises(UsageError):
        new_volume("v", kind, place, at)


@pytest.mark.parametrize(
    "raw",
    [
        "text",
        {"kind": "ftp", "path": "/x"},
        {"kind": "path"},
        {"kind": "path", "path": "/x", "pth": "/y"},
        {"kind": "nfs", "path": "/x"},
    ],
)
def test_an_invalid_entry_is_an_error_with_its_name(raw):
    """The inventory can be edited manually."""
    with pytest.raises(InventoryError, match="cluster_data, odd"):
        volumes_of(cluster(odd=raw))


def test_entries_of_volumes_can_be_parsed():
    """All fields are preserved; empty ones are omitted."""
    full = replace(NFS, read_only=True, description="MNIST", owner="alice", added="2026-01-31T12:00:00+00:00")

    assert volumes_of(cluster(full, PATH)) == {"training-data": full, "local": PATH}
    assert as_entry(PATH) == {"kind": "path", "path": "/data"}


@pytest.mark.row(25)
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"mount": DISK, "exists": True}, r"is not mounted: it is on /dev/sda1 \(ext4\)"),
        ({**GOOD, "mount": {**MOUNTED, "source": "old:/x"}}, "mounted from old:/x instead of nas:/export/data"),
        ({"hung": True, "mount": MOUNTED}, "does not answer within 10 s"),
        ({"mount": MOUNTED, "error": "Stale file handle", "errno": "ESTALE"}, "stale"),
        ({"mount": MOUNTED, "exists": True, "error": "Permission denied", "errno": "EACCES"}, "cannot be read"),
        ({**GOOD, "writable": False, "error": "Permission denied", "errno": "EACCES"}, "cannot be written to"),
        (NodeError("no answer", node="gpu2"), "no answer"),
        (None, "answer of the node is invalid"),
        ({}, "is not mounted"),
        ({"mount": "x", "error": 5}, "is not mounted"),
    ],
)
def test_a_problem_is_reported_for_its_node(answer, expected):
    """The other node has no problem."""
    findings = judge(NFS, {"gpu1": GOOD, "gpu2": answer})

    assert [(item.node, item.level) for item in findings] == [("gpu2", "fail")]
    assert re.search(expected, findings[0].problem)


def test_a_read_only_volume_need_not_be_writable():
    """Its file system may be mounted read-only."""
    assert judge(replace(NFS, read_only=True), {"gpu1": {**GOOD, "writable": None}}) == []


def test_a_folder_on_local_disks_is_a_warning():
    """Jobs can use it."""
    there = {"exists": True, "readable": True, "writable": True, "mount": DISK}

    assert [item.level for item in judge(PATH, {"gpu1": there, "gpu2": there})] == ["warn"]
    assert judge(PATH, {"gpu1": there}) == []


def test_a_folder_that_only_some_nodes_share_is_a_problem():
    """A node with a local disk instead of the share would have no data."""
    there = {"exists": True, "readable": True, "writable": True}

    findings = judge(PATH, {"gpu1": {**there, "mount": MOUNTED}, "gpu2": {**there, "mount": DISK}})

    assert [(item.node, item.level) for item in findings] == [("gpu2", "fail")]


@pytest.mark.row(26)
def test_access_modes_are_those_of_arena():
    """They depend on the kind; for a folder, on the answers of nodes."""
    disk, share = {"n": {"mount": DISK}}, {"n": {"mount": MOUNTED}}

    assert access_mode(NFS, {}) == "ReadWriteMany"
    assert access_mode(replace(NFS, read_only=True), {}) == "ReadOnlyMany"
    assert access_mode(PATH, disk) == "ReadWriteOnce"
    assert access_mode(PATH, share) == "ReadWriteMany"


@pytest.mark.parametrize(
    ("kind", "source", "read_only", "line"),
    [
        ("nfs", "nas:/a", False, "nas:/a /mnt/a nfs _netdev 0 0"),
        ("nfs", "nas:/$(touch x)'\"", True, "nas:/$(touch x)'\" /mnt/a nfs ro,_netdev 0 0"),
        ("lustre", "10.0.0.1@tcp:/a", False, "10.0.0.1@tcp:/a /mnt/a lustre _netdev 0 0"),
        ("s3fs", "bucket", True, "bucket /mnt/a fuse.s3fs ro,_netdev,allow_other 0 0"),
    ],
)
def test_the_mount_command_quotes_its_arguments(tmp_path, kind, source, read_only, line):
    """Two shells parse it: the local one and that of the node."""
    source = source.replace(" ", "")
    line = line.replace("$(touch x)", "$(touchx)")
    words = shlex.split(mount_everywhere(new_volume("a", kind, source, read_only=read_only)))
    assert words[:3] == ["provision", "exec", "--"]
    fstab, mounted = tmp_path / "fstab", tmp_path / "mounted"
    (tmp_path / "mount").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{mounted}\nexit ${{MOUNT_CODE:-0}}\n')
    (tmp_path / "mount").chmod(0o755)
    script = words[3].replace("/etc/fstab", str(fstab)).replace("mkdir -p /mnt/a", "true")
    search = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    refused = subprocess.run(["sh", "-c", script], env={**search, "MOUNT_CODE": "32"}, check=False)
    assert (refused.returncode, fstab.exists()) == (32, False), "a volume that cannot be mounted delays the next boot"

    subprocess.run(["sh", "-c", script], env=search, check=True)
    device, folder, file_system, options = line.split()[:4]
    assert mounted.read_text().splitlines() == ["-t", file_system, "-o", options, device, folder]
    assert fstab.read_text() == line + "\n"
