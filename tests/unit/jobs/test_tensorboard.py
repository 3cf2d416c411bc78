"""The TensorBoard container, with a STAND-IN for docker; and the commands that access a job."""

import json
import os
import subprocess
import sys
import urllib.request
from dataclasses import replace

import pytest

from provision.batch.data import new_volume
from provision.errors import NodeError, NotFound
from provision.jobs.extras import JobExtras
from provision.jobs.forward import attach_argv, forward_argv
from provision.jobs.job_access import forward_argv as access_argv
from provision.jobs.tensorboard import start_tensorboard
from provision.model import Cluster, Connection
from provision.model.job import Assignment, CodeSource, JobRecord, JobSpec, JobStatus, Kind
from provision.testing import make_node
from tests.support.git_server import NodeFolder

DOCKER = """#!/bin/sh
cd {folder}
echo "$*" >> calls
case "$1 $*" in
create*bare:1*) echo bare > image ;;
create*broken:1*) echo broken > image ;;
create*) echo good > image; echo mnist > owner; for word; do :; done; echo "$word" > port ;;
start*)
  case $(cat image) in
  bare) echo 'exec: "tensorboard": executable file not found in $PATH: unknown' >&2; exit 1 ;;
  good) {python} -m http.server --bind 127.0.0.1 "$(cat port)" >/dev/null 2>&1 & echo $! > pid ;;
  esac ;;
inspect*provision.job*) [ -e owner ] || {{ echo "Error: No such container"; exit 1; }}; cat owner ;;
inspect*) case $(cat image) in good) echo true 0 ;; *) echo false 3 ;; esac ;;
logs*) echo "ImportError: protobuf" ;;
rm*) [ ! -e pid ] || kill "$(cat pid)" 2>/dev/null; rm -f pid ;;
esac
"""
ASSIGNMENT = Assignment("mnist-master-0", "master", 0, "gpu1", "127.0.0.1", 0, is_leader=True)


@pytest.fixture
def node(tmp_path):
    """A node with the STAND-IN; its processes are ended."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "docker").write_text(DOCKER.format(folder=tmp_path, python=sys.executable))
    (programs / "docker").chmod(0o755)
    result = NodeFolder("gpu1", tmp_path, path=f"{programs}:{os.environ['PATH']}")
    yield result
    subprocess.run([programs / "docker", "rm", "all"], check=True)


def record(tmp_path, image):
    spec = JobSpec("mnist", Kind.PYTORCH, ("true",), image=image, tensorboard=True, logdir="/logs/a")
    spec = replace(spec, data=(("v", "/logs"),))
    return JobRecord(spec, "id1", "a@h", 0.0, JobStatus.RUNNING, assignments=(ASSIGNMENT,), started=1.0), [
        new_volume("v", "path", str(tmp_path))
    ]


@pytest.mark.row(27)
def test_the_reported_url_answers(node, tmp_path):
    """On the address of the leader and a free port."""
    job, volumes = record(tmp_path, "good:1")
    url = start_tensorboard(node, job, volumes)

    assert urllib.request.urlopen(url, timeout=5).status == 200  # noqa: S310


def test_another_container_with_the_same_name_is_not_changed(node, tmp_path):
    """A user may have given it this name."""
    job, volumes = record(tmp_path, "good:1")
    (tmp_path / "owner").write_text("\n")

    with pytest.raises(NodeError, match="could not be started") as caught:
        start_tensorboard(node, job, volumes)

    assert "does not belong to the job mnist" in caught.value.output
    assert "rm" not in {line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()}


def test_its_port_is_leased_while_it_runs(node, tmp_path):
    """So that two simultaneous jobs do not choose the same port."""
    job, volumes = record(tmp_path, "good:1")
    leases = node.run_folder / "leases"
    leases.mkdir(parents=True)
    taken = leases / "port-6006"
    taken.write_text('{"job": "other", "id": "t2", "attempt": 1}')

    port = start_tensorboard(node, job, volumes).rpartition(":")[2]
    held = {path.name: json.loads(path.read_text())["id"] for path in leases.iterdir()}

    assert held == {"port-6006": "t2", f"port-{port}": "id1"}


@pytest.mark.parametrize(
    ("image", "why"),
    [("bare:1", "the image bare:1 does not contain tensorboard"), ("broken:1", r"exited immediately \(exit code 3\)")],
)
def test_a_failed_start_is_reported_with_reason_and_remedy(node, tmp_path, image, why):
    """No container is left."""
    job, volumes = record(tmp_path, image)

    with pytest.raises(NodeError, match=why) as caught:
        start_tensorboard(node, job, volumes)

    assert caught.value.remedy
    assert (tmp_path / "calls").read_text().splitlines()[-1].startswith("rm --force")


@pytest.mark.parametrize(
    ("image", "words"), [("bare:1", "does not contain tensorboard"), ("broken:1", "\n  | ImportError: protobuf")]
)
def test_the_job_starts_if_tensorboard_fails(node, tmp_path, image, words):
    """The reason has its last output."""
    job, volumes = record(tmp_path, image)
    entries = {"v": {"kind": "path", "path": volumes[0].path}}
    host = replace(make_node("gpu1"), variables={"cluster_data": entries})
    said = []

    url = JobExtras(Cluster("c", tmp_path, (host,))).after(job, node, said.append)

    assert url == ""
    assert words in "\n".join(said)


@pytest.mark.row(23, 25, 28)
def test_a_job_mounts_its_data_its_code_and_a_log_folder(tmp_path):
    """The log folder only if it is on no volume."""
    entries = {"v": {"kind": "nfs", "path": "/mnt/v", "source": "nas:/v", "read_only": True}}
    host = replace(make_node("gpu1"), variables={"cluster_data": entries})
    extras = JobExtras(Cluster("c", tmp_path, (host,)))
    spec = JobSpec("mnist", Kind.PYTORCH, ("true",), data=(("v", "/data"),), tensorboard=True)
    spec = replace(spec, sync=CodeSource("git", "https://h/group/mnist.git"))

    assert extras.mounts(spec, "gpu1") == [
        "/mnt/v:/data:ro",
        "/var/lib/provision/jobs/mnist/code/mnist:/root/code/mnist",
        "/var/lib/provision/jobs/mnist/logs:/training_logs",
    ]
    assert len(extras.mounts(replace(spec, logdir="/data/logs"), "gpu1")) == 2


@pytest.mark.row(25)
def test_a_job_does_not_start_if_a_node_lacks_its_data(node, tmp_path):
    """Before its code is copied; the node and the volume are named."""
    host = replace(make_node("gpu1"), variables={"cluster_data": {"v": {"kind": "path", "path": f"{tmp_path}/gone"}}})
    job, _ = record(tmp_path, "bare:1")

    with pytest.raises(NodeError, match=r"gpu1: data volume v: .*No such file"):
        JobExtras(Cluster("c", tmp_path, (host,))).before(job, {"gpu1": node}, print)


@pytest.mark.row(30)
def test_a_forwarded_port_is_reachable_from_this_machine_only():
    """By the operator's ssh with its settings and host key checks; it ends if the port is in use."""
    connection = Connection("gpu1.example.com", user="me", jump="gate")
    argv = forward_argv(connection, 9090, "fd00::1", 6006)
    asked = subprocess.run([argv[0], "-G", *argv[1:]], capture_output=True, text=True, check=True).stdout.splitlines()

    assert "localforward [127.0.0.1]:9090 [fd00::1]:6006" in asked
    assert "stricthostkeychecking true" in asked
    assert "exitonforwardfailure yes" in asked
    assert "sessiontype none" in asked
    assert "proxyjump gate" in asked
    assert argv[-1] == "gpu1.example.com"


@pytest.mark.parametrize(
    ("wanted", "status", "remedy"),
    [
        (False, JobStatus.RUNNING, "with --tensorboard."),
        (True, JobStatus.PENDING, "provision get mnist"),
        (True, JobStatus.RUNNING, "--tensorboard-image"),
    ],
)
def test_a_job_without_a_running_tensorboard_gets_a_remedy_that_helps(tmp_path, wanted, status, remedy):
    """The remedy for a job that asked for it is not to ask for it."""
    job, _ = record(tmp_path, "bare:1")
    job = replace(job, spec=replace(job.spec, tensorboard=wanted), status=status)

    with pytest.raises(NotFound) as caught:
        access_argv(job, {"gpu1": make_node("gpu1")}, 6006, "tensorboard")

    assert remedy in (caught.value.remedy or "")


def test_attaching_runs_the_command_unchanged():
    """Through two shells, with a terminal."""
    argv = attach_argv(Connection("gpu1", become=False), "mnist-master-0", ["sh", "-c", "echo \"$HOME\" 'x'"])
    asked = subprocess.run([argv[0], "-G", *argv[1:]], capture_output=True, text=True, check=True).stdout.splitlines()
    shown = argv[-1].replace("docker exec", "printf '%s|'")
    here = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, check=True)

    assert "requesttty true" in asked
    assert here.stdout == "--interactive|--tty|mnist-master-0|sh|-c|echo \"$HOME\" 'x'|"
    root = attach_argv(Connection("gpu1"), "c", ["sh"], terminal=False)
    assert "-t" not in root
    assert "sudo docker exec --interactive c sh" in root[-1]
