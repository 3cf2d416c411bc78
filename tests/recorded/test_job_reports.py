"""Tables and JSON of batch jobs: the reference documents' own layouts, from the same values."""

from __future__ import annotations

import dataclasses
import re

import pytest

from provision.model.job import JobStatus, Kind
from provision.model.job_views import GpuView, NodeView
from provision.report import job_detail, job_list, job_nodes, layout
from tests.recorded.data import document
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
    """NAME STATUS TRAINER AGE NODE, in two-space columns, N/A for ended jobs; and then our own column OWNER."""
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
