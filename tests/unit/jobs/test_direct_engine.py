"""The direct engine from a job to its processes, on nodes in folders; Docker, systemd and GPUs are STAND-INS."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from provision.errors import (
    ConnectionFailed,
    NameTaken,
    NeverFits,
    NodeError,
    NodeUnreachable,
    NotAllowed,
    NotFound,
    UsageError,
)
from provision.jobs import attempt_start, node_contact
from provision.jobs.engines.base import LogRequest, Secrets
from provision.jobs.engines.common import job_end, queue_host
from provision.jobs.engines.direct import DirectEngine, queue_starts
from provision.model import CommandResult, Node
from provision.model.job import JobRecord, JobSpec, JobStatus, Kind
from provision.model.reason import reason
from provision.workflow import queue_daemon
from provision.workflow.job_watch import exit_code, wait_for
from tests.support.node.direct import Way, direct_engine, recorded, signing_keys
from tests.support.node.node import Engine, FakeNode, assignment, until
from tests.support.reasons import parts


@dataclass
class Pair:
    """Two nodes and their jobs."""

    jobs: DirectEngine
    first: FakeNode
    second: FakeNode
    cut: set[str] = field(default_factory=set)
    """Names of nodes that cannot be reached."""


SHOW = "echo $NVIDIA_VISIBLE_DEVICES $RANK/$WORLD_SIZE"


@pytest.fixture
def node(tmp_path: Path, docker: Engine) -> Iterator[FakeNode]:
    with FakeNode(tmp_path, "a") as made:
        yield made.with_docker(docker)
    docker.reset()


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, node: FakeNode) -> DirectEngine:
    return direct_engine(monkeypatch, node)


def spec(name: str, line: str = "true", **more: Any) -> JobSpec:
    return JobSpec(name, Kind.RUN, (line,), image="image", **more)


def submit(
    jobs: DirectEngine, job: JobSpec, secrets: Secrets | None = None, said: list[str] | None = None
) -> JobRecord:
    return jobs.submit(job, secrets or Secrets(), (said if said is not None else []).append)


def output(jobs: DirectEngine, name: str) -> dict[str, str]:
    """The output of all instances of a finished job."""
    lines: dict[str, str] = {}

    def write(instance: str, line: bytes) -> None:
        lines[instance] = lines.get(instance, "") + line.decode()

    jobs.logs(jobs.get(name), LogRequest(every=True), write)
    return lines


def over(jobs: DirectEngine, name: str) -> JobRecord:
    """The job when it has ended."""
    return until(lambda: (job := jobs.get(name)).status.over and job, f"the end of {name}")


@pytest.mark.long
def test_an_exclusive_job_gets_its_gpus_and_the_whole_node(jobs: DirectEngine) -> None:
    """Its GPUs are set by number and variable; other jobs wait, with and without GPUs, until it has finished."""
    alone = submit(jobs, spec("alone", f"{SHOW}; exec sleep 60", gpus=1, gpu_ids=(2,), exclusive=True))
    other, cpu = submit(jobs, spec("other", SHOW, gpus=1)), submit(jobs, spec("cpu"))

    assert [(assignment.gpus, assignment.uuids) for assignment in alone.assignments] == [((2,), ("GPU-c",))]
    assert sorted(alone.allocations["a"]) == ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
    for waits in (other, cpu):
        assert waits.status is JobStatus.PENDING
        assert reason("placement.node_exclusive", job="alone") in parts(waits.cause)
    until(lambda: jobs.get("alone").status is JobStatus.RUNNING, "the start")
    jobs.stop("alone", [].append, grace=1)
    assert output(jobs, "alone") == {"alone-worker-0": "GPU-c 0/1\n"}

    assert [over(jobs, name).status for name in ("other", "cpu")] == [JobStatus.SUCCEEDED] * 2


@pytest.mark.long
def test_the_workers_of_an_exclusive_job_share_its_node(jobs: DirectEngine, tmp_path: Path) -> None:
    """Each has its own GPU, and the job leases the others."""
    line = f"{SHOW}; until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    alone = submit(jobs, JobSpec("alone", Kind.PYTORCH, (line,), image="image", gpus=1, workers=2, exclusive=True))

    assert sorted(alone.allocations["a"]) == ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
    (tmp_path / "go").touch()
    assert over(jobs, "alone").status is JobStatus.SUCCEEDED
    gpus = [line.split()[0] for line in output(jobs, "alone").values()]
    assert len(set(gpus)) == 2


@pytest.mark.row(35)
def test_jobs_that_share_a_node_get_different_rendezvous_ports(jobs: DirectEngine, tmp_path: Path) -> None:
    """They use the host's network, where a fixed port would work for one job only."""
    line = f"echo $MASTER_PORT; until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    for name in ("one", "two"):
        submit(jobs, JobSpec(name, Kind.PYTORCH, (line,), image="image"))
    (tmp_path / "go").touch()
    assert [over(jobs, name).status for name in ("one", "two")] == [JobStatus.SUCCEEDED] * 2
    first, second = (output(jobs, name)[f"{name}-master-0"].strip() for name in ("one", "two"))

    assert first.isdecimal()
    assert second.isdecimal()
    assert first != second


def test_a_held_job_starts_as_its_first_attempt_when_it_is_released(jobs: DirectEngine) -> None:
    """No attempt was stopped before, and no other job changes."""
    remarks = {"modelName": "mnist", "remark": "long"}
    assert submit(jobs, spec("held", hold=True, retry=2, annotations=remarks)).status is JobStatus.QUEUING
    assert jobs.jobs().jobs[0].spec.annotations == {"modelName": "mnist"}, "what lists show"
    released = jobs.release("held", [].append)

    assert released.attempt == 1
    assert [event.message.partition(" by ")[0] for event in released.events if event.source == "queue"] == ["released"]
    assert over(jobs, "held").status is JobStatus.SUCCEEDED
    assert jobs.release("held", [].append).attempt == 1


def test_a_job_that_waits_for_another_job_does_not_delay_others(jobs: DirectEngine) -> None:
    """Whatever its age; jobs of the same size do not overtake one that waits for GPUs."""
    later = submit(jobs, spec("later", gpus=1, depends=("missing",)))
    now = submit(jobs, spec("now", "exec sleep 60", gpus=1, gpu_ids=(0,)))
    for name in ("next", "last"):
        submit(jobs, spec(name, gpus=1, gpu_ids=(0,)))

    assert "depends on missing" in later.reason
    assert now.attempt == 1
    assert jobs.get("last").reason == "waits behind next, which was submitted before"


@pytest.mark.row(7)
def test_without_gang_only_the_workers_that_fit_start(jobs: DirectEngine) -> None:
    """They get their number and their own GPUs; an event records it."""
    said: list[str] = []
    started = submit(jobs, spec("some", SHOW, gpus=1, workers=3, gang=False, gpu_ids=(1, 3)), said=said)

    assert [(assignment.rank, assignment.gpus) for assignment in started.assignments] == [(0, (1,)), (1, (3,))]
    assert any("it starts with 2 of 3 workers" in line for line in said)
    assert any("it starts with 2 of 3 workers" in event.message for event in started.events)
    over(jobs, "some")
    assert output(jobs, "some") == {"some-worker-0": "GPU-b 0/2\n", "some-worker-1": "GPU-d 1/2\n"}


def finished(node: FakeNode, name: str, seconds: float) -> None:
    """Create a job on a node that ended a minute ago, with this lifetime."""
    document = {"kind": "run", "name": name, "command": ["x"], "ttl_after_finished": seconds}
    attempt = {"attempt": 1, "id": name, "seats": [assignment(f"{name}-worker-0", "a", 0)], "node": "a"}
    result = {"status": "SUCCEEDED", "exit_code": 0, "ended": time.time() - 60, "chief": True}
    node.attempt(name).mkdir(parents=True)
    for path, content in (
        (node.root / name / "job.json", {"id": name, "submitted": 1.0, "spec": document}),
        (node.root / name / "queue.json", {"state": "over", "attempt": 1}),
        (node.attempt(name) / "attempt.json", attempt),
        (node.attempt(name) / "result.json", result),
    ):
        path.write_text(json.dumps(content))


@pytest.mark.row(39)
def test_a_finished_job_is_deleted_after_its_lifetime(jobs: DirectEngine, node: FakeNode) -> None:
    """By any scheduling pass; not earlier, and not while a waiting job depends on it."""
    for name, seconds in (("short", 59.0), ("long", 3600.0), ("needed", 59.0), ("ever", 0.0)):
        finished(node, name, seconds)
    later = {"kind": "run", "name": "later", "command": ["x"], "depends": ["needed"], "hold": True}
    node.ok("reserve", name="later", job={"id": "l", "submitted": 1.0, "spec": later}, queue={"state": "held"})
    said: list[str] = []
    jobs.start_pending(said.append)

    assert sorted(path.name for path in node.root.iterdir()) == ["ever", "later", "long", "needed"]
    assert said == ["short deleted: it finished more than 59 s ago"]


def test_a_scheduling_pass_records_the_states_of_all_jobs_in_one_request(
    jobs: DirectEngine, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other commands wait for the queue meanwhile, and hundreds of jobs may have ended since the last pass."""
    names, asked, ask = [f"j{number}" for number in range(4)], [], queue_host.ask_jobs
    for name in names:
        finished(node, name, 0.0)
        (node.root / name / "queue.json").write_text('{"state": "started", "attempt": 1}')
    monkeypatch.setattr(
        queue_host, "ask_jobs", lambda connector, do, kind, **more: asked.append(do) or ask(connector, do, kind, **more)
    )
    jobs.start_pending([].append)

    assert asked == ["queues"]
    assert {json.loads((node.root / name / "queue.json").read_text())["state"] for name in names} == {"over"}


def test_files_and_secrets_are_stored_until_the_job_ends(jobs: DirectEngine, node: FakeNode) -> None:
    """Byte by byte, also after a restart; a start without them is refused."""
    secrets = Secrets(env={"TOKEN": "t"}, files={"/etc/c": b"a\xff".decode("utf-8", "surrogateescape")})
    line = "test $TOKEN = t && exec sleep 60"
    submit(jobs, spec("j", line, config_files=("/home/me/c:/etc/c",), secret_env=("TOKEN",)), secrets)
    config = node.attempt() / "config"

    assert (config / "0").read_bytes() == b"a\xff"
    assert "surrogate" not in (node.root / "j" / "job.json").read_text()
    assert jobs.restart("j", [].append).attempt == 2
    assert (node.attempt(number=2) / "config" / "0").read_bytes() == b"a\xff"
    assert not config.exists()
    jobs.stop("j", [].append, grace=1)
    until(lambda: not (node.root / "j" / "secrets.json").exists(), "the end of its secrets")
    with pytest.raises(NodeError, match=r"needs secrets that a does not store \(/etc/c\)"):
        jobs.restart("j", [].append)
    with pytest.raises(NodeError, match=r"needs secrets that a does not store \(/c\)"):
        submit(jobs, spec("k", config_files=("/c:/c",)))
    assert jobs.get("k").status is JobStatus.FAILED


def test_a_job_whose_containers_do_not_run_yet_is_not_started_again(jobs: DirectEngine, node: FakeNode) -> None:
    """Its supervisor runs it: another scheduling pass does not change it, and it delays no other job."""
    document = {"kind": "run", "name": "j", "command": ["x"], "workers": 1}
    attempt = {"attempt": 1, "id": "j", "seats": [assignment("j-worker-0", "a", 0)], "node": "a", "time": time.time()}
    node.attempt("j").mkdir(parents=True)
    for path, content in (
        (node.root / "j" / "job.json", {"id": "j", "submitted": 1.0, "spec": document}),
        (node.root / "j" / "queue.json", {"state": "started", "attempt": 1, "time": time.time()}),
        (node.attempt("j") / "attempt.json", attempt),
        (node.attempt("j") / "state.json", {}),
        (node.attempt("j") / "j-worker-0.json", {"instance": "j-worker-0", "status": "ContainerCreating"}),
    ):
        path.write_text(json.dumps(content))
    before = (node.root / "j" / "queue.json").read_text()
    tried = jobs.start_pending([].append)

    assert (tried.started, tried.waiting, jobs.get("j").status) == ((), (), JobStatus.PENDING)
    assert (node.root / "j" / "queue.json").read_text() == before
    assert not node.attempt("j", 2).exists()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, docker: Engine) -> Iterator[Pair]:
    """Two nodes, of which each can be cut off; the first one is the queue host."""
    with FakeNode(tmp_path / "a", "a") as first, FakeNode(tmp_path / "b", "b") as second:
        jobs = direct_engine(monkeypatch, first.with_docker(docker), second.with_docker(docker))
        made, answers = Pair(jobs, first, second), Way.run

        def run(connector: Way, *words: Any, **more: Any) -> Any:
            if connector.name in made.cut:
                raise ConnectionFailed("no route to host", node=connector.name)
            return answers(connector, *words, **more)

        monkeypatch.setattr(Way, "run", run)
        monkeypatch.setattr(node_contact, "takes_connections", lambda node, _: node.name not in made.cut)
        yield made
    docker.reset()


def running(pair: Pair, name: str, **more: Any) -> JobRecord:
    """Submit a job that does not end by itself, and wait until it runs."""
    submit(pair.jobs, spec(name, "exec sleep 60", **more))
    return until(lambda: (job := pair.jobs.get(name)).status is JobStatus.RUNNING and job, f"the start of {name}")


ON_B = {"gpus": 1, "nodes": ("b",)}


def test_a_job_is_stopping_until_every_node_has_confirmed_its_stop(pair: Pair) -> None:
    """The first command that reaches the node carries the stop out; the GPUs stay leased until then."""
    running(pair, "j", **ON_B)
    pair.cut = {"b"}
    stopped = pair.jobs.stop("j", [].append, grace=1)

    assert (stopped.status, stopped.unconfirmed, stopped.silent) == (JobStatus.STOPPING, ("b",), ("b",))
    assert "not confirmed by b" in stopped.reason
    assert [job.status for job in pair.jobs.jobs().jobs] == [JobStatus.STOPPING]
    assert pair.jobs.start_pending([].append).started == ()
    pair.cut = set()
    pair.jobs.jobs()
    ended = over(pair.jobs, "j")
    assert (ended.status, ended.unconfirmed) == (JobStatus.STOPPED, ())
    assert ended.reason.startswith("stopped by")
    assert pair.second.ok("look")["leases"] == {}


@pytest.mark.parametrize("verb", ["jobs", "submit", "stop"])
def test_an_unreachable_node_is_connected_to_once(pair: Pair, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """Each connection lasts until a time limit, so neither the command nor the next one makes a second connection."""
    running(pair, "j", **ON_B)
    connected: list[str] = []
    answers = Way.run

    def run(connector: Way, *words: Any, **more: Any) -> Any:
        connected.append(connector.name)
        return answers(connector, *words, **more)

    monkeypatch.setattr(Way, "run", run)
    pair.cut = {"b"}
    if verb != "stop":
        pair.jobs.jobs()
        assert connected.count("b") == 1
    if verb == "jobs":
        survey = pair.jobs.jobs()
        assert list(survey.unreachable) == ["b"]
    elif verb == "submit":
        assert submit(pair.jobs, spec("other", gpus=1)).attempt == 1
    else:
        pair.jobs.stop("j", [].append, grace=1)
    assert connected.count("b") == 1, connected


@pytest.mark.parametrize("finished", [False, True])
def test_a_name_is_reserved_until_every_node_has_confirmed_the_deletion(pair: Pair, *, finished: bool) -> None:
    """No other job gets the name, and the record is removed when the node has confirmed."""
    running(pair, "j", **ON_B)
    if finished:
        pair.jobs.stop("j", [].append, grace=1)
    pair.cut = {"b"}
    with pytest.raises(NodeUnreachable, match=r"j is STOPPING.*b: no route") as refused:
        pair.jobs.delete("j", [].append)
    assert "--lost NODE" in str(refused.value.remedy)
    for _ in range(2):
        with pytest.raises(NameTaken, match="b has not confirmed"):
            submit(pair.jobs, spec("j"))
    assert [(job.status, job.deleting) for job in pair.jobs.jobs().jobs] == [(JobStatus.STOPPING, True)]
    pair.cut = set()
    until(lambda: not pair.jobs.jobs().jobs, "the deletion")
    assert pair.second.ok("look")["leases"] == {}
    assert not (pair.second.root / "j").exists()
    assert submit(pair.jobs, spec("j")).attempt == 1


def test_the_owner_can_supply_the_secrets_of_an_ended_job_again(jobs: DirectEngine, node: FakeNode) -> None:
    """They are signed again, so that every controller starts the next attempt of the same job."""
    secrets = Secrets(env={"TOKEN": "t"}, registry={"server": "r", "username": "u", "password": "p"})
    first = submit(jobs, spec("j", "test $TOKEN = t", secret_env=("TOKEN",)), secrets)
    assert over(jobs, "j").status is JobStatus.SUCCEEDED
    jobs.start_pending([].append)
    assert not (node.root / "j" / "secrets.json").exists()

    with pytest.raises(NodeError, match="needs secrets that a does not store") as refused:
        jobs.restart("j", [].append)
    assert refused.value.code == "job.secrets_missing"
    with pytest.raises(NodeError, match=r"needs secrets"):
        jobs.restart("j", [].append, supply=lambda _spec: Secrets())
    again = jobs.restart("j", [].append, supply=lambda _spec: secrets)
    assert (again.attempt, again.id, again.owner) == (2, first.id, first.owner)
    assert over(jobs, "j").status is JobStatus.SUCCEEDED

    changed = dataclasses.replace(secrets, env={"TOKEN": "other"})
    jobs.restart("j", [].append, supply=lambda _spec: changed, renew=True)
    assert over(jobs, "j").status is JobStatus.FAILED


def test_only_the_owner_can_supply_the_secrets_of_a_job(
    jobs: DirectEngine, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another operator would sign the job as its owner; the message names the owner."""
    owner = submit(jobs, spec("j", secret_env=("TOKEN",)), Secrets(env={"TOKEN": "t"})).owner
    over(jobs, "j")
    jobs.start_pending([].append)
    monkeypatch.setattr(jobs, "owns", lambda _job: False)

    with pytest.raises(NodeError, match=f"only its owner {owner} can supply the secrets of j"):
        jobs.restart("j", [].append, supply=lambda _spec: Secrets(env={"TOKEN": "t"}))
    assert not (node.root / "j" / "secrets.json").exists()


@pytest.mark.parametrize(("line", "code"), [("true", 0), ("exit 3", 3)])
def test_the_result_of_an_ended_job_is_known_while_its_node_is_unreachable(pair: Pair, line: str, code: int) -> None:
    """Also while its deletion is not confirmed; then the name stays reserved. Another attempt has another result."""
    submit(pair.jobs, spec("j", line, **ON_B))
    ended = over(pair.jobs, "j")
    pair.cut = {"b"}
    away = pair.jobs.get("j")
    assert (away.status, away.attempt, away.unreachable) == (ended.status, 1, ("b",))
    assert exit_code(away) == code
    with pytest.raises(NodeUnreachable, match=r"^j is not deleted on all of its nodes: b: no route"):
        pair.jobs.delete("j", [].append)

    (listed,) = pair.jobs.jobs().jobs
    assert (listed.status, listed.unconfirmed, listed.silent, listed.deleting) == (ended.status, ("b",), ("b",), True)
    seen = wait_for(lambda: pair.jobs.get("j"), JobStatus.SUCCEEDED, timeout=5)
    assert exit_code(seen) == code
    with pytest.raises(NameTaken, match="b has not confirmed"):
        submit(pair.jobs, spec("j"))
    pair.cut = set()
    until(lambda: not pair.jobs.jobs().jobs, "the deletion")


def test_a_restarted_job_has_no_result_until_it_ends(pair: Pair, tmp_path: Path) -> None:
    go = tmp_path / "go"
    submit(pair.jobs, spec("j", f"[ ! -e {go} ] || exec sleep 60; exit 3", **ON_B))
    over(pair.jobs, "j")
    recorded_queue = json.loads((pair.first.root / "j" / "queue.json").read_text())
    assert recorded_queue["result"]["exit_code"] == 3
    go.touch()
    pair.jobs.restart("j", [].append)

    assert "result" not in json.loads((pair.first.root / "j" / "queue.json").read_text())
    assert pair.jobs.stop("j", [].append, grace=1).status is JobStatus.STOPPED


def test_a_lost_node_is_named_to_complete_a_deletion(pair: Pair) -> None:
    """If it comes back, its job is listed beside the new one, and its ID ends it."""
    lost = running(pair, "j", **ON_B)
    pair.cut = {"b"}
    with pytest.raises(NodeUnreachable):
        pair.jobs.delete("j", [].append)
    with pytest.raises(UsageError, match="never on this node"):
        pair.jobs.delete("j", [].append, lost=("a",))
    pair.jobs.delete("j", [].append, lost=("b",))
    new = submit(pair.jobs, spec("j", "exec sleep 60", gpus=1, nodes=("a",)))
    pair.cut = set()
    survey = pair.jobs.jobs()

    assert {job.id for job in survey.jobs} == {lost.id, new.id}
    assert any(f"provision delete {lost.id}" in line for line in survey.problems)
    assert pair.jobs.get("j").id == new.id
    pair.jobs.delete(lost.id, [].append)
    assert [job.id for job in pair.jobs.jobs().jobs] == [new.id]
    assert pair.second.ok("look")["leases"] == {}
    assert pair.jobs.get("j").status is not JobStatus.STOPPING
    with pytest.raises(UsageError, match="--lost a: this node answers"):
        pair.jobs.delete("j", [].append, lost=("a",))


def test_a_refused_deletion_changes_nothing(pair: Pair) -> None:
    """Neither a node that never had the job nor one that answers counts as lost, and the job continues."""
    running(pair, "j", **ON_B)
    for node, problem in (("a", "never on this node"), ("b", "this node answers")):
        with pytest.raises(UsageError, match=problem):
            pair.jobs.delete("j", [].append, lost=(node,))
    pair.jobs.jobs()

    assert pair.jobs.get("j").status is JobStatus.RUNNING
    assert pair.jobs.stop("j", [].append, grace=1).status is JobStatus.STOPPED


def test_a_deletion_without_the_queue_host_changes_nothing(pair: Pair) -> None:
    """Otherwise the job would be lost and retried. A stop that all nodes confirm needs no queue host."""
    running(pair, "j", retry=1, **ON_B)
    pair.cut = {"a"}
    with pytest.raises(NodeUnreachable, match="queue host a does not answer"):
        pair.jobs.delete("j", [].append)
    assert pair.jobs.get("j").status is JobStatus.RUNNING
    assert pair.jobs.stop("j", [].append, grace=1).status is JobStatus.STOPPED
    pair.cut = set()
    assert pair.jobs.start_pending([].append).started == ()
    assert pair.jobs.get("j").status is JobStatus.STOPPED


def test_a_stop_that_reaches_neither_the_queue_host_nor_a_node_fails(pair: Pair) -> None:
    """The message says that no stop is recorded."""
    running(pair, "j", workers=2, max_per_node=1, gpus=1)
    pair.cut = {"a"}
    with pytest.raises(NodeUnreachable, match="cannot be recorded"):
        pair.jobs.stop("j", [].append, grace=1)


@pytest.mark.parametrize("verb", ["stop", "delete"])
def test_an_end_that_the_queue_host_refuses_is_requested_from_no_node(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The job agent refuses it for a job of another user; the command fails with that reason."""
    running(pair, "j", **ON_B)
    asked, ask = [], job_end.ask_jobs

    def refuse(connector: Any, do: str, kind: Any, **more: Any) -> Any:
        asked.append(do)
        if do == "queue":
            raise NodeError("the job j belongs to another user", node=connector.name)
        return ask(connector, do, kind, **more)

    monkeypatch.setattr(job_end, "ask_jobs", refuse)
    with pytest.raises(NodeError, match="belongs to another user"):
        getattr(pair.jobs, verb)("j", [].append)
    assert asked == ["report", "queue"]
    assert pair.jobs.get("j").status is JobStatus.RUNNING


@pytest.mark.parametrize("verb", ["submit", "release", "restart", "logs"])
def test_no_verb_connects_twice_to_an_unreachable_queue_host(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The first connection lasts until a time limit; later connections are refused at once."""
    running(pair, "j", **ON_B)
    held = submit(pair.jobs, spec("held", hold=True))
    connected, connect = [], node_contact.connect
    pair.cut = {"a"}

    def counted(node: Node) -> Any:
        connected.append(node.name)
        return connect(node)

    monkeypatch.setattr(node_contact, "connect", counted)
    pair.jobs.jobs()  # which remembers that it did not answer
    monkeypatch.setattr(pair.jobs, "get", lambda name, **_: held if name == "held" else replace(held, attempt=2))
    act = {
        "submit": lambda: submit(pair.jobs, spec("new")),
        "release": lambda: pair.jobs.release("held", [].append),
        "restart": lambda: pair.jobs.restart("j", [].append),
        "logs": lambda: pair.jobs.logs(pair.jobs.get("j"), LogRequest(attempt=1), lambda *_: None),
    }[verb]
    with pytest.raises(NodeUnreachable):
        act()
    assert "a" not in connected


@pytest.mark.parametrize("verb", ["stop", "delete"])
def test_a_refusal_by_the_job_agent_exits_with_2(pair: Pair, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """With its reason code, also for the output of a job."""
    running(pair, "j", **ON_B)
    answers = Way.run

    def run(connector: Way, script: str, *, stdin: bytes = b"", **limits: Any) -> CommandResult:
        if b'"do": "queue"' in stdin:
            problem = {"message": "the job j belongs to another user", "code": "job.not_owner"}
            return CommandResult(json.dumps({"error": problem}), "", 1)
        return answers(connector, script, stdin=stdin, **limits)

    monkeypatch.setattr(Way, "run", run)
    with pytest.raises(NotAllowed) as refused:
        getattr(pair.jobs, verb)("j", [].append)
    assert (refused.value.exit_code, refused.value.code) == (2, "job.not_owner")


def test_a_restart_waits_for_the_confirmation_of_all_nodes(pair: Pair) -> None:
    """Otherwise two attempts of the job would run."""
    running(pair, "j", **ON_B)
    pair.cut = {"b"}
    with pytest.raises(NodeUnreachable, match="may still run"):
        pair.jobs.restart("j", [].append)
    assert pair.jobs.get("j").attempt == 0
    with pytest.raises(NodeUnreachable):
        pair.jobs.delete("j", [].append)
    with pytest.raises(NodeError, match="is being deleted"):
        pair.jobs.restart("j", [].append)
    assert pair.jobs.get("j").status is JobStatus.STOPPING


def test_a_waiting_job_can_be_stopped_and_deleted_while_other_nodes_are_unreachable(pair: Pair) -> None:
    """No node ever had the job, so no node has to confirm."""
    submit(pair.jobs, spec("j", hold=True))
    submit(pair.jobs, spec("k", hold=True))
    pair.cut = {"b"}

    assert pair.jobs.stop("j", [].append).status is JobStatus.STOPPED
    pair.jobs.delete("k", [].append)
    assert [job.spec.name for job in pair.jobs.jobs().jobs] == ["j"]


@pytest.mark.row(62)
def test_the_program_of_processes_that_share_a_gpu_is_in_the_container(jobs: DirectEngine, node: FakeNode) -> None:
    """In the folder /provision."""
    submit(jobs, spec("j", gpus=1, procs_per_gpu=2))

    assert "process_index" in (node.attempt() / "mount" / "share.py").read_text()


@pytest.mark.row(14)
def test_an_mpirun_command_that_fails_on_its_nodes_is_refused_before_the_name_is_reserved(jobs: DirectEngine) -> None:
    """Unusual words are reported only, also by --dry-run."""
    line = "mpirun -np 2 -H a:1,z:1 x"
    job = JobSpec("j", Kind.MPI, (line,), image="image", gpus=1, workers=2)
    for attempt in (lambda: submit(jobs, job), lambda: jobs.dry_run(job)):
        with pytest.raises(UsageError, match="-H names z") as refused:
            attempt()
        assert "--no-lint" in str(refused.value.remedy)

    assert jobs.jobs().jobs == ()
    odd = JobSpec("j", Kind.MPI, (line,), image="image", gpus=1, workers=2, lint=False)
    assert any("-H names z" in note for note in jobs.dry_run(odd).notes)
    assert jobs.dry_run(odd).files == {"hostfile": "a slots=2\n", "machinefile": "a:2\n"}
    unknown = "mpirun -np=2 --mca orte_keep_fqdn_hostnames t x"  # right or wrong by the image's Open MPI alone
    assert jobs.dry_run(JobSpec("j", Kind.MPI, (unknown,), image="image", gpus=1, workers=2)).notes == ()


def test_jobs_overtake_a_job_that_waits_for_another_job(jobs: DirectEngine) -> None:
    """The GPUs are free; only the waiting job has a reason to wait."""
    submit(jobs, spec("first", "sleep 30", gpus=4))
    submit(jobs, spec("after", gpus=1, depends=("first",)))
    jobs.stop("first", [].append)

    assert submit(jobs, spec("other", gpus=1)).attempt == 1
    assert jobs.get("after").status is JobStatus.FAILED
    assert "it depends on first, which is STOPPED" in jobs.get("after").reason


def test_a_job_with_a_toleration_starts_on_a_drained_node(jobs: DirectEngine, node: FakeNode) -> None:
    """Other jobs wait, with the reason."""
    node.ask("drain", reason="fan broken")

    assert submit(jobs, spec("tolerant", gpus=1, allow_drained=True)).attempt == 1
    waiting = submit(jobs, spec("patient", gpus=1))
    assert waiting.status is JobStatus.PENDING
    assert waiting.cause.code == "job.insufficient_resources"
    assert reason("placement.node_drained", cause="fan broken") in parts(waiting.cause)


def test_the_end_of_a_drain_starts_the_jobs_that_waited_for_the_node(jobs: DirectEngine) -> None:
    """No further command is needed."""
    assert jobs.drain(["a"], "fan broken (eve)") == {"a": None}
    assert submit(jobs, spec("patient", gpus=1)).status is JobStatus.PENDING

    assert jobs.resume(["a"], [].append) == {"a": None}

    assert jobs.get("patient").attempt == 1


def test_a_job_that_is_stopped_while_it_is_prepared_does_not_start(
    jobs: DirectEngine, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is read before the start; no part of the job is left, and it is STOPPED."""

    class StopsMeanwhile:
        """Stops the job between preparation and start."""

        def mounts(self, _spec: JobSpec, _node: str) -> list[str]:
            return []

        def before(self, attempt: Any, *_: Any) -> str:
            answer = node.ask("queue", name=attempt.spec.name, queue={"state": "stopped"}, merge=True)
            assert answer["written"]
            return ""

        def after(self, *_: Any) -> str:
            return ""

    monkeypatch.setattr(jobs, "_extras", StopsMeanwhile())
    with pytest.raises(NodeError, match="was stopped, deleted or started"):
        submit(jobs, spec("late", "echo ran", gpus=1))

    record = jobs.get("late")
    assert record.status is JobStatus.STOPPED
    assert record.allocations == {}
    assert node.ask("look")["leases"] == {}


def test_a_queue_on_another_node_than_the_head_is_ignored_and_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, docker: Engine
) -> None:
    """A node cannot stop jobs with a queue of its own; the report names it."""
    with FakeNode(tmp_path / "a", "a") as first, FakeNode(tmp_path / "b", "b") as second:
        jobs = direct_engine(monkeypatch, first.with_docker(docker), second.with_docker(docker))
        second.ok("reserve", name="forged", job={"id": "f", "spec": {"command": ["x"]}}, queue={"state": "pending"})
        said: list[str] = []
        submit(jobs, spec("mine"), said=said)

        assert over(jobs, "mine").status is JobStatus.SUCCEEDED
        assert jobs.get("forged").attempt == 0
        docker.reset()
    assert [line for line in said if line.startswith("warning: b: it reports a queue in which forged is pending")]
    assert any(line.startswith("b: it reports a queue") for line in jobs.jobs().problems)


def earlier(node: FakeNode, name: str, kind: str, *instances: str) -> None:
    """Create a job with two attempts: the first with these instances, the second with another launcher."""
    document = {"kind": kind, "name": name, "command": ["x"]}
    last = [assignment(f"{name}-{word}", "a", 0) for word in ("launcher-zzzzz" if kind == "mpi" else "worker-0",)]
    contents = {
        node.root / name / "job.json": {"id": name, "submitted": 1.0, "spec": document},
        node.root / name / "queue.json": {"state": "over", "attempt": 2},
        node.attempt(name, 2) / "attempt.json": {"attempt": 2, "id": name, "seats": last, "node": "a"},
        node.attempt(name, 2) / "result.json": {"status": "FAILED", "exit_code": 1, "ended": 9.0, "chief": True},
    }
    for word in instances:
        contents[node.attempt(name, 1) / f"{name}-{word}.json"] = {"instance": f"{name}-{word}", "log": instances[0]}
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    (node.attempt(name, 1) / f"{instances[0]}.log").write_text("2026-01-01T00:00:00.000000Z o first\n")


def test_logs_of_an_earlier_attempt_are_those_of_its_own_instances(jobs: DirectEngine, node: FakeNode) -> None:
    """The launcher has another name in each attempt; a missing instance is reported."""
    earlier(node, "vgg", "mpi", "launcher-abcde", "worker-0")
    lines: list[tuple[str, bytes]] = []

    jobs.logs(jobs.get("vgg"), LogRequest(attempt=1), lambda *line: lines.append(line))
    assert lines == [("vgg-launcher-abcde", b"first\n")]
    jobs.logs(jobs.get("vgg"), LogRequest(attempt=1, every=True), lambda *line: lines.append(line))
    assert lines[1:] == lines[:1]  # one container, one output
    jobs.logs(jobs.get("vgg"), LogRequest(attempt=1, instances=("worker-0",)), lambda *line: lines.append(line))
    assert lines[2:] == [("vgg-worker-0", b"first\n")]
    for request in (LogRequest(attempt=1, instances=("worker-7",)), LogRequest(attempt=5)):
        with pytest.raises(NotFound):
            jobs.logs(jobs.get("vgg"), request, lambda *line: lines.append(line))


def test_a_node_that_was_removed_from_the_inventory_is_reported(jobs: DirectEngine, node: FakeNode) -> None:
    """Wherever the node of an instance is needed."""
    earlier(node, "old", "run", "worker-0")
    attempt = node.attempt("old", 2) / "attempt.json"
    attempt.write_text(attempt.read_text().replace('"node": "a"', '"node": "gone"'))

    for act in (
        lambda: jobs.logs(jobs.get("old"), LogRequest(), lambda *_line: None),
        lambda: jobs.exec_argv("old", "", ["ls"], terminal=False),
        lambda: jobs.forward_argv("old", 1, "1"),
    ):
        with pytest.raises(NotFound, match="on gone, which is no longer in the inventory"):
            act()


def test_a_port_of_an_ended_job_is_not_forwarded(jobs: DirectEngine, node: FakeNode) -> None:
    """A forwarding without a target would look like success."""
    earlier(node, "old", "run", "worker-0")

    with pytest.raises(NotFound, match="FAILED"):
        jobs.forward_argv("old", 8080, "8080")


def test_the_age_of_a_waiting_reason_is_that_of_the_last_complete_pass(jobs: DirectEngine, node: FakeNode) -> None:
    """Also if the reason is the same as before and was not written again; an interrupted pass does not count."""
    submit(jobs, spec("first", "exec sleep 60", gpus=4))
    waits = submit(jobs, spec("waits", gpus=1))
    written = node.ok("report", names=["waits"])["jobs"][0]["queue"]["time"]
    assert waits.reason_time == written
    jobs.start_pending([].append)
    tried = until(lambda: (at := jobs.get("waits").reason_time) > written and at, "the end of the pass")
    with pytest.raises(NeverFits):
        submit(jobs, spec("never", gpus=5, priority=1))

    assert (jobs.get("waits").reason_time, jobs.get("waits").reason) == (tried, waits.reason)
    assert jobs.get("first").reason_time == 0


def test_only_nodes_with_a_part_of_a_job_are_asked_about_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, docker: Engine
) -> None:
    """Nodes of earlier attempts are asked too, and all nodes if the head is unreachable."""
    with FakeNode(tmp_path / "a", "a") as a, FakeNode(tmp_path / "b", "b") as b, FakeNode(tmp_path / "c", "c") as c:
        nodes = [one.with_docker(docker) for one in (a, b, c)]
        jobs, asked = direct_engine(monkeypatch, *nodes), list[str]()
        report, away = jobs._report, set[str]()

        def report_or_fail(connector: Any, names: Any, *, brief: bool) -> Any:
            asked.append(connector.name)
            if connector.name in away:
                raise ConnectionFailed("no route to host", node=connector.name)
            return report(connector, names, brief=brief)

        monkeypatch.setattr(jobs, "_report", report_or_fail)

        def asked_for(name: str) -> list[str]:
            asked.clear()
            jobs.get(name)
            return asked

        go = tmp_path / "go"
        submit(jobs, spec("j", f"until [ -e {go} ]; do sleep 0.05; done; exit 1", nodes=("b",), retry=1))
        submit(jobs, spec("waits", gpus=4, depends=("j",)))
        go.touch()
        until(lambda: jobs.get("j").retrying, "the first failure")
        jobs.start_pending([].append)
        over(jobs, "j")
        assert asked_for("j") == ["a", "b"]
        assert asked_for("waits") == ["a"]
        away.add("a")
        assert sorted(asked_for("j")) == ["a", "a", "b", "c"]
        docker.reset()


def test_leases_of_a_job_that_waits_for_its_start_are_renewed(
    jobs: DirectEngine, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many jobs in one pass, some start late because earlier ones pull images."""
    for name in ("j1", "j2"):
        job = recorded(signing_keys(node), spec(name, gpus=1))
        node.ok("reserve", name=name, job=job, queue={"state": "pending"})
    happened, start, renew = list[str](), attempt_start.start, attempt_start.renew

    def slow(connections: Any, attempt: Any, *more: Any) -> str:
        happened.append(f"start {attempt.spec.name}")
        until(lambda: "renew j2" in happened, "a sign of life of the other one")
        return start(connections, attempt, *more)

    def renewed(connections: Any, attempt: Any) -> None:
        renew(connections, attempt)
        happened.append(f"renew {attempt.spec.name}")

    monkeypatch.setattr(attempt_start, "start", slow)
    monkeypatch.setattr(attempt_start, "renew", renewed)
    monkeypatch.setattr(attempt_start, "BROKEN_SECONDS", 0.4)
    monkeypatch.setattr(queue_starts, "MANY", 1)
    assert jobs.start_pending([].append).started == ("j1", "j2")

    assert happened.index("renew j2") < happened.index("start j2")


def test_a_slow_start_does_not_delay_other_jobs(
    jobs: DirectEngine, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry of a submitter may be slow: the daemon does its next pass, and the slow job starts too."""
    start, may_go = attempt_start.start, threading.Event()

    def slow(connections: Any, attempt: Any, *more: Any) -> str:
        if attempt.spec.name == "slow":
            may_go.wait(60)
        return start(connections, attempt, *more)

    def record(name: str) -> None:
        job = recorded(signing_keys(node), spec(name, gpus=1))
        node.ok("reserve", name=name, job=job, queue={"state": "pending"})

    monkeypatch.setattr(attempt_start, "start", slow)
    monkeypatch.setattr(queue_daemon, "START_SECONDS", 0.1, raising=False)
    record("slow")
    stop, names = threading.Event(), list[str]()
    about: Any = {"say": [].append, "started": names.append, "warn": names.append}
    daemon = threading.Thread(target=queue_daemon.serve, args=(jobs, stop), kwargs=about, daemon=True)
    daemon.start()
    until(lambda: "slow" in names or node.ok("look")["leases"], "the lease of the slow job")
    record("quick")
    try:
        until(lambda: jobs.get("quick").status is JobStatus.SUCCEEDED, "the end of the other job", 30)
        assert jobs.get("slow").status is JobStatus.PENDING
        stop.set()
        assert daemon.is_alive(), "a start that has begun ends before the daemon"
    finally:
        may_go.set()
        stop.set()
    daemon.join(60)

    assert not daemon.is_alive()
    assert over(jobs, "slow").status is JobStatus.SUCCEEDED
    assert sorted(names) == ["quick", "slow"]


def test_a_start_that_cannot_reach_the_head_releases_its_gpus(
    jobs: DirectEngine, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other jobs do not have to wait until the leases expire."""

    def away(connector: Any, *_: Any, **__: Any) -> Any:
        raise ConnectionFailed("no route to host", node=connector.name)

    monkeypatch.setattr(queue_starts, "ask_jobs", away)
    with pytest.raises(ConnectionFailed):
        submit(jobs, spec("j", gpus=2))

    assert node.ask("look")["leases"] == {}


def heard(jobs: DirectEngine, seconds: float = 5.0) -> bool:
    """Return whether a watch reports a change in time."""
    return jobs.watch(seconds, threading.Event())


@pytest.mark.long
def test_a_change_that_may_let_a_job_start_is_reported_at_once(jobs: DirectEngine, node: FakeNode) -> None:
    """GPUs that are released while a job waits, and a failure with remaining retries."""
    submit(jobs, spec("first", gpus=4))
    threading.Timer(0.1, lambda: over(jobs, "first")).start()
    assert not heard(jobs, 0.5), "nobody waits for them"

    submit(jobs, spec("again", "exit 3", retry=1))
    assert heard(jobs)
    until(lambda: jobs.get("again").retrying, "the first failure")
    assert jobs.start_pending([].append).started == ("again",)

    submit(jobs, spec("second", "exec sleep 60", gpus=4))
    submit(jobs, spec("waits", gpus=1))
    threading.Timer(0.1, lambda: node.ok("stop", name="second", reason="x", grace=0)).start()
    assert heard(jobs)


def test_new_jobs_and_jobs_that_other_commands_started_are_reported(
    jobs: DirectEngine, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that are held, that wait for a recorded reason, or that are known to run are not reported."""
    begun = time.time() - 4
    for queue, known, hears in (
        ({"state": "held"}, "", False),
        ({"state": "pending", "reason": "no room"}, "", False),
        ({"state": "pending"}, "", True),
        ({"state": "started"}, "j", False),
        ({"state": "started"}, "", True),
    ):
        node.ok("reserve", name="j", job={"id": "n", "submitted": 1.0, "spec": {}}, queue=queue)
        os.utime(node.root / "j" / "queue.json", (begun, begun + 0.5))
        monkeypatch.setattr(jobs, "_watched", {"a": {"since": begun, "known": [known]}})
        assert heard(jobs, 5.0 if hears else 0.15) is hears, queue
        node.ok("delete", name="j", id="n")
    monkeypatch.setattr(jobs, "_watched", {"a": {"leases": ["GPU-a"]}})
    assert heard(jobs), "it was given back before we watched"


def test_a_refusal_to_show_output_is_an_error_and_not_output(jobs: DirectEngine, node: FakeNode) -> None:
    """The job agent refuses the output of another user's job; a job that prints the same text is shown unchanged."""
    like = '{"error": {"message": "mine"}}'
    submit(jobs, spec("j", f"echo '{like}'"))
    over(jobs, "j")
    assert output(jobs, "j") == {"j-worker-0": f"{like}\n"}

    (node.root / "j/attempts/1/j-worker-0.json").unlink()
    lines: list[bytes] = []
    with pytest.raises(NotFound, match="has no instance j-worker-0"):
        jobs.logs(jobs.get("j"), LogRequest(), lambda _instance, line: lines.append(line))
    assert lines == []
