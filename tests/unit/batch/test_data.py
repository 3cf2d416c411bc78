"""Data volumes as text: what can be one, where it goes in a container, and what nodes' answers mean."""

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
def test_a_volume_goes_where_the_job_says():
    """As docker takes it; one that is read-only is mounted so."""
    read_only = replace(PATH, read_only=True)

    mounts = mounts_for(job(("training-data", "/mnist_data/"), ("local", "/scratch")), cluster(NFS, read_only))

    assert mounts == ["/mnt/training-data:/mnist_data", "/data:/scratch:ro"]


@pytest.mark.row(25)
@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([("nowhere", "/x")], "there is no such volume; there are: training-data, local"),
        ([("local", "x")], "not to /"),
        ([("local", "/")], "not to /"),
        ([("local", "//")], "not to /"),
        ([("local", "/x/../etc")], "not to /"),
        ([("local", "/x:rw,shared")], "not to /"),
        ([("local", "/x"), ("local", "/y")], "twice"),
        ([("local", "/x"), ("training-data", "/x/")], "same place"),
    ],
)
def test_a_place_that_cannot_be_is_refused(data, said):
    """Before anything starts."""
    with pytest.raises(UsageError, match=said):
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
def test_a_volume_that_cannot_be_is_refused(kind, place, at):
    """With what was wrong about it."""
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
def test_an_entry_that_somebody_wrote_wrongly_is_named(raw):
    """The inventory can be edited by hand."""
    with pytest.raises(InventoryError, match="cluster_data, odd"):
        volumes_of(cluster(odd=raw))


def test_what_is_written_can_be_read():
    """All fields survive; what is empty is not written."""
    full = replace(NFS, read_only=True, description="MNIST", owner="alice", added="2026-01-31T12:00:00+00:00")

    assert volumes_of(cluster(full, PATH)) == {"training-data": full, "local": PATH}
    assert as_entry(PATH) == {"kind": "path", "path": "/data"}


@pytest.mark.row(25)
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"mount": DISK, "exists": True}, r"is not mounted: it lies on /dev/sda1 \(ext4\)"),
        ({**GOOD, "mount": {**MOUNTED, "source": "old:/x"}}, "mounted from old:/x, and not from nas:/export/data"),
        ({"hung": True, "mount": MOUNTED}, "does not answer within 10 s"),
        ({"mount": MOUNTED, "error": "Stale file handle", "errno": "ESTALE"}, "stale"),
        ({"mount": MOUNTED, "exists": True, "error": "Permission denied", "errno": "EACCES"}, "cannot be read"),
        ({**GOOD, "writable": False, "error": "Permission denied", "errno": "EACCES"}, "cannot be written to"),
        (NodeError("no answer", node="gpu2"), "no answer"),
        (None, "no answer"),
        ({}, "is not mounted"),
        ({"mount": "x", "error": 5}, "is not mounted"),
    ],
)
def test_what_is_wrong_on_one_node_is_said_of_that_node(answer, said):
    """And nothing of the other."""
    found = judge(NFS, {"gpu1": GOOD, "gpu2": answer})

    assert [(item.node, item.level) for item in found] == [("gpu2", "fail")]
    assert re.search(said, found[0].problem)


def test_a_volume_that_is_read_only_need_not_be_writable():
    """Its file system may be mounted so."""
    assert judge(replace(NFS, read_only=True), {"gpu1": {**GOOD, "writable": None}}) == []


def test_a_folder_of_each_nodes_own_disk_is_a_warning():
    """A job can use it, and should know."""
    there = {"exists": True, "readable": True, "writable": True, "mount": DISK}

    assert [item.level for item in judge(PATH, {"gpu1": there, "gpu2": there})] == ["warn"]
    assert judge(PATH, {"gpu1": there}) == []


def test_a_folder_that_is_shared_on_some_nodes_only():
    """One node with its own disk in the place of the share would train on nothing."""
    there = {"exists": True, "readable": True, "writable": True}

    found = judge(PATH, {"gpu1": {**there, "mount": MOUNTED}, "gpu2": {**there, "mount": DISK}})

    assert [(item.node, item.level) for item in found] == [("gpu2", "fail")]


@pytest.mark.row(26)
def test_access_modes_are_those_of_arena():
    """By what the volume is, and for a folder by what nodes say."""
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
def test_the_command_that_mounts_on_all_nodes_means_what_it_says(tmp_path, kind, source, read_only, line):
    """Whatever characters the source has: a shell reads it twice, here and on the node."""
    source = source.replace(" ", "")
    line = line.replace("$(touch x)", "$(touchx)")
    words = shlex.split(mount_everywhere(new_volume("a", kind, source, read_only=read_only)))
    assert words[:3] == ["provision", "exec", "--"]
    fstab = tmp_path / "fstab"
    script = (
        words[3].replace("/etc/fstab", str(fstab)).replace("mkdir -p /mnt/a", "true").replace("mount /mnt/a", "true")
    )
    subprocess.run(["sh", "-c", script], check=True)

    assert fstab.read_text() == line + "\n"
