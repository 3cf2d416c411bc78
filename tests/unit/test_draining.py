"""Nodes are drained before steps that require them idle, and are resumed once they have converged."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from provision import engine, workflow
from provision.model import RoleStatus, Step, StepClass
from provision.workflow import draining
from tests.support.reasons import plain
from tests.support.scheduler import JOB, make_world


@pytest.fixture
def world(monkeypatch, tmp_path):
    return make_world(monkeypatch, tmp_path)


def warned(report, word):
    return [text for text in report.warnings if word in text]


def test_a_drained_node_is_resumed_once_converged(world):
    """It is drained before the step runs and not after; the reason says whose doing it is."""
    world.need("a")
    report = world.apply(cluster_drain="slurm", cluster_drain_name="gpu-a")

    assert report.ok
    assert [call.split(" Reason=")[0] for call in world.calls()] == [
        "scontrol update NodeName=gpu-a State=DRAIN",
        "scontrol update NodeName=gpu-a State=RESUME",
    ]
    assert world.file("gpu-a.reason").startswith("provision: apply by ")
    assert world.ran == [["a"]]
    assert world.record() == []
    assert warned(report, "drained for this, and resumed: a")


def test_no_hook_is_called_without_a_step_that_requires_an_idle_node(world):
    """Not even the question whether the node is drained."""
    world.need("a", step_class=StepClass.SAFE, role="base_system")
    assert world.apply(cluster_drain="slurm").ok
    world.need("a")
    assert world.apply().ok

    assert world.ran == [["a"], ["a"]]
    assert not (world.folder / "calls").exists()


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN"])
def test_a_node_drained_by_others_stays_drained(world, state):
    """The step runs, and the node stays as they left it."""
    world.need("a", "b")
    world.file("a.state", state)
    world.file("a.reason", "bad fan")
    report = world.apply("a", "b", cluster_drain="slurm")

    assert report.ok
    assert world.file("a.state") == state
    assert not world.calls("NodeName=a ")
    assert len(world.calls("NodeName=b ")) == 2
    assert warned(report, "drained by others before, and left so: a")


def test_a_node_that_failed_stays_drained_and_the_next_apply_resumes_it(world):
    """The command to resume it manually is shown; once it has converged, the next apply resumes it."""
    world.need("a", "b")
    world.failing = {"a"}
    report = world.apply("a", "b", cluster_drain="slurm")

    assert world.file("a.state") == "IDLE+DRAIN"
    assert world.file("b.state") == "IDLE"
    assert world.record() == ["a"]
    (message,) = warned(report, "a stays drained in Slurm: something failed there")
    assert message.endswith("scontrol update NodeName=a State=RESUME")
    world.failing = set()
    assert world.apply("a", "b", cluster_drain="slurm").ok
    assert world.file("a.state") == "IDLE"
    assert world.record() == []


def test_a_node_left_drained_by_a_crash_is_resumed_by_the_next_apply(world, monkeypatch):
    """Also where nothing is left to do on the node, and the inventory names no scheduler any more."""
    world.need("a")
    whole = engine.run_playbook

    def crash(*words, **more):
        whole(*words, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "run_playbook", crash)
    with pytest.raises(KeyboardInterrupt):
        world.apply(cluster_drain="slurm")
    assert world.record() == ["a"]
    assert world.file("a.state") == "IDLE+DRAIN"
    only = world.apply(request=workflow.Request(only=("base_system",)))  # does not show whether it has converged
    assert warned(only, "a stays drained in Slurm")
    report = world.apply()

    assert report.ok
    assert world.file("a.state") == "IDLE"
    assert world.record() == []
    assert len(world.ran) == 1


def test_a_node_is_recorded_before_it_is_drained(world):
    """A crash at any moment leaves no drained node without a record."""
    world.need("a")
    world.apply(cluster_drain="slurm")

    assert list(json.loads(world.file("recorded"))["nodes"]) == ["a"]


@pytest.mark.parametrize("now", ["IDLE", "IDLE+DRAIN"])
def test_drain_states_changed_by_others_are_preserved(world, now):
    """Resumed by hand, or drained for another reason: the next apply changes neither."""
    world.need("a")
    world.failing = {"a"}
    world.apply(cluster_drain="slurm")
    world.file("a.state", now)
    world.file("a.reason", "bad fan")
    world.steps, before = {}, world.calls()
    world.apply(cluster_drain="slurm")

    assert world.calls() == before
    assert world.file("a.state") == now
    assert world.record() == []


def test_a_failed_hook_excludes_only_its_node(world):
    """With what was called, its exit code and what it said; the other node goes on."""
    world.need("a", "b")
    world.file("b.pods", "x")
    report = world.apply("a", "b", cluster_drain="kubernetes")

    assert world.ran == [["a"]]
    error = report.nodes[1].error
    assert "kubectl drain b --ignore-daemonsets --delete-emptydir-data=false --timeout=60s" in error.message
    assert "code 1" in error.message
    assert "global timeout reached" in error.output
    assert report.nodes[0].error is None
    assert world.calls("uncordon") == ["kubectl uncordon a"]
    assert warned(report, "b stays drained in Kubernetes")[0].endswith("kubectl uncordon b")


def test_a_node_that_could_not_be_drained_is_not_recorded_as_drained(world):
    """No step runs on it, and nothing is to be resumed."""
    world.need("a")
    world.file("broken", "")
    report = world.apply(cluster_drain="slurm")

    assert world.ran == []
    assert "Unable to contact slurm controller" in report.nodes[0].error.output
    assert world.record() == []
    assert not warned(report, "stays drained")


def test_a_missing_program_is_reported(world):
    world.need("a")
    (world.folder / "scontrol").unlink()
    report = world.apply(cluster_drain="slurm")

    assert world.ran == []
    assert "the program scontrol is not on this machine" in report.nodes[0].error.message


def test_a_failed_resume_is_repeated_by_the_next_apply(world):
    """It has converged, and yet the apply did not succeed."""
    world.need("a")
    command = {"cluster_drain": "command", "cluster_drain_command": ["own", "off", "{node}"]}
    report = world.apply(**command, cluster_resume_command=["false"])
    assert not report.ok
    assert world.record() == ["a"]
    assert world.apply(**command, cluster_resume_command=["own", "on", "{node}"]).ok
    assert world.calls() == ["own off a", "own on a"]


def test_a_custom_command_can_report_that_others_drained_the_node(world):
    """By its exit code; and no password is shown."""
    world.need("a", "b")
    world.file("a.out", "")
    world.failing = {"b"}
    report = world.apply(
        "a",
        "b",
        cluster_drain="command",
        cluster_drain_command=["own", "off", "{node}"],
        cluster_resume_command=["own", "on", "{node}", "--password=hunter22"],
    )

    assert sorted(world.calls()) == ["own off a", "own off b"]
    assert warned(report, "by others before, and left so: a")
    assert warned(report, "b stays drained")
    assert not warned(report, "hunter22")


def test_an_apply_waits_for_the_jobs_of_drained_nodes(world):
    """As long as the inventory says; in Kubernetes pods are sent away after the jobs have ended, not before."""
    world.need("a")
    world.jobs["a"] = JOB
    seen = []

    def ended():
        seen.extend(world.calls())
        if len(world.slept) == 3:
            world.jobs.clear()

    world.on_sleep = ended
    report = world.apply(cluster_drain="kubernetes", cluster_drain_seconds=600)

    assert report.ok
    assert len(world.slept) == 3
    assert set(seen) == {"kubectl cordon a"}
    assert [call.split()[1] for call in world.calls()] == ["cordon", "drain", "uncordon"]


def test_jobs_that_do_not_end_are_not_stopped(world):
    """Their node stays drained, and no further busy node is taken away from users; the next apply takes it up."""
    world.need("a", "b", "c")
    world.jobs |= {"a": JOB, "b": JOB}
    report = world.apply("a", "b", "c", waves="1", cluster_drain="slurm", cluster_drain_seconds=42)

    assert sum(world.slept) == 42
    assert world.ran == [["c"]]
    assert world.file("a.state") == "IDLE+DRAIN"
    assert not world.calls("NodeName=b ")
    assert {role.status for role in report.nodes[0].roles} >= {RoleStatus.WAITING}
    assert warned(report, "a stays drained in Slurm: jobs run there")
    assert warned(report, "not drained, because a still waits for jobs to end: b")
    world.jobs.clear()
    assert world.apply("a", "b", "c", cluster_drain="slurm").ok
    assert world.file("a.state") == world.file("b.state") == "IDLE"


def test_without_a_drain_timeout_apply_does_not_wait(world):
    world.need("a")
    world.jobs["a"] = JOB
    assert not world.apply(cluster_drain="slurm").ok

    assert world.slept == []
    assert world.ran == []
    assert world.record() == ["a"]


@pytest.mark.parametrize("disruptive", [False, True])
def test_jobs_known_only_to_slurm_count(world, disruptive):
    """A job that has no GPU open at the moment would be disrupted all the same; unless --disruptive allows it."""
    world.need("a")
    world.file("a.state", "ALLOCATED+DRAIN")
    world.file("a.reason", "planned outage")
    request = workflow.Request(disruptive=frozenset({"a"} if disruptive else ()))
    report = world.apply(cluster_drain="slurm", request=request)

    assert report.ok is disruptive
    assert world.ran == ([["a"]] if disruptive else [])
    if not disruptive:
        reasons = [why for role in report.nodes[0].roles for why in role.reasons]
        assert "waits for: jobs of the scheduler, which says ALLOCATED+DRAIN" in reasons


def test_an_ignored_difference_drains_no_node(world):
    """It would wait for ever; and it keeps no node from being resumed."""
    ignored = Step("docker_engine", StepClass.NEEDS_IDLE, (plain("x"),), ("alice, who keeps a difference",))
    world.steps["a"] = (ignored,)
    world.apply(cluster_drain="slurm", cluster_drain_seconds=60)

    assert world.calls() == []
    assert world.slept == []


def test_no_node_is_drained_if_the_record_cannot_be_written(world):
    """After a crash no one would resume it."""
    world.need("a")
    (world.path / "state/provision").mkdir(parents=True)
    (world.path / "state/provision/drained").write_text("")
    report = world.apply(cluster_drain="slurm")

    assert world.calls() == []
    assert world.ran == []
    assert "its resumption cannot be recorded" in report.nodes[0].error.message


def test_pauses_are_short_at_first_and_never_longer_than_a_minute():
    pauses = list(islice(draining.pauses(), 60))

    assert pauses[0] == 5
    assert max(pauses) == 60
    assert pauses == sorted(pauses)
