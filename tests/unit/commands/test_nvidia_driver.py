"""Which driver a node gets: a case for every row of the tables."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from provision.commands.nvidia_driver import (
    ARCHITECTURES,
    CHIPS,
    Choice,
    branch_refusal,
    chip_of,
    choose,
    flavor_of,
    needs_imex,
    unsupported,
)
from provision.gdr import versions
from provision.inventory.role_files import systems
from provision.resources import roles_folder

SYSTEMS = systems(roles_folder())
PRODUCTS = [
    ("13bd", "maxwell", "Tesla M10"),
    ("13f2", "maxwell", "Tesla M60"),
    ("15f8", "pascal", "Tesla P100 PCIe 16GB"),
    ("1667", "maxwell", "GM204M"),
    ("1725", "pascal", "GP100"),
    ("17fd", "maxwell", "Tesla M40"),
    ("1b38", "pascal", "Tesla P40"),
    ("1db5", "volta", "Tesla V100 SXM2 32GB"),
    ("1eb8", "turing", "Tesla T4"),
    ("20b2", "ampere", "A100 SXM4 80GB"),
    ("2184", "turing", "GeForce GTX 1660"),
    ("2236", "ampere", "A10"),
    ("2330", "hopper", "H100 SXM5 80GB"),
    ("2342", "grace-hopper", "GH200 120GB"),
    ("23b0", "hopper", "GH100"),
    ("25b6", "ampere", "A2"),
    ("26b9", "ada", "L40S"),
    ("2901", "blackwell", "B200"),
    ("2bb5", "blackwell", "RTX PRO 6000 Blackwell Server Edition"),
    ("31c0", "blackwell", "GB110"),
    ("3340", "blackwell", "GB120"),
]
"""A product of each row, with its device ID in the PCI ID database."""
FLAVORS = [
    ("maxwell", "proprietary", {"open"}),
    ("pascal", "proprietary", {"open"}),
    ("volta", "proprietary", {"open"}),
    ("turing", "open", set()),
    ("ampere", "open", set()),
    ("ada", "open", set()),
    ("hopper", "open", set()),
    ("grace-hopper", "open", {"proprietary"}),
    ("blackwell", "open", {"proprietary"}),
]
"""Architecture, the flavour that `auto` chooses, and those that are refused."""
_DEBIAN = ("libcuda1", "nvidia-smi", "nvidia-persistenced", "nvidia-modprobe")
_UBUNTU = (
    "nvidia-headless-no-dkms-580-server{o}",
    "linux-modules-nvidia-580-server{o}-generic",
    "nvidia-utils-580-server",
)
PACKAGES = [
    ("debian_12", "distribution", "open", "535", "dkms", ("nvidia-open-kernel-dkms", *_DEBIAN)),
    ("debian_12", "distribution", "proprietary", "535", "dkms", ("nvidia-kernel-dkms", *_DEBIAN)),
    ("debian_13", "distribution", "open", "550", "dkms", ("nvidia-open-kernel-dkms", *_DEBIAN)),
    ("debian_13", "distribution", "proprietary", "550", "dkms", ("nvidia-kernel-dkms", *_DEBIAN)),
    ("ubuntu_22.04", "distribution", "open", "580", "signed", tuple(name.format(o="-open") for name in _UBUNTU)),
    ("ubuntu_22.04", "distribution", "proprietary", "580", "signed", tuple(name.format(o="") for name in _UBUNTU)),
    ("ubuntu_24.04", "distribution", "open", "580", "signed", tuple(name.format(o="-open") for name in _UBUNTU)),
    ("ubuntu_24.04", "distribution", "proprietary", "580", "signed", tuple(name.format(o="") for name in _UBUNTU)),
    ("ubuntu_22.04", "cuda", "open", "580", "dkms", ("nvidia-driver-pinning-580", "nvidia-open")),
    ("ubuntu_24.04", "cuda", "open", "580", "dkms", ("nvidia-driver-pinning-580", "nvidia-open")),
    ("el_8", "cuda", "open", "580", "dkms", ("nvidia-driver-cuda", "kmod-nvidia-open-dkms")),
    ("el_8", "cuda", "proprietary", "580", "dkms", ("nvidia-driver-cuda", "kmod-nvidia-latest-dkms")),
    ("el_9", "cuda", "open", "580", "dkms", ("nvidia-driver-cuda", "kmod-nvidia-open-dkms")),
    ("el_9", "cuda", "proprietary", "580", "dkms", ("nvidia-driver-cuda", "kmod-nvidia-latest-dkms")),
]
_NVSWITCH = ("nvidia-fabricmanager", "libnvidia-nscq")
FABRICS = [
    ("ubuntu_22.04", "distribution", "nvswitch", ("nvidia-fabricmanager-580", "libnvidia-nscq-580")),
    ("ubuntu_24.04", "distribution", "nvswitch", ("nvidia-fabricmanager-580", "libnvidia-nscq-580")),
    ("ubuntu_22.04", "cuda", "nvswitch", _NVSWITCH),
    ("ubuntu_24.04", "cuda", "nvswitch", _NVSWITCH),
    ("el_8", "cuda", "nvswitch", _NVSWITCH),
    ("el_9", "cuda", "nvswitch", _NVSWITCH),
    ("ubuntu_22.04", "cuda", "nvlink5", ("nvlink5-580",)),
    ("ubuntu_24.04", "cuda", "nvlink5", ("nvlink5-580",)),
]
IMAGES = {"debian": "linux-image-amd64", "ubuntu": "linux-image-generic", "el": "kernel-core"}


def settings(source: str = "distribution", flavor: str = "auto", branch: str = "") -> dict[str, Any]:
    """Return the settings of an inventory."""
    return {"source": source, "flavor": flavor, "branch": branch}


def chosen(system: str, *devices: str, has_switches: bool = False, **more: str) -> Choice:
    """Return the choice for a node with a usual kernel."""
    image = IMAGES[system.partition("_")[0]]
    return choose(settings(**more), SYSTEMS[system], devices, "6.1.0-50-amd64", [image], has_switches=has_switches)


def refused(system: str, *devices: str, has_switches: bool = False, **more: str) -> tuple[str, str]:
    """Return variable and problem of a refusal, which has a remedy."""
    refusal = chosen(system, *devices, has_switches=has_switches, **more).refusal
    assert refusal
    assert refusal.remedy
    return refusal.variable, refusal.problem


@pytest.mark.parametrize(("device", "architecture", "name"), PRODUCTS, ids=lambda value: value)
def test_a_gpu_has_its_generation(device: str, architecture: str, name: str) -> None:
    """By its PCI device ID, without a driver."""
    chip = chip_of(device)

    assert chip, name
    assert chip.architecture == architecture


def test_every_row_of_chips_has_a_product_and_rows_do_not_overlap() -> None:
    """An ID belongs to one row."""
    tested = {chip_of(device) for device, *_ in PRODUCTS}

    assert set(CHIPS) == tested
    assert all(one.last < other.first for one, other in pairwise(CHIPS))
    assert all(one.first <= one.last for one in CHIPS)


@pytest.mark.parametrize("device", ["1024", "4000", "0x20b2x", "", "../../etc", "20b2\n"])
def test_an_unknown_device_has_no_generation(device: str) -> None:
    """Kepler and older, future GPUs, and what is no ID."""
    assert chip_of(device) is None


@pytest.mark.parametrize(("architecture", "flavor", "refused"), FLAVORS)
def test_a_generation_gets_the_kernel_modules_that_drive_it(architecture: str, flavor: str, refused: set[str]) -> None:
    """`auto` prefers the open ones; the others are refused by name."""
    device = next(device for device, own, _ in PRODUCTS if own == architecture)

    assert flavor_of(settings(), [device]) == flavor
    for other in ("open", "proprietary"):
        is_refused = not isinstance(flavor_of(settings(flavor=other), [device]), str)
        assert is_refused == (other in refused), other


def test_every_architecture_is_in_the_table_of_flavors_and_in_that_of_gpudirect() -> None:
    """Both tables say the same of the drivers."""
    assert [name for name, *_ in FLAVORS] == list(ARCHITECTURES)
    for name, support in ARCHITECTURES.items():
        other = versions.ARCHITECTURES[name]
        assert (support.title, support.oldest, support.newest) == (
            other.title,
            other.oldest_driver,
            other.newest_branch,
        )
        assert ("open" in support.flavors, "proprietary" in support.flavors) == (
            other.open_modules,
            other.proprietary_modules,
        )


def test_a_node_without_gpu_gets_the_open_modules() -> None:
    """They drive every GPU that can still be added."""
    assert flavor_of(settings(), []) == "open"
    assert flavor_of(settings(flavor="proprietary"), []) == "proprietary"


@pytest.mark.parametrize(("system", "source", "flavor", "branch", "build", "packages"), PACKAGES)
def test_a_system_gets_its_packages(
    system: str, source: str, flavor: str, branch: str, build: str, packages: tuple[str, ...]
) -> None:
    """Names with the branch and the kernel's flavour, and headers where the node builds."""
    choice = chosen(system, source=source, flavor=flavor)

    assert choice.refusal is None
    assert (choice.flavor, choice.branch, choice.build, choice.packages) == (flavor, branch, build, packages)
    assert bool(choice.optional) == (build == "dkms")


def test_every_package_table_has_a_case() -> None:
    """A new row of a system's file requires its own."""
    rows = {
        (system, source, flavor)
        for system, variables in SYSTEMS.items()
        for source, entry in variables["__platform_nvidia_driver"].items()
        for flavor in ("open", "proprietary")
        if entry[flavor]
    }

    assert rows == {row[:3] for row in PACKAGES}


@pytest.mark.parametrize("system", sorted(SYSTEMS))
@pytest.mark.parametrize("source", ["distribution", "cuda", "file"])
def test_a_system_without_an_entry_is_refused(system: str, source: str) -> None:
    """With the sources that it has, and with `present`."""
    table: dict[str, Any] = SYSTEMS[system]["__platform_nvidia_driver"]
    choice = choose(settings(source), SYSTEMS[system], [], "6.1", ["linux-image-generic"])

    if ("cuda" if source == "file" else source) in table:
        assert choice.refusal is None
    else:
        assert choice.refusal
        assert choice.refusal.variable == "nvidia_driver_source"
        assert f"has no entry for the driver source {source}" in choice.refusal.problem
        assert "present" in choice.refusal.remedy
        assert all(name in choice.refusal.remedy for name in table)


def test_headers_of_the_running_and_of_every_newer_kernel_are_optional() -> None:
    """The mirror may no longer have those of an older kernel."""
    assert chosen("debian_12").optional == ("linux-headers-6.1.0-50-amd64", "linux-headers-amd64")


def test_signed_modules_follow_every_kernel_package() -> None:
    """A node may have two of them."""
    installed = ["linux-image-generic", "linux-image-generic-hwe-24.04", "linux-image-extra"]
    choice = choose(settings(), SYSTEMS["ubuntu_24.04"], [], "6.8", installed)

    assert [name.partition("open-")[2] for name in choice.packages if name.startswith("linux-modules")] == [
        "generic",
        "generic-hwe-24.04",
    ]


def test_signed_modules_without_a_kernel_package_are_refused() -> None:
    """They would not follow the next kernel."""
    choice = choose(settings(), SYSTEMS["ubuntu_24.04"], [], "6.8", [])

    assert choice.refusal
    assert "linux-image-generic" in choice.refusal.remedy


@pytest.mark.parametrize("flavor", ["open", "proprietary"])
def test_a_stream_pins_the_branch_with_dnf(flavor: str) -> None:
    """Another branch is another stream."""
    kind = {"open": "open", "proprietary": "dkms"}[flavor]

    assert chosen("el_9", source="cuda", flavor=flavor, branch="570").streams == (f"nvidia-driver:570-{kind}",)


def test_a_branch_is_a_part_of_names_or_refused() -> None:
    """Debian has one branch for each release."""
    assert "nvidia-utils-570-server" in chosen("ubuntu_24.04", branch="570").packages
    assert refused("debian_12", branch="580") == (
        "nvidia_driver_branch",
        "Debian 12 has only branch 535 in its distribution packages, not 580",
    )
    assert chosen("debian_12", branch="535").refusal is None
    for branch in ("latest", "58", "5800", "580; rm", "{{x}}"):
        assert refused("ubuntu_24.04", branch=branch)[0] == "nvidia_driver_branch"


@pytest.mark.parametrize(
    ("branch", "flavor", "device", "problem"),
    [
        ("535", "open", "2901", "driver 535 does not support Blackwell (since 570.133.20)"),
        ("590", "proprietary", "1db5", "driver 590 does not support Volta (until 580)"),
        ("620", "proprietary", "20b2", "branch 620 has no proprietary kernel modules (removed in 620)"),
        ("510", "open", "20b2", "branch 510 has no open kernel modules (since 515)"),
        ("418", "proprietary", "20b2", "driver 418 does not support Ampere (since 450)"),
    ],
)
def test_a_branch_that_does_not_drive_the_gpus_is_refused(branch: str, flavor: str, device: str, problem: str) -> None:
    """Before anything is installed."""
    refusal = branch_refusal(branch, flavor, [device])

    assert refusal
    assert refusal.problem == problem


def test_the_default_branch_is_judged_too() -> None:
    """Debian 12 has no driver for a B200."""
    assert refused("debian_12", "2901")[1] == "driver 535 does not support Blackwell (since 570.133.20)"


def test_a_version_is_judged_like_its_branch() -> None:
    """Unknown GPUs and versions are not judged."""
    assert unsupported("535.261.03", "20b2") == ""
    assert unsupported("535.261.03", "2901").startswith("driver 535.261.03 does not support Blackwell")
    assert unsupported("", "2901") == unsupported("535.261.03", "ffff") == ""


def test_gpus_that_no_driver_drives_together_are_refused() -> None:
    """V100 and B200 in one node."""
    variable, problem = refused("ubuntu_24.04", "1db5", "2901")

    assert variable == "nvidia_driver_flavor"
    assert "Volta (proprietary)" in problem
    assert "Blackwell (open)" in problem


def test_an_unknown_gpu_requires_the_operators_choice() -> None:
    """It is newer than the table."""
    assert refused("ubuntu_24.04", "4000") == ("nvidia_driver_flavor", "the generation of the GPU 10de:4000 is unknown")
    assert chosen("ubuntu_24.04", "4000", flavor="open").refusal is None


def test_a_source_without_a_flavor_is_refused() -> None:
    """NVIDIA's repository has no entry for V100 on Ubuntu."""
    variable, problem = refused("ubuntu_24.04", "1db5", source="cuda")

    assert variable == "nvidia_driver_source"
    assert "no proprietary kernel modules" in problem


@pytest.mark.parametrize(("system", "source", "fabric", "packages"), FABRICS)
def test_a_machine_with_switches_gets_a_fabric_manager(
    system: str, source: str, fabric: str, packages: tuple[str, ...]
) -> None:
    """In the transaction of the driver, so that both have one version; B200 by its device ID."""
    device = {"nvswitch": "2330", "nvlink5": "2901"}[fabric]
    choice = chosen(system, device, has_switches=fabric == "nvswitch", source=source)
    without = chosen(system, "2330", source=source)

    assert choice.fabric == fabric
    assert choice.packages == (*without.packages, *packages)
    assert without.fabric == ""


def test_every_fabric_table_has_a_case() -> None:
    """A new row of a system's file requires its own."""
    rows = {
        (system, source, fabric)
        for system, variables in SYSTEMS.items()
        for source, entry in variables["__platform_nvidia_driver"].items()
        for fabric in ("nvswitch", "nvlink5")
        if entry.get(fabric)
    }

    assert rows == {row[:3] for row in FABRICS}


@pytest.mark.parametrize(
    ("system", "device", "has_switches", "source", "words"),
    [
        ("debian_13", "2330", True, "distribution", "Debian 13 has no fabric manager"),
        ("ubuntu_24.04", "2901", False, "distribution", "NVLink 5 (HGX B200)"),
        ("el_9", "2901", False, "cuda", "NVLink 5 (HGX B200)"),
    ],
)
def test_a_machine_with_switches_is_refused_where_there_is_no_fabric_manager(
    system: str,
    device: str,
    has_switches: bool,  # noqa: FBT001
    source: str,
    words: str,
) -> None:
    """Its GPUs would not work without one."""
    variable, problem = refused(system, device, has_switches=has_switches, source=source)

    assert variable == "nvidia_driver_source"
    assert words in problem


DCGM = [
    ("ubuntu_22.04", "cuda", "580", "13"),
    ("ubuntu_24.04", "cuda", "580", "13"),
    ("ubuntu_24.04", "cuda", "570", "12"),
    ("el_8", "cuda", "580", "13"),
    ("el_9", "cuda", "580", "13"),
    ("el_9", "cuda", "570", "12"),
]


@pytest.mark.parametrize(("system", "source", "branch", "cuda"), DCGM)
def test_dcgm_is_that_of_the_branch(system: str, source: str, branch: str, cuda: str) -> None:
    """Only where the inventory requests it, and on nodes with GPUs."""
    image = IMAGES[system.partition("_")[0]]
    own = settings(source, branch=branch)

    def packages(devices: list[str], *, dcgm: bool) -> tuple[str, ...]:
        return choose(own | {"dcgm": dcgm}, SYSTEMS[system], devices, "6.1", [image]).packages

    without = packages(["20b2"], dcgm=False)
    assert packages(["20b2"], dcgm=True) == (*without, f"datacenter-gpu-manager-4-cuda{cuda}")
    assert packages([], dcgm=True) == without


def test_every_dcgm_table_has_a_case_and_other_sources_are_refused() -> None:
    """Distributions have no DCGM."""
    rows = {
        (system, source)
        for system, variables in SYSTEMS.items()
        for source, entry in variables["__platform_nvidia_driver"].items()
        if entry.get("dcgm")
    }
    assert rows == {row[:2] for row in DCGM}

    choice = choose(settings() | {"dcgm": True}, SYSTEMS["debian_12"], ["20b2"], "6.1", ["linux-image-amd64"])
    assert choice.refusal
    assert choice.refusal.variable == "nvidia_driver_dcgm_enabled"
    assert choice.refusal.problem == "Debian 12 has no DCGM in its distribution packages"


# Kernels, versions, and builds of another node


@pytest.mark.parametrize(
    ("system", "more", "variable"),
    [
        ("debian_12", {"version": "535.261.03"}, ""),
        ("debian_12", {"version": "535.261.03; reboot"}, "nvidia_driver_version"),
        ("debian_12", {"version": "550.163.01"}, "nvidia_driver_version"),
        ("ubuntu_24.04", {"version": "580.95.05"}, "nvidia_driver_version"),
        ("debian_12", {"kernels": ["6.1.0-50-amd64", "6.1.0-50-cloud-amd64"]}, ""),
        *(
            ("debian_12", {"kernels": ["6.1.0-50-amd64", name]}, "nvidia_driver_kernels")
            for name in ("../x", "-k", "6.1 6.2", "6.1\n", "", 6)
        ),
    ],
)
def test_a_version_and_kernels_are_what_the_system_can_have(system: str, more: dict[str, Any], variable: str) -> None:
    """They become parts of a file of apt, of names of packages and of paths."""
    refusal = choose(settings() | more, SYSTEMS[system], [], "6.1", [IMAGES[system.partition("_")[0]]]).refusal

    assert (refusal.variable if refusal else "") == variable


def test_headers_are_those_of_the_listed_kernels() -> None:
    """Then they are required; a node that gets its modules from another one has none."""
    listed = {"kernels": ["6.1.0-50-amd64", "6.1.0-50-cloud-amd64"]}
    usual, own, carried = (
        choose(settings() | more, SYSTEMS["debian_12"], [], "6.1.0-57-amd64", ["linux-image-amd64"])
        for more in ({}, listed, {**listed, "carried": True})
    )

    assert usual.optional == ("linux-headers-6.1.0-57-amd64", "linux-headers-amd64")
    assert own.packages == (*usual.packages, "linux-headers-6.1.0-50-amd64", "linux-headers-6.1.0-50-cloud-amd64")
    assert (own.optional, carried.optional, carried.packages) == ((), (), usual.packages)


MIG_CHIPS = {"20b2", "2330", "2342", "23b0", "2901", "2bb5", "31c0", "3340"}
"""The products whose chips can have a MIG mode: GA100, GH100 and Blackwell."""


@pytest.mark.parametrize("device", [row[0] for row in PRODUCTS])
def test_chips_with_mig_are_those_of_the_user_guide(device: str) -> None:
    """A2, L40S, V100 and older products have none."""
    chip = chip_of(device)

    assert chip
    assert chip.mig is (device in MIG_CHIPS)


IMEX = [
    ("ubuntu_22.04", "distribution", "nvidia-imex-580"),
    ("ubuntu_24.04", "distribution", "nvidia-imex-580"),
    ("ubuntu_22.04", "cuda", "nvidia-imex"),
    ("ubuntu_24.04", "cuda", "nvidia-imex"),
    ("el_8", "cuda", "nvidia-imex"),
    ("el_9", "cuda", "nvidia-imex"),
]


@pytest.mark.parametrize(("system", "source", "package"), IMEX)
def test_a_node_of_an_nvlink_domain_gets_imex(system: str, source: str, package: str) -> None:
    """In the transaction of the driver; without a domain it gets none."""
    image = IMAGES[system.partition("_")[0]]
    own = settings(source)

    inside = choose(own | {"in_domain": True}, SYSTEMS[system], ["2940"], "6.1", [image])
    outside = choose(own | {"in_domain": False}, SYSTEMS[system], ["2940"], "6.1", [image])
    assert (inside.refusal, inside.imex, outside.imex) == (None, True, False)
    assert set(inside.packages) - set(outside.packages) == {package}


def test_every_imex_table_has_a_case_and_other_sources_are_refused() -> None:
    """Debian has no IMEX: the remedy names what is left."""
    tables = {
        (system, source)
        for system, variables in SYSTEMS.items()
        for source, entry in variables.get("__platform_nvidia_driver", {}).items()
        if entry.get("imex")
    }
    assert tables == {row[:2] for row in IMEX}
    choice = choose(settings() | {"in_domain": True}, SYSTEMS["debian_13"], ["2342"], "6.1", ["linux-image-amd64"])

    assert choice.refusal
    assert choice.refusal.problem == (
        "Debian 13 has no IMEX in its distribution packages for machines with multi-node NVLink (cluster_nvlink_domain)"
    )
    assert "install driver and IMEX yourself" in choice.refusal.remedy


@pytest.mark.parametrize(
    ("device", "needed"),
    [("2342", True), ("2940", True), ("31c0", True), ("3340", True), ("2901", False), ("2330", False), ("20b2", False)],
)
def test_imex_is_for_chips_of_multi_node_systems(device: str, needed: bool) -> None:  # noqa: FBT001
    """GH200, GB200 and GB300; an HGX B200 has its NVLink switches in the node."""
    assert needs_imex([device], in_domain=True) is needed
    assert not needs_imex([device], in_domain=False)
