"""Batch jobs that the previous version recorded, and one that its programs still run.

The real node programs run on nodes in folders; Docker, systemd and GPUs are STAND-INS.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.jobs.engines.base import LogRequest
from provision.jobs.engines.direct import DirectEngine
from provision.model.job import JobStatus
from provision.model.people import Person
from tests.support.interpreters import NODE_PYTHON
from tests.support.node.direct import direct_engine
from tests.support.node.node import GPUS, FakeNode, until
from tests.support.previous_version import STATE, private_copy

JOBS = STATE / "jobs"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """The node of the recorded jobs, without its records."""
    with FakeNode(tmp_path, "gpu1") as made:
        yield made.with_docker()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, node: FakeNode) -> DirectEngine:
    """The engine of a controller that trusts the key which signed the jobs."""
    key = (STATE / "signing_key.pub").read_text().strip()
    return direct_engine(monkeypatch, node, people={"ops": Person("ops", key, "operator")})


def test_jobs_of_the_previous_version_have_their_states(node: FakeNode, engine: DirectEngine) -> None:
    """Ended and waiting jobs are unchanged; the one that ran ended with the reboot."""
    private_copy(JOBS, node.root)

    page = engine.jobs()

    assert page.problems == ()
    assert {job.spec.name: (job.status.value, job.exit_code) for job in page.jobs} == {
        "succeeded": ("SUCCEEDED", 0),
        "failed": ("FAILED", 3),
        "stopped": ("STOPPED", None),
        "held": ("QUEUING", None),
        "pending": ("PENDING", None),
        "running": ("FAILED", None),
    }
    assert engine.get("running").cause.code == "job.node_rebooted"
    assert engine.get("failed").reason
    assert engine.get("succeeded").owner == "root@ops1"


def test_jobs_of_the_previous_version_can_be_used(node: FakeNode, engine: DirectEngine) -> None:
    """Output is printed, a waiting job starts with its old signature, and jobs can be deleted."""
    private_copy(JOBS, node.root)
    lines: list[bytes] = []

    engine.logs(engine.get("succeeded"), LogRequest(), lambda _instance, line: lines.append(line))
    started = engine.start_pending([].append).started
    until(lambda: engine.get("pending").status is JobStatus.SUCCEEDED, "the end of the waiting job")
    for name in ("succeeded", "held", "running"):
        engine.delete(name, [].append)

    assert (lines, started) == ([b"hello\n"], ("pending",))
    assert {job.spec.name for job in engine.jobs().jobs} == {"failed", "stopped", "pending"}


def previous(node: FakeNode, do: str, **request: Any) -> None:
    """Let the previous version's program carry out a request."""
    done = subprocess.run(
        [NODE_PYTHON, "-I", "-S", str(STATE / "node.pyz"), "jobs"],
        input=json.dumps({"do": do, **request}).encode() + b"\n",
        env=node.environment, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def document(name: str) -> dict[str, Any]:
    """Return a recorded file of the running job."""
    content: dict[str, Any] = json.loads((JOBS / "running" / name).read_text())
    return content


def test_a_running_job_continues_after_an_upgrade(node: FakeNode, engine: DirectEngine) -> None:
    """Its supervisor runs the previous version's programs; this version reports it, respects its GPUs, and stops it."""
    job = document("job.json")
    previous(node, "reserve", name="running", job=job, queue=document("queue.json"))
    attempt, supervisor = document("attempts/1/attempt.json"), {"keeper": document("attempts/1/keeper.json")}
    leases = dict.fromkeys(GPUS, "running-worker-0")
    previous(node, "lease", job="running", id=job["id"], attempt=1, leases=leases)
    previous(node, "prepare", name="running", job=job, attempt=1, attempt_record=attempt, images={})
    previous(node, "start", name="running", attempt=1, **supervisor)
    private_copy(JOBS / "pending", node.root / "pending")
    own = node.supervisor()

    until(lambda: engine.get("running").status is JobStatus.RUNNING, "the report of the running job")
    assert engine.start_pending([].append).waiting == ("pending",)
    assert node.supervisor() == own
    assert (node.attempt("running") / "programs/node.pyz").read_bytes() == (STATE / "node.pyz").read_bytes()

    engine.stop("running", [].append, grace=1)
    assert engine.get("running").status is JobStatus.STOPPED
    until(lambda: engine.get("pending").status is JobStatus.SUCCEEDED, "the job that waited for its GPUs")
