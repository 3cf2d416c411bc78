"""Batch jobs as tables and JSON: the documents' own layouts from the same values, and what we add to them."""

from __future__ import annotations

import re
import time

import pytest

from provision.facts.gpu_usage import GpuProcess, GpuUsage
from provision.model.job import InstanceRecord, JobEvent, JobStatus, Kind
from provision.model.job_views import GpuView, NodeView
from provision.model.reason import reason
from provision.report import job_detail, job_document, job_list, job_nodes, layout
from provision.report.job_submit import closing_lines
from tests.support.memory_engine import job_of

NOW = 1_700_000_000.0


@pytest.mark.row(36)
def test_list_has_the_documented_layout():
    """NAME STATUS TRAINER AGE NODE, in two-space columns, N/A for finished jobs; and then our own column OWNER."""
    jobs = [
        job_of("speech", submitted=NOW - 21),
        job_of("mnist", status=JobStatus.SUCCEEDED, submitted=NOW - 46 * 60),
        job_of("vgg", Kind.MPI, status=JobStatus.FAILED, submitted=NOW - 14 * 3600),
    ]

    assert job_list.list_text(job_list.newest_first(jobs), NOW).splitlines() == [
        "NAME    STATUS     TRAINER     AGE  NODE      OWNER",
        "speech  RUNNING    PYTORCHJOB  21s  10.0.0.1  me@here",
        "mnist   SUCCEEDED  PYTORCHJOB  46m  N/A       me@here",
        "vgg     FAILED     MPIJOB      14h  N/A       me@here",
    ]


@pytest.mark.row(37)
def test_top_job_has_the_documented_layout():
    """Jobs are sorted by requested GPUs and followed by two totals."""
    jobs = [
        job_of("mnist", status=JobStatus.SUCCEEDED, submitted=NOW - 46 * 60, nodes=("gpu1",), gpus=1),
        job_of("speech", submitted=NOW - 29, nodes=("gpu1", "gpu2", "gpu3"), gpus=1),
        job_of("vgg", Kind.MPI, status=JobStatus.SUCCEEDED, submitted=NOW - 14 * 3600, gpus=1),
    ]

    assert job_list.top_text(jobs, NOW).splitlines() == [
        "NAME    GPU(Requests)  GPU(Allocated)  STATUS     TRAINER     AGE  NODE",
        "speech  3              3               RUNNING    pytorchjob  29s  10.0.0.1",
        "vgg     2              0               SUCCEEDED  mpijob      14h  N/A",
        "mnist   1              0               SUCCEEDED  pytorchjob  46m  N/A",
        "",
        "Total Allocated GPUs of Training Job:",
        "3",
        "",
        "Total Requested GPUs of Training Job:",
        "6",
    ]


@pytest.mark.row(21)
def test_top_node_has_the_documented_layout():
    """Its columns, its rule and its footer."""

    def node(name, address, busy, **more):
        gpus = tuple(GpuView(n, f"GPU-{name}-{n}", job="a" if n < busy else "") for n in range(2))
        return NodeView(name, address, ready=True, gpus=gpus, **more)

    nodes = [
        NodeView("head", "10.0.0.1", ready=True, head=True),
        node("gpu1", "10.0.0.2", 2),
        node("gpu2", "10.0.0.3", 1),
        node("gpu3", "10.0.0.4", 0, drained=True),
    ]
    expected = [
        "NAME  IPADDRESS  ROLE    STATUS                    GPU(Total)  GPU(Allocated)",
        "head  10.0.0.1   master  Ready                     0           0",
        "gpu1  10.0.0.2   <none>  Ready                     2           2",
        "gpu2  10.0.0.3   <none>  Ready                     2           1",
        "gpu3  10.0.0.4   <none>  Ready,SchedulingDisabled  2           0",
        "-" * 89,
        "Allocated/Total GPUs In Cluster:",
        "3/6 (50%)",
    ]

    layout.choose(columns=100)
    assert job_nodes.top_node_text(nodes).splitlines() == expected
    layout.choose(columns=80)
    assert "-" * 80 in job_nodes.top_node_text(nodes).splitlines()


@pytest.mark.row(15, 16, 38)
def test_get_has_the_documented_layout():
    """The headings, the indented table with rules, and the launcher as IS_CHIEF without GPUs."""
    job = job_of("vgg", Kind.MPI, nodes=("gpu1",), submitted=NOW - 58, gpus=1, workers=2, words=("Running", "k2jsv"))

    assert job_detail.get_text(job, NOW).splitlines() == [
        "Name:      vgg",
        "Status:    RUNNING",
        "Namespace: default",
        "Priority:  N/A",
        "Trainer:   MPIJOB",
        "Duration:  58s",
        "",
        "Instances:",
        "  NAME                STATUS   AGE  IS_CHIEF  GPU(Requested)  NODE",
        "  ----                ------   ---  --------  --------------  ----",
        "  vgg-launcher-k2jsv  Running  58s  true      0               gpu1",
        "  vgg-worker-0        Running  58s  false     1               gpu1",
        "  vgg-worker-1        Running  58s  false     1               gpu1",
    ]


@pytest.mark.row(29)
def test_get_ends_with_the_tensorboards_address_where_there_is_one():
    """Two lines below an empty one; none without it."""
    with_one = job_of(record={"tensorboard": "http://10.0.0.1:30131"})

    assert job_detail.get_text(with_one, NOW).splitlines()[-3:] == [
        "",
        "Your tensorboard will be available on:",
        "http://10.0.0.1:30131",
    ]
    assert "tensorboard" not in job_detail.get_text(job_of(), NOW)


FAILED = job_of(
    status=JobStatus.FAILED,
    gpus=1,
    record={
        "reason": "rank 1 failed",
        "first_failure": "pytorch-dist-worker-0",
        "first_rank": 1,
        "attempt": 2,
        "ended": 1060.0,
        "instances": {
            "pytorch-dist-worker-0": InstanceRecord(
                "pytorch-dist-worker-0", "Error", 137, 9, "out of memory", 1000.0, 1060.0, last_lines=("last words",)
            )
        },
        "unreachable": ("gpu1",),
        "events": (JobEvent(1050.0, "gpu2", "Warning", "the container was killed"),),
    },
)


def test_a_failed_job_shows_its_first_failed_rank_and_last_output():
    """Information of a node that does not answer is reported as missing."""
    text = job_detail.get_text(FAILED, 1070.0, events=True)

    assert "Reason:    rank 1 failed" in text
    assert "Attempt:   2" in text
    assert "First failure: rank 1, pytorch-dist-worker-0 on gpu2: killed by SIGKILL (exit code 137)" in text
    assert "  out of memory\n  | last words" in text
    assert "gpu1 does not answer" in text
    assert "pytorch-dist-master-0  Unknown" in text
    assert "  gpu2    Warning  20s  the container was killed" in text


def test_a_waiting_job_shows_its_reason():
    """Without instances, which it has none of."""
    job = job_of(status=JobStatus.PENDING, assignments=False, record={"reason": "gpu1 has 0 of 8 GPUs free"})
    text = job_detail.get_text(job, NOW)

    assert "Status:    PENDING" in text
    assert "Reason:    gpu1 has 0 of 8 GPUs free" in text
    assert "Duration:  0s" in text


def test_a_reason_shows_when_it_was_last_confirmed():
    """The time of another day includes the date; a current reason has no time."""
    noon = time.mktime((2026, 1, 31, 12, 3, 0, 0, 0, -1))
    waiting = {
        "status": JobStatus.PENDING,
        "assignments": False,
        "record": {"reason": "insufficient resources", "reason_time": noon},
    }
    job = job_of("waits", **waiting)

    assert re.search(r"Reason: +as of 12:03: insufficient resources\n", job_detail.get_text(job, noon + 60))
    assert "\nwaits: as of 2026-01-31 12:03: insufficient resources" in job_list.queue_text([job], noon + 86400)
    assert job_document.job_document(job, noon, "direct")["reasonTimestamp"] == noon
    assert "It is PENDING: insufficient resources" in closing_lines(job)


def test_events_of_a_waiting_job_explain_scheduling_passes():
    """Of one that is to be tried again too, and of no other."""
    nobody = "run `provision queue run --daemon`"
    waiting = {"status": JobStatus.PENDING}
    lines = job_detail.get_text(job_of(assignments=False, **waiting), NOW, events=True).splitlines()
    assert nobody in lines[-1]
    assert max(map(len, lines)) <= 80
    assert nobody in job_detail.get_text(job_of(record={"retrying": True}, **waiting), NOW, events=True)
    assert nobody not in job_detail.get_text(job_of(**waiting), NOW, events=True)
    assert nobody not in job_detail.get_text(job_of(), NOW, events=True)


def test_a_held_job_shows_the_command_that_releases_it():
    held = job_of("mnist", status=JobStatus.QUEUING, assignments=False)
    why = "it is held until: provision queue release mnist"
    assert f"Reason:    {why}" in job_detail.get_text(held, NOW)
    assert f"It is QUEUING: {why}" in closing_lines(held)


def test_wide_adds_times_image_and_model(monkeypatch):
    """In the form that arena has."""
    monkeypatch.setenv("TZ", "UTC")
    import time

    time.tzset()
    job = job_of(submitted=1_136_214_245.0, annotations={"modelName": "m"})
    text = job_detail.get_text(job, NOW, wide=True)

    assert "CreateTime: 2006-01-02 15:04:05" in text
    assert "ModelName:  m" in text
    assert "EndTime" not in text


def test_json_has_the_keys_of_arena():
    """Scripts for arena continue to work; additional keys do not matter."""
    job = job_of(gpus=2, submitted=NOW - 57, env={"LR": "1"}, secret_env=("TOKEN",), annotations={"modelName": "m"})
    printed = job_document.job_document(job, NOW, "direct")
    arena = "uuid name namespace duration status trainer tensorboard chiefName instances priority requestGPUs"
    arena += " allocatedGPUs creationTimestamp modelName modelVersion modelSource"
    ours = "engine attempt reason exitCodes placement codeSHA imageDigest env"
    instance = "ip status name age node nodeIP chief requestGPUs gpuMetrics creationTimestamp"

    assert set(arena.split()) | set(ours.split()) <= set(printed)
    assert set(instance.split()) <= set(printed["instances"][0])
    assert (printed["duration"], printed["trainer"], printed["chiefName"]) == (
        "57s",
        "pytorchjob",
        "pytorch-dist-master-0",
    )
    assert (printed["requestGPUs"], printed["allocatedGPUs"], printed["env"]) == (4, 4, {"LR": "1"})
    assert set(printed["placement"][0]) >= {"instance", "node", "gpus", "links"}


def test_json_of_a_failed_job():
    """Each instance's code, and the first failure."""
    printed = job_document.job_document(FAILED, NOW, "direct")

    assert printed["exitCodes"] == {"pytorch-dist-worker-0": 137}
    assert printed["firstFailure"]["node"] == "gpu2"
    assert printed["firstFailure"]["lastLines"] == ["last words"]


@pytest.mark.row(21)
def test_top_node_marks_differences_and_simulated_gpus():
    """Modes only if they differ, GPUs with foreign processes, drained and unreachable nodes, SIMULATED GPUs."""
    gpus = (GpuView(0, "a", job="j", instance="j-master-0"), GpuView(1, "b", foreign="python3 (pid 7 of eve)"))
    nodes = [
        NodeView("n1", "10.0.0.1", ready=True, head=True, mode="topology", gpus=gpus, simulated=True),
        NodeView(
            "n2", "10.0.0.2", ready=True, drained=True, reason=reason("placement.node_drained", cause="the fan is loud")
        ),
        NodeView("n3", "10.0.0.3", ready=False, reason=reason("placement.node_unreachable", cause="no route to host")),
    ]
    lines = job_nodes.top_node_text(nodes).splitlines()
    detail = job_nodes.top_node_text(nodes, detail=True)

    assert lines[0].split()[-2:] == ["GPU(Mode)", "UNHEALTHY"]
    assert lines[1].split() == ["n1", "10.0.0.1", "master", "Ready", "2", "1", "topology", "1"]
    assert lines[2].split()[3] == "Ready,SchedulingDisabled"
    assert lines[3].split()[3] == "NotReady"
    assert "1/2 (50%)" in lines
    assert "n2: drained: the fan is loud" in lines
    assert lines[-1].startswith("SIMULATED on n1")
    assert "1   busy (unmanaged)  -     python3 (pid 7 of eve)" in detail
    assert "0   using             -     j-master-0" in detail


@pytest.mark.row(60)
def test_gpus_show_utilisation_and_owner():
    """For get -g and top gpu; values that the driver does not report are N/A."""
    job = job_of("j", gpus=1, nodes=("n1",))
    uuid = job.assignments[0].uuids[0]
    process = GpuProcess(7, "python3", "eve", 100)
    busy = GpuUsage(0, uuid, "V100", 87, 1024, 32768, 45, 250.4, 300.0, (process,))
    block = job_detail.gpu_lines(job, {uuid: (job_nodes.per_cent(busy), job_nodes.memory(busy))})
    node = NodeView("n1", "10.0.0.1", ready=True, gpus=(GpuView(0, uuid, job="j", instance="j-master-0"),))
    top = job_nodes.gpu_text([node], {"n1": [busy, GpuUsage(1, "x", "V100")]}, ["n1"])

    assert block[1].split("  ")[1:3] == ["INSTANCE", "  NODE(IP)"] or "GPU(DutyCycle)" in block[1]
    assert block[3].split() == ["j-master-0", "10.0.0.1", "1", "0", "87%", "1024MiB", "/", "32768MiB"]
    assert block[-1] == "Allocated/Requested GPUs of Job: 1/1"
    assert "n1    0    87%   1024/32768   45C   250W/300W  j-master-0 eve:python3/7" in top
    assert top.splitlines()[2].split() == ["n1", "1", "N/A", "N/A", "N/A", "N/A", "-"]
    assert "SIMULATED on n1" in top
