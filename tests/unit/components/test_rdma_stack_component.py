"""The role rdma_stack with a vendor's stack in plans: consent, what follows, and refusals before anything changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from provision.components import COMPONENTS, ROLES
from provision.facts import Unknown
from provision.facts.rdma import VendorStack
from provision.facts.records import Receipt
from provision.facts.system import Kind, NodeKind
from provision.inventory.role_files import defaults, systems
from provision.model import StepClass
from provision.model.reason import reason
from provision.planning import Cause, CauseKind, PlanScene, plan_node, step_class
from provision.planning.requirements import packages_of, repositories_of, setting_problems
from provision.resources import roles_folder
from tests.unit.planning.conftest import busy, cluster_of, facts_of, scene_of

ROLE = "rdma_stack"
FACTS = facts_of(cluster_of())
DEFAULTS = defaults(roles_folder())
SYSTEMS = systems(roles_folder())
KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDM=\n-----END PGP PUBLIC KEY BLOCK-----\n"
REQUEST = {"rdma_stack_source": "doca", "rdma_stack_repository_key": KEY}
DRIVER = {"nvidia_driver_source": "distribution"}
LOADED = {"modules": frozenset({"ib_core", "ib_uverbs"})}
NOT_LOADED: dict[str, Any] = {"modules": frozenset()}
IN_CONTAINER = {"kind": Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False)}
WHY = reason("plan.forced")


def scene(variables: dict[str, Any], *, applied: bool = False, **facts: Any) -> PlanScene:
    """Return a node to which the role was, or was never, applied."""
    cluster = cluster_of(**variables)
    receipts = facts_of(cluster).receipts
    assert not isinstance(receipts, Unknown)
    others = {role: receipt for role, receipt in receipts.items() if applied or role != ROLE}
    return scene_of(now=cluster, receipts=others, **facts)


def reasons(variables: dict[str, Any], **facts: Any) -> dict[str, set[str]]:
    """Return role -> codes of the reasons of a first plan."""
    return {one.role: {why.code for why in one.reasons} for one in plan_node(scene(variables, **facts))}


def test_a_request_puts_the_driver_and_peer_memory_into_the_plan() -> None:
    """Both are built against the stack, in this order."""
    planned = reasons(REQUEST | DRIVER, **LOADED)

    assert "rdma_stack.driver_modules" in planned["nvidia_driver"]
    assert "rdma_stack.packages_change" in planned["peer_memory"]
    order = [role for role in ROLES if role in {ROLE, "nvidia_driver", "peer_memory"}]
    assert order == [ROLE, "nvidia_driver", "peer_memory"]


@pytest.mark.parametrize(
    "cause",
    [
        Cause(CauseKind.PACKAGE, "doca-ofed", WHY),
        Cause(CauseKind.VARIABLE, "rdma_stack_version", WHY),
        Cause(CauseKind.CHECK, "rdma_stack.modules", WHY),
        Cause(CauseKind.CHECK, "rdma_stack.packages", WHY),
        Cause(CauseKind.RECEIPT, "", WHY),
    ],
)
def test_what_changes_the_packages_or_modules_changes_the_driver(cause: Cause) -> None:
    """A driver of the site is not touched."""
    for variables, roles in ((REQUEST | DRIVER, {"nvidia_driver", "peer_memory"}), (REQUEST, {"peer_memory"})):
        needs = {need.role for need in COMPONENTS[ROLE].needs((cause,), scene(variables, **LOADED))}
        assert needs - {"training_container"} == roles


def test_a_changed_address_of_the_repository_changes_nothing_else() -> None:
    """It disrupts no job either."""
    cause = Cause(CauseKind.VARIABLE, "rdma_stack_repository_uri", WHY)
    state = scene(REQUEST | DRIVER, **LOADED)

    assert {need.role for need in COMPONENTS[ROLE].needs((cause,), state)} <= {"training_container"}
    assert step_class(ROLE, (cause,), state) is StepClass.SAFE


def test_the_distributions_stack_is_planned_as_before() -> None:
    """A first run changes no driver; `inbox` is another word for it."""
    for variables in ({}, {"rdma_stack_source": "distribution"}, {"rdma_stack_source": "inbox"}):
        planned = reasons(variables | DRIVER, **LOADED)
        assert "rdma_stack.driver_modules" not in planned.get("nvidia_driver", set())
        whole = Cause(CauseKind.RECEIPT, "", WHY)
        assert step_class(ROLE, (whole,), scene(variables, **LOADED)) is StepClass.SAFE
        removed = Cause(CauseKind.PACKAGE, "rdma-core", WHY)
        assert "nvidia_driver" not in {
            need.role for need in COMPONENTS[ROLE].needs((removed,), scene(variables | DRIVER, **LOADED))
        }
    for system, entry in SYSTEMS.items():
        sets = entry["__platform_package_sets"][ROLE]
        assert sets["inbox"] == sets["distribution"], system


def test_replacing_a_loaded_stack_needs_an_idle_node() -> None:
    """Without loaded modules, and on a container, it disrupts nothing."""
    whole = Cause(CauseKind.RECEIPT, "", WHY)
    for variables, facts, expected in (
        (REQUEST, LOADED, StepClass.NEEDS_IDLE),
        (REQUEST, NOT_LOADED, StepClass.SAFE),
        (REQUEST, {"modules": Unknown("hung")}, StepClass.NEEDS_IDLE),
        (REQUEST, {**LOADED, **IN_CONTAINER}, StepClass.SAFE),
    ):
        assert step_class(ROLE, (whole,), scene(variables, **facts)) is expected, facts
    package = Cause(CauseKind.PACKAGE, "doca-ofed", WHY)
    assert step_class(ROLE, (package,), scene(REQUEST, **LOADED)) is StepClass.NEEDS_IDLE


def test_a_stack_under_a_job_waits_and_the_driver_and_peer_memory_with_it() -> None:
    """Until the job ends or the operator consents."""
    waiting = {one.role for one in plan_node(scene(REQUEST | DRIVER, managed=busy(), **LOADED)) if one.waits_for}

    assert {ROLE, "nvidia_driver", "peer_memory"} <= waiting


def problems(system: str = "ubuntu_24.04", facts: Any = None, **variables: Any) -> list[tuple[str, str]]:
    """Return code and variable of everything that is wrong, each with a remedy."""
    wrong = setting_problems(ROLE, DEFAULTS | variables, facts or with_kernel("6.8.0-31-generic"), SYSTEMS[system])
    assert all(one.remedy for one in wrong)
    return [(one.code.value, one.object) for one in wrong]


def with_kernel(kernel: str, **changes: Any) -> Any:
    """Return the facts of a node with this kernel and without receipts."""
    assert not isinstance(FACTS.system, Unknown)
    system = dataclasses.replace(FACTS.system, kernel=kernel)
    return dataclasses.replace(FACTS, **{"system": system, "receipts": {}, **changes})


def with_ofed(name: str, **changes: Any) -> Any:
    """Return the facts of a node with a vendor's stack."""
    assert not isinstance(FACTS.rdma, Unknown)
    stack = dataclasses.replace(FACTS.rdma, ofed=name, vendor=VendorStack())
    return with_kernel("6.8.0-31-generic", rdma=stack, **changes)


def installed(source: str) -> Any:
    """Return the facts of a node on which the role has installed a vendor's stack."""
    receipts = {ROLE: Receipt(ROLE, {"inputs": {"source": source}})}
    return with_ofed("OFED-internal-25.10", receipts=receipts, packages={"doca-ofed": "3.2.2-1", "rdma-core": "2510"})


def test_a_default_inventory_has_no_problem_on_any_system() -> None:
    """Nor has a node with a stack of the site."""
    assert {system: problems(system) for system in SYSTEMS} == {system: [] for system in SYSTEMS}
    site = with_ofed("MLNX_OFED_LINUX-5.8-1.0.1.1")
    for source in ("distribution", "present"):
        assert problems("ubuntu_24.04", site, rdma_stack_source=source) == []


def test_an_unsupported_kernel_is_refused_before_an_apply() -> None:
    """The running one, or a listed one; a container runs its host's."""
    new = with_kernel("7.0.0-1008-azure")
    refused = [("kernel.unsupported", "rdma_stack_version")]

    assert problems(facts=new, **REQUEST) == refused
    assert problems(**REQUEST, rdma_stack_kernels=["7.0.0-1008-azure"]) == refused
    assert problems(facts=new, **REQUEST, rdma_stack_kernels=["6.8.0-31-generic"]) == []
    assert problems(facts=new, **REQUEST, rdma_stack_kernel_check_enabled=False) == []
    assert problems(facts=new, **REQUEST, rdma_stack_version="3.4.0") == []
    assert problems(facts=with_kernel("6.18.44-host", **IN_CONTAINER), **REQUEST) == []


@pytest.mark.parametrize("system", ["debian_13", "el_7", "openeuler_24.03", "tencentos_4"])
def test_a_system_without_such_a_stack_is_refused(system: str) -> None:
    """With the sources that it has."""
    assert problems(system, **REQUEST) == [("variable.invalid", "rdma_stack_source")]


def test_a_repository_needs_its_key_and_that_of_a_site_its_release() -> None:
    """Nothing is fetched without a signature, and the release decides which kernels are supported."""
    uri = {"rdma_stack_repository_uri": "https://mirror.example.com/doca"}

    assert problems(rdma_stack_source="doca") == [("variable.missing", "rdma_stack_repository_key")]
    assert problems(**REQUEST, **uri) == [("variable.missing", "rdma_stack_version")]
    assert problems(**REQUEST, **uri, rdma_stack_version="3.2.2") == []
    ofed = {"rdma_stack_source": "mlnx_ofed", "rdma_stack_repository_key": KEY}
    assert problems(**ofed) == [("variable.missing", "rdma_stack_repository_uri")]
    assert problems(**ofed, **uri) == []


@pytest.mark.parametrize("source", ["distribution", "inbox", "mlnx_ofed"])
def test_an_installed_stack_is_not_replaced_by_another(source: str) -> None:
    """The remedy is the way back; `present` leaves it where it is."""
    [problem, *_] = setting_problems(
        ROLE, DEFAULTS | {"rdma_stack_source": source}, installed("doca"), SYSTEMS["ubuntu_24.04"]
    )

    assert (problem.code.value, problem.object) == ("stack.installed", "rdma_stack_source")
    assert "provision reset" in problem.remedy
    assert problems(facts=installed("doca"), rdma_stack_source="present") == []
    assert problems(facts=installed("doca"), **REQUEST) == []


def test_a_stack_from_elsewhere_is_not_mixed_with_the_requested_one() -> None:
    """Unless it is the requested one, which the role then manages."""
    site = with_ofed("MLNX_OFED_LINUX-5.8-1.0.1.1")
    same = with_ofed("OFED-internal-25.10", packages={"doca-ofed": "3.2.2-1"})

    assert problems(facts=site, **REQUEST) == [("stack.installed", "rdma_stack_source")]
    assert problems(facts=same, **REQUEST) == []


@pytest.mark.parametrize(
    ("variables", "uris"),
    [
        ({}, []),
        (REQUEST, ["https://linux.mellanox.com/public/repo/doca/3.2.2/ubuntu24.04/x86_64"]),
        (
            REQUEST | {"rdma_stack_version": "3.4.0"},
            ["https://linux.mellanox.com/public/repo/doca/3.4.0/ubuntu24.04/x86_64"],
        ),
        (REQUEST | {"rdma_stack_repository_uri": "https://m/x"}, ["https://m/x"]),
        ({"rdma_stack_source": "distribution", "rdma_stack_repository_uri": "https://m/x"}, []),
    ],
)
def test_the_repository_is_signed_and_only_where_it_is_requested(variables: dict[str, Any], uris: list[str]) -> None:
    """By the same mechanism as that of the driver."""
    own = [one for one in repositories_of([ROLE], DEFAULTS | variables, SYSTEMS["ubuntu_24.04"]) if one.role == ROLE]

    assert [uri for one in own for uri in one.uris] == uris
    assert all(one.key == KEY for one in own)


def test_packages_and_files_are_those_of_the_choice() -> None:
    """A container gets them for listed kernels only."""
    facts = with_kernel("6.8.0-31-generic", packages={})
    container = dataclasses.replace(facts, **IN_CONTAINER)
    listed = REQUEST | {"rdma_stack_kernels": ["6.8.0-31-generic"]}
    system, files = SYSTEMS["ubuntu_24.04"], COMPONENTS[ROLE].files
    pin = "/etc/apt/preferences.d/provision-rdma-stack.pref"

    assert packages_of(ROLE, DEFAULTS | REQUEST, system, facts) == ("kmod", "doca-ofed")
    assert pin in files(DEFAULTS | REQUEST, facts)
    assert packages_of(ROLE, DEFAULTS | REQUEST, system, container) == ("kmod",)
    assert list(files(DEFAULTS | REQUEST, container)) == []
    assert packages_of(ROLE, DEFAULTS | listed, system, container) == (
        "kmod",
        "doca-ofed",
        "linux-headers-6.8.0-31-generic",
    )
    assert pin in files(DEFAULTS | listed, container)
    assert pin not in files(DEFAULTS, facts)
