"""Keys and addresses go between nodes of one run only: who else has to take part, and who need not."""

from __future__ import annotations

import dataclasses

import pytest

from provision.facts.managed import Managed
from provision.facts.network import Address
from provision.model import NodePlan, StepClass
from provision.planning import plan_node, with_partners
from tests.support.reasons import shown
from tests.unit.planning.conftest import (
    CONTAINER,
    FILE,
    JOB,
    busy,
    changed,
    cluster_of,
    facts_of,
    receipts_of,
    scene_of,
)

NODES = ("gpu1", "gpu2", "gpu3")
KEYS = "/var/lib/provision/container_ssh"
MAY_CHANGE = "container_ssh.new_keys: gpu1"
LEARNS = "container_ssh.keys_needed: gpu1"


def cluster(**variables):
    return cluster_of(3, **variables)


def known_to_all(facts):
    """The checks' healthy nodes are two; here each knows three."""
    known = {f"[{host}]:2222": (f"ssh-ed25519 KEY{n}",) for n in (1, 2, 3) for host in (f"gpu{n}", f"10.77.0.{n}")}
    clients = {f"gpu{n}": (f"ssh-ed25519 CLIENT{n}",) for n in (1, 2, 3)}
    names = {f"gpu{n}": (f"10.77.0.{n}",) for n in (1, 2, 3)}
    trust = dataclasses.replace(facts.container_trust, known_hosts=known, authorized_nodes=clients, known_nodes=NODES)
    return dataclasses.replace(facts, container_trust=trust, names=names)


HEALTHY = known_to_all(facts_of(cluster()))


def joined(variables=None, of_all=None, errors=(), off=(), **facts):
    """Plan three nodes, some facts of gpu1 replaced, and let them ask each other; name -> role -> reasons.

    On nodes that are `off` the role container_ssh is switched off.
    """
    now = cluster(**(variables or {}))
    switched = {name: {**now.node(name).variables, "container_ssh_enabled": False} for name in off}
    nodes = tuple(dataclasses.replace(node, variables=switched.get(node.name, node.variables)) for node in now.nodes)
    now = dataclasses.replace(now, nodes=nodes)
    usual = {name: dataclasses.replace(known_to_all(facts_of(now, name)), **(of_all or {})) for name in NODES}
    everything = {**usual, "gpu1": dataclasses.replace(usual["gpu1"], **facts)}
    base = scene_of(now=now)
    scenes = {
        name: dataclasses.replace(base, node=now.node(name), facts=everything[name], all_facts=everything)
        for name in NODES
        if name not in errors
    }
    plans = [
        NodePlan(name, error="no route", reachable=False) if name in errors else NodePlan(name, plan_node(scenes[name]))
        for name in NODES
    ]
    return {plan.name: {step.role: step for step in plan.steps} for plan in with_partners(plans, scenes)}


def reasons(steps):
    return {role: tuple(map(shown, step.reasons)) for role, step in steps.items()}


def lost(role):
    return {name: receipt for name, receipt in receipts_of(cluster()).items() if name != role}


def test_converged_nodes_add_no_other_nodes():
    assert joined() == {name: {} for name in NODES}


def test_a_new_node_adds_all_others_because_they_need_its_keys():
    planned = joined(receipts={}, managed=Managed(), container_ssh=None, container=None)

    assert "container_ssh" in planned["gpu1"]
    for name in ("gpu2", "gpu3"):
        assert reasons(planned[name]) == {"container_ssh": (MAY_CHANGE,)}
        assert planned[name]["container_ssh"].step_class is StepClass.SAFE


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"receipts": lost("container_ssh")}, MAY_CHANGE),
        ({"managed": changed("container_ssh", "files", f"{KEYS}/known_hosts", {"type": "missing"})}, LEARNS),
        ({"managed": changed("container_ssh", "files", f"{KEYS}/known_hosts", {**FILE, "sum": "x"})}, LEARNS),
        ({"container_ssh": dataclasses.replace(HEALTHY.container_ssh, host_key="")}, MAY_CHANGE),
        ({"container_trust": dataclasses.replace(HEALTHY.container_trust, known_nodes=("gpu1",))}, LEARNS),
    ],
)  # fmt: skip
def test_steps_that_can_change_keys_add_all_other_nodes(facts, reason):
    planned = joined(**facts)

    assert reasons(planned["gpu2"]) == reasons(planned["gpu3"]) == {"container_ssh": (reason,)}


@pytest.mark.parametrize(
    "managed",
    [
        changed("container_ssh", "files", f"{KEYS}/ssh_config", {"type": "missing"}),
        changed("container_ssh", "containers", "provision-training", {**CONTAINER, "status": "exited"}),
        changed("docker_engine", "units", "docker.service", {"load": "masked"}),
    ],
)
def test_steps_that_do_not_change_keys_affect_only_their_node(managed):
    """A thousand nodes need no run because one file of one of them was edited."""
    planned = joined(managed=managed)

    assert planned["gpu1"]
    assert (planned["gpu2"], planned["gpu3"]) == ({}, {})


def test_a_changed_address_adds_all_other_nodes():
    """They know it by the old one."""
    moved = {"listening": (), "addresses": (Address("ens4", "10.77.0.9", 24, "global"),)}
    planned = joined({"cluster_data_address": "", "cluster_data_networks": ["10.77.0.0/24"]}, **moved)

    assert tuple(map(shown, planned["gpu2"]["container_ssh"].reasons)) == (MAY_CHANGE,)


def test_partners_already_planned_disabled_or_unreachable_are_not_added():
    assert joined({"container_ssh_enabled": False}, receipts={}, container_ssh=None)["gpu2"] == {}
    assert joined(off=("gpu2",), receipts=lost("container_ssh"))["gpu2"] == {}
    planned = joined(errors=("gpu3",), receipts=lost("container_ssh"))
    assert reasons(planned["gpu2"]) == {"container_ssh": (MAY_CHANGE,)}
    assert planned["gpu3"] == {}


def test_several_nodes_are_listed_and_many_are_counted():
    planned = joined(of_all={"receipts": lost("container_ssh")})
    assert all(
        MAY_CHANGE not in map(str, map(shown, step.reasons)) for steps in planned.values() for step in steps.values()
    )

    now = cluster_of(6)
    scenes = {node.name: dataclasses.replace(scene_of(now=now), node=node) for node in now.nodes}
    fresh = {f"gpu{n}" for n in range(1, 6)}
    for name in fresh:
        bare = dataclasses.replace(scenes[name].facts, container_ssh=None, receipts={})
        scenes[name] = dataclasses.replace(scenes[name], facts=bare, all_facts={})
    plans = [NodePlan(name, plan_node(scene) if name in fresh else ()) for name, scene in scenes.items()]
    (last,) = [plan for plan in with_partners(plans, scenes) if plan.name == "gpu6"]
    assert tuple(map(shown, last.steps[0].reasons)) == ("container_ssh.new_keys: gpu1 gpu2 gpu3 gpu4 gpu5",)


def test_a_waiting_step_adds_no_other_nodes():
    managed = busy(changed("docker_engine", "packages", "docker.io", None))
    bare = {"container": None, "image": None, "container_ssh": None}
    planned = joined(receipts=lost("container_ssh"), managed=managed, **bare)

    assert planned["gpu1"]["container_ssh"].waits_for == (JOB,)
    assert planned["gpu2"] == {}


def test_a_busy_partner_exchanges_keys_because_that_is_safe():
    planned = joined(of_all={"managed": busy()}, receipts=lost("container_ssh"))

    assert planned["gpu2"]["container_ssh"].waits_for == ()


def test_missing_host_names_add_nodes_whose_address_the_inventory_lacks():
    networks = {"cluster_data_address": "", "cluster_data_networks": ["10.77.0.0/24"]}
    reason = "base_system.address_needed: gpu1"

    assert reasons(joined(networks, names=dict.fromkeys(NODES, ()))["gpu2"]) == {"base_system": (reason,)}
    assert joined(names=dict.fromkeys(NODES, ()))["gpu2"] == {}
