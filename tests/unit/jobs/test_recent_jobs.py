"""Reports about recent jobs only, from a node in a folder with the real node program."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from provision.documents import decode
from provision.documents.jobs import ReportAnswer
from provision.errors import NodeUnreachable
from provision.jobs.engines.common.recent_jobs import left_out, only_recent
from tests.support.node.node import FakeNode

OVER = {"state": "over", "attempt": 1, "nodes": ["a"]}
RESULT = {"status": "SUCCEEDED", "ended": 5.0}


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "a")


def record(node: FakeNode, name: str, age: float, queue: Mapping[str, Any], result: Mapping[str, Any] | None) -> Path:
    """Leave the files of a job on a node, as old as that."""
    folder = node.root / name
    attempt = folder / "attempts/1"
    attempt.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"id": f"id-{name}", "owner": "u@h", "submitted": 1.0, "spec": {}}))
    if queue:
        (folder / "queue.json").write_text(json.dumps(queue))
    if result:
        (attempt / "result.json").write_text(json.dumps(result))
    changed_ago(node, name, age)
    return folder


def changed_ago(node: FakeNode, name: str, age: float) -> None:
    for path in (node.root / name).iterdir():
        moment = path.stat().st_mtime - age
        os.utime(path, (moment, moment))


def recent(node: FakeNode, count: int) -> tuple[list[str], int]:
    """Return the names of the jobs that a node reports, and the number of the others."""
    answer = node.ok("report", names=None, brief=True, recent=count)
    return [job["name"] for job in answer["jobs"]], answer["older"]


def test_jobs_that_ended_are_left_out_once_they_were_reported(node: FakeNode) -> None:
    for age, name in enumerate(("new", "middle", "old"), start=10):
        record(node, name, age, OVER, RESULT)

    assert recent(node, 1) == (["new", "middle", "old"], 0)
    assert recent(node, 1) == (["new"], 2)
    assert recent(node, 2) == (["new", "middle"], 1)
    assert recent(node, 0) == (["middle", "new", "old"], 0)


@pytest.mark.parametrize(
    ("queue", "result"),
    [
        ({"state": "started", "attempt": 1}, RESULT),
        ({"state": "pending", "attempt": 0}, None),
        ({"state": "stopped", "attempt": 1, "unconfirmed": ["b"]}, RESULT),
        ({"state": "over", "attempt": 1}, None),
        ({}, None),
    ],
)
def test_a_job_that_may_change_is_always_reported(
    node: FakeNode, queue: Mapping[str, Any], result: Mapping[str, Any] | None
) -> None:
    record(node, "new", 10, OVER, RESULT)
    record(node, "live", 20, queue, result)
    recent(node, 1)

    assert recent(node, 1) == (["new", "live"], 0)


@pytest.mark.parametrize("change", ["queue.json", "job.json", "attempts"])
def test_a_job_that_has_changed_is_reported_again(node: FakeNode, change: str) -> None:
    record(node, "new", 10, OVER, RESULT)
    folder = record(node, "old", 20, OVER, RESULT)
    recent(node, 1)
    assert recent(node, 1) == (["new"], 1)

    moment = (folder / change).stat().st_mtime + 5
    os.utime(folder / change, (moment, moment))

    assert recent(node, 1) == (["new", "old"], 0)


def test_a_job_that_has_just_changed_is_not_settled(node: FakeNode) -> None:
    """Two changes may have the same time."""
    record(node, "new", -10, OVER, RESULT)
    record(node, "old", -5, OVER, RESULT)
    recent(node, 1)

    assert recent(node, 1) == (["new", "old"], 0)


def answer(jobs: Sequence[Mapping[str, Any]], older: int = 0) -> ReportAnswer:
    return decode(json.dumps({"jobs": jobs, "older": older}), ReportAnswer, node="n", what="report")


def names(report: object) -> list[str]:
    assert isinstance(report, ReportAnswer)
    return [json.loads(bytes(raw))["name"] for raw in report.jobs]


def test_a_node_is_asked_for_jobs_that_only_the_queue_host_reports() -> None:
    of_head = answer([{"name": "j", "queue": {"nodes": ["b", "c", "d", "gone"]}}, {"name": "k", "queue": {}}], 5)
    reports = {
        "a": of_head,
        "b": answer([], older=1),
        "c": answer([{"name": "j"}], older=1),
        "d": answer([]),
        "e": NodeUnreachable("no route to host"),
    }

    assert left_out(reports, "a") == {"b": ["j"]}


def test_ended_jobs_that_the_queue_host_leaves_out_are_left_out() -> None:
    ended, live = {"name": "old", "result": RESULT, "keeper": "gone"}, {"name": "live", "result": None}
    reports = {"a": answer([{"name": "j"}], 5), "b": answer([ended, live], 1)}
    combined = only_recent(reports, {"b": answer([{"name": "j", "result": RESULT}])}, "a")

    assert (names(combined["a"]), names(combined["b"])) == (["j"], ["live", "j"])
    whole = only_recent({**reports, "a": answer([{"name": "j"}])}, {}, "a")
    assert names(whole["b"]) == ["old", "live"]


def test_a_node_that_does_not_answer_again_is_unreachable() -> None:
    away = NodeUnreachable("no route to host")

    assert only_recent({"a": answer([]), "b": answer([])}, {"b": away}, "a")["b"] is away
