"""The reference documents' own commands, on two nodes with two SIMULATED GPUs each; layouts are arena's."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import urllib.request

import pytest

from tests.integration.conftest import LAB
from tests.support.command import eventually
from tests.support.git_server import commit, git

NODES = (f"{LAB}-1", f"{LAB}-2")
AGE = r"\d+[smh]"
OWNER = r"\S+@\S+"
IPC_LOCK = 14
"""The number of Linux's capability."""
ADDRESS = r"\d+\.\d+\.\d+\.\d+"
BOARD = "board:1"
LOCAL = 19092
MPIRUN = "mpirun --allow-run-as-root -np 2 -bind-to none -map-by slot -x PATH --mca pml ob1 --mca btl ^openib echo here"
TRAIN = """\
echo "WORLD_SIZE: $WORLD_SIZE, CURRENT_RANK: $RANK"
mkdir -p "$2"
until [ -e "$1/go" ]; do sleep 0.2; done
echo loss >"$2/events.out.tfevents.1"
for epoch in 1 2 3 4 5 6; do echo "epoch $epoch of $(cat "$1/name")"; done
"""
"""Waits in its middle for a file among the data, and writes no events before."""
SCRIPT = """\
import os, torch, torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
if int(os.environ.get("WORLD_SIZE", 1)) > 1:
    dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(Net().cuda())
sampler = DistributedSampler(dataset)
for epoch in range(10):
    for batch in DataLoader(dataset, sampler=sampler):
        model(batch)
"""
"""Never calls its sampler's set_epoch."""
MAKE_BOARD = f"""set -e
printf '#!/bin/sh\\nexec python3 -m http.server --directory "$2" --bind "$4" "$6"\\n' >/root/tensorboard
chmod 755 /root/tensorboard
docker rm -f board >/dev/null 2>&1 || true
docker create --name board IMAGE true >/dev/null
docker cp /root/tensorboard board:/usr/local/bin/tensorboard
docker commit board {BOARD} >/dev/null
docker rm board >/dev/null
"""


@pytest.fixture
def inventory(cluster, ssh_files, tmp_path):
    """The lab's inventory, restored after the test."""
    assert cluster["nodes"]
    folder, backup = ssh_files / "inventory", tmp_path / "kept"
    shutil.copytree(folder, backup, symlinks=True)
    yield folder
    shutil.rmtree(folder)
    shutil.copytree(backup, folder, symlinks=True)


@pytest.fixture
def board(jobs, on_node):
    """An image on every node whose `tensorboard` shows the files of its log folder."""
    for node in NODES:
        on_node(node, MAKE_BOARD.replace("IMAGE", jobs.image))
    yield BOARD
    for node in NODES:
        on_node(node, f"docker rm -f dist-tensorboard 2>/dev/null; docker image rm -f {BOARD} >/dev/null")


@pytest.fixture
def data(jobs, inventory, on_node):
    """The volume training-data: a folder that each node has."""
    assert inventory.is_dir()
    for node in NODES:
        on_node(node, "rm -rf /srv/training && mkdir -p /srv/training && echo mnist >/srv/training/name")
    jobs.ok("data add", "training-data", "--path", "/srv/training")
    return "training-data"


def nodes_of(job):
    """The nodes of a job's instances."""
    return {instance["node"] for instance in job["instances"]}


def has_row(text, *cells):
    """Whether a line of a table has these cells, each as a pattern."""
    return re.search(rf"^ *{' +'.join(cells)} *$", text, re.MULTILINE) is not None


def fetched(url):
    """What is answered there; empty as long as nothing is."""
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(url, timeout=5).read().decode()  # noqa: S310 - our own address
    return ""


@pytest.mark.slow
@pytest.mark.row(2, 4, 5, 6, 8, 14, 15, 16, 17, 38, 42)
def test_topology_jobs_run_only_on_nodes_with_the_topology_label(jobs, inventory):
    """By the documents' label and flags; other jobs go elsewhere, until the node is labelled back."""
    assert inventory.is_dir()
    jobs.ok("node label", NODES[1], "ack.node.gpu.schedule=topology")
    asked = ("--gang", "--gpus=1", "--workers=2")
    jobs.submit("mpi", "vgg", "--gputopology=true", *asked, "--wait", MPIRUN)
    jobs.submit("mpi", "plain", *asked, "--wait", MPIRUN)
    untyped = ("--name=untyped", f"--image={jobs.image}", "--gputopology=true", *asked, "--wait", MPIRUN)
    assert "mpi" in jobs.ok("submit", *untyped).err

    assert jobs.logs("vgg") == ["here", "here"]
    assert (nodes_of(jobs.get("vgg")), nodes_of(jobs.get("plain"))) == ({NODES[1]}, {NODES[0]})
    assert (jobs.get("untyped")["trainer"], nodes_of(jobs.get("untyped"))) == ("mpijob", {NODES[1]})
    assert jobs.ok("list", "-T", "mpi", "-o", "json").document[0]["name"] == "untyped"
    shown = jobs.ok("get", "vgg", "--type", "mpijob").out
    assert has_row(shown, "NAME", "STATUS", "AGE", "IS_CHIEF", r"GPU\(Requested\)", "NODE")
    assert has_row(shown, "vgg-launcher-[a-z0-9]{5}", r"\S+", AGE, "true", "0", NODES[1])
    assert all(has_row(shown, f"vgg-worker-{n}", r"\S+", AGE, "false", "1", NODES[1]) for n in range(2))

    jobs.submit("run", "wide", "--gpus=1", "--workers=3", "true", code=5)
    jobs.ok("node label", NODES[1], "gpu.schedule=default", "--overwrite")
    jobs.submit("run", "wide", "--gpus=1", "--workers=3", "--wait", "true")
    assert nodes_of(jobs.get("wide")) == set(NODES)
    assert "gpu.schedule=topology" in jobs.submit("mpi", "late", "--gputopology", *asked, MPIRUN, code=5).err


@pytest.mark.row(8, 10, 14, 15, 16, 38, 42)
def test_an_mpi_job_is_listed_with_its_launcher_and_workers(jobs):
    asked = ("--gang", "--gpus=1", "--workers=2")
    jobs.submit("mpi", "mpi-plain", *asked, "--wait", MPIRUN)
    untyped = ("--name=mpi-untyped", f"--image={jobs.image}", *asked, "--wait", MPIRUN)
    jobs.ok("submit", "mpi", *untyped)

    assert jobs.logs("mpi-plain") == ["here", "here"]
    assert [job["name"] for job in jobs.ok("list", "-T", "mpi", "-o", "json").document][:2] == [
        "mpi-untyped",
        "mpi-plain",
    ]
    shown = jobs.ok("get", "mpi-plain", "--type", "mpijob").out
    assert has_row(shown, "NAME", "STATUS", "AGE", "IS_CHIEF", r"GPU\(Requested\)", "NODE")
    assert has_row(shown, "mpi-plain-launcher-[a-z0-9]{5}", r"\S+", AGE, "true", "0", rf"{LAB}-[12]")
    assert all(has_row(shown, f"mpi-plain-worker-{n}", r"\S+", AGE, "false", "1", rf"{LAB}-[12]") for n in range(2))
    jobs.submit("run", "mpi-wide", "--gpus=1", "--workers=3", "--wait", "true")
    assert nodes_of(jobs.get("mpi-wide")) == set(NODES)
    jobs.ok("delete", "mpi-plain", "mpi-untyped", "mpi-wide")


@pytest.mark.row(11, 21, 23, 25, 26, 27, 28, 29, 30, 31, 32, 33, 36, 37, 40, 41, 43, 57, 61)
def test_the_pytorch_job_of_the_reference_document_works_from_submission_to_logs(jobs, data, board, on_node, tmp_path):
    """Three workers with code, data and TensorBoard: each command of the document, and what it shows."""
    repository = tmp_path / "mnist-pytorch.git"
    repository.mkdir()
    git(repository, "init", "-q")
    sha = commit(repository, "train.sh", TRAIN)
    logs = "/mnist_data/pytorch_data/logs"
    words = ["--gpus=1", "--workers=3", "--working-dir=/root", f"--data={data}:/mnist_data", f"--logdir={logs}"]
    words += ["--sync-mode=git", f"--sync-source={repository}", "--tensorboard", f"--tensorboard-image={board}"]
    assert has_row(jobs.ok("data list").out, data, "ReadWriteOnce", ".*", r"\d+[smh]")

    said = jobs.submit(
        "pytorch", "dist", "--loglevel=info", *words, f"sh /root/code/mnist-pytorch/train.sh /mnist_data {logs}"
    ).err
    assert re.search(r"^INFO\[\d{4}\] The Job dist has been submitted successfully$", said, re.MULTILINE)
    assert f"You can run `provision get dist --type pytorchjob --lab {LAB}` to check the job status" in said
    assert jobs.until("dist", "RUNNING")["codeSHA"] == sha
    running(jobs)
    advised(jobs, tmp_path / "train.py")

    for node in NODES:
        on_node(node, "touch /srv/training/go")
    followed = jobs.ok("logs", "-f", "dist").out.splitlines()
    assert (followed[0], followed[-1]) == ("WORLD_SIZE: 3, CURRENT_RANK: 0", "epoch 6 of mnist")
    jobs.until("dist", "SUCCEEDED")
    assert jobs.logs("dist") == followed
    assert jobs.logs("dist", "dist-worker-0")[0] == "WORLD_SIZE: 3, CURRENT_RANK: 1"
    assert jobs.ok("logs", "dist", "-t", "5").out.splitlines() == followed[-5:]
    assert has_row(jobs.ok("list").out, "dist", "SUCCEEDED", "PYTORCHJOB", AGE, "N/A", OWNER)
    assert has_row(jobs.ok("top job").out, "dist", "3", "0", "SUCCEEDED", "pytorchjob", AGE, "N/A")
    tensorboard(jobs, on_node)


def running(jobs):
    """What is shown of the job while it runs."""
    listed, top, nodes = jobs.ok("list").out, jobs.ok("top job").out, jobs.ok("top node").out

    assert has_row(listed, "NAME", "STATUS", "TRAINER", "AGE", "NODE", "OWNER")
    assert has_row(listed, "dist", "RUNNING", "PYTORCHJOB", AGE, ADDRESS, OWNER)
    assert has_row(top, "NAME", r"GPU\(Requests\)", r"GPU\(Allocated\)", "STATUS", "TRAINER", "AGE", "NODE")
    assert has_row(top, "dist", "3", "3", "RUNNING", "pytorchjob", AGE, ADDRESS)
    assert "\nTotal Allocated GPUs of Training Job:\n3\n" in top
    assert has_row(nodes, "NAME", "IPADDRESS", "ROLE", "STATUS", r"GPU\(Total\)", r"GPU\(Allocated\)")
    assert has_row(nodes, NODES[0], ADDRESS, "master", "Ready", "2", "[12]")
    assert has_row(nodes, NODES[1], ADDRESS, "<none>", "Ready", "2", "[12]")
    assert re.search(r"^-+\nAllocated/Total GPUs In Cluster:\n3/4 \(75%\)$", nodes, re.MULTILINE)


def advised(jobs, script):
    """While the SIMULATED GPUs do nothing and no events are written; the script is judged in the same breath."""
    script.write_text(SCRIPT)
    advice = jobs("advise", "dist", "--for", "15s", "--script", str(script), "--json")
    checks = {finding["check"]: finding for finding in advice.document["findings"]}
    rules = {rule["rule"]: rule["verdict"] for rule in advice.document["rules"]}

    assert advice.code == 1, str(advice)
    assert {node["node"] for node in advice.document["nodes"]} == set(NODES)
    assert checks["no-tensorboard-events"]["evidence"].startswith("no file of events yet")
    assert checks["wrong-device-use"]["verdict"] == "found"
    assert checks["wrong-device-use"]["simulated"]
    assert [rule for rule, verdict in rules.items() if verdict == "broken"] == ["set_epoch"]


def tensorboard(jobs, on_node):
    """It outlives the run, is seen through a forwarded port, and goes with the job."""
    shown = jobs.ok("get", "dist", "--type", "pytorchjob").out.splitlines()
    assert shown[-2] == "Your tensorboard will be available on:"
    assert re.fullmatch(rf"http://{ADDRESS}:\d+", shown[-1])

    forward = jobs.provision.start("port-forward", "dist", f"{LOCAL}:tensorboard", "--lab", LAB)
    try:
        page = eventually(lambda: fetched(f"http://127.0.0.1:{LOCAL}/"), seconds=60, what="TensorBoard answers")
    finally:
        forward.terminate()
        forward.communicate(timeout=30)
    assert "events.out.tfevents" in page
    jobs.ok("delete", "dist")
    assert "".join(on_node(node, "docker ps -aq --filter label=provision.job=dist") for node in NODES) == ""


@pytest.mark.row(10, 42, 48, 60)
def test_a_running_job_is_reported_on_its_gpu_and_is_not_privileged(jobs, on_node):
    """The host's network, memory as asked for, not privileged; without GPUs asked for it has none."""
    jobs.submit("run", "box", "--gpus=1", f"--nodes={NODES[0]}", "--share-memory=2Gi", "sleep 600")
    jobs.until("box", "RUNNING")
    (inside,) = json.loads(on_node(NODES[0], "docker inspect box-worker-0"))
    host = inside["HostConfig"]

    assert (host["NetworkMode"], host["Privileged"], host["ShmSize"]) == ("host", False, 2 * 1024**3)
    assert any(name.endswith("IPC_LOCK") for name in host["CapAdd"])
    for table in (jobs.ok("top gpu").out, jobs.ok("top job", "box").out):
        assert "box-worker-0" in table
        assert "SIMULATED" in table
    jobs.ok("stop", "box")
    assert has_row(jobs.ok("list").out, "box", "STOPPED", "RUNJOB", AGE, "N/A", OWNER)
    jobs.submit("run", "cpu", "--wait", "echo $NVIDIA_VISIBLE_DEVICES")
    assert jobs.logs("cpu") == ["void"]


@pytest.mark.row(49)
def test_a_node_that_cannot_start_privileged_containers_is_reported(jobs, on_node):
    """As every node of this lab, which is a container; without the flag the same job runs, and locks what it may."""
    words = ("--gpus=1", f"--nodes={NODES[1]}", "--wait", "grep ^CapEff /proc/self/status; command -v ibv_devices")
    errors = jobs.submit("run", "all", "--privileged", *words, code=1).err
    jobs.submit("run", "less", *words)

    assert (
        f"node {NODES[1]}: starting all-worker-0 failed: this node cannot start containers with --privileged" in errors
    )
    assert "operation not permitted" in jobs.get("all")["reason"]
    assert on_node(NODES[1], "docker ps -aq --filter label=provision.job=all") == ""
    rights, program = jobs.logs("less")
    assert int(rights.split()[1], 16) & 1 << IPC_LOCK
    assert program.endswith("/ibv_devices")


@pytest.mark.row(1, 44)
def test_verify_compares_nodes_with_the_minimum_versions_of_the_guides(provision, cluster):
    """Component by component: what is new enough passes, and a container node without RDMA fails the guide to it."""
    assert cluster["nodes"]
    new = provision("verify", "--lab", LAB, "--profile", "topology", "--json").document
    rdma = provision("verify", "--lab", LAB, "--profile", "taco")

    components = {
        part["component"]: (part["found"], part["status"]) for part in new["profile"]["nodes"][1]["components"]
    }
    assert [node["name"] for node in new["profile"]["nodes"]] == list(NODES)
    assert components["driver"] == ("535.183.06", "pass")
    assert (components["docker"][1], components["system"]) == ("pass", ("debian 13", "pass"))
    assert components["Kubernetes"] == (None, "skip")
    assert rdma.code == 1
    assert has_row(rdma.out, "RDMA", "an active device", "-", "fail")
    assert has_row(rdma.out, "driver", "any", "535.183.06", "pass SIMULATED")


@pytest.mark.row(47)
def test_the_training_image_is_the_same_on_all_nodes_and_its_contents_are_listed(jobs):
    """By its id, and by the versions of what it has."""
    listed = jobs.ok("image list", jobs.image, "--json").document
    versions = jobs.ok("image inspect", jobs.image, "--json").document["versions"]

    assert listed["same"]
    assert len(listed["nodes"]) == len(NODES)
    assert versions["os"].startswith("Debian")
