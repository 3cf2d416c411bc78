"""The node program that checks data volumes, run on this machine."""

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from provision.batch.data import new_volume
from provision.errors import NodeError
from provision.jobs.data import check_data, require_data
from provision.node import data_check
from tests.support.git_server import NodeFolder

MOUNTINFO = [
    {"at": "/", "type": "ext4", "source": "/dev/sda1"},
    {"at": "/mnt", "type": "ext4", "source": "/dev/sdb1"},
    {"at": "/mnt/data", "type": "autofs", "source": "auto"},
    {"at": "/mnt/data", "type": "nfs4", "source": "nas:/x"},
]


@pytest.fixture
def node(tmp_path):
    return {"gpu1": NodeFolder("gpu1", tmp_path)}


def test_an_existing_folder_passes_and_no_file_is_left_in_it(node, tmp_path):
    """The check writes to it and removes the file."""
    (tmp_path / "data").mkdir()

    assert check_data(node, [new_volume("v", "path", str(tmp_path / "data"))]) == []
    assert list((tmp_path / "data").iterdir()) == []


def test_an_unusable_volume_fails_with_node_name_and_remedy(node, tmp_path):
    """A file is no volume, and a disk is no NFS share."""
    (tmp_path / "file").write_text("")
    volumes = [
        new_volume("gone", "path", str(tmp_path / "gone")),
        new_volume("file", "path", str(tmp_path / "file")),
        new_volume("nas", "nfs", "nas:/x", str(tmp_path)),
    ]

    with pytest.raises(NodeError, match=r"gpu1: data volume gone: .*No such file") as caught:
        require_data(node, volumes)

    assert "mkdir" in caught.value.remedy
    assert "Not a directory" in caught.value.output
    assert "is not mounted" in caught.value.output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_reading_and_writing_is_tried_as_the_jobs_user(node):
    """Permissions of root do not apply to a job with --user."""
    with tempfile.TemporaryDirectory() as folder:  # pytest closes the folder of tmp_path to others at each start
        Path(folder).chmod(0o755)
        volume = new_volume("v", "path", folder)

        result = check_data(node, [volume], user="65534:65534")

        assert ["cannot be written to" in item.problem for item in result] == [True]
        assert check_data(node, [replace(volume, read_only=True)], user="65534:65534") == []


def test_a_hanging_mount_fails_after_a_time_limit(monkeypatch):
    """A process that accesses it may block forever."""
    monkeypatch.setattr(data_check, "touch", lambda _path, **_how: time.sleep(30))
    child = data_check.ask({"path": "/x"}, "")

    assert data_check.answer(child, time.monotonic() + 0.05) == {"hung": True}
    os.waitpid(child["pid"], 0)


@pytest.mark.parametrize(
    ("path", "source"), [("/mnt/data/a", "nas:/x"), ("/mnt/database", "/dev/sdb1"), ("/x", "/dev/sda1")]
)
def test_the_mount_of_a_path_is_the_nearest_and_the_last(path, source):
    """An automounter and its mount have the same mount point."""
    assert data_check.mount_of(path, MOUNTINFO)["source"] == source
