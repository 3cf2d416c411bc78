"""Which RDMA stack a node gets: a case for every row of the tables."""

from __future__ import annotations

from typing import Any

import pytest

from provision.commands.package_repositories import repo_text, source_text
from provision.commands.rdma_stack import (
    RELEASES,
    Choice,
    choose,
    preferences,
    release_of,
    series_of,
    supports,
)
from provision.inventory.role_files import systems
from provision.resources import roles_folder

SYSTEMS = systems(roles_folder())
JAMMY, NOBLE, TEN, NINE, EIGHT = "ubuntu22.04", "ubuntu24.04", "rhel10", "rhel9", "rhel8"
_EL8, _EL94, _EL96, _EL98 = (
    "4.18.0-553.el8_10.x86_64",
    "5.14.0-427.13.1.el9_4.x86_64",
    "5.14.0-570.12.1.el9_6.x86_64",
    "5.14.0-687.25.1.el9_8.x86_64",
)
_EL100, _EL102 = "6.12.0-55.9.1.el10_0.x86_64", "6.12.0-211.33.1.el10_2.x86_64"
KERNELS = [
    ("2.9.0", "debian12", ("6.1.0-18-amd64",), ("6.12.5-1-amd64", "5.10.0-28-amd64")),
    ("2.9.0", JAMMY, ("5.15.0-25-generic", "6.8.0-1019-aws"), ("5.4.0-150-generic", "6.11.0-1003-nvidia")),
    ("2.9.0", NOBLE, ("6.8.0-31-generic",), ("6.11.0-1003-nvidia",)),
    ("2.9.3", JAMMY, ("5.15.0-25-generic", "6.8.0-1027-nvidia"), ("6.11.0-1003-nvidia",)),
    ("2.9.3", NOBLE, ("6.8.0-31-generic", "6.11.0-1003-nvidia"), ("6.14.0-1007-nvidia",)),
    ("3.0.0", JAMMY, ("5.15.0-25-generic", "6.8.0-1026-nvidia"), ("6.11.0-1003-nvidia",)),
    ("3.0.0", NOBLE, ("6.8.0-31-generic", "6.11.0-1013-azure"), ("6.14.0-1007-nvidia",)),
    ("3.1.0", JAMMY, ("5.15.0-25-generic", "6.8.0-1032-aws"), ("6.14.0-1007-nvidia",)),
    ("3.1.0", NOBLE, ("6.8.0-31-generic", "6.14.0-1009-aws"), ("6.17.0-1007-aws",)),
    ("3.2.0", JAMMY, ("5.15.0-171-generic", "6.8.0-1047-aws"), ("6.17.0-1007-aws",)),
    ("3.2.0", NOBLE, ("6.8.0-101-generic", "6.14.0-1011-nvidia", "6.17.0-1008-nvidia"), ("7.0.0-1008-azure",)),
    ("3.2.0", EIGHT, (_EL8,), ("4.18.0-477.el8_8.x86_64",)),
    ("3.2.0", NINE, (_EL94, _EL96), (_EL98, "5.14.0-284.el9_2.x86_64")),
    ("3.2.0", TEN, (_EL100,), (_EL102,)),
    ("3.2.3", JAMMY, ("5.15.0-171-generic", "6.8.0-1047-aws"), ("6.17.0-1007-aws",)),
    ("3.2.3", NOBLE, ("6.8.0-101-generic", "6.17.0-1008-nvidia"), ("7.0.0-1008-azure",)),
    ("3.2.3", EIGHT, (_EL8,), ("4.18.0-477.el8_8.x86_64",)),
    ("3.2.3", NINE, (_EL94, _EL98), ("5.14.0-700.el9_9.x86_64",)),
    ("3.2.3", TEN, (_EL100, _EL102), ("6.12.0-300.el10_3.x86_64",)),
    ("3.3.0", JAMMY, ("5.15.0-190-generic", "6.8.0-1061-nvidia"), ("7.0.0-1008-azure",)),
    ("3.3.0", NOBLE, ("6.8.0-138-generic", "7.0.0-1016-nvidia"), ("7.1.0-1001-generic",)),
    ("3.3.0", EIGHT, (_EL8,), (_EL94,)),
    ("3.3.0", NINE, (_EL94, _EL96), (_EL98,)),
    ("3.3.0", TEN, (_EL100,), (_EL102,)),
    ("3.4.0", JAMMY, ("5.15.0-186-generic", "6.8.0-1059-nvidia"), ("7.0.0-1008-azure",)),
    ("3.4.0", NOBLE, ("6.8.0-136-generic", "6.17.0-1018-oracle", "7.0.0-1013-nvidia"), ("7.1.0-1001-generic",)),
    ("3.4.0", EIGHT, (_EL8,), (_EL94,)),
    ("3.4.0", NINE, (_EL94, _EL96), (_EL98,)),
    ("3.4.0", TEN, (_EL100,), (_EL102,)),
    ("3.5.0", JAMMY, ("5.15.0-187-generic", "6.8.0-1060-nvidia"), ("7.0.0-1008-azure",)),
    ("3.5.0", NOBLE, ("6.8.0-137-generic", "7.0.0-1015-nvidia"), ("7.1.0-1001-generic",)),
    ("3.5.0", EIGHT, (_EL8,), (_EL94,)),
    ("3.5.0", NINE, (_EL94, _EL98), ("5.14.0-700.el9_9.x86_64",)),
    ("3.5.0", TEN, (_EL100, _EL102), ("6.12.0-300.el10_3.x86_64",)),
    ("3.6.0", JAMMY, ("5.15.0-191-generic", "6.8.0-1062-nvidia"), ("7.0.0-1008-azure",)),
    ("3.6.0", NOBLE, ("6.8.0-139-generic", "7.0.0-1019-nvidia"), ("7.1.0-1001-generic",)),
    ("3.6.0", EIGHT, (_EL8,), (_EL94,)),
    ("3.6.0", NINE, (_EL94, _EL98), ("5.14.0-700.el9_9.x86_64",)),
    ("3.6.0", TEN, (_EL100, _EL102), ("6.12.0-300.el10_3.x86_64",)),
]
"""Release, system, kernels of the sources of the table, and kernels beyond them."""
REPOSITORY = "https://linux.mellanox.com/public/repo/doca"
DEFAULTS = [
    ("debian_12", "doca", "2.9.0", "doca-ofed", f"{REPOSITORY}/2.9.0/debian12.5/x86_64"),
    ("ubuntu_22.04", "doca", "3.2.2", "doca-ofed", f"{REPOSITORY}/3.2.2/ubuntu22.04/x86_64"),
    ("ubuntu_24.04", "doca", "3.2.2", "doca-ofed", f"{REPOSITORY}/3.2.2/ubuntu24.04/x86_64"),
    ("el_8", "doca", "3.2.2", "doca-ofed", f"{REPOSITORY}/3.2.2/rhel8/x86_64"),
    ("el_9", "doca", "3.2.2", "doca-ofed", f"{REPOSITORY}/3.2.2/rhel9/x86_64"),
    ("el_10", "doca", "3.2.2", "doca-ofed", f"{REPOSITORY}/3.2.2/rhel10/x86_64"),
    ("debian_12", "mlnx_ofed", "24.10", "mlnx-ofed-all", ""),
    ("ubuntu_22.04", "mlnx_ofed", "24.10", "mlnx-ofed-all", ""),
    ("ubuntu_24.04", "mlnx_ofed", "24.10", "mlnx-ofed-all", ""),
]
RUNNING = {
    "debian_12": "6.1.0-50-amd64",
    "ubuntu_22.04": "5.15.0-171-generic",
    "ubuntu_24.04": "6.8.0-31-generic",
    "el_8": _EL8,
    "el_9": _EL96,
    "el_10": _EL100,
}
IMAGES = {"debian": "linux-image-amd64", "ubuntu": "linux-image-generic", "el": "kernel-core"}


def chosen(system: str, kernel: str = "", **settings: Any) -> Choice:
    """Return the choice for a node with a usual kernel."""
    requested = {"source": "doca", "profile": "", "version": "", "kernels": [], **settings}
    kernels = requested["kernels"] or [kernel or RUNNING.get(system, "6.1.0")]
    return choose(requested, SYSTEMS[system], kernels, [IMAGES.get(system.partition("_")[0], "")])


@pytest.mark.parametrize(("version", "system", "supported", "unsupported"), KERNELS)
def test_a_release_supports_the_kernels_of_its_row(
    version: str, system: str, supported: tuple[str, ...], unsupported: tuple[str, ...]
) -> None:
    """And none that is older or newer."""
    release = release_of("doca", version, system)

    assert release
    assert release.doca == version
    assert [kernel for kernel in supported if not supports(release, system, kernel)] == []
    assert [kernel for kernel in unsupported if supports(release, system, kernel)] == []


def test_every_row_has_a_case_and_rows_are_ordered() -> None:
    """A new release requires its own."""
    rows = [(release.doca, system) for release in RELEASES for system in release.kernels]

    assert sorted({case[:2] for case in KERNELS}) == sorted(rows)
    assert [release.doca for release in RELEASES] == sorted(release.doca for release in RELEASES)


@pytest.mark.parametrize(
    ("source", "version", "row"),
    [
        ("doca", "3.2.1", "3.2.0"),
        ("doca", "3.2.2", "3.2.0"),
        ("doca", "3.2.4", "3.2.3"),
        ("doca", "2.9.4", "2.9.3"),
        ("doca", "2.8.0", None),
        ("doca", "3.7.0", None),
        ("mlnx_ofed", "24.10-3.2.5.0", "2.9.3"),
        ("mlnx_ofed", "23.10-0.5.5.0", None),
    ],
)
def test_an_update_has_the_kernels_of_the_release_before_it(source: str, version: str, row: str | None) -> None:
    """A release without any is unknown."""
    release = release_of(source, version, NOBLE)

    assert (release.doca if release else None) == row


@pytest.mark.parametrize(
    ("kernel", "system", "series"),
    [
        ("6.8.0-31-generic", NOBLE, "6.8"),
        (_EL8, EIGHT, "8.10"),
        ("5.14.0-419.el9.x86_64", NINE, ""),
        ("6.8.0-31-generic", NINE, ""),
        ("strange", NOBLE, ""),
    ],
)
def test_a_kernel_is_compared_by_series_or_minor_release(kernel: str, system: str, series: str) -> None:
    """One that names neither is not known to be supported."""
    assert series_of(kernel, system) == series


@pytest.mark.parametrize(("system", "source", "version", "profile", "repository"), DEFAULTS)
def test_a_system_has_a_default_release(system: str, source: str, version: str, profile: str, repository: str) -> None:
    """With its profile, its repository and the headers of the running kernel."""
    choice = chosen(system, source=source)

    assert choice.refusal is None
    assert (choice.version, choice.profile, choice.packages, choice.repository) == (
        version,
        profile,
        (profile,),
        repository,
    )
    assert RUNNING[system] in choice.optional[0]


def test_every_entry_has_a_case() -> None:
    """A new row of a system's file requires its own."""
    rows = {(name, source) for name, system in SYSTEMS.items() for source in system["__platform_rdma_stack"]}

    assert rows == {row[:2] for row in DEFAULTS}
    assert set(RUNNING) == {name for name, _ in rows}


@pytest.mark.parametrize("system", sorted(SYSTEMS))
@pytest.mark.parametrize("source", ["doca", "mlnx_ofed"])
def test_a_system_without_an_entry_is_refused(system: str, source: str) -> None:
    """With the sources that it has."""
    refusal = chosen(system, source=source).refusal
    if (system, source) in {row[:2] for row in DEFAULTS}:
        assert refusal is None
    else:
        assert refusal
        assert refusal.variable == "rdma_stack_source"
        assert "distribution" in refusal.remedy


@pytest.mark.parametrize(
    ("settings", "variable"),
    [
        ({"version": "latest"}, "rdma_stack_version"),
        ({"version": "3.2"}, "rdma_stack_version"),
        ({"version": "../3.2.2"}, "rdma_stack_version"),
        ({"profile": "doca-ofed; rm"}, "rdma_stack_profile"),
        ({"profile": "bash"}, "rdma_stack_profile"),
        ({"kernels": ["6.8.0-31-generic", "$(uname -r)"]}, "rdma_stack_kernels"),
    ],
)
def test_what_is_no_release_profile_or_kernel_is_refused(settings: dict[str, Any], variable: str) -> None:
    """It would be part of an address or of a command."""
    refusal = chosen("ubuntu_24.04", **settings).refusal

    assert refusal
    assert refusal.variable == variable


def test_an_unsupported_kernel_is_refused_with_the_releases_that_support_it() -> None:
    """The site can decide otherwise."""
    refusal = chosen("ubuntu_24.04", "7.0.0-1008-azure").refusal

    assert refusal
    assert refusal.variable == "rdma_stack_version"
    assert "7.0.0-1008-azure" in refusal.problem
    assert "6.8 to 6.17" in refusal.problem
    assert "3.3.0, 3.4.0, 3.5.0, 3.6.0" in refusal.remedy
    assert chosen("ubuntu_24.04", "7.0.0-1008-azure", version="3.4.1").refusal is None
    assert chosen("ubuntu_24.04", "7.0.0-1008-azure", checks_kernel=False).refusal is None


def test_a_release_that_no_table_has_is_refused_unless_the_site_has_tested_it() -> None:
    """DOCA 3.1 has no DKMS for Enterprise Linux."""
    refusal = chosen("el_9", version="3.1.0").refusal

    assert refusal
    assert "in no table for Enterprise Linux 9" in refusal.problem
    assert chosen("el_9", version="3.1.0", checks_kernel=False).version == "3.1.0"


def test_listed_kernels_require_their_headers() -> None:
    """The running kernel's are installed if a repository has them."""
    listed = chosen("debian_12", kernels=["6.1.0-18-amd64", "6.1.0-50-amd64"])

    assert listed.packages == ("doca-ofed", "linux-headers-6.1.0-18-amd64", "linux-headers-6.1.0-50-amd64")
    assert listed.optional == ()
    assert chosen("debian_12").optional == ("linux-headers-6.1.0-50-amd64", "linux-headers-amd64")


def test_apt_takes_no_dkms_of_the_vendor() -> None:
    """By the label of the repository, and by its host unless other repositories are there."""
    text = preferences("doca-ofed", "3.2.2", "https://linux.mellanox.com/doca/", ["http://deb.example.org/debian"])
    own = preferences("doca-ofed", "3.2.2", "http://mirror:8080/doca", ["http://mirror:8080/debian"])

    assert "Package: dkms\nPin: release l=DOCA-HOST*\nPin-Priority: -1\n" in text
    assert 'Package: dkms\nPin: origin "linux.mellanox.com"\nPin-Priority: -1\n' in text
    assert "Package: doca-ofed\nPin: version 3.2.2*\nPin-Priority: 990\n" in text
    assert "l=DOCA-HOST*" in own
    assert "origin" not in own


def test_dnf_takes_no_dkms_of_the_vendor() -> None:
    """By an exclusion in the file of the repository, which apt's sources do not know."""
    item = {"name": "rdma-stack", "uris": "https://m/doca", "suites": "/", "key": "K", "exclude": ["dkms"]}

    assert "\nexcludepkgs=dkms\n" in repo_text(item)
    assert "excludepkgs" not in repo_text({**item, "exclude": []})
    assert "dkms" not in source_text(item)
