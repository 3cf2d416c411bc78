"""The checks of the driver: by the words of the real programs, and mild where the site installs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from provision.facts import Unknown
from provision.facts.gpudirect import Signing
from provision.facts.nvidia_driver import DkmsTree, NvidiaDevice, NvidiaDriver
from provision.facts.peer_modules import NvidiaModules
from provision.facts.system import Kind, NodeKind
from provision.model import CheckResult, CheckStatus
from provision.report.reasons import message, remedy
from tests.unit.checks.conftest import gpu as nvidia_gpu
from tests.unit.checks.conftest import healthy

PASS, WARN, FAIL, SKIP = CheckStatus.PASS, CheckStatus.WARN, CheckStatus.FAIL, CheckStatus.SKIP
BASE = healthy()
NO_GPU = {"gpus": (), "gpu_pci": (), "nvidia_driver": NvidiaDriver()}
DRIVER = BASE.nvidia_driver
assert isinstance(DRIVER, NvidiaDriver)
REQUEST = {"nvidia_driver_source": "distribution"}
WITHOUT = {**REQUEST, "nvidia_driver_without_gpu_enabled": True}
Judged = Callable[..., Mapping[str, CheckResult]]


def driver(**values: Any) -> dict[str, Any]:
    """Return the fact of the healthy node with some values replaced."""
    return {"nvidia_driver": dataclasses.replace(DRIVER, **values)}


def modules(loaded: str, flavor: str, installed: str, **signers: str) -> dict[str, Any]:
    """Return the fact of the modules."""
    return {"nvidia_modules": NvidiaModules(loaded, flavor, installed, signers)}


def gpu(*devices: str) -> dict[str, Any]:
    """Return the GPUs of a node by their device IDs."""
    return driver(gpus=tuple(NvidiaDevice(f"0000:{number:02x}:00.0", one) for number, one in enumerate(devices)))


BUILD = (
    (
        "/var/lib/dkms/nvidia-current-open/535.261.03/build/nvidia/nv-mmap.c:466:21: error: assignment of read-only "
        "member 'vm_flags'"
    ),
    "make[3]: *** [/usr/src/linux-headers-6.3.0-common/scripts/Makefile.build:257: nv-mmap.o] Error 1",
)
BROKEN_BUILD = {"trees": (DkmsTree("nvidia-current-open", "535.261.03", built=False, errors=BUILD),)}
NVRM = (
    "[   11.932101] nvidia: loading out-of-tree module taints kernel.",
    "[   11.945511] nvidia-nvlink: Nvlink Core is being initialized, major device number 247",
    "[   11.945517] NVRM: No NVIDIA GPU found.",
)
KEY = ("[    9.120000] Loading of module with unavailable key is rejected",)
CASES = [
    ("modules", "wrong_flavor", modules("550.90", "proprietary", "550.90") | gpu("2901", "20b2"), "GPUs of Blackwell"),
    ("modules", "wrong_flavor", modules("550.90", "open", "550.90") | gpu("1db5"), "do not drive GPUs of Volta"),
    ("modules", "unsupported", modules("550.90", "open", "550.90") | gpu("2901"), "550.90 does not support Blackwell"),
    ("modules", "unsupported", modules("590.1", "proprietary", "590.1") | gpu("1db5"), "does not support Volta"),
    ("modules", "reboot", modules("550.90", "open", "580.95.05"), "550.90 is loaded, and 580.95.05 is installed"),
    ("modules", "not_loaded", modules("", "open", "550.90") | driver(messages=KEY), "signed with a trusted key"),
    ("modules", "not_loaded", modules("", "open", "550.90"), "driver 550.90 is installed and not loaded"),
    (
        "build",
        "failed",
        modules("", "", "") | driver(**BROKEN_BUILD),
        "nv-mmap.c:466:21: error: assignment of read-only",
    ),
    (
        "build",
        "not_built",
        modules("", "", "") | driver(trees=(DkmsTree("nvidia", "580.95.05", built=False),)),
        "has not built nvidia 580.95.05",
    ),
    (
        "signature",
        "unsigned",
        modules("", "open", "550.90", nvidia="") | {"signing": Signing(secure_boot=True, required=True)},
        "the driver has no signature",
    ),
    ("nouveau", "loaded", {"modules": frozenset({"nouveau"})}, "nouveau is loaded"),
]
"""Check, end of the code, facts, and a part of the message."""


@pytest.mark.parametrize(("check", "code", "facts", "words"), CASES)
def test_a_fault_fails_a_requested_driver_and_warns_of_another(
    judged: Judged, check: str, code: str, facts: dict[str, Any], words: str
) -> None:
    """The site installs a driver without a request; it breaks no plan."""
    for variables, status in ((REQUEST, FAIL), ({}, WARN), ({"nvidia_driver_source": "present"}, WARN)):
        result = judged(variables=variables, **facts)[f"nvidia_driver.{check}"]

        assert (result.status, result.reason.code) == (status, f"nvidia_driver.{check}.{code}")
        assert words in message(result.reason, "gpu1")
        assert remedy(result.reason, "gpu1")


def test_a_healthy_driver_passes_with_and_without_a_request(judged: Judged) -> None:
    """All five checks; modes of GPUs are not requested, and IMEX is not needed."""
    modes = {"nvidia_driver.mig", "nvidia_driver.persistence_mode"}
    for variables in ({}, REQUEST):
        results = {name: one for name, one in judged(variables=variables).items() if name.startswith("nvidia_driver.")}
        assert {results.pop(name).reason.code for name in modes} == {"nvidia_driver.modes.unset"}
        assert results.pop("nvidia_driver.firmware").reason.code == "nvidia_driver.firmware.none"
        assert results.pop("nvidia_driver.imex").reason.code == "nvidia_driver.imex.not_needed"

        assert {one.status for one in results.values()} == {PASS}
        assert len(results) == 5


def test_a_node_without_gpu_and_without_a_request_is_skipped(judged: Judged) -> None:
    """Also where an image of the site carries the driver."""
    for variables in ({}, REQUEST):
        results = judged(variables=variables, **NO_GPU, **modules("", "open", "535.261.03"))
        own = {one.reason.code for name, one in results.items() if name.startswith("nvidia_driver.")}

        assert own <= {"gpu.none", "check.waits"}


def test_a_requested_driver_without_device_is_reported_as_that(judged: Judged) -> None:
    """No fault of the driver: there is no NVIDIA device."""
    facts = NO_GPU | {"nvidia_driver": NvidiaDriver(nouveau_blocked=True, messages=NVRM)}
    results = judged(variables=WITHOUT, **facts, **modules("", "open", "535.261.03"))

    result = results["nvidia_driver.modules"]
    assert (result.status, result.reason.code) == (WARN, "nvidia_driver.modules.no_device")
    assert message(result.reason).startswith("no NVIDIA device: driver 535.261.03 (open kernel modules) is installed")
    assert {name for name, one in results.items() if name.startswith("nvidia_driver.") and one.status is FAIL} == set()
    assert results["gpu.driver"].status is SKIP


def test_a_missing_driver_fails_only_where_one_is_requested(judged: Judged) -> None:
    """Otherwise gpu.driver reports it."""
    missing = modules("", "", "") | driver(trees=())

    assert judged(variables=REQUEST, **missing)["nvidia_driver.modules"].reason.code == "nvidia_driver.modules.missing"
    assert judged(**missing)["nvidia_driver.modules"].status is SKIP
    assert judged(**missing)["nvidia_driver.build"].status is SKIP


def test_an_old_tree_beside_a_working_driver_is_no_fault(judged: Judged) -> None:
    """The modules of the running kernel come from another one."""
    trees = (DkmsTree("nvidia", "535.1", built=False), DkmsTree("nvidia", "550.90", built=True))

    assert judged(variables=REQUEST, **driver(trees=trees))["nvidia_driver.build"].status is SKIP


def test_nouveau_has_to_be_blocked_where_a_driver_is_requested(judged: Judged) -> None:
    """The site decides about its own driver."""
    facts = driver(nouveau_blocked=False)

    result = judged(variables=REQUEST, **facts)["nvidia_driver.nouveau"]
    assert (result.status, result.reason.code) == (FAIL, "nvidia_driver.nouveau.not_blocked")
    assert judged(**facts)["nvidia_driver.nouveau"].status is PASS


def test_a_signed_driver_passes_secure_boot(judged: Judged) -> None:
    """The message names the signer."""
    facts = modules("550.90", "open", "550.90", nvidia="DKMS module signing key")
    result = judged(**facts, signing=Signing(secure_boot=True, required=True))["nvidia_driver.signature"]

    assert (result.status, result.reason.params["signer"]) == (PASS, "DKMS module signing key")


@pytest.mark.parametrize("state", [{"persistence": ""}, {"persistence": "failed"}, {"persistence_enabled": False}])
def test_the_daemon_has_to_run_where_it_is_requested(judged: Judged, state: dict[str, Any]) -> None:
    """Not without a request, and not where the inventory disables it."""
    off = {**REQUEST, "nvidia_driver_persistence_enabled": False}

    assert judged(variables=REQUEST, **driver(**state))["nvidia_driver.persistence"].status is FAIL
    assert judged(**driver(**state))["nvidia_driver.persistence"].status is SKIP
    assert judged(variables=off, **driver(**state))["nvidia_driver.persistence"].status is SKIP


def test_containers_and_simulated_gpus_are_skipped(judged: Judged) -> None:
    """A container has no modules, and simulated ones are not NVIDIA's."""
    kind = Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False)
    for facts, code in (
        ({"kind": kind}, "nvidia_driver.container"),
        ({"simulated": {"nvidia-smi": "x"}}, "nvidia_driver.simulated"),
    ):
        results = judged(variables=REQUEST, **facts)
        assert {results[f"nvidia_driver.{name}"].reason.code for name in ("modules", "build", "nouveau")} == {code}


def test_an_unavailable_fact_is_a_failure(judged: Judged) -> None:
    """Nothing is judged by it."""
    result = judged(nvidia_driver=Unknown("hung"))["nvidia_driver.modules"]

    assert (result.status, result.reason.code) == (FAIL, "check.fact_unavailable")


def test_links_of_a_node_without_a_gpu_are_not_judged(judged: Judged) -> None:
    """Its nvidia-smi reaches no driver."""
    result = judged(WITHOUT, **NO_GPU, nvlinks=Unknown("nvidia-smi nvlink failed"))["gpu.nvlink"]

    assert (result.status, result.reason.code) == (SKIP, "gpu.none")


@pytest.mark.parametrize(("running", "code"), [("6.1.0", "missing"), ("6.2.0", "other_kernel")])
def test_a_driver_for_the_next_kernel_is_not_missing_now(judged: Judged, running: str, code: str) -> None:
    """The node has to be rebooted."""
    assert not isinstance(BASE.system, Unknown)
    facts = {**NO_GPU, **modules("", "", ""), "system": dataclasses.replace(BASE.system, kernel=running)}
    result = judged({**WITHOUT, "nvidia_driver_kernels": ["6.1.0"]}, **facts)["nvidia_driver.modules"]

    assert result.reason.code == f"nvidia_driver.modules.{code}"
    assert (result.status is WARN) == (code == "other_kernel")


def test_checks_of_the_running_kernel_are_skipped_for_a_driver_of_the_next_one(judged: Judged) -> None:
    """An apply neither builds for this kernel nor starts the daemon."""
    facts = modules("", "", "") | driver(trees=(DkmsTree("nvidia", "535.1", built=False),), persistence="inactive")
    results = judged({**REQUEST, "nvidia_driver_kernels": ["6.1.0-next"]}, **facts)

    for name, status in {"modules": WARN, "build": SKIP, "persistence": SKIP}.items():
        assert results[f"nvidia_driver.{name}"].status is status
        assert results[f"nvidia_driver.{name}"].reason.code == "nvidia_driver.modules.other_kernel"


@pytest.mark.parametrize(
    ("variables", "code"),
    [
        ({"nvidia_driver_version": "535.261.03"}, "ok"),
        ({"nvidia_driver_version": "535.26"}, "other_version"),
        ({"nvidia_driver_branch": "535"}, "ok"),
        ({"nvidia_driver_branch": 535}, "ok"),
        ({"nvidia_driver_branch": "580"}, "other_branch"),
        ({"nvidia_driver_branch": "580", "nvidia_driver_source": "present"}, "ok"),
        ({"nvidia_driver_branch": "{{ site_branch }}"}, "ok"),
    ],
)
def test_an_installed_driver_of_another_version_is_reported(
    judged: Judged,
    variables: dict[str, Any],
    code: str,
) -> None:
    """An apply installs another version of a branch, and no other branch."""
    facts = modules("535.261.03", "open", "535.261.03")
    result = judged(REQUEST | variables, **facts)["nvidia_driver.modules"]

    assert result.reason.code == f"nvidia_driver.modules.{code}"
    assert (result.status is PASS) == (code == "ok")


def mig(*states: str) -> dict[str, Any]:
    """Return GPUs by their MIG modes, now and after a reset: on, off, or - without MIG."""
    flags = {"on": True, "off": False, "-": False}
    pairs = [state.split(">") for state in states]
    return {
        "gpus": tuple(
            nvidia_gpu(index, mig=flags[now], mig_pending=None if now == "-" else flags[later], has_mig=now != "-")
            for index, (now, later) in enumerate(pairs)
        )
    }


MIG = [
    ("enabled", ("on>on", "on>on"), PASS, "ok"),
    ("enabled", ("on>on", "off>off"), FAIL, "differs"),
    ("enabled", ("on>on", "off>on"), FAIL, "reset"),
    ("enabled", ("on>off",), FAIL, "differs"),
    ("enabled", ("on>on", "->-"), FAIL, "unsupported"),
    ("disabled", ("off>off", "->-"), PASS, "ok"),
    ("disabled", ("on>on",), FAIL, "differs"),
    ("disabled", ("on>off",), FAIL, "reset"),
    ("", ("on>on",), SKIP, ""),
]


@pytest.mark.parametrize(("mode", "gpus", "status", "code"), MIG)
@pytest.mark.parametrize("source", ["present", "distribution"])
def test_the_mig_mode_is_that_of_the_inventory(
    judged: Judged, source: str, mode: str, gpus: tuple[str, ...], status: CheckStatus, code: str
) -> None:
    """With any source of the driver. A GPU that waits for a reset is reported as that."""
    result = judged(variables={"nvidia_driver_source": source, "nvidia_driver_mig_mode": mode}, **mig(*gpus))[
        "nvidia_driver.mig"
    ]

    assert (result.status, result.reason.code) == (
        status,
        f"nvidia_driver.mig.{code}" if code else "nvidia_driver.modes.unset",
    )
    assert code != "reset" or "nvidia-smi --gpu-reset -i" in str(remedy(result.reason, "gpu1"))


@pytest.mark.parametrize(("state", "status"), [(True, PASS), (False, FAIL), (None, FAIL)])
def test_the_persistence_mode_is_that_of_the_inventory(judged: Judged, state: bool | None, status: CheckStatus) -> None:  # noqa: FBT001
    """A GPU that does not report it does not have it."""
    gpus = (nvidia_gpu(0, persistence=True), nvidia_gpu(1, persistence=state))

    result = judged(variables={"nvidia_driver_persistence_mode": "enabled"}, gpus=gpus)[
        "nvidia_driver.persistence_mode"
    ]
    assert result.status is status


def test_modes_on_a_container_node_belong_to_its_host(judged: Judged) -> None:
    """Unless its GPUs are SIMULATED."""
    facts = {"kind": Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False), **mig("off>off")}
    for simulated, code in (({}, "nvidia_driver.container"), ({"nvidia-smi": "x"}, "nvidia_driver.mig.differs")):
        result = judged(variables={"nvidia_driver_mig_mode": "enabled"}, simulated=simulated, **facts)
        assert result["nvidia_driver.mig"].reason.code == code


@pytest.mark.parametrize(
    ("packages", "state", "code"),
    [
        ({}, "", "missing"),
        ({"nvidia-imex-550": "550.54.15-1"}, "active", "other_version"),
        ({"nvidia-imex": "3:550.90-1.el9"}, "failed", "not_active"),
        ({"nvidia-imex-550": "550.90-0ubuntu1"}, "active", "ok"),
    ],
)
def test_imex_has_exactly_the_version_of_the_driver(
    judged: Judged, packages: dict[str, str], state: str, code: str
) -> None:
    """On a node of an NVLink domain; a warning where the site installs the driver."""
    facts = gpu("2342")
    facts["nvidia_driver"] = dataclasses.replace(facts["nvidia_driver"], imex=state)
    for request, status in (({}, WARN), (REQUEST, FAIL)):
        variables = {**request, "cluster_nvlink_domain": "rack1"}
        result = judged(variables=variables, packages=packages, **facts)["nvidia_driver.imex"]

        assert result.reason.code == f"nvidia_driver.imex.{code}"
        assert result.status is (PASS if code == "ok" else status)


@pytest.mark.parametrize(
    ("recorded", "state", "code"),
    [(True, "active", "left"), (True, "inactive", "not_needed"), (False, "active", "not_needed")],
)
def test_imex_of_an_nvlink_domain_that_the_node_left_is_reported(
    judged: Judged,
    recorded: bool,  # noqa: FBT001
    state: str,
    code: str,
) -> None:
    """Not an IMEX of the site; a warning where the site installs the driver."""
    facts = gpu("2342")
    facts["nvidia_driver"] = dataclasses.replace(facts["nvidia_driver"], imex=state, imex_recorded=recorded)
    for request, status in (({}, WARN), (REQUEST, FAIL)):
        result = judged(variables=request, **facts)["nvidia_driver.imex"]

        assert result.reason.code == f"nvidia_driver.imex.{code}"
        assert (result.status is status) is (code == "left")


@pytest.mark.parametrize(
    ("gsp", "confidential", "words"),
    [
        (("550.90",), True, "GSP firmware 550.90; confidential computing is on"),
        (("N/A",), False, "GSP firmware N/A; confidential computing is off"),
        (("550.90",), None, "GSP firmware 550.90"),
    ],
)
def test_firmware_and_confidential_computing_are_reported(
    judged: Judged,
    gsp: tuple[str, ...],
    confidential: bool | None,  # noqa: FBT001
    words: str,
) -> None:
    """And never judged: no role changes them."""
    gpus = (dataclasses.replace(nvidia_gpu(), confidential=confidential),)
    result = judged(gpus=gpus, **driver(gsp=gsp))["nvidia_driver.firmware"]

    assert (result.status, message(result.reason)) == (PASS, words)
