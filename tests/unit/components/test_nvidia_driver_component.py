"""The role nvidia_driver in plans: no step without a request, consent for a loaded driver, and refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from provision.components import COMPONENTS
from provision.facts import Unknown
from provision.facts.gpu import Gpu
from provision.facts.gpu_health import GpuHealth
from provision.facts.gpudirect import Signing
from provision.facts.nvidia_driver import NvidiaDevice, NvidiaDriver
from provision.facts.peer_modules import NvidiaModules
from provision.facts.system import Kind, NodeKind
from provision.inventory.role_files import defaults, systems
from provision.model import CheckResult, CheckStatus, Plan, StepClass
from provision.model.cause import NODES
from provision.model.reason import reason
from provision.planning import Cause, CauseKind, PlanScene, plan_node, step_class
from provision.planning.requirements import cluster_problems, packages_of, repositories_of, setting_problems
from provision.planning.steps import findings
from provision.resources import roles_folder
from provision.workflow.plan_result import PlanResult
from tests.unit.planning.conftest import busy, cluster_of, facts_of, scene_of

ROLE = "nvidia_driver"
FACTS = facts_of(cluster_of())
DEFAULTS = defaults(roles_folder())
SYSTEMS = systems(roles_folder())
REQUEST = {"nvidia_driver_source": "distribution"}
WITHOUT = {**REQUEST, "nvidia_driver_without_gpu_enabled": True}
NO_GPU = {"gpus": (), "gpu_pci": (), "nvidia_driver": NvidiaDriver(nouveau_blocked=True)}
NOT_LOADED = {"nvidia_modules": NvidiaModules("", "", "", {})}
IN_CONTAINER = {"kind": Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False)}
KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDM=\n-----END PGP PUBLIC KEY BLOCK-----\n"
IN_REPOSITORY = {"nvidia_driver_source": "cuda", "nvidia_driver_repository_key": KEY}


def first(variables: dict[str, Any], **facts: Any) -> PlanScene:
    """Return a node to which the role was never applied."""
    cluster = cluster_of(**variables)
    receipts = facts_of(cluster).receipts
    assert not isinstance(receipts, Unknown)
    others = {role: receipt for role, receipt in receipts.items() if role != ROLE}
    return scene_of(now=cluster, receipts=others, **facts)


def step(variables: dict[str, Any], **facts: Any) -> Any:
    """Return the role's step of a first plan; None if there is none."""
    return next((one for one in plan_node(first(variables, **facts)) if one.role == ROLE), None)


@pytest.mark.parametrize(("variables", "is_provisioned"), [({}, True), (REQUEST, False)])
def test_a_node_without_a_request_counts_as_provisioned(variables: dict[str, Any], is_provisioned: bool) -> None:  # noqa: FBT001
    """A fleet in which no node was provisioned is changed all at once, without a canary."""
    cluster, scene = cluster_of(**variables), first(variables)
    name = cluster.nodes[0].name

    assert PlanResult(cluster, Plan(()), {name: scene.facts}, {}).provisioned(name) is is_provisioned


@pytest.mark.parametrize("variables", [{}, {"nvidia_driver_source": "present"}])
@pytest.mark.parametrize(
    "facts",
    [
        {},
        NO_GPU,
        NOT_LOADED,
        {"modules": frozenset({"nouveau"})},
        {"nvidia_modules": NvidiaModules("550.90", "proprietary", "580.1", {})},
    ],
)
def test_without_a_request_nothing_is_planned(variables: dict[str, Any], facts: dict[str, Any]) -> None:
    """An existing cluster gets no step, whatever its driver is like; a job runs on."""
    assert plan_node(first(variables, **facts)) == plan_node(scene_of(now=cluster_of(**variables), **facts))
    assert step(variables, **facts) is None


def test_a_request_is_a_step_with_its_consequences() -> None:
    """The first run installs the driver; peer memory and the CDI description follow."""
    by_role = {one.role: one for one in plan_node(first(REQUEST))}

    assert [one.code for one in by_role[ROLE].reasons] == ["plan.never_applied"]
    assert "nvidia_driver.modules_change" in {one.code for one in by_role["peer_memory"].reasons}
    assert "nvidia_driver.libraries_change" in {one.code for one in by_role["nvidia_container"].reasons}


def test_a_node_without_gpu_causes_nothing_else() -> None:
    """Its step records that it is skipped, or installs the driver."""
    for variables in (REQUEST, WITHOUT):
        steps = [one.role for one in plan_node(first(variables, **NO_GPU))]
        assert steps == [ROLE]


def test_a_converged_driver_has_no_step() -> None:
    """Also one without a device, whose module does not load."""
    for variables, facts in (
        (REQUEST, {}),
        (WITHOUT, NO_GPU | {"nvidia_modules": NvidiaModules("", "open", "535.1", {})}),
    ):
        scene = scene_of(now=cluster_of(**variables), **facts)
        assert [one.role for one in plan_node(scene) if one.role == ROLE] == []


def test_replacing_a_loaded_driver_needs_an_idle_node() -> None:
    """A job may use it; without a loaded driver no job uses a GPU."""
    for cause, facts, what in [
        ((CauseKind.RECEIPT, ""), {}, StepClass.NEEDS_IDLE),
        ((CauseKind.PACKAGE, "nvidia-smi"), {}, StepClass.NEEDS_IDLE),
        ((CauseKind.VARIABLE, "nvidia_driver_branch"), {}, StepClass.NEEDS_IDLE),
        ((CauseKind.CODE, ""), {}, StepClass.NEEDS_IDLE),
        ((CauseKind.FORCED, ""), {}, StepClass.NEEDS_IDLE),
        ((CauseKind.MODULE, "nvidia"), {}, StepClass.NEEDS_IDLE),
        ((CauseKind.RECEIPT, ""), {"nvidia_modules": Unknown("hung")}, StepClass.NEEDS_IDLE),
        ((CauseKind.RECEIPT, ""), NOT_LOADED, StepClass.SAFE),
        ((CauseKind.FILE, "/etc/modprobe.d/x.conf"), {}, StepClass.SAFE),
        ((CauseKind.UNIT, "nvidia-persistenced.service"), {}, StepClass.SAFE),
        ((CauseKind.CHECK, "nvidia_driver.nouveau"), {}, StepClass.SAFE),
        ((CauseKind.VARIABLE, "nvidia_driver_persistence_enabled"), {}, StepClass.SAFE),
        ((CauseKind.RECEIPT, ""), NO_GPU, StepClass.SAFE),
        ((CauseKind.RECEIPT, ""), IN_CONTAINER, StepClass.SAFE),
    ]:
        why = Cause(*cause, COMPONENTS[ROLE].reasons and _why())
        assert step_class(ROLE, (why,), first(REQUEST, **facts)) is what, (cause, facts)


def _why() -> Any:
    return reason("plan.forced")


def test_a_driver_under_a_job_waits_for_consent() -> None:
    """And peer memory with it."""
    scene = first(REQUEST, managed=busy())
    waiting = {one.role for one in plan_node(scene) if one.waits_for}
    allowed = dataclasses.replace(scene, disruptive=frozenset({"gpu1"}))

    assert {ROLE, "peer_memory"} <= waiting
    assert not any(one.waits_for for one in plan_node(allowed))
    assert next(one for one in plan_node(allowed) if one.role == ROLE).disturbs


def test_what_no_apply_can_fix_is_a_finding_and_no_step() -> None:
    """A certificate is enrolled at the console, and a loaded nouveau needs a reboot."""
    unsigned = {
        "signing": Signing(secure_boot=True, required=True),
        "nvidia_modules": NvidiaModules("550.90", "open", "550.90", {"nvidia": ""}),
    }
    for facts, code in (
        (unsigned, "nvidia_driver.signature.unsigned"),
        ({"modules": frozenset({"nouveau"})}, "nvidia_driver.nouveau.loaded"),
        ({"nvidia_modules": NvidiaModules("550.90", "open", "580.1", {})}, "nvidia_driver.modules.reboot"),
    ):
        scene = scene_of(now=cluster_of(**REQUEST), **facts)
        causes = {one.params["cause"].code for one in findings(scene) if one.code == "plan.finding"}

        assert ROLE not in {one.role for one in plan_node(scene)}
        assert code in causes


def test_what_an_apply_fixes_is_a_step() -> None:
    """Missing modules, another version, an open way for nouveau, and a daemon that does not run."""
    driver = FACTS.nvidia_driver
    assert isinstance(driver, NvidiaDriver)
    other = cluster_of(**REQUEST, nvidia_driver_version="550.163.01")
    steps = {one.role: one for one in plan_node(scene_of(before=other, now=other))}
    assert [one.code for one in steps[ROLE].reasons] == ["nvidia_driver.modules.other_version"]
    assert {"peer_memory", "nvidia_container"} <= steps.keys()
    for facts, code in (
        (NOT_LOADED, "nvidia_driver.modules.missing"),
        ({"nvidia_driver": dataclasses.replace(driver, nouveau_blocked=False)}, "nvidia_driver.nouveau.not_blocked"),
        ({"nvidia_driver": dataclasses.replace(driver, persistence="failed")}, "nvidia_driver.persistence.not_active"),
    ):
        steps = {one.role: one for one in plan_node(scene_of(now=cluster_of(**REQUEST), **facts))}

        assert code in {one.code for one in steps[ROLE].reasons}


def test_dcgm_is_requested_without_disrupting_a_job() -> None:
    """Debian has none."""
    cause = Cause(CauseKind.VARIABLE, "nvidia_driver_dcgm_enabled", _why())
    assert step_class(ROLE, (cause,), first(REQUEST)) is StepClass.SAFE
    [(variable, _)] = problems("debian_12", with_gpus("20b2"), **REQUEST, nvidia_driver_dcgm_enabled=True)
    assert variable == "nvidia_driver_dcgm_enabled"


def test_a_return_to_present_is_one_step_that_touches_nothing() -> None:
    """The receipt of the former request is replaced."""
    scene = scene_of(before=cluster_of(**REQUEST), now=cluster_of(nvidia_driver_source="present"))

    assert COMPONENTS[ROLE].is_disruptive((), scene) is False
    assert packages_of(ROLE, dict(scene.node.variables), SYSTEMS["debian_12"], scene.facts) == ()


def problems(system: str = "debian_12", facts: Any = FACTS, **variables: Any) -> list[tuple[str, str]]:
    """Return variable and problem of everything that is wrong."""
    wrong = setting_problems(ROLE, DEFAULTS | variables, facts, SYSTEMS[system])
    assert all(one.remedy for one in wrong)
    return [(one.object, one.problem) for one in wrong]


def with_gpus(*devices: str) -> Any:
    """Return the facts of a node with these GPUs."""
    return dataclasses.replace(
        FACTS, nvidia_driver=NvidiaDriver(tuple(NvidiaDevice("0000:17:00.0", d) for d in devices))
    )


def test_a_default_inventory_has_no_problem_on_any_system() -> None:
    """The default changes nothing, so that every system has it."""
    assert {system: problems(system) for system in SYSTEMS} == {system: [] for system in SYSTEMS}


@pytest.mark.parametrize(
    ("system", "devices", "variables", "variable", "words"),
    [
        ("el_9", ("20b2",), REQUEST, "nvidia_driver_source", "no entry for the driver source distribution"),
        ("debian_12", ("20b2",), IN_REPOSITORY, "nvidia_driver_source", "no entry for the driver source cuda"),
        ("el_7", (), {**IN_REPOSITORY}, "nvidia_driver_source", "no entry for the driver source cuda"),
        ("debian_12", ("2901",), REQUEST, "nvidia_driver_branch", "535 does not support Blackwell"),
        ("debian_12", ("20b2",), {**REQUEST, "nvidia_driver_branch": "580"}, "nvidia_driver_branch", "only branch 535"),
        ("debian_12", ("1db5", "20b2", "2901"), REQUEST, "nvidia_driver_flavor", "do not drive the GPUs"),
        (
            "debian_12",
            ("1db5",),
            {**REQUEST, "nvidia_driver_flavor": "open"},
            "nvidia_driver_flavor",
            "open kernel modules do not drive the GPUs of Volta",
        ),
    ],
)
def test_what_the_node_cannot_get_is_refused_before_an_apply(
    system: str, devices: tuple[str, ...], variables: dict[str, Any], variable: str, words: str
) -> None:
    """With the variable to change."""
    [(name, problem)] = problems(system, with_gpus(*devices), **variables)

    assert name == variable
    assert words in problem


def test_a_repository_needs_its_key_and_a_mirror_its_address() -> None:
    """Nothing is fetched without a signature."""
    assert problems("el_9", nvidia_driver_source="cuda") == [("nvidia_driver_repository_key", "is not set")]
    assert problems("el_9", **IN_REPOSITORY) == []
    assert problems("el_9", **IN_REPOSITORY | {"nvidia_driver_source": "file"}) == [
        ("nvidia_driver_repository_uri", "is not set, which `file` requires")
    ]


@pytest.mark.parametrize(
    ("variables", "uris"),
    [
        ({}, []),
        (REQUEST, []),
        (REQUEST | {"nvidia_driver_repository_uri": "https://m/x", "nvidia_driver_repository_key": KEY}, []),
        (IN_REPOSITORY, ["https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64"]),
        (IN_REPOSITORY | {"nvidia_driver_repository_uri": "https://m/x"}, ["https://m/x"]),
        (
            IN_REPOSITORY | {"nvidia_driver_source": "file", "nvidia_driver_repository_uri": "https://m/x"},
            ["https://m/x"],
        ),
    ],
)
def test_the_repository_is_signed_and_only_where_it_is_requested(variables: dict[str, Any], uris: list[str]) -> None:
    """By the same mechanism as that of Docker."""
    own = [one for one in repositories_of([ROLE], DEFAULTS | variables, SYSTEMS["el_9"]) if one.role == ROLE]

    assert [uri for one in own for uri in one.uris] == uris
    assert all(one.key == KEY and one.gpgcheck for one in own)


def test_packages_and_files_are_those_of_the_choice() -> None:
    """None without a request, without a GPU, or on a container."""
    wanted = packages_of(ROLE, DEFAULTS | REQUEST, SYSTEMS["debian_12"], FACTS)
    files = COMPONENTS[ROLE].files

    assert wanted[0] == "nvidia-open-kernel-dkms"
    assert list(files(DEFAULTS | REQUEST, FACTS)) == [
        "/etc/modprobe.d/provision-nvidia-driver.conf",
        "/etc/modules-load.d/provision-nvidia-driver.conf",
    ]
    without_gpu = dataclasses.replace(FACTS, **NO_GPU)
    assert packages_of(ROLE, DEFAULTS | WITHOUT, SYSTEMS["debian_12"], without_gpu) == wanted
    assert list(files(DEFAULTS | WITHOUT, without_gpu)) == ["/etc/modprobe.d/provision-nvidia-driver.conf"]
    for variables, facts in (
        ({}, FACTS),
        (REQUEST, without_gpu),
        (REQUEST, dataclasses.replace(FACTS, **IN_CONTAINER)),
    ):
        assert packages_of(ROLE, DEFAULTS | variables, SYSTEMS["debian_12"], facts) == ()
        assert list(files(DEFAULTS | variables, facts)) == []


def test_a_machine_with_switches_gets_its_fabric_manager_or_is_refused() -> None:
    """By the switches on the bus."""
    driver = NvidiaDriver((NvidiaDevice("0000:17:00.0", "2330"),), (NvidiaDevice("0000:c3:00.0", "22a3"),))
    facts = dataclasses.replace(FACTS, nvidia_driver=driver, packages={"linux-image-generic": "6.8"})

    assert "nvidia-fabricmanager-580" in packages_of(ROLE, DEFAULTS | REQUEST, SYSTEMS["ubuntu_24.04"], facts)
    [(variable, problem)] = problems("debian_12", facts, **REQUEST)
    assert (variable, "no fabric manager" in problem) == ("nvidia_driver_source", True)


def test_a_container_gets_the_driver_for_listed_kernels_only() -> None:
    """It can build, and cannot load: nothing is written for a boot."""
    facts = dataclasses.replace(FACTS, **{**NO_GPU, **IN_CONTAINER})
    variables = DEFAULTS | WITHOUT | {"nvidia_driver_kernels": ["6.1.0-50-amd64"]}

    wanted = packages_of(ROLE, variables, SYSTEMS["debian_12"], facts)
    assert wanted[-1] == "linux-headers-6.1.0-50-amd64"
    assert list(COMPONENTS[ROLE].files(variables, facts)) == []
    pinned = variables | {"nvidia_driver_version": "535.261.03"}
    assert packages_of(ROLE, pinned, SYSTEMS["debian_12"], facts) == ()
    assert list(COMPONENTS[ROLE].files(pinned, facts)) == ["/etc/apt/preferences.d/provision-nvidia-driver.pref"]


def test_the_build_node_is_a_node_of_the_inventory_and_comes_first() -> None:
    """Its build is what the others wait for."""
    for name, refused in (("gpu2", []), ("gpu9", ["nvidia_driver_build_node"])):
        cluster = cluster_of(3, **REQUEST, nvidia_driver_build_node=name)

        assert [one.object for one in cluster_problems(ROLE, cluster.node("gpu1"), cluster, {})] == refused
        assert COMPONENTS[ROLE].first_nodes(cluster) == {name}
    unrequested = cluster_of(nvidia_driver_build_node="gpu2")
    assert COMPONENTS[ROLE].first_nodes(unrequested) == frozenset()
    assert cluster_problems(ROLE, unrequested.node("gpu1"), unrequested, {}) == ()


def test_a_changed_list_of_nodes_needs_an_idle_node_only_for_imex() -> None:
    """A restart of IMEX ends jobs on several nodes; other nodes have no such list."""
    grace = {"nvidia_driver": NvidiaDriver((NvidiaDevice("0000:06:00.0", "2342"),), nouveau_blocked=True)}
    for domain, expected in (("rack1", StepClass.NEEDS_IDLE), ("", StepClass.SAFE)):
        scene = first(IN_REPOSITORY | {"cluster_nvlink_domain": domain}, **grace)
        assert step_class(ROLE, (Cause(CauseKind.VARIABLE, NODES, _why()),), scene) is expected
        files = set(COMPONENTS[ROLE].files(scene.node.variables, scene.facts))
        assert ("/etc/nvidia-imex/nodes_config.cfg" in files) == bool(domain)
    changed = Cause(CauseKind.FILE, "/etc/nvidia-imex/nodes_config.cfg", _why())
    assert step_class(ROLE, (changed,), first(IN_REPOSITORY, **grace)) is StepClass.NEEDS_IDLE


@pytest.mark.parametrize(("code", "fixed"), [("missing", True), ("not_active", True), ("other_version", False)])
def test_an_apply_installs_and_starts_imex(code: str, fixed: bool) -> None:  # noqa: FBT001
    """It replaces no package: a step for it would never end."""
    result = CheckResult("nvidia_driver.imex", CheckStatus.FAIL, reason(f"nvidia_driver.imex.{code}"))

    assert COMPONENTS[ROLE].fixes_if["nvidia_driver.imex"](first(REQUEST), result) is fixed


# Modes of GPUs


def gpus(*states: str) -> dict[str, Any]:
    """Return GPUs by their MIG mode: on, off, or none."""
    modes = [{"on": True, "off": False, "none": None}[state] for state in states]
    return {
        "gpus": tuple(
            Gpu(
                index,
                "A",
                f"GPU-{index}",
                "550",
                1,
                "0",
                health=GpuHealth(mig=mode is True, mig_pending=mode, has_mig=mode is not None),
            )
            for index, mode in enumerate(modes)
        )
    }


@pytest.mark.parametrize(
    ("mode", "facts", "what"),
    [
        ("enabled", gpus("on", "off"), StepClass.NEEDS_IDLE),
        ("disabled", gpus("on"), StepClass.NEEDS_IDLE),
        ("enabled", gpus("on"), StepClass.SAFE),
        ("disabled", gpus("off", "none"), StepClass.SAFE),
        ("enabled", {"gpus": Unknown("hung")}, StepClass.NEEDS_IDLE),
        ("{{ x }}", gpus("on"), StepClass.NEEDS_IDLE),
        ("enabled", gpus("off") | IN_CONTAINER, StepClass.SAFE),
        ("enabled", gpus("off") | IN_CONTAINER | {"simulated": {"nvidia-smi": "x"}}, StepClass.NEEDS_IDLE),
    ],
)
def test_a_change_of_mig_mode_needs_an_idle_node(mode: str, facts: dict[str, Any], what: StepClass) -> None:
    """With a driver of the site, too; an unknown mode counts as a change."""
    one = step({"nvidia_driver_mig_mode": mode}, **facts)

    assert one.step_class is what
    under_job = step({"nvidia_driver_mig_mode": mode}, managed=busy(), **facts)
    assert bool(under_job.waits_for) is (what is StepClass.NEEDS_IDLE)


def test_a_change_of_mig_mode_writes_the_cdi_description_again() -> None:
    """Nothing else of the driver is planned, which is that of the site."""
    variables = {"nvidia_driver_mig_mode": "enabled"}
    by_role = {one.role: one for one in plan_node(first(variables, **gpus("off")))}

    assert "nvidia_driver.mig_changes" in {one.code for one in by_role["nvidia_container"].reasons}
    assert "peer_memory" not in by_role


def test_persistence_mode_disturbs_no_job() -> None:
    """It is set under a job."""
    one = step({"nvidia_driver_persistence_mode": "enabled"}, managed=busy())

    assert (one.step_class, one.waits_for) == (StepClass.SAFE, ())


@pytest.mark.parametrize(
    ("mode", "facts", "refused"),
    [
        ("enabled", gpus("off", "none"), True),
        ("enabled", gpus("off"), False),
        ("disabled", gpus("none"), False),
        ("enabled", {"gpus": (), "nvidia_driver": NvidiaDriver((NvidiaDevice("0", "1db5"),))}, True),
        ("enabled", {"gpus": (), "nvidia_driver": NvidiaDriver((NvidiaDevice("0", "20b2"),))}, False),
    ],
)
def test_a_gpu_without_mig_is_reported_before_anything_changes(mode: str, facts: dict[str, Any], refused: bool) -> None:  # noqa: FBT001
    """By its driver, or by its chip where no driver answers."""
    scene = first({"nvidia_driver_mig_mode": mode}, **facts)
    settings = COMPONENTS[ROLE].settings(scene.node.variables, scene.facts)

    assert [setting[1] for setting in settings] == ["nvidia_driver_mig_mode"] * refused


def test_a_gpu_that_waits_for_a_reset_is_a_finding() -> None:
    """Another apply would not reset it."""
    health = GpuHealth(mig=False, mig_pending=True, has_mig=True)
    waiting = (Gpu(0, "A", "GPU-0", "550", 1, "0", health=health),)
    fixes = COMPONENTS[ROLE].fixes_if["nvidia_driver.mig"]

    for code, expected in (("nvidia_driver.mig.reset", False), ("nvidia_driver.mig.differs", True)):
        result = CheckResult("nvidia_driver.mig", CheckStatus.FAIL, reason(code))
        assert fixes(first({}, gpus=waiting), result) is expected
