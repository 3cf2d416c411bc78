"""The checks of a requested vendor's RDMA stack, and the firmware of cards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from provision.facts.nvidia_driver import DkmsTree
from provision.facts.rdma import RdmaStack, VendorStack
from provision.facts.system import Kind, NodeKind
from provision.model import CheckResult, CheckStatus
from provision.report.reasons import message, remedy
from tests.unit.checks.conftest import healthy, rdma_device

PASS, WARN, FAIL, SKIP = CheckStatus.PASS, CheckStatus.WARN, CheckStatus.FAIL, CheckStatus.SKIP
STACK = healthy().rdma
assert isinstance(STACK, RdmaStack)
REQUEST = {"rdma_stack_source": "doca", "rdma_stack_version": "3.2.2"}
TREE = DkmsTree("mlnx-ofed-kernel", "25.10", built=True)
VENDOR = VendorStack((TREE,), openibd="active", openibd_enabled=True)
PACKAGES = {"doca-ofed": "3.2.2-044000", "rdma-core": "2510"}
IN_CONTAINER = {"kind": Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False)}
ERRORS = (
    "/var/lib/dkms/mlnx-ofed-kernel/25.10/build/drivers/infiniband/core/cma.c:1:9: error: too few arguments",
    "make[3]: *** [cma.o] Error 1",
)
Judged = Callable[..., Mapping[str, CheckResult]]


def vendor(**changes: Any) -> dict[str, Any]:
    """Return the facts of a node with the stack, some values of which differ."""
    stack = dataclasses.replace(STACK, ofed="OFED-internal-25.10", vendor=dataclasses.replace(VENDOR, **changes))
    return {"rdma": stack, "packages": PACKAGES}


def test_a_requested_stack_that_runs_passes(judged: Judged) -> None:
    """With the release of its profile; any release if none is requested."""
    for variables in (REQUEST, {"rdma_stack_source": "doca"}):
        results = judged(variables, **vendor())

        assert results["rdma_stack.packages"].status is PASS
        assert results["rdma_stack.modules"].status is PASS
    assert "3.2.2-044000" in message(results["rdma_stack.packages"].reason)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"trees": ()}, "not_built", "has not built"),
        ({"trees": (dataclasses.replace(TREE, built=False),)}, "not_built", "has not built"),
        ({"trees": (dataclasses.replace(TREE, built=False, errors=ERRORS),)}, "build_failed", "cma.c:1:9: error"),
        ({"replaced": ("ib_core", "mlx5_core")}, "replaced", "ib_core and mlx5_core"),
        ({"openibd": "failed"}, "openibd", "openibd is failed"),
        ({"openibd_enabled": False}, "openibd", "not enabled at boot"),
    ],
)
def test_a_fault_of_the_modules_is_named_with_its_remedy(
    judged: Judged, changes: dict[str, Any], code: str, words: str
) -> None:
    """Nothing is judged of a stack that the inventory does not request."""
    result = judged(REQUEST, **vendor(**changes))["rdma_stack.modules"]

    assert (result.status, result.reason.code) == (FAIL, f"rdma_stack.modules.{code}")
    assert words in message(result.reason, "gpu1")
    assert remedy(result.reason, "gpu1")
    for variables in ({}, {"rdma_stack_source": "present"}):
        assert judged(variables, **vendor(**changes))["rdma_stack.modules"].status is SKIP


def test_a_missing_profile_and_another_release_fail(judged: Judged) -> None:
    """`3.2.2` is not `3.2.20`."""
    for packages, code in (
        ({"rdma-core": "44"}, "no_profile"),
        (PACKAGES | {"doca-ofed": "3.2.1-044000"}, "other_version"),
        (PACKAGES | {"doca-ofed": "3.2.20-044000"}, "other_version"),
    ):
        result = judged(REQUEST, **vendor() | {"packages": packages})["rdma_stack.packages"]
        assert (result.status, result.reason.code) == (FAIL, f"rdma_stack.packages.{code}")


def test_a_stack_for_another_kernel_warns(judged: Judged) -> None:
    """The node boots it next."""
    result = judged(REQUEST | {"rdma_stack_kernels": ["6.8.0-31-generic"]}, **vendor(trees=()))["rdma_stack.modules"]

    assert (result.status, result.reason.code) == (WARN, "rdma_stack.modules.other_kernel")


def test_a_container_has_the_modules_of_its_host(judged: Judged) -> None:
    """It gets the packages for listed kernels only."""
    listed = REQUEST | {"rdma_stack_kernels": ["6.8.0-31-generic"]}
    for variables, packages in ((REQUEST, SKIP), (listed, PASS)):
        results = judged(variables, **vendor(trees=()), **IN_CONTAINER)

        assert results["rdma_stack.modules"].status is SKIP
        assert results["rdma_stack.packages"].status is packages


def test_firmware_is_reported(judged: Judged) -> None:
    """With the model of the card where the driver reports it; old drivers report nothing."""
    card = dataclasses.replace(rdma_device(), firmware="28.43.3608", board="MT_0000000838")
    shown = judged(rdma=RdmaStack((card,), 1, (), ""))["rdma_stack.firmware"]
    unknown = judged(rdma=RdmaStack((dataclasses.replace(card, firmware=""),), 1, (), ""))["rdma_stack.firmware"]

    assert shown.status is PASS
    assert message(shown.reason) == "mlx5_0 28.43.3608 (MT_0000000838)"
    assert (unknown.status, unknown.reason.code) == (SKIP, "rdma_stack.firmware.not_reported")
