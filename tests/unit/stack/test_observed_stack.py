"""The stack of a node, from its facts."""

from __future__ import annotations

import dataclasses

import pytest

from provision.facts import Unknown
from provision.facts.docker import Image
from provision.model.stack import STACK_COMPONENTS, StackPart
from provision.stack.observed import stack_of, vendor_version
from tests.unit.checks.conftest import healthy
from tests.unit.stack.conftest import DIGEST, KERNEL, OTHER_DIGEST, facts_with, lock_of


def test_every_component_of_a_node_is_seen_in_order():
    """Version and packages of each; packages of no component are left out."""
    stack = lock_of()

    assert tuple(stack.parts) == STACK_COMPONENTS
    assert {name: part.version for name, part in stack.parts.items()} == {
        "kernel": KERNEL,
        "headers": "6.1.119-1",
        "rdma": "inbox",
        "driver": "550.90",
        "fabric_manager": "550.90",
        "toolkit": "1.17.8-1",
        "docker": "20.10.24+dfsg1",
        "image": DIGEST,
    }
    assert (stack.system, stack.architecture, stack.node) == ("debian_12", "x86_64", "gpu1")
    assert stack.packages("driver") == {"nvidia-kernel-dkms": "550.90-1", "libcuda1": "550.90-1"}
    assert stack.packages("fabric_manager") == {"nvidia-fabricmanager-550": "550.90-1"}
    assert "bash" not in stack.versions


@pytest.mark.parametrize(
    ("packages", "version"),
    [
        ({}, "20.10.24+dfsg1"),
        ({"docker.io": None, "docker-ce": "5:24.0.7-1~debian.12~bookworm"}, "24.0.7"),
        ({"docker.io": None}, "20.10.24"),
    ],
    ids=["docker.io", "docker-ce", "no package"],
)
def test_docker_has_the_version_of_its_package(packages, version):
    """It is the same while docker is stopped; one without a package has the version that runs."""
    assert lock_of(facts_with(packages)).version("docker") == version


def test_a_bare_node_has_its_kernel_alone():
    """What is not installed is no component."""
    bare = facts_with(
        dict.fromkeys(facts_with().packages, None) | {"bash": "5"},
        gpus=(), nvidia_modules=Unknown("no"), docker_info=Unknown("no"), image=None, rdma=Unknown("no"),
    )  # fmt: skip

    assert list(lock_of(bare).parts) == ["kernel"]


@pytest.mark.parametrize("fact", ["system", "packages"])
def test_without_system_or_packages_the_stack_is_unknown(fact):
    """Nothing would be locked."""
    assert isinstance(stack_of(facts_with(**{fact: Unknown("hung")})), Unknown)


@pytest.mark.parametrize(
    ("ofed", "version"),
    [
        ("", "inbox"),
        ("MLNX_OFED_LINUX-5.8-3.0.7.0", "5.8-3.0.7.0"),
        ("OFED-internal-24.10-0.7.0", "24.10-0.7.0"),
        ("something else", "something else"),
    ],
)
def test_a_vendor_stack_has_its_version(ofed, version):
    """Without product name, as it is compared with the table."""
    assert vendor_version(ofed) == version


def test_the_packages_of_a_vendor_stack_are_not_locked():
    """They have the names of the distribution's, and no role installs them."""
    vendor = dataclasses.replace(healthy().rdma, ofed="MLNX_OFED_LINUX-5.8-3.0.7.0")

    assert lock_of(facts_with(rdma=vendor)).parts["rdma"] == StackPart("5.8-3.0.7.0")


@pytest.mark.parametrize("digests", [(), (f"a@{DIGEST}", f"b@{OTHER_DIGEST}")])
def test_an_image_without_one_digest_of_a_registry_is_not_locked(digests):
    """One from an archive has none; with two it is unknown which one a registry has."""
    assert "image" not in lock_of(facts_with(image=Image("sha256:11", digests, ()))).parts


def test_a_simulated_driver_is_no_part():
    """The lab's nvidia-smi prints a version without kernel modules."""
    simulated = {"nvidia-smi": "SIMULATED"}

    assert "driver" not in lock_of(facts_with(simulated=simulated, nvidia_modules=Unknown("none"))).parts


def test_headers_of_another_kernel_are_no_part():
    """They do not fit the kernel."""
    packages = {f"linux-headers-{KERNEL}": None, "linux-headers-6.1.0-29-amd64": "6.1.120-1"}

    assert "headers" not in lock_of(facts_with(packages)).parts
