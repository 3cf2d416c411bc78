"""The inventory that a lab writes."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from provision.lab.base import DriverName, LabNode, LabSpec, NodeState
from provision.lab.inventory_file import render, write_inventory
from provision.lab.services import ServiceInfo

SERVICES = ServiceInfo(
    registry="10.78.1.1:5000",
    ca_certificate="-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n",
    image_reference="10.78.1.1:5000/training:1",
    image_digest="sha256:1",
    repositories=[
        {"name": "lab", "uris": "http://10.78.1.1:1", "suites": "lab", "components": "main", "key": "a\nb\n"}
    ],
    simulated=[],
    peer_memory_url="http://127.0.0.1:1/git/nv_peer_memory.git",
)
NODES = [
    LabNode("demo-1", "10.78.1.10", 22, "10.79.1.10", NodeState.RUNNING),
    LabNode("demo-2", "10.78.1.11", 22, "10.79.1.11", NodeState.RUNNING),
]


def variables(driver=DriverName.CONTAINER, folder="/labs/demo"):
    text = render(LabSpec("demo", driver, 2), Path(folder), NODES, SERVICES)
    return yaml.safe_load(text)["all"]["children"]["gpu_nodes"]


def test_every_node_has_its_addresses():
    """Hosts carry where SSH answers and where the data network is."""
    assert variables()["hosts"]["demo-2"] == {
        "ansible_host": "10.78.1.11",
        "ansible_port": 22,
        "cluster_data_address": "10.79.1.11",
    }
    assert variables()["vars"]["cluster_data_networks"] == ["10.79.1.0/24"]


def test_host_keys_are_checked_against_the_labs_own_file():
    """Ansible checks strictly, and against the keys that the lab made."""
    words = shlex.split(variables()["vars"]["ansible_ssh_common_args"])

    assert "StrictHostKeyChecking=yes" in words
    assert "UserKnownHostsFile=/labs/demo/known_hosts" in words


def test_a_folder_with_spaces_works():
    """ssh reads the file's name as one even when the home has a space in it."""
    words = shlex.split(variables(folder="/my labs/100%/demo")["vars"]["ansible_ssh_common_args"])

    assert 'UserKnownHostsFile="/my labs/100%%/demo/known_hosts"' in words


def test_services_are_in_the_variables_of_the_roles():
    """Registry, its CA, the image by digest and the repository are given as variables."""
    inventory = variables()["vars"]

    assert inventory["docker_engine_registry_ca"] == [
        {"registry": "10.78.1.1:5000", "certificate": SERVICES.ca_certificate}
    ]
    assert inventory["training_image_reference"] == "10.78.1.1:5000/training:1"
    assert inventory["training_image_digest"] == "sha256:1"
    assert inventory["platform_extra_repositories"] == SERVICES.repositories


def test_a_node_with_rpm_has_repositories_and_an_engine_of_its_own(monkeypatch):
    """Its system has no Docker Engine, so that it comes from the lab's copy of Docker's repository."""
    monkeypatch.setattr("provision.lab.systems.python_program", lambda version: f"/opt/python{version}")
    services = replace(SERVICES, repository_url="http://10.78.1.1:1", repository_key="K\n")
    spec = LabSpec("demo", DriverName.CONTAINER, 2, distro="debian12,el8")
    debian, el = yaml.safe_load(render(spec, Path("/labs/demo"), NODES, services))["all"]["children"]["gpu_nodes"][
        "hosts"
    ].values()

    assert debian == variables()["hosts"]["demo-1"]
    assert el["docker_engine_source"] == "docker"
    assert el["docker_engine_repository_uri"] == "http://10.78.1.1:1/rpm/docker"
    assert el["platform_extra_repositories"] == [
        {"name": "provision-lab", "uris": "http://10.78.1.1:1/rpm/stand-ins", "suites": "/", "key": "K\n"}
    ]
    assert el["ansible_python_interpreter"] == "/usr/libexec/platform-python"


@pytest.mark.parametrize(("driver", "expected"), [(DriverName.VM, True), (DriverName.CONTAINER, False)])
def test_soft_roce_is_enabled_for_nodes_with_a_kernel(driver, expected):
    """Only virtual machines can load the module."""
    assert variables(driver)["vars"]["rdma_stack_soft_roce_enabled"] is expected


def test_nodes_with_gpus_and_a_kernel_of_their_own_get_the_labs_peer_memory():
    """The sources of the simulated module are in the inventory only if nodes have a kernel and GPUs."""
    expected = {(DriverName.VM, "pair"): SERVICES.peer_memory_url}
    for driver in DriverName:
        for machine in (None, "pair"):
            text = render(LabSpec("demo", driver, 2, machine=machine), Path("/labs/demo"), NODES, SERVICES)
            inventory = yaml.safe_load(text)["all"]["children"]["gpu_nodes"]["vars"].get("peer_memory_source_url")

            assert inventory == expected.get((driver, machine))


def test_writing_twice_changes_nothing(tmp_path):
    """A repaired lab has the same inventory, private to its owner."""
    spec = LabSpec("demo", DriverName.CONTAINER, 2)
    path = write_inventory(spec, tmp_path, NODES, SERVICES)
    first = path.read_text()
    write_inventory(spec, tmp_path, NODES, SERVICES)

    assert path == tmp_path / "inventory/hosts.yml"
    assert path.read_text() == first
    assert path.stat().st_mode & 0o077 == 0
