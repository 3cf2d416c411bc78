"""A node that takes no jobs (``cluster_takes_jobs: false``): nothing is placed, checked or planned there for jobs."""

from __future__ import annotations

import dataclasses

import pytest

from provision.checks import Scene, host_entry, judge, judge_cluster
from provision.checks.everybody import everybody
from provision.components import JOB_ROLES
from provision.errors import NeverFits
from provision.jobs.engines.common.placement import allowed
from provision.model import CheckStatus, Connection, Node
from provision.model.cluster import NO_JOBS
from provision.model.job import JobSpec, Kind
from provision.model.reason import reason
from provision.planning import plan_node
from provision.report.reasons import message
from provision.workflow.bandwidth import measure
from provision.workflow.launch_inputs import stated_entries
from provision.workflow.placement_candidates import places_among
from tests.support.reasons import parts
from tests.unit.checks.conftest import healthy, make_node
from tests.unit.planning.conftest import cluster_of, scene_of

SPEC = JobSpec("j", Kind.RUN, ("x",))
OFF = {"cluster_takes_jobs": False, **{f"{role}_enabled": False for role in JOB_ROLES}}
"""As an inventory is loaded."""


def with_head():
    """gpu1 takes no jobs, gpu2 does."""
    cluster = cluster_of(cluster_gpus=8)
    head, other = cluster.nodes
    return dataclasses.replace(cluster, nodes=(dataclasses.replace(head, variables={**head.variables, **OFF}), other))


def test_batch_jobs_do_not_run_on_a_dedicated_queue_host():
    """Also a job that names the node."""
    nodes = [Node("head", Connection("head"), {"cluster_takes_jobs": False}), Node("a", Connection("a"))]

    good, why = allowed(SPEC, nodes)

    assert ([node.name for node in good], why) == (["a"], {"head": NO_JOBS})
    with pytest.raises(NeverFits) as refused:
        allowed(dataclasses.replace(SPEC, nodes=("head",)), nodes)
    assert NO_JOBS in parts(refused.value.reason)


def test_host_files_and_placements_exclude_a_dedicated_queue_host():
    """With or without GPUs there, and also where degraded nodes are taken."""
    node = make_node("gpu1", "10.77.0.1", **OFF)

    assert host_entry(node, healthy(), allow_degraded=True) == (NO_JOBS,)
    facts = {"gpu1": healthy(), "gpu2": healthy(2)}
    assert dict(places_among(with_head(), facts).left_out)["gpu1"] == NO_JOBS
    assert [entry.name for entry in stated_entries(with_head())] == ["gpu2"]


def test_bandwidth_is_not_measured_on_a_dedicated_queue_host():
    """The other nodes' measurement names the reason."""
    cluster = with_head()
    made = measure(cluster.nodes[:1], {"gpu1": healthy()}, lambda _line: None)

    assert made.left_out == {"gpu1": message(NO_JOBS)}


def test_checks_of_roles_for_jobs_are_skipped_with_the_reason():
    """A bare node passes as a queue host, and no other node expects its container's keys."""
    cluster = with_head()
    bare = dataclasses.replace(healthy(), container=None, image=None, container_ssh=None, container_trust=None)
    results = judge(cluster.nodes[0], bare, cluster)
    by_role = [one for one in results if one.id.partition(".")[0] in JOB_ROLES]

    assert {one.status for one in by_role} == {CheckStatus.SKIP}
    assert reason("check.no_jobs") in {one.reason for one in by_role}
    assert everybody(Scene(cluster.nodes[1], healthy(2), cluster)).names == ("gpu2",)
    results = judge_cluster(cluster, cluster.nodes, {"gpu1": bare, "gpu2": healthy(2)})
    assert [one.id for one in results if one.status is CheckStatus.FAIL] == []


def test_no_roles_for_jobs_are_planned_on_a_dedicated_queue_host():
    """Whatever was lost of such roles; the host is the package cache too."""
    scene = scene_of(now=with_head(), receipts={})

    assert {step.role for step in plan_node(scene)} == {"platform", "base_system", "package_cache"}
