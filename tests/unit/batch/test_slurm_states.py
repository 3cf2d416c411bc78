"""Jobs and nodes in Slurm: output with explicit fields, hostile output, and reasons as codes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from provision.batch.slurm import states
from provision.batch.slurm.reasons import REASONS
from provision.batch.slurm.states import (
    SlurmJob,
    admin_comment,
    allocated_minors,
    excluded_nodes,
    gpu_counts,
    holders,
    node_states,
    our_jobs,
    refusal,
    tasks_per_node,
    used_minors,
    waiting_reason,
)
from provision.errors import InvalidDocument
from provision.model.reason import NO_REASON
from provision.node.slurm import controller
from provision.report.reasons import message


def job_line(**changes: str) -> str:
    """Return a line of squeue."""
    values = {
        "number": "12", "user": "0", "state": "RUNNING", "reason": "None", "restarts": "0", "submitted": "1795863143",
        "started": "1795863144", "ended": "NONE", "partition": "all", "nodes": "gpu[1-2]",
        "required": "", "gres": "N/A", "comment": "provision:mnist@abc1",
    }  # fmt: skip
    return "\x1f".join([*{**values, **changes}.values(), ""])


def node_line(**changes: str) -> str:
    """Return a line of sinfo."""
    values = {
        "name": "gpu1", "state": "idle", "gres": "gpu:g0:1,gpu:g1:1", "used": "gpu:g0:0(IDX:N/A)", "cpus": "0/8/0/8",
        "reason": "none",
    }  # fmt: skip
    return "\x1f".join([*{**values, **changes}.values(), ""])


def test_the_program_asks_for_the_fields_that_are_read() -> None:
    """A field that is added in one place only would move all others."""
    assert len(job_line().split("\x1f")) == len(controller.JOB_FIELDS) + 1
    assert len(node_line().split("\x1f")) == len(controller.NODE_FIELDS) + 1


def test_our_jobs_are_identified_by_their_comment() -> None:
    jobs = our_jobs(job_line() + "\n")

    assert jobs == {
        "abc1": SlurmJob(12, "mnist", "abc1", "RUNNING", "None", 0, 1795863144.0, 0.0, "all", ("gpu1", "gpu2"))
    }


def test_a_comment_of_another_user_is_ignored() -> None:
    """Every user of Slurm chooses the comments of their jobs."""
    assert our_jobs(job_line(user="1000")) == {}


@pytest.mark.parametrize("sign", [":", "/"])
def test_a_job_has_the_nodes_and_gpus_that_it_requires(sign: str) -> None:
    """Slurm 22.05 writes ``gres:gpu:g1:1``, 24.11 writes ``gres/gpu:g1:1``."""
    (job,) = our_jobs(job_line(required="gpu[3-4]", gres=f"gres{sign}gpu:g1:1,gres{sign}gpu:g12:1")).values()

    assert (job.required_nodes, job.required_minors) == (("gpu3", "gpu4"), {1, 12})


@pytest.mark.parametrize("gres", ["gres:gpu:2", "gres:gpu:g1:2", "gres:gpu:h100:1", "N/A", ""])
def test_other_requests_name_no_gpus(gres: str) -> None:
    assert our_jobs(job_line(gres=gres))["abc1"].required_minors == frozenset()


@pytest.mark.parametrize(
    "comment", ["", "(null)", "provision:", "provision:a b@c", "provision:../x@1", "x provision:a@b"]
)
def test_jobs_with_other_comments_are_ignored(comment: str) -> None:
    assert our_jobs(job_line(comment=comment)) == {}


def test_the_newest_of_several_jobs_counts() -> None:
    """A restart submits a new job for the same job of ours."""
    jobs = our_jobs("\n".join([job_line(number="20"), job_line(number="12", state="FAILED")]))

    assert jobs["abc1"].number == 20


@pytest.mark.parametrize(
    "text",
    [
        "12\x1f0\x1fRUNNING",
        job_line() + "more\x1f",
        job_line(number="x"),
        job_line(restarts="-1"),
        job_line(state="running; id"),
        job_line(nodes="gpu[1-999999999]"),
        job_line(nodes="$(id)"),
    ],
)
def test_a_line_with_other_fields_is_refused(text: str) -> None:
    with pytest.raises(InvalidDocument):
        our_jobs(text)


def test_too_many_lines_are_refused() -> None:
    with pytest.raises(InvalidDocument):
        our_jobs("x\n" * 200_001)


@pytest.mark.parametrize("read", [our_jobs, holders])
def test_the_nodes_of_all_jobs_are_limited(read: Callable[[str], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of 60 characters can name 100000 nodes, which would fill the memory of the controller."""
    monkeypatch.setattr(states, "_MOST_PLACES", 3, raising=False)

    read("\n".join([job_line(nodes="gpu[1-2]"), job_line(nodes="gpu1")]))
    with pytest.raises(InvalidDocument):
        read("\n".join([job_line(nodes="gpu[1-2]"), job_line(nodes="gpu[1-2]")]))


def test_control_characters_of_a_reason_are_not_shown() -> None:
    assert "\x1b" not in our_jobs(job_line(reason="\x1b[31mred"))["abc1"].pending_reason


@pytest.mark.parametrize(
    ("state", "ended"),
    [("PENDING", False), ("RUNNING", False), ("COMPLETING", False), ("CONFIGURING", False), ("COMPLETED", True),
     ("NODE_FAIL", True), ("CANCELLED", True), ("TIMEOUT", True), ("A_NEW_STATE", True)],
)  # fmt: skip
def test_a_job_has_ended_unless_it_waits_or_is_active(state: str, ended: bool) -> None:  # noqa: FBT001
    assert our_jobs(job_line(state=state))["abc1"].has_ended is ended


def test_the_jobs_of_a_node_are_named() -> None:
    text = "\n".join(
        [job_line(), job_line(comment="provision-run:r1", nodes="gpu2"), job_line(state="PENDING", nodes="")]
    )

    assert holders(text) == {"gpu1": ["mnist"], "gpu2": ["mnist", "r1"]}


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("idle", ""), ("mixed", ""), ("allocated", ""), ("idle~", ""),
        ("drained", "slurm.node_drained"), ("mixed+drain", "slurm.node_drained"), ("idle+drain", "slurm.node_drained"),
        ("down", "slurm.node_down"), ("down*", "slurm.node_down"), ("idle*", "slurm.node_down"),
        ("down+not_responding", "slurm.node_down"), ("reserved", "slurm.node_reserved"),
    ],
)  # fmt: skip
def test_a_node_that_takes_no_jobs_has_a_reason(state: str, code: str) -> None:
    (node,) = node_states(node_line(state=state, reason="provision: memory errors")).values()

    assert node.problem.code == code
    assert node.problem == NO_REASON or "memory errors" in message(node.problem) or code == "slurm.node_reserved"


def test_a_node_of_several_partitions_is_listed_once() -> None:
    assert list(node_states(node_line() + "\n" + node_line())) == ["gpu1"]


def test_gpus_are_counted_by_node() -> None:
    text = (
        "JobId=3 UserId=root(0) NumNodes=2 Nodes=sle-1 CPU_IDs=0-1 Mem=512 GRES=gpu:g0:1(IDX:0),gpu:g1:1(IDX:1) "
        "Nodes=sle-[2-3] CPU_IDs=0 Mem=512 GRES=gpu:g0:1(IDX:0),gpu:g1:0(IDX:) MinCPUsNode=1"
    )

    assert gpu_counts(text) == {"sle-1": 2, "sle-2": 1, "sle-3": 1}
    assert allocated_minors(text) == {"sle-1": {0, 1}, "sle-2": {0}, "sle-3": {0}}
    assert gpu_counts("Nodes=x CPU_IDs=0 Mem=512 GRES=gpu:4(IDX:0-3) ") == {}
    assert gpu_counts(" Nodes=x CPU_IDs=0 Mem=512 GRES=gpu:4(IDX:0-3) ") == {"x": 4}
    assert gpu_counts(" Nodes=x CPU_IDs=0 Mem=512 GRES= ") == {"x": 0}


@pytest.mark.parametrize(
    ("used", "minors"),
    [
        ("gpu:g0:1(IDX:0),gpu:g1:0(IDX:N/A),gpu:g7:1(IDX:7)", {0, 7}),
        ("gpu:4(IDX:0-2,5)", {0, 1, 2, 5}),
        ("gpu:h100:2(IDX:1,3)", {1, 3}),
        ("gpu:0(IDX:N/A)", set()),
        ("gpu:2(IDX:0-99999999)", set(range(1025))),
        ("(null)", set()),
        ("", set()),
    ],
)
def test_the_gpus_that_slurm_has_allocated_are_known(used: str, minors: set[int]) -> None:
    assert used_minors(used) == minors


def test_the_work_for_the_gpus_of_a_node_has_a_limit() -> None:
    """Slurm's answer can have megabytes of spans: those beyond the GPUs of the largest node are ignored."""
    single = ",".join(map(str, range(1024)))

    assert used_minors(f"gpu:1024(IDX:{single})") == set(range(1024))
    assert used_minors(f"gpu:2(IDX:{'0-511,' * 100_000}600)") == set(range(512))
    assert used_minors(f"gpu:2(IDX:{'9' * 10_000},3)") == {3}


def test_tasks_are_counted_by_node() -> None:
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    for text in ("", "x", "1(x", "1(x9999999)", "1,,2", "1(x100001)"):
        with pytest.raises(InvalidDocument):
            tasks_per_node(text)


def test_the_failure_that_the_starter_recorded_is_read() -> None:
    assert admin_comment("JobId=3 AdminComment=7b7d StdErr=/x") == "7b7d"
    assert admin_comment("JobId=3 AdminComment=(null) StdErr=/x") == ""
    assert admin_comment("JobId=3 Comment=AdminComment=7b7d") == ""


@pytest.mark.parametrize(
    ("why", "code"),
    [
        ("None", "slurm.waits"),
        ("Resources", "slurm.resources"),
        ("Priority", "slurm.priority"),
        ("Dependency", "slurm.dependency"),
        ("DependencyNeverSatisfied", "slurm.dependency_failed"),
        ("JobHeldUser", "slurm.held"),
        ("JobHeldAdmin", "slurm.held_admin"),
        ("BeginTime", "slurm.begin_time"),
        ("Prolog", "slurm.prolog"),
        ("PartitionTimeLimit", "slurm.partition_limit"),
        ("ReqNodeNotAvail, UnavailableNodes:gpu2", "slurm.nodes_unavailable"),
        ("ReqNodeNotAvail, May be reserved for other job", "slurm.nodes_unavailable"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "slurm.nodes_unavailable",
        ),
        ("QOSMaxGRESPerUser", "slurm.limit"),
        ("AssocGrpCPUMinutesLimit", "slurm.limit"),
        ("SomethingNew", "slurm.other"),
    ],
)
def test_each_reason_of_slurm_is_a_sentence(why: str, code: str) -> None:
    cause = waiting_reason(SlurmJob(1, "a", "b", "PENDING", why, partition="gpu"))

    assert cause.code == code
    assert message(cause)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available",
         "slurm.never_nodes"),
        ("sbatch: error: Batch job submission failed: Node count specification invalid", "slurm.never_nodes"),
        ("sbatch: error: Memory specification can not be satisfied", "slurm.never_memory"),
        ("sbatch: error: Batch job submission failed: Invalid feature specification", "slurm.never_feature"),
        ("sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification",
         "slurm.never_gres"),
        ("sbatch: error: invalid partition specified: x", "slurm.never_partition"),
        ("sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)",
         "slurm.never_limit"),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
         "slurm.refused"),
    ],
)  # fmt: skip
def test_each_refusal_of_sbatch_has_a_code(said: str, code: str) -> None:
    assert refusal(said).code == code
    assert code in REASONS


@pytest.mark.parametrize(
    ("field", "names"), [("(null)", []), ("gpu[1-2],login", ["gpu1", "gpu2", "login"]), ("gpu7", ["gpu7"])]
)
def test_the_nodes_that_a_job_must_not_get(field: str, names: list[str]) -> None:
    assert excluded_nodes(f"JobId=12 ReqNodeList=(null) ExcNodeList={field} NodeList=gpu3\n") == names
