"""The contract of `JobEngine`: the same tests over the engines `direct` and `slurm`, and an engine in memory.

The nodes of `direct` are folders with the real node programs; Docker, systemd and GPUs are stand-ins. `slurm` runs on a
lab node with a real Slurm and SIMULATED GPUs: ``make slurm``.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provision.errors import LaunchError, NameTaken, NeverFits, NotFound, UsageError
from provision.jobs.engines.base import (
    Capability,
    GpuRequest,
    JobEngine,
    LogRequest,
    MissingCapability,
    Secrets,
    all_jobs,
    require,
    require_for,
)
from provision.jobs.engines.common import gpu_reservation
from provision.model.job import JobRecord, JobSpec, JobStatus, Kind
from provision.model.reason import reason
from provision.report.job_document import job_document
from provision.workflow.jobs import job_engine
from tests.support.memory_engine import MemoryEngine
from tests.support.node.direct import Way, direct_engine
from tests.support.node.node import GPUS, FakeNode, until
from tests.support.reasons import parts
from tests.support.slurm.lab import SlurmNode, slurm_lab

NODE = "a"
GPU_COUNT = len(GPUS)
LABELS = {"rack": "r1"}


@dataclass
class Subject:
    """An engine with one node of four GPUs."""

    engine: JobEngine
    go: Path
    """Jobs of `waiting_line` end when this file exists."""
    node: str = NODE
    image: str = "image"
    mounts: tuple[str, ...] = ()
    seconds: float = 10
    """How long a job may take to reach a state."""
    create: Callable[[Path], None] = Path.touch
    """Creates `go` where jobs see it."""
    waiting_code: str = "job.insufficient_resources"
    drained_code: str = "placement.node_drained"
    """The reasons of waiting jobs."""

    def submit(self, name: str, line: str = "true", **more: Any) -> JobRecord:
        """Submit a job with one worker."""
        return self.engine.submit(self.spec(name, line, **more), Secrets(), lambda _line: None)

    def start(self, name: str, line: str, **more: Any) -> JobRecord:
        """Submit a job and wait until it runs."""
        self.submit(name, line, **more)
        return self.await_status(name, JobStatus.RUNNING)

    def spec(self, name: str, line: str = "true", **more: Any) -> JobSpec:
        return spec_of(name, line, image=self.image, mounts=self.mounts, **more)

    def let_end(self) -> None:
        """Let the jobs of `waiting_line` end."""
        self.create(self.go)

    def await_cause(self, name: str, code: str) -> JobRecord:
        """Wait until a job waits for a reason; an engine with its own queue may find it after the submission."""

        def reached() -> JobRecord | None:
            job = self.engine.get(name)
            return job if code in {part.code for part in parts(job.cause)} else None

        return until(reached, f"{name} to wait because of {code}", self.seconds)

    @property
    def waiting_line(self) -> str:
        return f"until [ -e {self.go} ]; do sleep 0.02; done"

    def maintain(self) -> tuple[str, ...]:
        """Do a maintenance pass; return the jobs that it started."""
        with self.engine.maintenance() as maintenance:
            return maintenance.run(lambda _line: None).started

    def await_status(self, name: str, *statuses: JobStatus) -> JobRecord:
        """Wait for a status, with the maintenance that an engine without its own queue needs."""

        def reached() -> JobRecord | None:
            job = self.engine.get(name)
            if job.status in statuses:
                return job
            if job.status is JobStatus.PENDING and (not job.assignments or job.retrying):
                self.maintain()
            return None

        return until(reached, f"{name} to be {' or '.join(statuses)}", self.seconds)

    def await_end(self, name: str) -> JobRecord:
        return self.await_status(name, JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED)

    def output(self, name: str, **request: Any) -> list[tuple[str, bytes]]:
        lines: list[tuple[str, bytes]] = []
        job = self.engine.get(name)
        self.engine.logs(job, LogRequest(**request), lambda instance, line: lines.append((instance, line)))
        return lines


@pytest.fixture(scope="module")
def slurm_node() -> Iterator[SlurmNode]:
    """A lab node with a real Slurm."""
    with slurm_lab(GPU_COUNT, LABELS) as made:
        yield made


@pytest.fixture(params=["direct", "memory", "memory with its own queue", pytest.param("slurm", marks=pytest.mark.long)])
def subject(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    go = tmp_path / "go"
    if request.param == "slurm":
        yield from slurm_subject(request.getfixturevalue("slurm_node"), monkeypatch)
        return
    if request.param != "direct":
        lacks = () if "queue" in request.param else (Capability.OWN_QUEUE,)
        yield Subject(MemoryEngine(gpus={NODE: GPU_COUNT}, lacks=lacks), go)
        go.touch()
        return
    docker = request.getfixturevalue("docker")
    with FakeNode(tmp_path / "node", NODE) as node:
        engine = direct_engine(monkeypatch, node.with_docker(docker), labels=LABELS)
        monkeypatch.setattr(gpu_reservation, "connect", lambda _node: Way(node))
        yield Subject(engine, go)
        go.touch()
    docker.reset()


def slurm_subject(lab: SlurmNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    """Yield the engine `slurm` on a lab node, and delete its jobs."""
    for name, value in lab.variables.items():
        monkeypatch.setenv(name, value)
    engine = job_engine(lab.cluster, "slurm")
    lab.run(f"rm -rf {lab.folder} && mkdir {lab.folder}")
    yield Subject(
        engine,
        Path(lab.folder) / "go",
        node=lab.name,
        image=lab.image,
        mounts=(f"{lab.folder}:{lab.folder}",),
        seconds=60,
        create=lambda path: lab.run(f"touch {path}"),
        waiting_code="slurm.resources",
        drained_code="slurm.nodes_unavailable",
    )
    engine.resume([lab.name], [].append)
    for job in all_jobs(engine).jobs:
        engine.delete(job.id, [].append)
    assert lab.run("ls /run/provision/leases; docker ps -aq --filter label=provision.id; squeue -h") == ""


def spec_of(name: str, line: str = "true", image: str = "image", **more: Any) -> JobSpec:
    return JobSpec(name, Kind.RUN, (line,), image=image, **more)


def test_the_engine_declares_its_name_and_capabilities(subject: Subject) -> None:
    assert subject.engine.name
    assert all(isinstance(one, Capability) for one in subject.engine.capabilities)


def test_the_engine_has_every_method_with_its_parameters(subject: Subject) -> None:
    for name, method in inspect.getmembers(JobEngine, inspect.isfunction):
        if name.startswith("_"):
            continue
        expected = inspect.signature(method).parameters
        actual = inspect.signature(getattr(type(subject.engine), name)).parameters
        keywords = [one.name for one in expected.values() if one.kind is inspect.Parameter.KEYWORD_ONLY]
        assert len(expected) == len(actual), name
        assert [one.name for one in actual.values() if one.kind is inspect.Parameter.KEYWORD_ONLY] == keywords, name


def test_a_job_runs_and_succeeds(subject: Subject) -> None:
    submitted = subject.submit("job", "echo hello", gpus=1)
    assert submitted.status in {JobStatus.PENDING, JobStatus.RUNNING, JobStatus.SUCCEEDED}
    job = subject.await_end("job")

    assert (job.status, job.attempt, job.exit_code or 0) == (JobStatus.SUCCEEDED, 1, 0)
    assert (job.spec.name, job.id) == ("job", submitted.id)
    assert [one.instance for one in job.assignments] == ["job-worker-0"]
    assert job.assignments[0].node == subject.node
    assert len(job.assignments[0].uuids) == 1
    assert job.allocations == {}
    assert subject.output("job") == [("job-worker-0", b"hello\n")]


def test_a_job_is_returned_by_name_and_by_id(subject: Subject) -> None:
    job = subject.submit("job", hold=True)

    assert subject.engine.get(job.id).spec.name == "job"
    assert subject.engine.get("job", time_limit=30.0).id == job.id


@pytest.mark.parametrize("action", ["get", "stop", "delete", "restart", "release", "logs", "exec", "forward"])
def test_a_missing_job_is_reported(subject: Subject, action: str) -> None:
    engine = subject.engine
    actions: dict[str, Callable[[], object]] = {
        "get": lambda: engine.get("none"),
        "stop": lambda: engine.stop("none", lambda _line: None),
        "delete": lambda: engine.delete("none", lambda _line: None),
        "restart": lambda: engine.restart("none", lambda _line: None),
        "release": lambda: engine.release("none", lambda _line: None),
        "logs": lambda: subject.output("none"),
        "exec": lambda: engine.exec_argv("none", "none-worker-0", ["true"], terminal=False),
        "forward": lambda: engine.forward_argv("none", 8080, "8080"),
    }
    with pytest.raises(NotFound):
        actions[action]()


def test_a_name_is_taken_until_its_job_is_deleted(subject: Subject) -> None:
    subject.submit("job")
    with pytest.raises(NameTaken):
        subject.submit("job")
    subject.await_end("job")
    with pytest.raises(NameTaken):
        subject.submit("job")

    subject.engine.delete("job", lambda _line: None)

    with pytest.raises(NotFound):
        subject.engine.get("job")
    assert subject.submit("job").spec.name == "job"


def test_a_job_that_can_never_start_is_refused_and_not_recorded(subject: Subject) -> None:
    with pytest.raises(NeverFits):
        subject.submit("job", gpus=GPU_COUNT + 1)
    with pytest.raises(NotFound):
        subject.engine.get("job")


def test_a_job_waits_for_gpus_and_starts_when_they_are_free(subject: Subject) -> None:
    first = subject.start("first", subject.waiting_line, gpus=GPU_COUNT)
    assert subject.submit("second", gpus=1).status is JobStatus.PENDING
    second = subject.await_cause("second", subject.waiting_code)

    assert sum(map(len, first.allocations.values())) == GPU_COUNT
    assert second.status is JobStatus.PENDING
    assert second.assignments == ()
    subject.let_end()
    subject.await_end("first")
    assert subject.await_end("second").status is JobStatus.SUCCEEDED


def test_all_workers_start_or_none(subject: Subject) -> None:
    subject.start("first", subject.waiting_line, gpus=2)
    subject.submit("second", gpus=1, workers=3)
    waiting = subject.await_cause("second", subject.waiting_code)

    assert waiting.status is JobStatus.PENDING
    assert waiting.allocations == {}
    subject.let_end()
    subject.await_end("first")
    assert len(subject.await_end("second").assignments) == 3


def test_a_held_job_starts_only_when_it_is_released(subject: Subject) -> None:
    assert subject.submit("job", hold=True).status is JobStatus.QUEUING
    assert subject.maintain() == ()
    assert subject.engine.get("job").status is JobStatus.QUEUING

    subject.engine.release("job", lambda _line: None)

    job = subject.await_end("job")
    assert (job.status, job.attempt) == (JobStatus.SUCCEEDED, 1)
    assert subject.engine.release("job", lambda _line: None).status is JobStatus.SUCCEEDED


def test_output_can_be_selected_by_number_of_lines_and_time(subject: Subject) -> None:
    subject.submit("job", "echo 1; echo 2; echo 3", workers=2)
    subject.await_end("job")

    assert [line for _, line in subject.output("job")] == [b"1\n", b"2\n", b"3\n"]
    assert subject.output("job", tail=1) == [("job-worker-0", b"3\n")]
    assert {name for name, _ in subject.output("job", instances=("job-worker-1",))} == {"job-worker-1"}
    assert {name for name, _ in subject.output("job", every=True)} == {"job-worker-0", "job-worker-1"}
    with pytest.raises(NotFound):
        subject.output("job", instances=("job-worker-9",))


def test_following_ends_with_the_job(subject: Subject) -> None:
    subject.submit("job", f"echo begun; {subject.waiting_line}; echo ended")
    lines: list[bytes] = []

    def write(_instance: str, line: bytes) -> None:
        lines.append(line)
        subject.let_end()

    subject.engine.logs(subject.engine.get("job"), LogRequest(follow=True), write)

    assert lines == [b"begun\n", b"ended\n"]
    assert subject.await_end("job").status is JobStatus.SUCCEEDED


def test_a_stopped_job_keeps_its_record_and_frees_its_gpus(subject: Subject) -> None:
    subject.start("job", f"echo begun; {subject.waiting_line}", gpus=GPU_COUNT)

    subject.engine.stop("job", lambda _line: None, grace=1.0)
    job = subject.await_end("job")

    assert (job.status, job.allocations) == (JobStatus.STOPPED, {})
    assert subject.engine.stop("job", lambda _line: None).status is JobStatus.STOPPED
    assert {gpu.job for node in subject.engine.nodes().nodes for gpu in node.gpus} == {""}


def test_a_waiting_job_can_be_stopped(subject: Subject) -> None:
    subject.submit("job", hold=True)

    assert subject.engine.stop("job", lambda _line: None).status is JobStatus.STOPPED
    assert subject.maintain() == ()


def test_a_failed_job_names_the_instance_and_the_exit_code(subject: Subject) -> None:
    subject.submit("job", "exit 7")
    job = subject.await_end("job")

    assert (job.status, job.first_failure) == (JobStatus.FAILED, "job-worker-0")
    assert job.instances["job-worker-0"].exit_code == 7
    assert "exit code 7" in job.reason


def test_a_restart_is_the_next_attempt_and_earlier_output_stays(subject: Subject) -> None:
    first = subject.submit("job", f"[ -e {subject.go} ] && echo second || echo first")
    subject.await_end("job")
    subject.let_end()

    subject.engine.restart("job", lambda _line: None)
    job = subject.await_end("job")

    assert (job.id, job.attempt, job.status) == (first.id, 2, JobStatus.SUCCEEDED)
    assert subject.output("job") == [("job-worker-0", b"second\n")]
    assert subject.output("job", attempt=1) == [("job-worker-0", b"first\n")]


def test_a_job_with_retries_starts_again_after_a_failure(subject: Subject) -> None:
    subject.submit("job", f"[ -e {subject.go} ] || {{ touch {subject.go}; exit 3; }}", retry=1)
    job = subject.await_end("job")

    assert (job.status, job.attempt) == (JobStatus.SUCCEEDED, 2)


def test_jobs_are_listed_in_pages_and_the_newest_is_first(subject: Subject) -> None:
    names = ["one", "two", "three"]
    for name in names:
        subject.submit(name, hold=True)
    first = subject.engine.jobs(limit=2)
    subject.engine.delete("three", lambda _line: None)
    second = subject.engine.jobs(limit=2, cursor=first.next_cursor, time_limit=30.0)

    assert [job.spec.name for job in first.jobs] == ["three", "two"]
    assert ([job.spec.name for job in second.jobs], second.next_cursor) == (["one"], "")
    assert [job.spec.name for job in all_jobs(subject.engine, page_size=1).jobs] == ["two", "one"]
    assert (first.unreachable, first.problems, first.incomplete) == ({}, (), "")


@pytest.mark.parametrize("cursor", ["x", "1.0", "x job id", "1.0 a b c"])
def test_an_invalid_cursor_is_refused(subject: Subject, cursor: str) -> None:
    with pytest.raises(UsageError):
        subject.engine.jobs(limit=1, cursor=cursor)


def test_nodes_show_the_jobs_of_their_gpus(subject: Subject) -> None:
    job = subject.start("job", subject.waiting_line, gpus=2)
    (node,) = subject.engine.nodes(time_limit=30.0).nodes

    assert (node.name, node.ready, node.drained, len(node.gpus)) == (subject.node, True, False, GPU_COUNT)
    assert {gpu.uuid for gpu in node.gpus if gpu.job == "job"} == set(job.assignments[0].uuids)


def test_a_drained_node_takes_no_new_jobs_and_its_jobs_continue(subject: Subject) -> None:
    subject.start("running", subject.waiting_line)
    assert subject.engine.drain([subject.node], "memory errors (alice)") == {subject.node: None}
    subject.submit("waiting")
    waiting = subject.await_cause("waiting", subject.drained_code)
    (node,) = subject.engine.nodes().nodes

    assert (node.drained, node.reason) == (True, reason("placement.node_drained", cause="memory errors (alice)"))
    assert waiting.status is JobStatus.PENDING
    assert subject.await_status("running", JobStatus.RUNNING).status is JobStatus.RUNNING
    assert subject.engine.resume([subject.node], [].append) == {subject.node: None}
    assert subject.await_end("waiting").status is JobStatus.SUCCEEDED


def test_nodes_show_the_labels_that_were_set(subject: Subject) -> None:
    """The inventory records labels first; an engine may read them there."""
    subject.engine.set_labels({subject.node: LABELS})
    (node,) = subject.engine.nodes().nodes

    assert node.labels == LABELS


def test_reserved_gpus_are_not_given_to_jobs_until_they_are_released(subject: Subject) -> None:
    with subject.engine.reserve_gpus("program", [GpuRequest(subject.node, GPU_COUNT)]):
        assert subject.submit("job", gpus=1).status is JobStatus.PENDING
        with (
            pytest.raises(LaunchError, match="program"),
            subject.engine.reserve_gpus("other", [GpuRequest(subject.node, 1)]),
        ):
            pass
    assert subject.await_end("job").status is JobStatus.SUCCEEDED


def test_exactly_the_requested_gpus_are_reserved(subject: Subject) -> None:
    uuid = subject.engine.nodes().nodes[0].gpus[2].uuid

    with subject.engine.reserve_gpus("program", [GpuRequest(subject.node, 1, (uuid,))]):
        assert [gpu.uuid for gpu in subject.engine.nodes().nodes[0].gpus if gpu.job] == [uuid]


def test_the_submitter_owns_a_job(subject: Subject) -> None:
    job = subject.submit("job", hold=True)

    assert subject.engine.owns(subject.engine.get("job"))
    assert subject.engine.owned(all_jobs(subject.engine).jobs) == [job.id]
    assert not subject.engine.refuses(subject.engine.get("job"))


def test_a_dry_run_changes_nothing(subject: Subject) -> None:
    plan = subject.engine.dry_run(subject.spec("job", "echo hello", gpus=1, env={"NAME": "value"}))

    assert [one.node for one in plan.assignments] == [subject.node]
    assert plan.environment["job-worker-0"]["NAME"] == "value"
    assert plan.commands
    assert all_jobs(subject.engine).jobs == ()
    assert {gpu.job for gpu in subject.engine.nodes().nodes[0].gpus} == {""}


def test_a_command_for_an_instance_is_a_local_command(subject: Subject) -> None:
    subject.start("job", subject.waiting_line)

    argv = subject.engine.exec_argv("job", "job-worker-0", ["echo", "x"], terminal=False)

    assert argv
    assert all(isinstance(word, str) for word in argv)
    assert subject.engine.forward_argv("job", 8080, "8080")
    with pytest.raises(NotFound):
        subject.engine.forward_argv("job", 8080, "tensorboard")
    with pytest.raises(NotFound):
        subject.engine.exec_argv("job", "job-worker-9", ["true"], terminal=False)


def test_a_maintenance_context_reports_and_waits(subject: Subject) -> None:
    subject.start("running", subject.waiting_line, gpus=GPU_COUNT)
    subject.submit("waiting", gpus=1)
    stop = threading.Event()
    stop.set()
    with subject.engine.maintenance() as maintenance:
        assert "waiting" in maintenance.run(lambda _line: None, time_limit=30.0).waiting
        assert maintenance.wait(30.0, stop) is False


def test_the_document_of_a_job_has_engine_specific_values_under_one_key(subject: Subject) -> None:
    """The older keys ``leases`` and ``keeperLost`` stay for scripts."""
    subject.start("job", subject.waiting_line, gpus=1)
    document = job_document(subject.engine.get("job"), 0.0, subject.engine.name)

    assert document["engine"] == subject.engine.name
    assert document["engineDetails"] == json.loads(json.dumps(dict(subject.engine.get("job").engine_details)))
    assert (list(document["leases"]), document["keeperLost"]) == ([subject.node], [])


@pytest.mark.parametrize(
    ("capability", "more"),
    [
        (Capability.RETRY, {"retry": 1}),
        (Capability.TOPOLOGY, {"gputopology": True}),
        (Capability.LABELS, {"selector": {"rack": "r1"}}),
        (Capability.GANG, {"workers": 2}),
    ],
)
def test_a_job_that_needs_a_missing_capability_is_refused(capability: Capability, more: dict[str, Any]) -> None:
    engine = MemoryEngine(lacks=[capability])
    with pytest.raises(MissingCapability, match=str(capability)) as caught:
        require_for(engine, spec_of("job", **more))

    assert (caught.value.exit_code, caught.value.capability) == (2, capability)
    assert caught.value.code == f"engine.no_{capability.name.lower()}"
    require_for(MemoryEngine(), spec_of("job", **more))


@pytest.mark.parametrize("capability", list(Capability))
def test_a_required_capability_is_checked_by_type(capability: Capability) -> None:
    require(MemoryEngine(lacks=()), capability, "provision x")
    with pytest.raises(MissingCapability, match=f"provision x: the job engine memory does not support {capability}"):
        require(MemoryEngine(lacks=[capability]), capability, "provision x")
