"""The component of fabric_host: what disrupts jobs, invalid settings, and no step for clusters that do not use it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from provision.checks import judge
from provision.components import COMPONENTS, JOB_ROLES
from provision.facts import Unknown
from provision.facts.fabric import Fabric, Interface
from provision.facts.gpudirect import PciRouting
from provision.facts.network import Address, Route
from provision.facts.system import Kind, NodeKind
from provision.inventory.role_files import defaults
from provision.model import PreflightCode, StepClass
from provision.planning import Cause, CauseKind, step_class
from provision.planning.steps import causes_of
from provision.resources import roles_folder
from tests.unit.checks.conftest import healthy
from tests.unit.planning.conftest import cluster_of, scene_of

ROLE = "fabric_host"
COMPONENT = COMPONENTS[ROLE]
SAFE, IDLE = StepClass.SAFE, StepClass.NEEDS_IDLE
DIFFERS = {"fabric": Fabric({"ens4": Interface(1500)})}
NO_ROCE = {
    "fabric_host_roce_mode": "",
    "fabric_host_roce_tos": -1,
    "fabric_host_roce_trust": "",
    "fabric_host_roce_pfc": "",
}
NO_QOS = {"fabric": dataclasses.replace(healthy().fabric, qos={})}
WHOLE = (CauseKind.RECEIPT, "")


@pytest.mark.parametrize(
    ("variables", "causes", "facts", "expected"),
    [
        ({}, [WHOLE], {}, SAFE),
        ({}, [WHOLE], DIFFERS, IDLE),
        ({}, [(CauseKind.CHECK, "fabric_host.mtu")], DIFFERS, IDLE),
        ({}, [(CauseKind.CODE, "")], {}, SAFE),
        ({}, [(CauseKind.VARIABLE, "fabric_host_mtu")], {}, IDLE),
        ({}, [(CauseKind.VARIABLE, "fabric_host_interfaces")], {}, IDLE),
        ({}, [(CauseKind.VARIABLE, "fabric_host_cpu_governor")], {}, SAFE),
        ({}, [(CauseKind.VARIABLE, "fabric_host_interface_names")], {}, SAFE),
        ({}, [(CauseKind.CHECK, "fabric_host.governor")], {}, SAFE),
        ({}, [(CauseKind.VARIABLE, "fabric_host_kernel_arguments")], {}, SAFE),
        ({}, [(CauseKind.VARIABLE, "fabric_host_pcie_max_read_request")], {}, IDLE),
        ({}, [(CauseKind.VARIABLE, "fabric_host_pcie_acs")], {}, IDLE),
        ({}, [(CauseKind.VARIABLE, "fabric_host_roce_tos")], {}, IDLE),
        ({"fabric_host_roce_tos": 0}, [WHOLE], {}, IDLE),
        ({"fabric_host_roce_tos": "{{ tos }}"}, [WHOLE], {}, IDLE),
        ({}, [(CauseKind.VARIABLE, "fabric_host_irq_affinity")], {}, SAFE),
        ({}, [(CauseKind.VARIABLE, "fabric_host_roce_pfc")], {}, IDLE),
        ({}, [(CauseKind.VARIABLE, "fabric_host_roce_ecn")], {}, IDLE),
        ({}, [WHOLE], NO_QOS, IDLE),
        (NO_ROCE, [WHOLE], NO_QOS, SAFE),
        ({"fabric_host_roce_trust": "{{ trust }}"}, [WHOLE], {}, IDLE),
        (NO_ROCE, [WHOLE], {"rdma": Unknown("x")}, SAFE),
        ({}, [WHOLE], {"rdma": Unknown("x")}, IDLE),
        ({}, [WHOLE], {"pci_routing": PciRouting({}, ("0000:05:00.0",))}, IDLE),
        ({}, [WHOLE], {"pci_routing": PciRouting({}, ("0000:00:02.0",))}, SAFE),
        ({}, [WHOLE], {"pci_routing": PciRouting({}, None)}, IDLE),
        ({"fabric_host_pcie_acs": ""}, [WHOLE], {"pci_routing": PciRouting({}, None)}, SAFE),
        ({}, [(CauseKind.VARIABLE, "fabric_host_hugepages_2mib")], {}, IDLE),
        ({}, [(CauseKind.VARIABLE, "fabric_host_hugepages_1gib")], {}, IDLE),
        ({"fabric_host_mtu": 0}, [WHOLE], {"fabric": Fabric(hugepages={2048: 0})}, IDLE),
        ({"fabric_host_mtu": 0}, [WHOLE], {"fabric": Fabric(hugepages={2048: 512})}, SAFE),
        ({"fabric_host_mtu": 0}, [WHOLE], {"fabric": Unknown("x")}, IDLE),
        ({"fabric_host_mtu": 0, "fabric_host_hugepages_2mib": "{{ pages }}"}, [WHOLE], {}, IDLE),
        ({}, [WHOLE], {"fabric": Unknown("x")}, IDLE),
        ({"fabric_host_mtu": 0, "fabric_host_hugepages_2mib": -1, **NO_ROCE}, [WHOLE], DIFFERS, SAFE),
        ({"fabric_host_mtu": 0, "fabric_host_hugepages_2mib": -1}, [WHOLE], DIFFERS, IDLE),
        ({"fabric_host_mtu": "{{ mtu }}"}, [WHOLE], {}, IDLE),
    ],
)
def test_only_changes_that_can_disrupt_a_job_wait_until_the_node_is_idle(
    variables: dict[str, Any], causes: list[tuple[CauseKind, str]], facts: dict[str, Any], expected: StepClass
) -> None:
    """They end the connections of a job, take memory from it, or change the path of its data."""
    scene = scene_of(now=cluster_of(**variables), **facts)
    made = [Cause(kind, name, None) for kind, name in causes]  # type: ignore[arg-type]

    assert step_class(ROLE, made, scene) is expected


def test_a_cluster_that_does_not_use_the_role_has_no_step() -> None:
    """By the role's own defaults; an enabled role has one."""
    own = {name: value for name, value in defaults(roles_folder()).items() if name.startswith("fabric_host_")}
    off = scene_of(now=cluster_of(**own), receipts={})
    on = scene_of(now=cluster_of(**{**own, "fabric_host_enabled": True}), receipts={})

    assert (own["fabric_host_enabled"], ROLE in causes_of(off), ROLE in causes_of(on)) == (False, False, True)
    assert ROLE in JOB_ROLES


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({}, []),
        ({"fabric_host_mtu": 9000, "fabric_host_interfaces": ["ens4.100", "0000:3b:00.0"]}, []),
        ({"fabric_host_mtu": 1279}, ["fabric_host_mtu"]),
        ({"fabric_host_mtu": 65521}, ["fabric_host_mtu"]),
        ({"fabric_host_interfaces": ["ens4;reboot", "../x"]}, ["fabric_host_interfaces"] * 2),
        ({"fabric_host_cpu_governor": "perform ance"}, ["fabric_host_cpu_governor"]),
        ({"fabric_host_hugepages_1gib": -2}, ["fabric_host_hugepages_1gib"]),
        ({"fabric_host_hugepages_2mib": 2**24 + 1}, ["fabric_host_hugepages_2mib"]),
        ({"fabric_host_kernel_arguments": ["iommu=pt", "root=/dev/sda"]}, ["fabric_host_kernel_arguments"]),
        ({"fabric_host_kernel_arguments": ["{{ x }}"]}, []),
        ({"fabric_host_roce_tos": 256}, ["fabric_host_roce_tos"]),
        ({"fabric_host_roce_tos": 255, "fabric_host_roce_mode": "v1"}, []),
        (
            {"fabric_host_roce_pfc": "3", "fabric_host_roce_ecn": "0,0,0,9,0,0,0,0"},
            ["fabric_host_roce_pfc", "fabric_host_roce_ecn"],
        ),
        ({"fabric_host_irq_affinity": "local"}, ["fabric_host_irq_affinity"]),
        ({"fabric_host_irq_affinity": "local", "fabric_host_irqbalance": "running"}, ["fabric_host_irq_affinity"]),
        ({"fabric_host_irq_affinity": "local", "fabric_host_irqbalance": "stopped"}, []),
        ({"fabric_host_roce_trust": "vlan"}, ["fabric_host_roce_trust"]),
        ({"fabric_host_roce_pfc": "0, 0, 0, 1, 0, 0, 0, 0", "fabric_host_roce_trust": "dscp"}, []),
        ({"fabric_host_pcie_max_read_request": 1000}, ["fabric_host_pcie_max_read_request"]),
        ({"fabric_host_pcie_max_read_request": 4096, "fabric_host_pcie_acs": "disabled"}, []),
        ({"fabric_host_interface_names": {"rail0": "0000:3b:00.0", "rail1": "0000:86:00.0"}}, []),
        ({"fabric_host_interface_names": {"eth0": "3b:00.0"}}, ["fabric_host_interface_names"] * 2),
        ({"fabric_host_interface_names": {"rail0;reboot": "0000:3b:00.0"}}, ["fabric_host_interface_names"]),
        ({"fabric_host_interface_names": dict.fromkeys("ab", "0000:3b:00.0")}, ["fabric_host_interface_names"]),
        ({"fabric_host_interface_names": {"rail0": "{{ x }}"}}, []),
        ({"fabric_host_cpu_governor": "{{ x }}", "fabric_host_interfaces": ["{{ y }}"]}, []),
    ],
)
def test_invalid_settings_stop_an_apply_before_it_starts(variables: dict[str, Any], names: list[str]) -> None:
    """Values with a Jinja template are known to Ansible only."""
    problems = list(COMPONENT.settings(variables, healthy()))

    assert [variable for _, variable, _, _ in problems] == names
    assert {code for code, *_ in problems} <= {PreflightCode.VARIABLE_INVALID}


def test_an_interface_of_the_default_route_keeps_its_name() -> None:
    """Its network manager may not know the other name. References to a name that changes are reported."""
    variables = {"fabric_host_interface_names": {"rail0": "0000:3b:00.0"}}
    reached = dataclasses.replace(healthy(), routes=(Route("default", "bond0", ""),))
    interfaces = {"ens4": Interface(1500, "0000:3b:00.0"), "bond0": Interface(1500)}
    bond = dataclasses.replace(reached, fabric=Fabric(interfaces, lower={"bond0": ("ens4",)}))
    done = dataclasses.replace(
        bond, fabric=Fabric({"rail0": Interface(1500, "0000:3b:00.0")}, lower={"bond0": ("rail0",)})
    )

    assert [name for _, name, *_ in COMPONENT.settings(variables, bond)] == ["fabric_host_interface_names"]
    assert list(COMPONENT.settings(variables, done)) == list(COMPONENT.settings(variables, healthy())) == []
    for entry, expected in (("ens4", 1), ("rail0", 1), ("0000:3b:00.0", 0), ("ens3", 0)):
        problems = list(COMPONENT.settings({**variables, "fabric_host_interfaces": [entry]}, healthy()))
        assert [name for _, name, *_ in problems] == ["fabric_host_interfaces"] * expected


def test_the_checks_see_the_interfaces_that_the_role_sees() -> None:
    """Of addresses the role knows those of IPv4."""
    addresses = (*healthy().addresses, Address("ens3", "fd00::3", 64, "global"))
    networks = {"cluster_data_networks": ["10.77.0.0/16", "fd00::/64"]}
    node = cluster_of(**networks).node("gpu1")

    results = judge(node, dataclasses.replace(healthy(), addresses=addresses), cluster_of(**networks))
    assert next(one.reason.params["interfaces"] for one in results if one.id == "fabric_host.mtu") == ("ens4",)


def test_a_limit_without_time_for_a_connection_is_refused() -> None:
    """It is a setting of platform, for all roles."""
    settings = COMPONENTS["platform"].settings

    assert [name for _, name, *_ in settings({"platform_rescue_seconds": 19}, healthy())] == ["platform_rescue_seconds"]
    for seconds in (0, 20, 45, 3600):
        assert list(settings({"platform_rescue_seconds": seconds}, healthy())) == []


def test_the_files_of_a_step_are_those_of_its_settings() -> None:
    """A container node has no script for the kernel."""
    for variables in (
        {"fabric_host_roce_tos": 0},
        {"fabric_host_roce_mode": "v2"},
        {"fabric_host_roce_ecn": "0"},
        {"fabric_host_irq_affinity": "local"},
    ):
        assert len(list(COMPONENT.files({"fabric_host_hugepages_2mib": -1, **variables}, healthy()))) == 2
    everything = {"fabric_host_mtu": 9000, "fabric_host_arp_enabled": True, "fabric_host_hugepages_2mib": 0}
    inside = dataclasses.replace(healthy(), kind=Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False))

    assert list(COMPONENT.files({"fabric_host_hugepages_2mib": -1}, healthy())) == []
    names = {"fabric_host_hugepages_2mib": -1, "fabric_host_interface_names": {"rail0": "0000:3b:00.0"}}
    assert list(COMPONENT.files(names, healthy())) == ["/etc/systemd/network/05-provision-rail0.link"]
    assert len(list(COMPONENT.files(everything, healthy()))) == 4
    assert len(list(COMPONENT.files(everything, inside))) == 2
    assert list(COMPONENT.packages({"fabric_host_irqbalance": "running"}, {}, healthy())) == ["irqbalance"]


def test_acs_of_a_virtualization_host_is_refused() -> None:
    """A container node has no devices of its own."""
    variables = {"fabric_host_pcie_acs": "disabled"}
    host = dataclasses.replace(healthy(), fabric=Fabric(assigned=("0000:06:00.0",)))
    inside = dataclasses.replace(host, kind=Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False))

    assert [name for _, name, *_ in COMPONENT.settings(variables, host)] == ["fabric_host_pcie_acs"]
    assert list(COMPONENT.settings(variables, inside)) == list(COMPONENT.settings({}, host)) == []
    assert list(COMPONENT.packages(variables, {}, host)) == ["pciutils"]
    assert len(list(COMPONENT.files(variables, host))) == 2
    assert list(COMPONENT.packages(variables, {}, inside)) == list(COMPONENT.files(variables, inside)) == []


def test_arguments_of_the_kernel_require_grub() -> None:
    """A container node and a node without facts are no problem of the inventory."""
    variables = {"fabric_host_kernel_arguments": ["iommu=pt"]}
    other = dataclasses.replace(healthy(), fabric=Fabric())
    inside = dataclasses.replace(other, kind=Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False))
    grubby = dataclasses.replace(healthy(), fabric=Fabric(boot_tool="grubby"))

    assert [name for _, name, *_ in COMPONENT.settings(variables, other)] == ["fabric_host_kernel_arguments"]
    for facts in (inside, grubby, healthy(), dataclasses.replace(other, fabric=Unknown("x"))):
        assert list(COMPONENT.settings(variables, facts)) == []
    files = [list(COMPONENT.files(variables, facts)) for facts in (healthy(), grubby, inside)]
    assert files == [["/etc/default/grub.d/zz-provision-fabric.cfg"], [], []]


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({"fabric_host_hugepages_2mib": 7372}, []),
        ({"fabric_host_hugepages_2mib": 7373}, ["fabric_host_hugepages_2mib"]),
        ({"fabric_host_hugepages_2mib": 512, "fabric_host_hugepages_1gib": 14}, ["fabric_host_hugepages_1gib"]),
        ({"fabric_host_hugepages_2mib": -1, "fabric_host_hugepages_1gib": 14}, []),
    ],
)
def test_hugepages_of_almost_all_memory_stop_an_apply(variables: dict[str, Any], names: list[str]) -> None:
    """The node would not boot; a node whose memory is unknown is checked by the role."""
    facts = dataclasses.replace(healthy(), fabric=Fabric(memory_kib=16 * 2**20))
    inside = dataclasses.replace(facts, kind=Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False))

    assert [name for _, name, *_ in COMPONENT.settings(variables, facts)] == names
    for other in (inside, dataclasses.replace(facts, fabric=Unknown("x")), dataclasses.replace(facts, fabric=Fabric())):
        assert list(COMPONENT.settings(variables, other)) == []
