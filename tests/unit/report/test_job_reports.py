"""Batch jobs as tables and JSON: the documents' own layouts from the same values, and what we add to them."""

from __future__ import annotations

import dataclasses
import re
import time

import pytest

from provision.facts.gpu_usage import GpuProcess, GpuUsage
from provision.model.job import InstanceRecord, JobEvent, JobStatus, Kind
from provision.model.job_views import GpuView, NodeView
from provision.report import job_detail, job_document, job_list, job_nodes, layout
from provision.report.job_submit import closing_lines
from tests.support.benchmark import document
from tests.support.memory_engine import job_of

NOW = 1_700_000_000.0
ARENA = "arena-pytorch-distributed.txt"
ACK = "ack-topology-aware-scheduling-zh.txt"
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def blocks(name, first):
    """The outputs in a document that begin with a line, each without its indentation."""
    lines = document(name).splitlines()
    for at, line in enumerate(lines):
        if line.strip().startswith(first):
            indent = len(line) - len(line.lstrip())
            printed = []
            for following in lines[at:]:
                if following.strip() and len(following) - len(following.lstrip()) < indent:
                    break
                if following.strip() == "```":
                    break
                printed.append(following[indent:].rstrip())
            yield printed


def documented_lines(name, first, count):
    """Return the first documented output with this heading and number of lines."""
    return next(block[:count] for block in blocks(name, first))


def rows(lines, at=1):
    return [line.split() for line in lines[at:]]


def ago(text):
    return NOW - int(text[:-1]) * SECONDS[text[-1]]


def kinds(word):
    """A document's trainer as one of ours of the same length of word, where there is none of that kind."""
    return {"PYTORCHJOB": Kind.PYTORCH, "TFJOB": Kind.MPI, "MPIJOB": Kind.MPI}[word.upper()]


@pytest.mark.row(36)
def test_list_has_the_documented_layout():
    """NAME STATUS TRAINER AGE NODE, in two-space columns, N/A for jobs that are over; and then our own column OWNER."""
    expected = documented_lines(ARENA, "NAME          STATUS     TRAINER     AGE  NODE", 5)
    jobs = [
        job_of(
            name,
            kinds(trainer),
            status=JobStatus(status),
            submitted=ago(age),
            nodes=("n",),
        )
        for name, status, trainer, age, _ in rows(expected)
    ]
    first = dataclasses.replace(jobs[0].assignments[0], address=rows(expected)[0][4])
    jobs[0] = dataclasses.replace(jobs[0], assignments=(first,))

    table = job_list.list_text(job_list.newest_first(jobs), NOW).replace("MPIJOB", "TFJOB ")
    owner = table.index("OWNER")
    assert {line[owner:] for line in table.splitlines()} == {"OWNER", "me@here"}
    printed = "\n".join(line[:owner].rstrip() for line in table.splitlines())
    assert [line.split() for line in printed.splitlines()] == [line.split() for line in expected]
    assert [re.sub(r"TFJOB +", "TFJOB       ", line) for line in printed.splitlines()] == expected


@pytest.mark.row(37)
def test_top_job_has_the_documented_layout():
    """Jobs are sorted by requested GPUs and followed by two totals."""
    expected = documented_lines(ARENA, "NAME          GPU(Requests)", 11)
    jobs = []
    for name, asked, held, status, trainer, age, node in rows(expected[:5]):
        nodes = tuple(f"n{number}" for number in range(int(asked)))
        job = job_of(
            name, kinds(trainer), status=JobStatus(status), submitted=ago(age), nodes=nodes, gpus=1, workers=len(nodes)
        )
        assignments = tuple(
            dataclasses.replace(assignment, address=node) if assignment.is_leader else assignment
            for assignment in job.assignments
        )
        jobs.append(dataclasses.replace(job, assignments=assignments))
        assert sum(map(len, job.allocations.values())) == int(held)
    jobs.sort(key=lambda job: job.spec.name)

    printed = job_list.top_text(jobs, NOW).replace("mpijob", "tfjob ").splitlines()
    printed = [re.sub(r"tfjob +", "tfjob       ", line) for line in printed]
    assert (printed[0], printed[1], printed[5:]) == (expected[0], expected[1], expected[5:])
    assert sorted(printed[2:5]) == sorted(expected[2:5])


@pytest.mark.row(21)
@pytest.mark.parametrize(("at", "busy"), [(0, (0, 0, 0)), (1, (2, 0, 1))])
def test_top_node_has_the_documented_layout(at, busy):
    """Its columns, its rule and its footer; a node is Ready, as newer ones write it."""
    block = list(blocks(ARENA, "NAME                       IPADDRESS"))[at][:10]
    expected = [line.replace("ready", "Ready") for line in block]
    nodes = []
    for number, (name, address, role, _, total, _) in enumerate(rows(expected[:7])):
        held = busy[number - 3] if number > 2 else 0
        gpus = tuple(GpuView(n, f"GPU-{number}-{n}", job="a" if n < held else "") for n in range(int(total)))
        nodes.append(NodeView(name, address, ready=True, head=role == "master", gpus=gpus))

    layout.choose(columns=100)
    assert job_nodes.top_node_text(nodes).splitlines() == expected
    layout.choose(columns=80)
    assert "-" * 80 in job_nodes.top_node_text(nodes).splitlines()


@pytest.mark.row(15, 16, 38)
def test_get_has_the_documented_layout():
    """The headings, the indented table with rules, and the launcher as IS_CHIEF without GPUs."""
    for block in blocks(ACK, "Name:      "):
        expected = block[:15]
        name, duration = expected[0].split()[1], expected[5].split()[1]
        suffix = expected[10].split()[0].rpartition("-")[2]
        node = expected[10].split()[-1]
        job = job_of(
            name, Kind.MPI, nodes=(node,), submitted=ago(duration), gpus=1, workers=4, words=("Running", suffix)
        )
        assert job_detail.get_text(job, NOW).splitlines() == expected


@pytest.mark.row(29)
def test_get_ends_with_the_tensorboards_address_where_there_is_one():
    """Two lines, as in the document; none without it."""
    expected = documented_lines(ARENA, "Your tensorboard will be available on:", 2)
    with_one = job_of(record={"tensorboard": expected[1]})

    assert job_detail.get_text(with_one, NOW).splitlines()[-3:] == ["", *expected]
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


def test_a_failed_job_says_who_failed_first_where_how_and_with_which_last_words():
    """Information of a node that does not answer is reported as missing."""
    text = job_detail.get_text(FAILED, 1070.0, events=True)

    assert "Reason:    rank 1 failed" in text
    assert "Attempt:   2" in text
    assert "First failure: rank 1, pytorch-dist-worker-0 on gpu2: killed by SIGKILL (exit code 137)" in text
    assert "  out of memory\n  | last words" in text
    assert "gpu1 does not answer" in text
    assert "pytorch-dist-master-0  Unknown" in text
    assert "  gpu2    Warning  20s  the container was killed" in text


def test_a_waiting_job_says_why():
    """Without instances, which it has none of."""
    job = job_of(status=JobStatus.PENDING, assignments=False, record={"reason": "gpu1 has 0 of 8 GPUs free"})
    text = job_detail.get_text(job, NOW)

    assert "Status:    PENDING" in text
    assert "Reason:    gpu1 has 0 of 8 GPUs free" in text
    assert "Duration:  0s" in text


def test_a_reason_says_when_it_was_last_seen_to_hold():
    """The time of another day includes the date; a current reason has no time."""
    noon = time.mktime((2026, 1, 31, 12, 3, 0, 0, 0, -1))
    waiting = {"status": JobStatus.PENDING, "assignments": False, "record": {"reason": "no room", "reason_time": noon}}
    job = job_of("waits", **waiting)

    assert re.search(r"Reason: +as of 12:03: no room\n", job_detail.get_text(job, noon + 60))
    assert "\nwaits: as of 2026-01-31 12:03: no room" in job_list.queue_text([job], noon + 86400)
    assert job_document.job_document(job, noon)["reasonTimestamp"] == noon
    assert "It is PENDING: no room" in closing_lines(job)


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


def test_wide_has_times_image_and_model(monkeypatch):
    """In the form that arena has."""
    monkeypatch.setenv("TZ", "UTC")
    import time

    time.tzset()
    job = job_of(submitted=1_136_214_245.0, annotations={"modelName": "m"})
    text = job_detail.get_text(job, NOW, wide=True)

    assert "CreateTime: 2006-01-02 15:04:05" in text
    assert "ModelName:  m" in text
    assert "EndTime" not in text


def test_json_keeps_arenas_keys():
    """Scripts for arena continue to work; additional keys do not matter."""
    job = job_of(gpus=2, submitted=NOW - 57, env={"LR": "1"}, secret_env=("TOKEN",), annotations={"modelName": "m"})
    printed = job_document.job_document(job, NOW)
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
    printed = job_document.job_document(FAILED, NOW)

    assert printed["exitCodes"] == {"pytorch-dist-worker-0": 137}
    assert printed["firstFailure"]["node"] == "gpu2"
    assert printed["firstFailure"]["lastLines"] == ["last words"]


@pytest.mark.row(21)
def test_top_node_names_what_differs_and_what_is_simulated():
    """Modes only if they differ, GPUs with foreign processes, drained and unreachable nodes, SIMULATED GPUs."""
    gpus = (GpuView(0, "a", job="j", instance="j-master-0"), GpuView(1, "b", foreign="python3 (pid 7 of eve)"))
    nodes = [
        NodeView("n1", "10.0.0.1", ready=True, head=True, mode="topology", gpus=gpus, simulated=True),
        NodeView("n2", "10.0.0.2", ready=True, drained=True, reason="the fan is loud"),
        NodeView("n3", "10.0.0.3", ready=False, reason="no route to host"),
    ]
    lines = job_nodes.top_node_text(nodes).splitlines()
    detail = job_nodes.top_node_text(nodes, detail=True)

    assert lines[0].split()[-2:] == ["GPU(Mode)", "UNHEALTHY"]
    assert lines[1].split() == ["n1", "10.0.0.1", "master", "Ready", "2", "1", "topology", "1"]
    assert lines[2].split()[3] == "Ready,SchedulingDisabled"
    assert lines[3].split()[3] == "NotReady"
    assert "1/2 (50%)" in lines
    assert "n2: the fan is loud" in lines
    assert lines[-1].startswith("SIMULATED on n1")
    assert "1   busy (unmanaged)  -     python3 (pid 7 of eve)" in detail
    assert "0   using             -     j-master-0" in detail


@pytest.mark.row(60)
def test_gpus_say_how_busy_and_whose():
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


@pytest.mark.row(26)
def test_data_list_has_the_documented_layout():
    """Its columns, an empty description and owner among them."""
    expected = documented_lines(ARENA, "NAME           ACCESSMODE", 2)

    assert job_nodes.data_text([("training-data", "ReadWriteMany", "", "", "35m")]).splitlines() == expected
