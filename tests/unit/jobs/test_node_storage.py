"""A node that cannot store files reports the full file system and a remedy instead of an error number."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys

import pytest

from provision.facts import parameters
from provision.node.jobs import storage as node_storage
from tests.support.node.archive import ARCHIVE

FILL = """
mount -t tmpfs -o {options} none "$1" || exit 77
dd if=/dev/zero of="$1/fill" bs=1k 2>/dev/null
touch "$1/last" 2>/dev/null
PROVISION_JOBS_ROOT="$1/jobs" PROVISION_JOBS_RUN="$2" exec {python} -I -S "$3" jobs
"""


@pytest.fixture
def asked(tmp_path):
    """Send a request to a node whose file system for jobs is real and full."""

    def ask(options, do, **request):
        if not shutil.which("unshare"):
            pytest.skip("unshare is not installed")
        (tmp_path / "full").mkdir()
        (tmp_path / "run").mkdir()
        script = FILL.format(options=options, python=sys.executable)
        words = ["unshare", "-rm", "sh", "-c", script, "sh", *map(str, (tmp_path / "full", tmp_path / "run"))]
        done = subprocess.run(
            [*words, str(ARCHIVE)],
            input=json.dumps({"do": do, **request}) + "\n",
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 77 or "unshare" in done.stderr:
            pytest.skip(f"no file system can be mounted here: {done.stderr}")
        return json.loads(done.stdout)

    return ask


@pytest.mark.parametrize("options", ["size=16k", "size=64k,nr_inodes=2"], ids=["blocks", "inodes"])
def test_a_request_on_a_full_disk_names_the_file_system_and_the_remedy(asked, tmp_path, options):
    """`submit` prints the answer of the node."""
    error = asked(options, "reserve", name="j", job={"id": "t1", "padding": "x" * 20000})["error"]

    assert str(tmp_path / "full") in error["message"]
    assert error["message"].endswith("cannot be written: no space left")
    assert error["remedy"].startswith(f"Free space on the file system of {tmp_path / 'full'}")
    assert "Errno" not in json.dumps(error)


def test_a_read_only_file_system_and_a_used_up_quota_are_reported_with_a_remedy():
    locked = node_storage.refusal(OSError(errno.EROFS, "Read-only file system", "/var/lib/provision/jobs/j"))
    quota = node_storage.refusal(OSError(errno.EDQUOT, "Disk quota exceeded", "/srv/j"))

    assert locked.answer["error"]["message"] == (
        "/var/lib/provision/jobs/j cannot be written: its file system is mounted read-only"
    )
    assert "remount" in locked.answer["error"]["remedy"]
    assert quota.answer["error"]["message"] == "/srv/j cannot be written: its disk quota is used up"


def test_the_disks_that_jobs_and_roles_write_to_are_checked():
    """The check node.disks of `verify` fails if one of them is full."""
    assert {"/var/lib/provision", "/var/lib/provision/jobs", "/var/lib/docker", "/var/log"} <= set(
        parameters({}, []).paths
    )
    assert "/raid/docker" in parameters({"docker_engine_data_root": "/raid/docker"}, []).paths
