"""Sampling a job's nodes: the sampler runs on this machine; only the job engine is in memory."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from provision.advisor import thresholds
from provision.advisor.base import Verdict
from provision.batch import names
from provision.cli.main import main
from provision.errors import NodeUnreachable, UsageError
from provision.jobs.sampling import containers_of
from provision.model import Cluster
from provision.model.job import Assignment, InstanceRecord, JobRecord, JobSpec, JobStatus, Kind
from provision.model.job_views import GpuView, NodeView
from provision.testing import make_node
from provision.workflow import job_advice
from tests.support.memory_engine import MemoryEngine
from tests.support.processes import own_cgroup

WORKING = "import time\nwhile True: sum(range(50_000)); time.sleep(0.005)"
CHANNEL = "2026-01-31T12:00:00.123456Z o a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"
WINDOW = {"seconds": 2.0, "interval": 0.1}


SIMULATED_SMI = """#!/bin/sh
case "$*" in *query-compute*) exit 0;; esac
echo 'SIMULATED: for a test' >&2
while :; do
  for n in 0 1; do echo "GPU-$n, $n, H100, 00000000:3B:0$n.0, 0, 8, 80000, 70, 700, 30, 1, 1, 5, 16, 16"; done
  sleep 0.05
done
"""


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """Return the UUIDs of two idle GPUs, SIMULATED by a script on this machine. Few samples are enough here."""
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin/nvidia-smi"
    stub.write_text(SIMULATED_SMI)
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(thresholds, "FEWEST_SAMPLES", dataclasses.replace(thresholds.FEWEST_SAMPLES, value=2))
    return ["GPU-0", "GPU-1"]


@pytest.fixture
def working():
    """Start a process in place of a job's process."""
    job = subprocess.Popen([sys.executable, "-c", WORKING])
    yield job
    job.kill()
    job.wait()


def job_on(*nodes, gpus=(), status=JobStatus.RUNNING, container="", **spec):
    """Return a job with one worker on each node; all its containers are `container`."""
    slots = tuple(
        Assignment(f"train-worker-{n}", "worker", n, node, "10.0.0.1", n, n == 0, (0,), tuple(gpus), f"train-{n}")
        for n, node in enumerate(nodes)
    )
    known = {slot.instance: InstanceRecord(slot.instance, "Running", container_id=container) for slot in slots}
    made = JobSpec("train", Kind.RUN, ("x",), image="i", gpus=1, workers=len(nodes), **spec)
    return JobRecord(made, "id", "me@here", 1000.0, status, attempt=1, assignments=slots, instances=known)


def cluster_of(*nodes, dead=()):
    """Return nodes that all are this machine; `dead` ones have a port without a listener."""
    made = [make_node(name, local=True) for name in nodes]
    gone = [make_node(name) for name in dead]
    gone = [
        dataclasses.replace(one, connection=dataclasses.replace(one.connection, host="127.0.0.1", port=1))
        for one in gone
    ]
    return Cluster("test", Path("hosts.yml"), (*made, *gone))


@pytest.mark.row(61)
@pytest.mark.usefixtures("working")
def test_a_running_job_is_sampled_on_all_nodes_in_parallel(gpus, tmp_path, monkeypatch):
    folder = tmp_path / "train/attempts/1"
    folder.mkdir(parents=True)
    (folder / "train-worker-0.log").write_text(CHANNEL + "step 1\n" * 3)
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(names, "JOBS", str(tmp_path))
    job = job_on("a", "b", gpus=gpus[:1], container=own_cgroup(), tensorboard=True, logdir=str(tmp_path / "logs"))
    said: list[str] = []

    advice = job_advice.advise_job(
        MemoryEngine((job,), cluster=cluster_of("a", "b")), "train", report=said.append, **WINDOW
    )
    by_check = {one.check: one for one in advice.findings}

    assert said == ["sampling 2 nodes for 2s"]
    assert (advice.lost, [one.node for one in advice.nodes]) == ({}, ["a", "b"])
    assert [list(one.given()) for one in advice.nodes] == [gpus[:1], gpus[:1]]
    assert [list(one.job_gpus()) for one in advice.nodes] == [gpus[:1], gpus[:1]]
    assert all(one.job_processes() for one in advice.nodes)
    assert advice.nodes[0].samples[-1].containers["train-worker-0"].log_lines == 0
    assert advice.nodes[0].samples[0].containers["train-worker-0"].tfevents == {}
    assert [one.transport for one in advice.nodes] == ["Socket", "Socket"]
    assert advice.idle is not None
    assert "no process of the job uses its GPUs" in by_check["low-duty-cycle"].evidence
    assert by_check["wrong-device-use"].verdict is Verdict.PROBLEM
    assert by_check["log-too-chatty"].verdict is Verdict.OK
    assert all(one.simulated for one in advice.findings if one.verdict is not Verdict.UNKNOWN)


def test_an_unreachable_node_is_reported_and_the_others_are_checked(gpus):
    engine = MemoryEngine(
        (job_on("a", "gone", gpus=gpus[:1], container=own_cgroup()),), cluster=cluster_of("a", dead=("gone",))
    )

    advice = job_advice.advise_job(engine, "train", report=lambda _: None, **WINDOW)
    by_check = {one.check: one for one in advice.findings}

    assert list(advice.lost) == ["gone"]
    assert not advice.ok
    assert advice.idle is None
    assert by_check["low-duty-cycle"].verdict is Verdict.PROBLEM
    assert by_check["memory-nearly-full"].verdict is Verdict.UNKNOWN
    assert "gone" in by_check["memory-nearly-full"].evidence


def test_processes_without_a_known_job_are_reported(gpus):
    other = GpuView(1, gpus[1], foreign="xmrig (pid 4711 of mallory)")
    nodes = (NodeView("a", "10.0.0.1", ready=True, gpus=(other,)),)
    engine = MemoryEngine((job_on("a", gpus=gpus[:1]),), nodes=nodes, cluster=cluster_of("a"))

    advice = job_advice.advise_job(engine, "train", seconds=0.1, report=lambda _: None)

    assert advice.nodes[0].foreign == {gpus[1]: "xmrig (pid 4711 of mallory)"}


def test_a_job_that_ends_during_sampling_is_not_idle(gpus):
    job = job_on("a", gpus=gpus[:1])
    for after in ({"status": JobStatus.SUCCEEDED}, {"attempt": 2}):
        engine = MemoryEngine((job,), cluster=cluster_of("a"))
        engine.coming = [job, dataclasses.replace(job, **after)]

        advice = job_advice.advise_job(engine, "train", seconds=0.3, interval=0.1, report=lambda _: None)

        assert advice.idle is None
        assert advice.ended in {"it is SUCCEEDED", "it was started again"}


def test_a_node_without_python_is_reported(tmp_path, monkeypatch):
    for name in ("sh", "head", "dd", "cat", "id", "env"):
        path = subprocess.run(["which", name], capture_output=True, text=True, check=False).stdout.strip()
        if path:
            (tmp_path / name).symlink_to(path)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(NodeUnreachable, match="no python3 on this node"):
        job_advice.advise_job(
            MemoryEngine((job_on("a"),), cluster=cluster_of("a")), "train", report=lambda _: None, **WINDOW
        )


@pytest.mark.parametrize(
    ("status", "hint"),
    [(JobStatus.PENDING, "provision wait train"), (JobStatus.FAILED, "provision restart train")],
)
def test_a_job_that_does_not_run_is_refused(status, hint):
    engine = MemoryEngine((dataclasses.replace(job_on("a", status=status), reason="no GPU is free"),))

    with pytest.raises(UsageError, match=f"train is {status}.*no GPU is free") as caught:
        job_advice.advise_job(engine, "train", report=lambda _: None, **WINDOW)

    assert hint in caught.value.remedy
    assert "--script" in caught.value.remedy


def test_mpi_instances_of_one_container_are_sampled_once():
    """The sample has the GPUs of all instances; the launcher has no GPUs."""
    job = job_on("a", "a", gpus=("GPU-x",))
    together = [dataclasses.replace(slot, container="c", uuids=(f"GPU-{slot.index}",)) for slot in job.assignments]
    launcher = Assignment("train-launcher-abcde", "launcher", 0, "a", "10.0.0.1", 0, is_leader=True, container="l")

    advice = list(containers_of(dataclasses.replace(job, assignments=(launcher, *together)), "a"))

    assert [(one["instance"], one["gpus"], one["speaks_for_all"]) for one in advice] == [
        ("train-launcher-abcde", [], True),
        ("train-worker-0", ["GPU-0", "GPU-1"], False),
    ]


@pytest.fixture
def typed(capsys, monkeypatch):
    """Run a command on a job in memory, with a short window; return exit code, stdout and stderr."""

    def call(engine, cluster, *words):
        short = job_advice.advise_job

        def look(*given, **named):
            return short(*given, **{**named, **WINDOW})

        monkeypatch.setattr("provision.cli.job_options.cluster_from", lambda *_a, **_k: cluster)
        monkeypatch.setattr("provision.workflow.jobs.job_engine", lambda *_: engine)
        monkeypatch.setattr("provision.workflow.job_advice.advise_job", look)
        with pytest.raises(SystemExit) as stopped:
            main(["advise", *map(str, words)])
        out, err = capsys.readouterr()
        return stopped.value.code, out, err

    return call


@pytest.mark.row(61)
def test_the_text_report_is_printed(typed, gpus):
    engine = MemoryEngine((job_on("a", gpus=gpus[:1], container=own_cgroup()),), cluster=cluster_of("a"))

    code, out, err = typed(engine, cluster_of("a"), "train")

    assert code == 1
    assert "sampling 1 node for" in err
    assert out.startswith("NODE")
    assert "worker-0" in out
    assert "provision stop train" in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_contains_the_script_findings(typed, gpus, tmp_path):
    """The document contains both kinds of advice; a lost node makes it not ok."""
    file = tmp_path / "train.py"
    file.write_text("from transformers import Trainer\nTrainer(model).train()\n")
    engine = MemoryEngine(
        (job_on("a", "gone", gpus=gpus[:1], container=own_cgroup()),), cluster=cluster_of("a", dead=("gone",))
    )

    code, out, _ = typed(engine, cluster_of("a", dead=("gone",)), "train", "--json", "--script", file)
    document = json.loads(out)

    assert (code, document["ok"], document["job"], document["script"]) == (1, False, "train", str(file))
    assert len(document["rules"]) == 5
    assert len(document["findings"]) == 21
    assert (document["idle"], document["simulated"], document["seconds"]) == (False, True, 60)
    assert [(one["node"], bool(one["error"])) for one in document["nodes"]] == [("a", False), ("gone", True)]
    assert document["nodes"][0]["gpus"][0]["instance"] == "train-worker-0"


@pytest.mark.parametrize(
    ("words", "said"),
    [(("train",), "FAILED"), (("train", "--for", "2s"), "too short"), (("train", "--for", "2h"), "too long")],
)
def test_invalid_requests_are_usage_errors(typed, words, said):
    engine = MemoryEngine((job_on("a", status=JobStatus.FAILED),))

    code, out, err = typed(engine, cluster_of("a"), *words)

    assert (code, out) == (2, "")
    assert said in err
    assert "hint:" in err


def outcome(capsys, monkeypatch, look):
    """Run the command with this result of sampling; return exit code, document and stderr."""
    monkeypatch.setattr("provision.cli.advise.engine_of", lambda *_: None)
    monkeypatch.setattr("provision.workflow.job_advice.advise_job", look)
    with pytest.raises(SystemExit) as stopped:
        main(["advise", "train", "--json"])
    out, err = capsys.readouterr()
    return stopped.value.code, json.loads(out), err


@pytest.mark.parametrize(("lost", "code"), [({}, 0), ({"b": "no route to host"}, 1)])
def test_a_node_without_samples_has_its_own_exit_code(capsys, monkeypatch, lost, code):
    advice = job_advice.JobAdvice(job_on("a", "b"), 60.0, (), (), lost)

    printed = outcome(capsys, monkeypatch, lambda *_a, **_k: advice)

    assert (printed[0], printed[1]["ok"], printed[1]["idle"], printed[1]["ended"]) == (code, code == 0, False, None)


def test_ctrl_c_stops_sampling_and_not_the_job(capsys, monkeypatch):
    def interrupted(*_given, **_named):
        raise KeyboardInterrupt

    code, _, err = outcome(capsys, monkeypatch, interrupted)

    assert code == 130
    assert "train continues" in err
