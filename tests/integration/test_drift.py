"""What is changed behind our back is found with its own reason, repaired by one apply, and found no more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.conftest import LAB
from tests.integration.drifts import BATCHES, Drift
from tests.support.reasons import shown_document

COMPANIONS = {
    "docker_engine": {"nvidia_container"},
    "nvidia_container": {"docker_engine"},
    "rdma_stack": {"peer_memory"},
    "training_image": {"training_container", "container_ssh"},
    "training_container": {"container_ssh"},
    "container_ssh": {"base_system"},
    "base_system": {"container_ssh"},
}
"""Roles that may come along with another, because they work together."""


@pytest.fixture
def image(ssh_files: Path) -> str:
    inventory = yaml.safe_load((ssh_files / "inventory/hosts.yml").read_text())["all"]
    variables = {**inventory.get("vars", {}), **inventory["children"]["gpu_nodes"].get("vars", {})}
    return str(variables["training_image_reference"])


def steps_of(document: dict, node: str) -> dict[str, list[str]]:
    node_plan = next(entry for entry in document["nodes"] if entry["name"] == node)
    assert node_plan["error"] is None, node_plan
    return {step["role"]: list(map(shown_document, step["reason_codes"])) for step in node_plan["steps"]}


def assert_detected_and_repaired(provision, cluster, on_node, image: str, drifts: tuple[Drift, ...]) -> None:
    """Make the drifts on the first node, find each by its reason, repair them with one apply, find none."""
    node, other = (entry["name"] for entry in cluster["nodes"])
    provision.ok("apply", "--lab", LAB, "--yes")
    for drift in drifts:
        on_node(node, drift.make.replace("IMAGE", image))

    document = provision("plan", "--lab", LAB, "--json").document
    steps = steps_of(document, node)
    for drift in drifts:
        wanted = drift.reason.replace("IMAGE", re.escape(image))
        reasons = steps.get(drift.role, [])
        assert any(re.search(wanted, reason) for reason in reasons), f"{drift.name}: {wanted} is not among {steps}"
    concerned = {drift.role for drift in drifts}
    allowed = concerned.union(*(COMPANIONS.get(role, set()) for role in concerned))
    allowed |= set().union(*(COMPANIONS.get(role, set()) for role in allowed))
    assert set(steps) <= allowed, steps
    assert set(steps_of(document, other)) <= {"container_ssh", "base_system"}, document

    done = provision("apply", "--lab", LAB, "--yes", "--json")
    assert done.code == 0, str(done)
    changed = {role["role"] for role in done.document["nodes"][0]["roles"] if role["status"] == "changed"}
    assert changed - {"platform"} <= allowed, done.document["nodes"][0]
    again = provision("plan", "--lab", LAB, "--exit-code", "--json")
    assert again.code == 0, str(again)


MARKS = {"files": (), "records": pytest.mark.slow}
"""Marks of the batches whose changes have no test of their own in the short form; the others are `long`."""


@pytest.mark.parametrize("batch", [pytest.param(b, marks=MARKS.get(b, pytest.mark.long)) for b in BATCHES])
def test_manual_changes_are_detected_and_repaired(provision, cluster, on_node, image, batch: str) -> None:
    """All of a batch at once."""
    assert_detected_and_repaired(provision, cluster, on_node, image, BATCHES[batch])


@pytest.mark.long
@pytest.mark.parametrize("drift", [d for batch in BATCHES.values() for d in batch], ids=lambda d: d.name)
def test_each_single_change_is_detected_and_repaired(provision, cluster, on_node, image, drift: Drift) -> None:
    """So that none is found only because of another."""
    assert_detected_and_repaired(provision, cluster, on_node, image, (drift,))


@pytest.fixture
def variables(own_inventory) -> Iterator[Path]:
    """An inventory of one's own with group_vars, applied once."""
    return own_inventory("drift")


@pytest.mark.long
def test_a_changed_variable_plans_the_roles_that_use_it(provision, variables: Path) -> None:
    """In group_vars, in host_vars and through a reference; one that no role sees does not."""
    all_file = variables / "group_vars/all.yml"
    text = all_file.read_text()
    all_file.write_text(f"{text}\nsite_files: 3\ndocker_engine_log_max_files: '{{{{ site_files }}}}'\n")
    provision.ok("apply", "-i", str(variables), "--yes")
    assert provision("plan", "-i", str(variables), "--exit-code").code == 0

    node = provision("plan", "-i", str(variables), "--json").document["nodes"][0]["name"]
    (variables / "host_vars").mkdir(exist_ok=True)
    (variables / f"host_vars/{node}.yml").write_text("training_container_shm_size: 128m\nnobodys_business: 1\n")
    more = "nobodys_site: 5\n"
    all_file.write_text(f"{text}\nsite_files: 4\ndocker_engine_log_max_files: '{{{{ site_files }}}}'\n{more}")
    steps = steps_of(provision("plan", "-i", str(variables), "--json").document, node)

    assert any("site_files" in reason for reason in steps["docker_engine"]), steps
    assert any("training_container_shm_size" in reason for reason in steps["training_container"]), steps
    assert "base_system" not in steps
    assert "nobodys_business" not in str(steps)

    done = provision("apply", "-i", str(variables), "--yes", "--json")
    assert done.code == 0, str(done)
    assert provision("plan", "-i", str(variables), "--exit-code").code == 0


def test_a_step_that_requires_an_idle_node_waits_for_a_job(provision, cluster, on_node) -> None:
    """The plan says for which; the apply leaves it alone and says so; --disruptive does it all the same."""
    node = cluster["nodes"][0]["name"]
    provision.ok("apply", "--lab", LAB, "--yes")
    on_node(node, "docker exec -d provision-training python3 -c 'import time; time.sleep(1000)'")
    on_node(node, 'sed -i \'s/"max-file": "[0-9]*"/"max-file": "9"/\' /etc/docker/daemon.json')
    try:
        plan = provision("plan", "--lab", LAB, "--json").document["nodes"][0]
        step = next(step for step in plan["steps"] if step["role"] == "docker_engine")
        assert step["class"] == "needs-idle"
        assert re.search(r"python3", " ".join(step["waits_for"])), step

        done = provision("apply", "--lab", LAB, "--yes", "--json")
        role = next(role for role in done.document["nodes"][0]["roles"] if role["role"] == "docker_engine")
        assert (done.code, role["status"]) == (6, "waiting"), str(done)
        assert on_node(node, 'grep -c \'"max-file": "9"\' /etc/docker/daemon.json').strip() == "1"

        forced = provision("apply", "--lab", LAB, "--yes", "--json", "--disruptive", node)
        assert forced.code == 0, str(forced)
    finally:
        on_node(node, "docker exec provision-training pkill -f time.sleep || true")
        provision.ok("apply", "--lab", LAB, "--yes")


def test_a_saved_plan_is_applied_while_valid_and_refused_once_outdated(provision, cluster, on_node) -> None:
    """Without a terminal and without --yes: the plan is the answer."""
    node = cluster["nodes"][0]["name"]
    provision.ok("apply", "--lab", LAB, "--yes")
    on_node(node, "rm /etc/systemd/logind.conf.d/90-provision.conf")
    provision.ok("plan", "--lab", LAB, "--out", "saved.json")
    on_node(node, "rm /etc/systemd/system.conf.d/90-provision.conf")

    refused = provision("apply", "--lab", LAB, "--plan", "saved.json")
    assert refused.code == 2, str(refused)
    assert f"{node}: its inputs changed since the plan was saved" in refused.err

    provision.ok("plan", "--lab", LAB, "--out", "saved.json")
    assert provision("apply", "--lab", LAB).code == 2
    provision.ok("apply", "--lab", LAB, "--plan", "saved.json")
    assert provision("plan", "--lab", LAB, "--exit-code").code == 0


def test_plans_of_a_converged_fleet_have_no_steps_and_write_nothing(provision, cluster, on_node) -> None:
    """Several in a row; read-only ones too. Nothing is written on the node."""
    node = cluster["nodes"][0]["name"]
    provision.ok("apply", "--lab", LAB, "--yes")
    on_node(node, "touch /root/before; sleep 1")
    for words in ([], ["--read-only"], [], [], []):
        plan = provision("plan", "--lab", LAB, "--exit-code", "--json", *words)
        assert plan.code == 0, str(plan)
    provision.ok("apply", "--lab", LAB)  # nothing is asked, though there is no terminal
    newer = on_node(node, "find /etc /var/lib/provision /usr/local -newer /root/before -type f; rm /root/before")
    assert newer.strip() == ""


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_a_hundred_plans_of_a_converged_fleet_have_no_steps(provision) -> None:
    provision.ok("apply", "--lab", LAB, "--yes")
    for number in range(100):
        plan = provision("plan", "--lab", LAB, "--exit-code", "--json")
        assert plan.code == 0, f"plan {number}: {plan}"
