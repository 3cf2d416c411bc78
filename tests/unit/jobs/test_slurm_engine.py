"""The engine `slurm` over nodes in folders with the real node programs. Slurm's controller is a STAND-IN.

`tests/integration/test_slurm_jobs.py` runs jobs on a real Slurm.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.errors import ConnectionFailed, NameTaken, NeverFits, NodeError, NotFound, UsageError
from provision.jobs.cluster_snapshot import ClusterSnapshot
from provision.jobs.engines.base import Capability, Secrets, all_jobs, require_for
from provision.jobs.engines.slurm import compute_nodes, engine
from provision.jobs.engines.slurm.certificates import check_certificate
from provision.jobs.engines.slurm.payload import payload_of
from provision.jobs.engines.slurm.steps import SealedProcess, StepConnector
from provision.model import Cluster, Topology, TopologyGpu
from provision.model.job import JobSpec, JobStatus, Kind
from provision.model.reason import reason
from provision.topology.candidates import Candidate, Machine, Mode
from tests.support.node.direct import FakeClusterProbe
from tests.support.node.node import GPUS
from tests.support.node.slurm_site import QUIET, Site
from tests.support.reasons import parts

HEAD = "a"


def test_a_submitted_job_waits_in_slurm_with_the_reason(site: Site) -> None:
    job = site.submit("mnist", gpus=2)

    assert (job.status, job.cause.code, job.attempt) == (JobStatus.PENDING, "slurm.resources", 0)
    assert site.rows()[0][-1] == f"provision:mnist@{job.id}"
    assert [one.id for one in all_jobs(site.engine).jobs] == [job.id]


def test_nodes_of_slurm_that_are_not_in_the_inventory_are_excluded(site: Site) -> None:
    site.submit("mnist")
    site.submit("other", nodes=("b",))

    assert "--exclude=login" in site.options(1)
    assert "--exclude=a,login" in site.options(2)
    assert [node.name for node in payload_of(site.script(2)).nodes] == ["b"]


def test_a_node_that_cannot_be_prepared_is_excluded_with_a_warning(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = compute_nodes.prepare
    away = {"b": ConnectionFailed("no route to host", node="b")}
    monkeypatch.setattr(compute_nodes, "prepare", lambda *args, **more: {**prepare(*args, **more), **away})
    lines: list[str] = []
    site.engine.submit(JobSpec("mnist", Kind.RUN, ("true",), image="image"), Secrets(), lines.append)

    assert "--exclude=b,login" in site.options(1)
    assert [line for line in lines if "no route to host" in line]


@pytest.mark.parametrize("text", ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_an_invalid_certificate_excludes_its_node_only(site: Site, text: str) -> None:
    """Secrets are encrypted for all nodes in one command, which one invalid certificate would make fail."""
    folder = Path(site.other.environment["PROVISION_SEAL"])
    folder.mkdir()
    (folder / "certificate.pem").write_text(text)
    job, lines = JobSpec("mnist", Kind.RUN, ("true",), image="image", secret_env=("TOKEN",)), list[str]()
    site.engine.submit(job, Secrets({"TOKEN": "s3cret"}), lines.append)

    assert "--exclude=b,login" in site.options(1)
    assert [line for line in lines if "certificate" in line and " b" in line]


def test_two_certificates_are_not_the_one_of_a_node(site: Site) -> None:
    text = site.node.ok("slurm_node", seal=True)["certificate"]
    check_certificate(text, "a")
    with pytest.raises(NodeError) as caught:
        check_certificate(text + site.other.ok("slurm_node", seal=True)["certificate"], "a")
    assert caught.value.code == "slurm.certificate"


def test_the_input_of_a_step_is_never_sent_in_clear() -> None:
    with pytest.raises(NodeError) as caught:
        StepConnector("b", "b", 12, "")
    assert caught.value.code == "slurm.certificate"


def test_an_input_that_cannot_be_encrypted_is_an_error_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step would wait for its input until its time limit."""
    step = SealedProcess("b", [sys.executable, "-c", "input()"], "/no/certificate.pem", limit=None)
    monkeypatch.setenv("PATH", "/no")

    with pytest.raises(ConnectionFailed, match="openssl"):
        step.result(b"secret", 60)
    assert step.ended()


def test_secrets_are_in_no_script_and_no_option_in_clear(site: Site) -> None:
    site.submit("mnist", Secrets({"TOKEN": "s3cret"}), secret_env=("TOKEN",))

    assert "s3cret" not in site.script(1) + "".join(site.options(1))
    payload = payload_of(site.script(1))
    assert "BEGIN CMS" in payload.sealed
    assert "s3cret" not in repr(payload)


def test_a_refused_job_is_not_recorded(site: Site) -> None:
    with pytest.raises(NeverFits) as caught:
        site.submit("never", gpus=5)
    assert (caught.value.code, caught.value.exit_code) == ("slurm.never_nodes", 5)
    with pytest.raises(NotFound):
        site.engine.get("never")


def test_a_name_is_taken_until_its_job_is_deleted(site: Site) -> None:
    site.submit("mnist")
    with pytest.raises(NameTaken):
        site.submit("mnist")
    site.engine.delete("mnist", QUIET)

    assert [row[2] for row in site.rows()] == ["CANCELLED"]
    assert site.submit("mnist").status is JobStatus.PENDING


def test_a_waiting_job_is_stopped_in_slurm(site: Site) -> None:
    site.submit("mnist")
    stopped = site.engine.stop("mnist", QUIET)

    assert (stopped.status, site.rows()[0][2]) == (JobStatus.STOPPED, "CANCELLED")


def test_a_held_job_is_released_in_slurm(site: Site) -> None:
    assert site.submit("mnist", hold=True).status is JobStatus.QUEUING

    assert site.engine.release("mnist", QUIET).status is JobStatus.PENDING


@pytest.mark.parametrize("why", ["launch failed requeued held", "launch_failed_requeued_held", "JobHeldAdmin"])
def test_a_job_that_slurm_holds_after_a_failed_start_is_released(site: Site, why: str) -> None:
    site.submit("mnist", retry=1)
    site.change(1, reason=why, restarts="1")
    assert site.engine.get("mnist").status is JobStatus.PENDING

    site.engine.release("mnist", QUIET)
    assert site.rows()[0][3] == "Resources"


# Answers that are lost, and commands at a time


def break_sbatch(site: Site, before: str = "", after: str = "exit 124") -> None:
    """Let sbatch end without its answer."""
    path = site.node.folder / "bin/sbatch"
    path.write_text(path.read_text().replace("exec ", f"{before}\n").rstrip() + f" >/dev/null\n{after}\n")


def test_a_job_that_slurm_has_although_sbatch_hung_is_adopted(site: Site) -> None:
    break_sbatch(site)
    job = site.submit("mnist")

    assert (job.status, job.cause.code) == (JobStatus.PENDING, "slurm.resources")
    assert site.engine.stop("mnist", QUIET).status is JobStatus.STOPPED
    assert [row[2] for row in site.rows()] == ["CANCELLED"]


@pytest.mark.parametrize("after", ["exit 124", "echo 'Socket timed out on send/recv operation' >&2; exit 1"])
def test_a_job_stays_recorded_while_it_is_not_known_whether_slurm_has_it(site: Site, after: str) -> None:
    break_sbatch(site, "exit_early() { " + after + "; }; exit_early;", after)
    with pytest.raises(NodeError) as caught:
        site.submit("mnist")

    assert caught.value.code == "slurm.uncertain"
    assert site.engine.get("mnist").cause.code == "slurm.not_submitted"


def test_a_second_restart_at_a_time_cancels_its_job(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other command records its job in Slurm first."""
    site.submit("mnist")
    site.change(1, state="FAILED", ended="9", nodes="b")
    submit = site.engine._sbatch

    def overtaken(token: str, *args: Any) -> int:
        number = submit(token, *args)
        site.node.ok("queue", name="mnist", queue={"engine_job": 77}, merge=True, if_id=token)
        return number

    monkeypatch.setattr(site.engine, "_sbatch", overtaken)
    with pytest.raises(NodeError) as caught:
        site.engine.restart("mnist", QUIET)

    assert caught.value.code == "slurm.superseded"
    assert site.rows()[1][2] == "CANCELLED"


def test_a_job_that_is_deleted_during_its_submission_is_cancelled(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its record, no later command would cancel it."""
    submit = site.engine._sbatch

    def overtaken(token: str, *args: Any) -> int:
        number = submit(token, *args)
        assert site.node.ok("delete", name="mnist", id=token)["deleted"]
        return number

    monkeypatch.setattr(site.engine, "_sbatch", overtaken)
    with pytest.raises(NodeError) as caught:
        site.submit("mnist")

    assert caught.value.code == "slurm.superseded"
    assert [row[2] for row in site.rows()] == ["CANCELLED"]


def test_a_refusal_because_of_excluded_nodes_names_them(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job fits when they work again, so the error is that of its nodes."""
    prepare = compute_nodes.prepare
    away = {"b": ConnectionFailed("no route to host", node="b")}
    monkeypatch.setattr(compute_nodes, "prepare", lambda *args, **more: {**prepare(*args, **more), **away})
    with pytest.raises(NodeError) as caught:
        site.submit("mnist", gpus=5)

    assert caught.value.code == "slurm.nodes_left_out"
    assert "b" in str(caught.value)


def test_nodes_with_another_python_are_excluded_with_a_warning(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = compute_nodes.prepare

    def other(*args: Any, **more: Any) -> Any:
        answers = prepare(*args, **more)
        return {**answers, "b": (answers["b"][0], "/other/start.py")}  # type: ignore[index]

    monkeypatch.setattr(compute_nodes, "prepare", other)
    lines: list[str] = []
    site.engine.submit(JobSpec("mnist", Kind.RUN, ("true",), image="image"), Secrets(), lines.append)

    assert "--exclude=b,login" in site.options(1)
    assert [line for line in lines if "Python" in line and " b" in line]


def test_a_job_depends_on_its_job_in_slurm(site: Site) -> None:
    site.submit("first")
    site.submit("second", depends=("first",))
    assert "--dependency=afterok:1" in site.options(2)

    site.engine.stop("first", QUIET)
    with pytest.raises(UsageError) as caught:
        site.submit("third", depends=("first",))
    assert caught.value.code == "job.dependency_failed"
    with pytest.raises(NotFound):
        site.submit("fourth", depends=("none",))
    assert {job.spec.name for job in all_jobs(site.engine).jobs} == {"first", "second"}


def test_a_restart_is_a_new_job_in_slurm(site: Site) -> None:
    first = site.submit("mnist")
    site.change(1, state="FAILED", reason="NonZeroExitCode", ended="9", nodes="b")
    assert site.engine.get("mnist").status is JobStatus.FAILED

    again = site.engine.restart("mnist", QUIET)

    assert (again.id, again.status) == (first.id, JobStatus.PENDING)
    assert [row[0] for row in site.rows()] == ["1", "2"]
    assert payload_of(site.script(2)).first_attempt == 2


def test_the_nodes_that_slurm_has_chosen_are_asked(site: Site) -> None:
    """The queue host does not know them when a job has run between two commands."""
    job = site.submit("mnist")
    assignment = {"instance": "mnist-worker-0", "role": "worker", "index": 0, "node": "b", "address": "", "rank": 0}
    attempt = site.other.attempt("mnist", 1)
    attempt.mkdir(parents=True)
    (attempt.parents[1] / "job.json").write_text(json.dumps({"id": job.id, "owner": job.owner, "submitted": 1.0}))
    (attempt / "attempt.json").write_text(json.dumps({"id": job.id, "attempt": 1, "seats": [assignment]}))
    (attempt / "result.json").write_text(json.dumps({"status": "FAILED", "exit_code": 7, "ended": 9.0}))
    site.change(1, state="FAILED", ended="9", nodes="b")

    assert (site.engine.get("mnist").status, site.engine.get("mnist").exit_code) == (JobStatus.FAILED, 7)


def test_a_failed_start_has_the_reason_of_the_starter(site: Site) -> None:
    """It is recorded on the queue host too, so that it is known when Slurm has forgotten the job."""
    site.submit("mnist")
    site.change(1, state="FAILED", ended="9", nodes="b")
    text = b'{"reason": "b: no such image", "code": "job.start_failed", "params": {"cause": "no such image"}}'
    (site.folder / "admin-1").write_text(text.hex())

    assert (site.engine.get("mnist").cause.code, site.engine.get("mnist").reason) == (
        "job.start_failed",
        "b: no such image",
    )
    (site.folder / "jobs").write_text("")
    assert site.engine.get("mnist").cause.code == "job.start_failed"


@pytest.mark.parametrize("text", ["zz", "7b7d", "00", "ff" * 100])
def test_a_damaged_reason_of_the_starter_is_ignored(site: Site, text: str) -> None:
    site.submit("mnist")
    site.change(1, state="FAILED", ended="9", nodes="b")
    (site.folder / "admin-1").write_text(text)

    assert site.engine.get("mnist").cause.code == "slurm.ended"


def test_a_drained_node_is_drained_in_both_tools(site: Site) -> None:
    assert site.engine.drain(["b"], "memory errors (alice)") == {"b": None}
    assert "provision: memory errors (alice)" in (site.folder / "nodes").read_text()
    views = {view.name: view for view in site.engine.nodes().nodes}
    assert (views["b"].drained, views["a"].drained) == (True, False)
    assert reason("placement.node_drained", cause="memory errors (alice)") in parts(views["b"].reason)

    assert site.engine.resume(["b"], QUIET) == {"b": None}
    assert {view.drained for view in site.engine.nodes().nodes} == {False}


def test_a_node_that_slurm_cannot_drain_does_not_stop_the_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, failed = engine.ask_jobs, ConnectionFailed("broken pipe", node="a")

    def broken(connector: Any, do: str, *args: Any, **more: Any) -> Any:
        if do == "slurm_node_update" and more["node"] == "a":
            raise failed
        return ask(connector, do, *args, **more)

    monkeypatch.setattr(engine, "ask_jobs", broken)

    assert site.engine.drain(["a", "b"], "memory errors") == {"a": failed, "b": None}
    assert "provision: memory errors" in (site.folder / "nodes").read_text()


def test_a_node_that_slurm_drained_itself_shows_its_reason(site: Site) -> None:
    text = (site.folder / "nodes").read_text()
    (site.folder / "nodes").write_text(text.replace("b\x1fidle", "b\x1fdown*"))

    (view,) = (view for view in site.engine.nodes().nodes if view.name == "b")
    assert (view.ready, view.reason.code) == (False, "slurm.node_down")


def test_without_an_answer_of_slurm_jobs_are_listed_as_recorded(site: Site) -> None:
    site.submit("mnist")
    (site.node.folder / "bin/squeue").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    page = all_jobs(site.engine)

    assert [job.spec.name for job in page.jobs] == ["mnist"]
    assert [problem for problem in page.problems if "Slurm does not answer" in problem]
    with pytest.raises(NodeError):
        site.submit("other")
    assert [job.spec.name for job in all_jobs(site.engine).jobs] == ["mnist"]


def test_finished_jobs_are_deleted_after_their_retention_time(site: Site) -> None:
    site.submit("mnist", ttl_after_finished=5.0)
    site.change(1, state="FAILED", ended=str(int(time.time()) - 60), nodes="b")
    with site.engine.maintenance() as maintenance:
        maintenance.run(QUIET)

    with pytest.raises(NotFound):
        site.engine.get("mnist")


# Jobs with --gputopology


class LinkedProbe(FakeClusterProbe):
    """Sees four GPUs on every node, of which 0 and 2, and 1 and 3 are linked, and the modes of nodes."""

    def __init__(self, modes: Mapping[str, Mode]) -> None:
        self.modes = modes

    def probe(self, cluster: Cluster, names: Sequence[str]) -> ClusterSnapshot:
        snapshot = super().probe(cluster, names)
        links = tuple(
            tuple("X" if a == b else "NV2" if abs(a - b) == 2 else "SYS" for b in range(len(GPUS)))
            for a in range(len(GPUS))
        )
        gpus = tuple(TopologyGpu(index) for index in range(len(GPUS)))
        machine = Machine(Topology(gpus, (), links))
        candidates = {name: Candidate(name, machine, mode=self.modes.get(name)) for name in snapshot.candidates}
        return replace(snapshot, candidates=candidates)


TYPES = ",".join(f"gpu:g{index}:1" for index in range(len(GPUS)))


def occupy(site: Site, gpus: str = "", *, state: str = "mixed", types: str = TYPES) -> None:
    """Let plain jobs of Slurm use these GPUs of the node a."""
    used = ",".join(f"gpu:g{index}:{int(str(index) in gpus)}(IDX:{index})" for index in range(len(GPUS)))
    free = used.replace(":1(", ":0(")
    rows = [("a", state, types, used), ("b", "idle", types, free), ("login", "idle", "", "")]
    lines = ["\x1f".join([*row, "0/8/0/8", "none", ""]) + "\n" for row in rows]
    (site.folder / "nodes").write_text("".join(lines))


@pytest.fixture
def linked(site: Site) -> Site:
    """Nodes whose GPUs have types in Slurm; all nodes accept all jobs."""
    for node in (site.node, site.other):
        lines = [
            f"GPU 0000:0{index}:00.0\n  GPU UUID : {uuid}\n  Minor Number : {index}" for index, uuid in enumerate(GPUS)
        ]
        (node.folder / "smi-q").write_text("\n".join(lines) + "\n")
        path = node.folder / "bin/nvidia-smi"
        path.write_text(path.read_text().replace("case $1 in", f"case $1 in -q) cat {node.folder}/smi-q;;"))
        node.environment["PROVISION_PROC"] = str(node.folder / "proc")
    site.engine._cluster_probe = LinkedProbe({})
    occupy(site)
    return site


def maintain(site: Site) -> list[str]:
    """Do a maintenance pass; return its messages."""
    lines: list[str] = []
    with site.engine.maintenance() as maintenance:
        maintenance.run(lines.append)
    return lines


@pytest.mark.row(2, 6, 17)
def test_a_job_gets_linked_gpus_that_are_free(linked: Site) -> None:
    occupy(linked, "0")
    job = linked.submit("mnist", gputopology=True, gpus=1, workers=2, nodes=("a",))

    assert job.status is JobStatus.PENDING
    assert {"--gres=gpu:g1:1,gpu:g3:1", "--nodelist=a", "--nodes=1", "--ntasks=2"} <= set(linked.options(1))
    assert [word for word in linked.options(1) if "--gpus" in word] == []


@pytest.mark.row(4, 5)
def test_nodes_of_a_mode_get_only_jobs_of_this_mode(linked: Site) -> None:
    linked.engine._cluster_probe = LinkedProbe({"a": Mode.TOPOLOGY, "b": Mode.DEFAULT})
    linked.submit("linked", gputopology=True, gpus=1)
    linked.submit("plain", gpus=1)
    linked.submit("none")

    assert "--exclude=b,login" in linked.options(1)
    assert "--exclude=a,login" in linked.options(2)
    assert "--exclude=login" in linked.options(3)


@pytest.mark.parametrize(
    ("mode", "options", "code"),
    [
        (Mode.DEFAULT, {"gputopology": True}, "placement.no_topology_node"),
        (Mode.TOPOLOGY, {}, "placement.no_default_node"),
    ],
)
def test_a_job_without_a_node_of_its_mode_is_refused(
    linked: Site, mode: Mode, options: dict[str, Any], code: str
) -> None:
    linked.engine._cluster_probe = LinkedProbe({"a": mode, "b": mode})
    with pytest.raises(NeverFits) as caught:
        linked.submit("mnist", gpus=1, **options)

    assert caught.value.code == code


def test_exact_gpus_need_types_in_slurm(linked: Site) -> None:
    occupy(linked, types="gpu:4")
    with pytest.raises(UsageError) as caught:
        linked.submit("mnist", gputopology=True, gpus=1)

    assert caught.value.code == "slurm.no_gpu_types"


def test_a_job_that_would_not_fit_on_idle_nodes_is_refused(linked: Site) -> None:
    with pytest.raises(NeverFits) as caught:
        linked.submit("mnist", gputopology=True, gpus=5)

    assert caught.value.code == "placement.exceeds_cluster"


@pytest.mark.row(17)
def test_a_waiting_job_gets_other_gpus_that_become_free(linked: Site) -> None:
    """Slurm would start it only when those of its submission are free."""
    occupy(linked, "0123")
    first = linked.submit("mnist", gputopology=True, gpus=1, workers=2, nodes=("a",))
    asked = "--gres=gpu:g0:1,gpu:g2:1"
    assert asked in linked.options(1)

    occupy(linked, "023")
    assert maintain(linked) == []
    occupy(linked, "02")
    assert len(maintain(linked)) == 1
    assert maintain(linked) == []

    assert [row[2] for row in linked.rows()] == ["CANCELLED", "PENDING"]
    assert "--gres=gpu:g1:1,gpu:g3:1" in linked.options(2)
    assert payload_of(linked.script(2)).first_attempt == 1
    job = linked.engine.get("mnist")
    assert (job.id, job.status, job.attempt) == (first.id, JobStatus.PENDING, 0)
    linked.engine.stop("mnist", QUIET)
    assert [row[2] for row in linked.rows()] == ["CANCELLED", "CANCELLED"]


@pytest.mark.parametrize("why", ["JobHeldUser", "Dependency"])
def test_a_job_that_does_not_wait_for_gpus_keeps_its_choice(linked: Site, why: str) -> None:
    occupy(linked, "0123")
    linked.submit("mnist", gputopology=True, gpus=1, workers=2, nodes=("a",))
    linked.change(1, reason=why)
    occupy(linked, "02")

    assert maintain(linked) == []
    assert len(linked.rows()) == 1


def test_a_job_on_which_others_depend_keeps_its_number(linked: Site) -> None:
    """Slurm would never start a job that depends on a cancelled one."""
    occupy(linked, "0123")
    linked.submit("first", gputopology=True, gpus=1, workers=2, nodes=("a",))
    linked.submit("second", depends=("first",))
    occupy(linked, "02")

    assert maintain(linked) == []
    assert [row[2] for row in linked.rows()] == ["PENDING", "PENDING"]


def test_a_job_that_starts_meanwhile_is_not_submitted_again(linked: Site) -> None:
    occupy(linked, "0123")
    linked.submit("mnist", gputopology=True, gpus=1, workers=2, nodes=("a",))
    occupy(linked, "02")
    (linked.node.folder / "bin/scancel").write_text(f"#!/bin/sh\nsed -i s/PENDING/RUNNING/ {linked.folder}/jobs\n")

    assert maintain(linked) == []
    assert [row[2] for row in linked.rows()] == ["RUNNING"]
    linked.change(1, nodes="a")
    assert linked.engine.get("mnist").status is not JobStatus.STOPPED
    entry = json.loads((linked.node.root / "mnist/queue.json").read_text())
    assert entry["engine_job"] == 1


def test_a_later_attempt_leaves_a_node_that_is_not_available(linked: Site) -> None:
    """Slurm requeued it after the loss of the node, which it requires."""
    linked.submit("mnist", gputopology=True, gpus=1, workers=2, nodes=("a", "b"), retry=1)
    name = linked.rows()[0][10]
    linked.change(1, reason="ReqNodeNotAvail, UnavailableNodes:a", restarts="1")
    text = (linked.folder / "nodes").read_text()
    (linked.folder / "nodes").write_text(re.sub(rf"(?m)^{name}\x1f\w+", f"{name}\x1fdown*", text))

    assert maintain(linked) == []
    assert [row[10] for row in linked.rows()] == [""]


def test_the_engine_has_all_capabilities(site: Site) -> None:
    assert set(site.engine.capabilities) == set(Capability)
    require_for(site.engine, JobSpec("mnist", Kind.RUN, ("true",), image="image", gputopology=True))


def test_a_dry_run_submits_nothing(site: Site) -> None:
    plan = site.engine.dry_run(JobSpec("mnist", Kind.RUN, ("true",), image="image", gpus=1))

    assert len(plan.assignments) == 1
    assert [note for note in plan.notes if "Slurm chooses" in note]
    assert site.rows() == []
