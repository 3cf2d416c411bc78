"""The component of fabric_host: what disrupts jobs, invalid settings, and no step for clusters that do not use it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from provision.checks import judge
from provision.components import COMPONENTS, JOB_ROLES
from provision.facts import Unknown
from provision.facts.fabric import Fabric, Interface
from provision.facts.network import Address
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
        ({}, [(CauseKind.CHECK, "fabric_host.governor")], {}, SAFE),
        ({}, [(CauseKind.VARIABLE, "fabric_host_hugepages_2mib")], {}, IDLE),
        ({}, [(CauseKind.VARIABLE, "fabric_host_hugepages_1gib")], {}, IDLE),
        ({"fabric_host_mtu": 0}, [WHOLE], {"fabric": Fabric(hugepages={2048: 0})}, IDLE),
        ({"fabric_host_mtu": 0}, [WHOLE], {"fabric": Fabric(hugepages={2048: 512})}, SAFE),
        ({"fabric_host_mtu": 0}, [WHOLE], {"fabric": Unknown("x")}, IDLE),
        ({"fabric_host_mtu": 0, "fabric_host_hugepages_2mib": "{{ pages }}"}, [WHOLE], {}, IDLE),
        ({}, [WHOLE], {"fabric": Unknown("x")}, IDLE),
        ({"fabric_host_mtu": 0, "fabric_host_hugepages_2mib": -1}, [WHOLE], DIFFERS, SAFE),
        ({"fabric_host_mtu": "{{ mtu }}"}, [WHOLE], {}, IDLE),
    ],
)
def test_only_a_change_of_mtu_or_hugepages_waits_until_the_node_is_idle(
    variables: dict[str, Any], causes: list[tuple[CauseKind, str]], facts: dict[str, Any], expected: StepClass
) -> None:
    """It ends the connections of a job, or takes memory from it."""
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
        ({"fabric_host_cpu_governor": "{{ x }}", "fabric_host_interfaces": ["{{ y }}"]}, []),
    ],
)
def test_invalid_settings_stop_an_apply_before_it_starts(variables: dict[str, Any], names: list[str]) -> None:
    """Values with a Jinja template are known to Ansible only."""
    problems = list(COMPONENT.settings(variables, healthy()))

    assert [variable for _, variable, _, _ in problems] == names
    assert {code for code, *_ in problems} <= {PreflightCode.VARIABLE_INVALID}


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
    everything = {"fabric_host_mtu": 9000, "fabric_host_arp_enabled": True, "fabric_host_hugepages_2mib": 0}
    inside = dataclasses.replace(healthy(), kind=Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False))

    assert list(COMPONENT.files({"fabric_host_hugepages_2mib": -1}, healthy())) == []
    assert len(list(COMPONENT.files(everything, healthy()))) == 4
    assert len(list(COMPONENT.files(everything, inside))) == 2
    assert list(COMPONENT.packages({"fabric_host_irqbalance": "running"}, {}, healthy())) == ["irqbalance"]


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
