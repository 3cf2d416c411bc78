"""The role slurm, evaluated without a node: which packages and files a node gets, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from provision.components import ROLES
from tests.support.expressions import Role
from tests.support.modules import load

NODES = ["head", "gpu1", "gpu2"]
LAYOUT = {
    "sockets": 1, "cores": 4, "threads": 2, "memory": 32000, "hostname": "x",
    "gpus": [{"minor": 0, "model": "NVIDIA A10"}],
}  # fmt: skip
KEY = "a2V5"


def role(name: str, **more: Any) -> Role:
    """Return the role on a node after all nodes reported; the head takes no jobs."""
    hostvars: dict[str, dict[str, Any]] = {
        node: {
            "cluster_engine": "slurm",
            "platform_system": "debian_12",
            "__slurm_node": {
                "state": {"hostname": node, "layout": None if node == "head" else {**LAYOUT, "hostname": node}},
                "document": {},
                "configured": [],
            },
        }
        for node in NODES
    }
    for node, changes in more.pop("changes", {}).items():
        hostvars[node] |= changes
    given = {
        "hostvars": hostvars,
        "groups": {"all": NODES},
        "inventory_hostname": name,
        "ansible_play_hosts_all": NODES,
        "cluster_engine": "slurm",
        "cluster_name": "lab",
        "cluster_takes_jobs": name != "head",
        "platform_data_addresses": {node: f"10.0.0.{n}" for n, node in enumerate(NODES, start=1)},
        "platform_job_nodes": ["gpu1", "gpu2"],
        "__slurm_node": hostvars[name]["__slurm_node"],
        **more,
    }
    made = Role("slurm", **given)
    hostvars["head"]["__slurm_configuration"] = made.value("__slurm_planned")
    return made


def files(name: str, **more: Any) -> dict[str, dict[str, Any]]:
    return {item["path"]: item for item in role(name, **more).value("__slurm_files")}


@pytest.mark.parametrize(
    ("name", "variables", "packages"),
    [
        ("head", {}, "controller"),
        ("gpu1", {}, "node"),
        ("gpu1", {"slurm_controller": "gpu1"}, "both"),
        ("gpu1", {"cluster_head": "gpu1"}, "both"),
        ("gpu2", {"slurm_backup_controller": "gpu2", "slurm_state_folder": "/shared"}, "both"),
        ("gpu1", {"slurm_source": "present"}, "present"),
        ("head", {"slurm_accounting": "slurmdbd"}, "controller_accounting"),
        ("gpu1", {"slurm_accounting": "slurmdbd", "slurm_controller": "gpu1"}, "both_accounting"),
        ("gpu1", {"slurm_accounting": "slurmdbd"}, "node"),
        (
            "gpu2",
            {"slurm_accounting": "slurmdbd", "slurm_backup_controller": "gpu2", "slurm_state_folder": "/shared"},
            "both",
        ),
        ("head", {"slurm_accounting": "slurmdbd", "slurm_source": "present"}, "present"),
    ],
)  # fmt: skip
def test_a_node_gets_the_packages_of_its_parts(name: str, variables: dict[str, Any], packages: str) -> None:
    assert role(name, **variables).value("__slurm_package_set") == packages


def test_the_controller_alone_has_the_configuration_of_all_nodes() -> None:
    """Nodes get it from there; what they have is local by nature."""
    head, node = files("head"), files("gpu1")

    assert "NodeName=gpu2 NodeAddr=10.0.0.3" in head["/etc/slurm/slurm.conf"]["content"]
    assert head["/etc/slurm/topology.conf"]["state"] == "absent"
    assert not [path for path in node if path.endswith(".conf") and path.startswith("/etc/slurm/")]
    assert '-N gpu1 --conf-server 10.0.0.1:6817"' in node["/etc/default/slurmd"]["content"]
    assert node["/etc/slurm/epilog.d/50-provision"]["mode"] == "0700"
    assert node["/etc/slurm/epilog.d/50-provision"]["content"].endswith("/slurm-node.pyz slurm-epilog\n")


def test_the_primary_controller_alone_has_slurmdbd_without_a_secret() -> None:
    """It starts before slurmctld, which requires it at its first start."""
    more = {"slurm_accounting": "slurmdbd"}
    head = files("head", **more)
    conf = head["/etc/slurm/slurmdbd.conf"]

    assert (conf["owner"], conf["mode"]) == ("slurm", "0600")
    assert "StoragePass" not in conf["content"]
    assert "AccountingStorageHost=10.0.0.1\n" in head["/etc/slurm/slurm.conf"]["content"]
    assert "/etc/slurm/slurmdbd.conf" not in {**files("gpu1", **more), **files("head")}
    units = ["munge.service", "mariadb.service", "slurmdbd.service", "slurmctld.service"]
    assert role("head", **more).value("__slurm_units") == units
    assert role("gpu1", **more).value("__slurm_units") == ["munge.service", "slurmd.service"]


def test_without_accounting_only_the_roles_own_slurmdbd_is_removed() -> None:
    """A slurmdbd of the site, for another cluster, stays."""
    started = {"__slurm_node": {"state": {"hostname": "head"}, "document": {}, "has_slurmdbd": True}}

    assert files("head", changes={"head": started})["/etc/slurm/slurmdbd.conf"]["state"] == "absent"
    assert "/etc/slurm/slurmdbd.conf" not in files("head")


def test_a_node_learns_its_entry_and_no_other_ones() -> None:
    document = role("gpu1").value("__slurm_document")

    assert document["entry"]["address"] == "10.0.0.2"
    assert "nodes" not in document


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"changes": {"gpu2": {"platform_system": "debian_13"}}}, "several releases"),
        ({"changes": {"gpu2": {"cluster_engine": ""}}}, "several values of cluster_engine"),
        ({"slurm_controller": "gpu9"}, "gpu9 (slurm_controller) is not in the inventory"),
        ({"slurm_options": {"SlurmUser": "root"}}, "SlurmUser cannot be set"),
        ({"slurm_partitions": [{"name": "a", "nodes": ["gpu1"]}]}, "no partition has"),
        ({"slurm_partitions": [{"name": "a"}, {"name": "b", "nodes": ["gpu9"]}]}, "not in the inventory"),
    ],
)
def test_plain_ansible_refuses_what_cannot_be_one_cluster(variables: dict[str, Any], wanted: str) -> None:
    """Before the first change, on every node."""
    made = role("gpu1", **variables) if "slurm_controller" not in variables else Role("slurm", **_unknown(variables))

    assert not made.holds("preflight", "Check that the cluster can have one Slurm")
    assert wanted in made.says("preflight", "Check that the cluster can have one Slurm")


@pytest.mark.parametrize(
    ("name", "state", "holds"),
    [
        ("gpu1", {"controllers": ["head"]}, True),
        ("gpu1", {"controllers": ["gpu2"]}, False),
        ("head", {"state_folder": "/old"}, False),
        ("head", {"partitions": ["old"], "busy_partitions": ["old"]}, False),
        ("head", {"partitions": ["old"], "busy_partitions": []}, True),
    ],
)
def test_plain_ansible_refuses_what_loses_the_queue(name: str, state: dict[str, Any], holds: bool) -> None:  # noqa: FBT001
    """After the probe and before the first file: the old controller's slurmctld has the queue."""
    made = role(name, changes={name: {"__slurm_node": {"state": {**state, "hostname": name}, "document": {}}}})

    assert made.holds("probe", "Check that the queue and its jobs stay") is holds


@pytest.mark.parametrize("layout", [{**LAYOUT, "cores": 0}, {**LAYOUT, "hostname": "gpu1"}])
def test_a_refused_report_fails_its_node_only(layout: dict[str, Any]) -> None:
    """One damaged or manipulated node does not stop the others; its message has a remedy."""
    changes = {"gpu2": {"__slurm_node": {"state": {"hostname": "gpu2", "layout": layout}, "document": {}}}}
    check = "Check that the configuration has what this node reports"

    assert {name: role(name, changes=changes).holds("probe", check) for name in NODES} == {
        "head": True, "gpu1": True, "gpu2": False,
    }  # fmt: skip
    assert "then run: provision apply" in role("gpu2", changes=changes).says("probe", check)


@pytest.mark.parametrize(
    ("version", "source", "problem"),
    [
        ("24.11", "distribution", ""),
        ("21.08", "distribution", "Slurm 21.08 of Acme 1 is not supported; supported versions are 22.05, 24.11"),
        ("21.08", "present", ""),
    ],
)
def test_plain_ansible_refuses_an_unsupported_slurm_of_the_system(version: str, source: str, problem: str) -> None:
    """Before the first change."""
    made = role("gpu1", slurm_source=source, __platform_slurm_version=version, __platform_title="Acme 1")
    check = "Check that the system's Slurm is supported"

    assert made.holds("preflight", check) is not bool(problem)
    assert f"gpu1: {problem}" in made.says("preflight", check)


def _unknown(variables: dict[str, Any]) -> dict[str, Any]:
    return {
        "hostvars": {node: {} for node in NODES}, "groups": {"all": NODES}, "inventory_hostname": "gpu1",
        "ansible_play_hosts_all": NODES, "cluster_name": "", **variables,
    }  # fmt: skip


def test_other_engines_leave_the_role_out() -> None:
    """Plain Ansible runs it nowhere else either."""
    run = {
        "ansible_play_role_names": list(ROLES), "ansible_run_tags": ["all"], "inventory_hostname": "gpu1",
        "platform_node": {"gpus_present": True},
    }  # fmt: skip

    assert "slurm" in Role("platform", **run).value("__platform_left_out")
    assert "slurm" not in Role("platform", **run).value("__platform_selected_roles")
    assert "slurm" not in Role("platform", **run, cluster_engine="slurm").value("__platform_left_out")


def test_the_key_is_in_no_log() -> None:
    """Neither when it is read nor when it is written, and its file is munge's alone."""
    made = role("gpu1", changes={"head": {"__slurm_key": {"content": KEY}}})
    write = made.task("configure", "Write munge's key")

    assert made.task("probe", "Read munge's key")["no_log"] is True
    assert write["no_log"] is True
    assert write["platform_files"]["files"][0]["mode"] == "0400"
    assert made.value("__slurm_key_content") == KEY
    assert KEY not in str(made.value("__slurm_files"))


@pytest.fixture
def key_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load("slurm", "slurm_key")
    me = SimpleNamespace(pw_uid=-1, pw_gid=-1)
    monkeypatch.setattr(module.pwd, "getpwnam", lambda _name: me)
    monkeypatch.setattr(module, "record_file", lambda *_: None)
    return module


def test_a_key_is_made_once(key_module: ModuleType, tmp_path: Path) -> None:
    """A key that exists is never replaced; an empty file is none."""
    path = str(tmp_path / "munge.key")
    Path(path).touch()
    made = key_module.make(path)

    assert len(made) == 1024
    assert key_module.read(path) == made
    assert Path(path).stat().st_mode & 0o777 == 0o400
    assert [item.name for item in tmp_path.iterdir()] == ["munge.key"]
