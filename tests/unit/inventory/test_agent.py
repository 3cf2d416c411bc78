"""Inventories of people without a root login, and nodes that take no jobs."""

import json

import pytest

from provision.cli.common import cluster_from
from provision.components import JOB_ROLES
from provision.errors import UsageError
from provision.inventory import load


def inventory(write, hosts=None, **variables):
    """Two nodes with variables."""
    nodes = {name: {"ansible_host": f"192.0.2.{n}"} for n, name in enumerate(("a", "b"), 1)}
    for name, own in (hosts or {}).items():
        nodes[name] |= own
    return write(hosts_yml=json.dumps({"all": {"hosts": nodes}}), group_vars__all_yml=json.dumps(variables))


@pytest.mark.parametrize(
    ("variables", "user"),
    [
        ({"cluster_agent": True}, "provision-jobs"),
        ({"cluster_agent": "yes", "cluster_agent_account": "jobs"}, "jobs"),
        ({"ansible_user": "provision-jobs"}, "provision-jobs"),
        ({"ansible_user": "jobs", "cluster_agent_account": "jobs"}, "jobs"),
    ],
)
def test_an_inventory_can_select_the_job_agent(write, variables, user):
    """Either variable is enough."""
    connections = [node.connection for node in load(inventory(write, **variables)).nodes]

    assert [(one.agent, one.user) for one in connections] == [(True, user)] * 2


def test_other_users_connect_directly(write):
    """The variable for the account alone changes nothing."""
    connections = [node.connection for node in load(inventory(write, cluster_agent_account="jobs")).nodes]

    assert [(one.agent, one.user) for one in connections] == [(False, None)] * 2


def test_verbs_that_require_root_are_refused_before_connecting(write, monkeypatch):
    """One sentence instead of an error from each node."""
    path = inventory(write, cluster_agent=True)
    monkeypatch.delenv("PROVISION_INVENTORY", raising=False)

    with pytest.raises(UsageError, match="this requires an operator"):
        cluster_from(str(path))
    assert len(cluster_from(str(path), through_agent=True).nodes) == 2


@pytest.mark.parametrize("value", [False, "no"])
def test_a_node_that_accepts_no_jobs_has_no_roles_for_jobs(write, value):
    """It can be the head all the same; what the inventory says of such a role does not count there."""
    path = inventory(write, {"a": {"cluster_takes_jobs": value}}, cluster_head="a", docker_engine_enabled=True)
    head, other = load(path).nodes

    assert (head.takes_jobs, other.takes_jobs) == (False, True)
    assert {head.variables[f"{role}_enabled"] for role in JOB_ROLES} == {False}
    assert "base_system_enabled" not in head.variables
    assert other.variables["docker_engine_enabled"] is True
