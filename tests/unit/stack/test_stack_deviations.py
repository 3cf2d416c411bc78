"""A node compared with the lock: what a role fixes, what is only reported, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from provision.facts import Unknown
from provision.facts.docker import Image
from provision.facts.nvidia_driver import NvidiaDevice
from provision.model.stack import StackPart
from provision.stack.compare import Difference, deviations, differences, locked_packages
from tests.support.reasons import shown
from tests.unit.checks.conftest import healthy
from tests.unit.stack.conftest import DIGEST, KERNEL, OTHER_DIGEST, VARIABLES, facts_with, lock_of

FACTS = facts_with()
VENDOR = dataclasses.replace(healthy().rdma, ofed="MLNX_OFED_LINUX-5.8-3.0.7.0")


def judged(facts, lock=None, **variables):
    """Return component -> role (``refused``, ``reported``), and the first words of the reason."""
    results = deviations(lock or lock_of(), {**VARIABLES, **variables}, facts)
    return {one.component: (one.role or ("refused" if one.refused else "reported"), shown(one.why)) for one in results}


def test_the_locked_node_has_no_deviation():
    """The lock was made from it."""
    assert judged(FACTS) == {}


@pytest.mark.parametrize(
    ("package", "component", "role"),
    [
        ("docker.io", "docker", "docker_engine"),
        ("containerd", "docker", "docker_engine"),
        ("nvidia-container-toolkit", "toolkit", "nvidia_container"),
        ("rdma-core", "rdma", "rdma_stack"),
        ("nvidia-fabricmanager-550", "fabric_manager", "nvidia_driver"),
    ],
)
@pytest.mark.parametrize("version", ["1.0", "99.0"])
def test_a_package_in_another_version_is_brought_to_the_lock(package, component, role, version):
    """Older or newer: the role installs the locked version."""
    results = judged(facts_with({package: version}))

    assert {name: owner for name, (owner, _) in results.items()} == {component: role}
    assert results[component][1].startswith(f"stack.differs: {component} ")
    assert f"stack.package {package} {version} {FACTS.packages[package]}" in results[component][1]


def test_an_older_driver_is_brought_to_the_lock():
    """By the role that the inventory requests."""
    older = dataclasses.replace(healthy().nvidia_modules, loaded="550.54", installed="550.54")
    facts = facts_with({"libcuda1": "550.54-1", "nvidia-kernel-dkms": "550.54-1"}, nvidia_modules=older)

    assert judged(facts)["driver"][0] == "nvidia_driver"


@pytest.mark.parametrize(
    ("facts", "variables", "component", "reason"),
    [
        ({"rdma": VENDOR}, {}, "rdma", "stack.rdma_vendor: 5.8-3.0.7.0 inbox"),
        ({"packages": {"docker.io": None, "docker-ce": "29.1"}}, {}, "docker",
         "stack.other_package: docker docker-ce docker.io"),
        ({"packages": {"docker.io": "1"}}, {"docker_engine_source": "present"}, "docker", "stack.not_managed: docker "),
        ({"packages": {"docker.io": "1"}}, {"platform_enabled": False}, "docker", "stack.not_managed: docker "),
        ({"packages": {"libcuda1": "1"}}, {"nvidia_driver_source": "present"}, "driver", ""),
        ({}, {"nvidia_driver_version": "535.1"}, "driver", "stack.contradiction: driver nvidia_driver_version 535.1"),
        ({}, {"training_image_digest": OTHER_DIGEST}, "image", "stack.contradiction: image training_image_digest"),
        ({"image": Image("x", (), ())}, {"training_image_archive": "/x.tar"}, "image", "stack.image_archive: "),
    ],
)  # fmt: skip
def test_a_node_that_cannot_be_brought_to_the_lock_is_refused(facts, variables, component, reason):
    """With the component and the reason."""
    others = {name: value for name, value in facts.items() if name != "packages"}
    results = judged(facts_with(facts.get("packages"), **others), **variables)

    if reason:
        assert results[component][0] == "refused"
        assert results[component][1].startswith(reason)
    else:
        assert results == {}  # the package is of another driver, and the version of the modules is that of the lock


def test_a_driver_that_no_role_installs_is_refused():
    """`present` is the default: check, judge, never touch."""
    other = dataclasses.replace(healthy().nvidia_modules, loaded="535.1", installed="535.1")
    facts = facts_with(nvidia_modules=other)

    assert judged(facts, nvidia_driver_source="present")["driver"][1].startswith(
        "stack.not_managed: driver 535.1 550.90"
    )
    assert judged(facts, lock_of(driver=StackPart("550.90")))["driver"][1].startswith("stack.no_packages: driver 535.1")


@pytest.mark.parametrize(
    ("version", "reason"),
    [("5.8-3.0.7.0", "stack.rdma_inbox: inbox 5.8-3.0.7.0"), ("24.10", "stack.rdma_inbox: inbox 24.10")],
)
def test_a_locked_vendor_stack_is_installed_by_no_role(version, reason):
    """Neither on a node with the kernel's own stack, unless the inventory requests one, nor with another version."""
    lock = lock_of(rdma=StackPart(version))

    assert judged(FACTS, lock)["rdma"] == ("refused", reason)
    assert judged(FACTS, lock, rdma_stack_source="doca")["rdma"] == ("reported", reason)
    other = judged(facts_with(rdma=dataclasses.replace(VENDOR, ofed="MLNX_OFED_LINUX-4.7-1")), lock)
    assert other["rdma"] == ("refused", f"stack.rdma_other: 4.7-1 {version}")


@pytest.mark.parametrize(("name", "value"), [("id", "ubuntu"), ("architecture", "aarch64")])
def test_a_lock_of_another_system_is_refused(name, value):
    """Its packages have other versions there."""
    facts = facts_with(system=dataclasses.replace(FACTS.system, **{name: value}))

    [(owner, reason)] = judged(facts).values()
    assert owner == "refused"
    assert reason.startswith("stack.other_system: ")


def test_another_kernel_and_its_headers_are_reported_once():
    """No role of this lock installs kernels."""
    other = facts_with(system=dataclasses.replace(FACTS.system, kernel="6.1.0-27-amd64"))

    assert judged(other) == {"kernel": ("reported", f"stack.kernel: 6.1.0-27-amd64 {KERNEL}")}


def test_missing_headers_of_the_locked_kernel_are_reported():
    """Modules cannot be built without them."""
    name = f"linux-headers-{KERNEL}"

    assert judged(facts_with({name: None})) == {
        "headers": ("reported", f"stack.headers: {name} not installed 6.1.119-1")
    }


def test_a_kernel_for_which_the_locked_driver_does_not_build_is_refused():
    """The node's own kernel counts, because the modules would be built for it."""
    newer = facts_with(system=dataclasses.replace(FACTS.system, kernel="6.17.13-2-pve"))
    lock = lock_of(driver=StackPart("550.90", {"libcuda1": "550.90-1"}))

    [(owner, reason)] = judged(newer, lock).values()
    assert (owner, reason.split()[:3]) == ("refused", ["stack.conflict:", "driver", "550.90"])


def test_a_node_without_gpus_needs_no_driver():
    """Nor toolkit and fabric manager; a conflict of the driver does not concern it."""
    packages = dict.fromkeys(("libcuda1", "nvidia-kernel-dkms", "nvidia-fabricmanager-550", "nvidia-container-toolkit"))
    facts = facts_with(
        packages, gpus=(), gpu_pci=(), nvidia_modules=Unknown("no"),
        system=dataclasses.replace(FACTS.system, kernel="6.17.13-2-pve"),
    )  # fmt: skip

    assert list(judged(facts)) == ["kernel"]


def test_another_image_is_pulled_by_digest():
    """The role pulls the locked digest from the registry."""
    other = facts_with(image=Image("sha256:12", (f"r:5000/t@{OTHER_DIGEST}",), ("r:5000/t:1",)))

    assert judged(other)["image"] == ("training_image", f"stack.image: {OTHER_DIGEST} {DIGEST}")


@pytest.mark.parametrize("role", ["docker_engine", "training_image"])
def test_a_disabled_role_is_not_judged(role):
    """The inventory leaves its component alone."""
    other = facts_with({"docker.io": "1"}, image=None)

    assert role not in {owner for owner, _ in judged(other, **{f"{role}_enabled": False}).values()}


def test_packages_of_rpm_are_refused():
    """Only apt installs and holds exact versions; the kernel is reported as everywhere."""
    system = dataclasses.replace(FACTS.system, package_manager="dnf")

    [(owner, reason)] = judged(facts_with({"docker.io": "1"}, system=system)).values()
    assert (owner, reason.split()[0]) == ("refused", "stack.only_apt:")


@pytest.mark.parametrize("fact", ["system", "packages"])
def test_an_unknown_node_is_not_judged(fact):
    """A fact that is missing is no difference."""
    assert judged(facts_with(**{fact: Unknown("hung")})) == {}


@pytest.mark.parametrize(
    "facts",
    [
        {"rdma": Unknown("hung")},
        {"image": Unknown("hung")},
        {"docker_info": Unknown("hung")},
        {"nvidia_modules": Unknown("hung"), "gpus": Unknown("hung")},
        {"nvidia_driver": Unknown("hung")},
    ],
)
def test_a_component_whose_facts_are_unknown_is_not_judged(facts):
    """Docker that hangs is not another version of docker, and its image is not missing."""
    assert judged(facts_with(**facts)) == {}
    assert judged(facts_with(**facts), docker_engine_source="present", nvidia_driver_source="present") == {}


@pytest.mark.parametrize(
    "image",
    [
        Image("sha256:11", (f"a/t@{OTHER_DIGEST}", f"r:5000/t@{DIGEST}"), ("r:5000/t:1",)),
        Image(DIGEST, (), ()),
        Image("sha256:11", (), (), DIGEST),
    ],
    ids=["two registries", "id", "configuration"],
)
def test_an_image_with_the_locked_digest_is_the_locked_one(image):
    """By any of its names, as the check of the digest accepts it."""
    assert judged(facts_with(image=image)) == {}


def test_only_nodes_with_switches_need_a_fabric_manager():
    """The role installs none on others, so the difference would stay for ever."""
    absent = {"nvidia-fabricmanager-550": None}
    driver = healthy().nvidia_driver
    switch = dataclasses.replace(driver, switches=(NvidiaDevice("0000:07:00.0", "22a3"),))

    assert judged(facts_with(absent)) == {}
    assert judged(facts_with(absent, nvidia_driver=switch))["fabric_manager"][0] == "nvidia_driver"


def test_two_stacks_are_compared_by_component_and_package():
    """In the order of the components; what one of them lacks is empty."""
    other = lock_of(facts_with({"docker.io": "1", "runc": None}), image=None)

    assert differences(lock_of(), lock_of()) == ()
    assert differences(lock_of(), other) == (
        Difference("docker", "", "20.10.24+dfsg1", "1"),
        Difference("docker", "docker.io", "20.10.24+dfsg1-1", "1"),
        Difference("docker", "runc", "1.1.5+ds1-1", ""),
        Difference("image", "", DIGEST, ""),
    )


def test_the_roles_get_their_packages():
    """No role installs the headers of the kernel: they are only held."""
    packages = locked_packages(lock_of())

    assert set(packages) == {"", "rdma_stack", "nvidia_driver", "nvidia_container", "docker_engine"}
    assert packages["docker_engine"]["docker.io"] == "20.10.24+dfsg1-1"
    assert "nvidia-fabricmanager-550" in packages["nvidia_driver"]
