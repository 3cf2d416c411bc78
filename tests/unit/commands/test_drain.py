"""What is called to drain a node, and how a scheduler's answers are read."""

from __future__ import annotations

import pytest

from provision.commands.drain import Hook, SchedulerState, hook_of
from provision.errors import NodeError

SHOWN = "NodeName=gpu1 Arch=x86_64 CPUTot=8 State={state} ThreadsPerCore=1 Reason={reason} [alice@2026-01-02T03:04]"


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("IDLE", "none", SchedulerState(out=False)),
        ("ALLOCATED", "none", SchedulerState(out=False, jobs="ALLOCATED")),
        ("IDLE+DRAIN", "bad fan", SchedulerState(out=True, others=True)),
        ("IDLE+DRAIN", "provision: apply by alice", SchedulerState(out=True)),
        ("MIXED+DRAIN", "provision: apply by alice", SchedulerState(out=True, jobs="MIXED+DRAIN")),
        ("DOWN*", "bad RAM", SchedulerState(out=True, others=True)),
        ("IDLE+COMPLETING", "x", SchedulerState(out=False, jobs="IDLE+COMPLETING")),
    ],
)
def test_states_of_slurm_nodes_are_parsed(state, reason, expected):
    """A node that is down is out of service by others: to resume it would bring it back."""
    assert Hook("slurm", "gpu1").read(SHOWN.format(state=state, reason=reason)) == expected


def test_an_invalid_answer_is_ignored():
    assert Hook("slurm", "gpu1").read("slurm_load_node error: Unable to contact slurm controller") is None
    assert Hook("kubernetes", "gpu1").read("<html>") is None


@pytest.mark.parametrize(("answer", "out"), [("", False), ("true", True), ("false", False)])
def test_states_of_kubernetes_nodes_are_parsed(answer, out):
    assert Hook("kubernetes", "gpu1").read(answer) == SchedulerState(out)


def test_eviction_of_pods_always_has_a_time_limit():
    """Kubectl takes 0 for no limit at all."""
    assert Hook("kubernetes", "gpu1", seconds=0).clear()[-1] == "--timeout=60s"
    assert Hook("kubernetes", "gpu1", seconds=600).clear()[-1] == "--timeout=600s"


@pytest.mark.parametrize("name", ["ALL", "gpu[1-9]", "gpu1,gpu2", "-f", "{{ ansible_hostname }}", "a b"])
def test_a_name_that_can_match_several_nodes_is_refused(name):
    """Slurm takes ranges and ALL where it takes a name."""
    with pytest.raises(NodeError, match="is not the name of one node"):
        hook_of("gpu1", {"cluster_drain": "slurm", "cluster_drain_name": name})


def test_custom_commands_get_the_name_of_the_node():
    variables = {
        "cluster_drain": "command",
        "cluster_drain_command": ["off", "--node={node}"],
        "cluster_resume_command": ["on", "{node}"],
        "cluster_drain_name": "g1",
    }
    hook = hook_of("gpu1", variables)

    assert hook.drain("x") == ["off", "--node=g1"]
    assert hook.resume() == ["on", "g1"]
    assert hook.ask() is None
    with pytest.raises(NodeError, match="cluster_resume_command"):
        hook_of("gpu1", {**variables, "cluster_resume_command": []})


def test_a_node_is_resumed_by_the_scheduler_that_drained_it():
    """Whatever the inventory says by now."""
    hook = hook_of("gpu1", {"cluster_drain": ""}, {"kind": "slurm", "name": "old"})

    assert hook.resume() == ["scontrol", "update", "NodeName=old", "State=RESUME"]
    assert hook_of("gpu1", {"cluster_drain": ""}) is None
