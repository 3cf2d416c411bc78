"""Which RDMA stack a node gets: release, packages and supported kernels, from tables.

The role rdma_stack uses this file as a filter plugin through a link, so that plain Ansible makes the same choice. It
imports only the standard library.

Sources of the tables:

- kernels: NVIDIA builds its driver containers from the same sources. The file of each release in `release_manifests` of
  github.com/Mellanox/doca-driver-build lists release, OFED version, systems and kernels.
- Enterprise Linux 9.8 and 10.2 with DOCA 3.2.3: stackhpc/stackhpc-kayobe-config#2430; Azure/azhpc-images patches the
  sources of 3.2.x before that for 9.8. Enterprise Linux before 3.2: "General Support" of DOCA 3.2.1: since 3.2.0 DKMS
  builds the modules, and there is one repository for each major release.
- Debian 12: the folder `debian12.5` of DOCA 2.9.0, and the release notes of DOCA 2.5.2. The kernel is Debian's.
- repositories: linux.mellanox.com/public/repo/doca/RELEASE/SYSTEM/x86_64, as in the same sources and in the building
  block doca_ofed of NVIDIA/hpc-container-maker.
- DOCA's own dkms: install_doca.sh of Azure/azhpc-images pins it out by the label of the repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

DISTRIBUTION, INBOX, PRESENT = "distribution", "inbox", "present"
"""``inbox`` is another word for ``distribution``."""
VENDOR_SOURCES = ("doca", "mlnx_ofed")
_OFED_VERSION = r"[0-9]+\.[0-9]+(-[0-9.]+)?"
LABEL = "DOCA-HOST*"
"""The label of DOCA's repositories."""


class Release(NamedTuple):
    """One release of the vendor's stack."""

    doca: str
    ofed: str
    kernels: Mapping[str, tuple[str, str]]
    """System, as NVIDIA names it -> the first and the last kernel series; of ``rhel``, the minor releases."""


def _release(doca: str, ofed: str, **kernels: tuple[str, str]) -> Release:
    return Release(doca, ofed, {name.replace("_", "."): ends for name, ends in kernels.items()})


_JAMMY = ("5.15", "6.8")

RELEASES = (
    _release("2.9.0", "24.10", debian12=("6.1", "6.1"), ubuntu22_04=_JAMMY, ubuntu24_04=("6.8", "6.8")),
    _release("2.9.3", "24.10", ubuntu22_04=_JAMMY, ubuntu24_04=("6.8", "6.11")),
    _release("3.0.0", "25.04", ubuntu22_04=_JAMMY, ubuntu24_04=("6.8", "6.11")),
    _release("3.1.0", "25.07", ubuntu22_04=_JAMMY, ubuntu24_04=("6.8", "6.14")),
    _release(
        "3.2.0",
        "25.10",
        ubuntu22_04=_JAMMY,
        ubuntu24_04=("6.8", "6.17"),
        rhel8=("8.10", "8.10"),
        rhel9=("9.4", "9.6"),
        rhel10=("10.0", "10.0"),
    ),
    _release(
        "3.2.3",
        "25.10",
        ubuntu22_04=_JAMMY,
        ubuntu24_04=("6.8", "6.17"),
        rhel8=("8.10", "8.10"),
        rhel9=("9.4", "9.8"),
        rhel10=("10.0", "10.2"),
    ),
    _release(
        "3.3.0",
        "26.01",
        ubuntu22_04=_JAMMY,
        ubuntu24_04=("6.8", "7.0"),
        rhel8=("8.10", "8.10"),
        rhel9=("9.4", "9.6"),
        rhel10=("10.0", "10.0"),
    ),
    _release(
        "3.4.0",
        "26.04",
        ubuntu22_04=_JAMMY,
        ubuntu24_04=("6.8", "7.0"),
        rhel8=("8.10", "8.10"),
        rhel9=("9.4", "9.6"),
        rhel10=("10.0", "10.0"),
    ),
    _release(
        "3.5.0",
        "26.07",
        ubuntu22_04=_JAMMY,
        ubuntu24_04=("6.8", "7.0"),
        rhel8=("8.10", "8.10"),
        rhel9=("9.4", "9.8"),
        rhel10=("10.0", "10.2"),
    ),
    _release(
        "3.6.0",
        "26.10",
        ubuntu22_04=_JAMMY,
        ubuntu24_04=("6.8", "7.0"),
        rhel8=("8.10", "8.10"),
        rhel9=("9.4", "9.8"),
        rhel10=("10.0", "10.2"),
    ),
)
"""Oldest first. A release that is not in the table has the kernels of the newest one before it with the same first two
numbers."""


class Refusal(NamedTuple):
    """Why a node does not get the requested stack."""

    variable: str
    problem: str
    remedy: str


class Choice(NamedTuple):
    """The RDMA stack of a node."""

    profile: str = ""
    """The package that requires all others."""
    version: str = ""
    repository: str = ""
    packages: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    """Packages that are installed if a repository has them: headers, unless the inventory lists kernels."""
    refusal: Refusal | None = None


def is_vendor(source: object) -> bool:
    """Return whether a source is the vendor's stack."""
    return source in VENDOR_SOURCES


def release_of(source: str, version: str, system: str) -> Release | None:
    """Return the row of a release of DOCA, or of MLNX_OFED by its OFED version; None if there is none."""
    numbers = _numbers(version)
    if source == "mlnx_ofed":
        rows = [row for row in RELEASES if _numbers(row.ofed) == numbers[:2] and system in row.kernels]
    else:
        rows = [row for row in RELEASES if _numbers(row.doca)[:2] == numbers[:2] and _numbers(row.doca) <= numbers]
    return rows[-1] if rows else None


def series_of(kernel: str, system: str) -> str:
    """Return what a table compares of a kernel: its series, or the minor release of ``rhel``; empty if unknown."""
    is_rhel = system.startswith("rhel")
    match = re.search(r"\.el([0-9]+)_([0-9]+)\b", kernel) if is_rhel else re.match(r"([0-9]+)\.([0-9]+)", kernel)
    return f"{match[1]}.{match[2]}" if match else ""


def supports(release: Release, system: str, kernel: str) -> bool:
    """Return whether a release supports a kernel: it is neither older nor newer than those in its row."""
    first, last = release.kernels.get(system, ("", ""))
    series = series_of(kernel, system)
    return bool(first and series) and _numbers(first) <= _numbers(series) <= _numbers(last)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", text)[:3])


def entry_of(source: str, system: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entry of a source in a system's table, empty if it has none."""
    entry: Mapping[str, Any] = system.get("__platform_rdma_stack", {}).get(source) or {}
    return entry


def system_refusal(settings: Mapping[str, Any], system: Mapping[str, Any]) -> Refusal | None:
    """Return why the node's system has no such stack.

    Args:
        settings: source, profile, version and kernels.
        system: the variables of the node's system (``roles/platform/vars``).
    """
    source, title = settings["source"], str(system.get("__platform_title"))
    entry = entry_of(source, system)
    if not entry:
        others = ", ".join(sorted([DISTRIBUTION, *system.get("__platform_rdma_stack", {})]))
        problem = f"{title} has no entry for the RDMA stack {source}"
        return Refusal("rdma_stack_source", problem, f"Use one of {others}, or install it yourself and set `present`.")
    version, profile = settings["version"] or entry["version"], settings["profile"]
    is_doca = source == "doca"
    is_release = re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", version) if is_doca else re.fullmatch(_OFED_VERSION, version)
    if not is_release:
        example = "3.2.2" if is_doca else "24.10-3.2.5.0"
        return Refusal("rdma_stack_version", f"{version!r} is not a release", f"Use a release such as {example}.")
    if profile and not re.fullmatch(r"(doca|mlnx-ofed)-[a-z0-9-]{1,40}", profile):
        return Refusal("rdma_stack_profile", f"{profile!r} is not a profile", f"Use {entry['profile']}, or remove it.")
    wrong = [name for name in settings.get("kernels") or () if not is_kernel(name)]
    problem = f"{wrong[0]!r} is not the release of a kernel" if wrong else ""
    return Refusal("rdma_stack_kernels", problem, "Use releases as `uname -r` prints them.") if wrong else None


def is_kernel(name: object) -> bool:
    """Return whether a value can be the release of a kernel, such as ``6.1.0-50-amd64``."""
    return isinstance(name, str) and bool(re.fullmatch(r"[0-9][A-Za-z0-9.+~_-]{0,63}", name))


def kernel_refusal(settings: Mapping[str, Any], system: Mapping[str, Any], kernels: Iterable[str]) -> Refusal | None:
    """Return why the stack does not support one of these kernels.

    Args:
        settings: source and version; ``checks_kernel`` if the table is used.
        system: the variables of the node's system, in which the source has an entry.
        kernels: releases of kernels.
    """
    if not settings.get("checks_kernel", True):
        return None
    source, entry = settings["source"], entry_of(settings["source"], system)
    name, title, version = entry["system"], system.get("__platform_title"), settings["version"] or entry["version"]
    words = "DOCA" if source == "doca" else "MLNX_OFED"
    release = release_of(source, version, name)
    for kernel in kernels:
        if release and supports(release, name, kernel):
            continue
        ends = release.kernels.get(name) if release else None
        what = "to support the releases" if name.startswith("rhel") else "to support the kernels"
        known = f"known {what} {ends[0]} to {ends[1]} of {title}" if ends else f"in no table for {title}"
        if ends and ends[0] == ends[1]:
            known = f"known {what} {ends[0]} of {title}"
        others = [row.doca for row in RELEASES if source == "doca" and supports(row, name, kernel)]
        better = f"Set rdma_stack_version to a release for this kernel ({', '.join(others)}). Or b" if others else "B"
        return Refusal(
            "rdma_stack_version",
            f"{words} {version} is {known}, and the kernel is {kernel}",
            f"{better}oot a kernel that it supports. If you have tested this kernel, set "
            "rdma_stack_kernel_check_enabled: false.",
        )
    return None


def choose(
    settings: Mapping[str, Any], system: Mapping[str, Any], kernels: Sequence[str], installed: Iterable[str]
) -> Choice:
    """Return the vendor's stack for a node, or why it gets none.

    Args:
        settings: source, profile, version, kernels and checks_kernel of the inventory.
        system: the variables of the node's system (``roles/platform/vars``).
        kernels: releases of the kernels that the modules are built for; those of the inventory, or the running one.
        installed: names of the installed packages.
    """
    refusal = system_refusal(settings, system) or kernel_refusal(settings, system, kernels)
    if refusal:
        return Choice(refusal=refusal)
    entry = entry_of(settings["source"], system)
    version = settings["version"] or entry["version"]
    name, listed = system["__platform_headers_package"], settings.get("kernels") or ()
    headers = [name.replace("{kernel}", one) for one in kernels]
    follow = [headers for image, headers in system["__platform_headers_follow"].items() if image in installed]
    return Choice(
        settings["profile"] or entry["profile"],
        version,
        str(entry.get("repository", "")).replace("{version}", version),
        tuple(dict.fromkeys([settings["profile"] or entry["profile"], *(headers if listed else [])])),
        () if listed else tuple(dict.fromkeys([*headers, *follow])),
    )


def preferences(profile: str, version: str, repository: str, other_addresses: Iterable[str] = ()) -> str:
    """Return apt's preferences: the release of the profile, and no dkms of the vendor's repository.

    The distribution's dkms fits its kernels and the driver. The vendor's is excluded by the label of its repository,
    and by its host if no other repository is there: the copy of a site may have lost the label.

    Args:
        profile: the package that requires all others.
        version: its release; empty: any.
        repository: address of the vendor's repository.
        other_addresses: addresses of all other repositories.
    """
    host = urlsplit(repository).hostname
    others = {urlsplit(one).hostname for one in other_addresses}
    stanzas = [("dkms", f"release l={LABEL}", "-1")]
    if host and host not in others:
        stanzas.append(("dkms", f'origin "{host}"', "-1"))
    if version:
        stanzas.append((profile, f"version {version}*", "990"))
    texts = [f"Package: {name}\nPin: {pin}\nPin-Priority: {priority}\n" for name, pin, priority in stanzas]
    return "# Managed by provision (role rdma_stack).\n" + "\n".join(texts)


def _choice(
    settings: Mapping[str, Any], system: Mapping[str, Any], node: Mapping[str, Any], kernels: Sequence[str]
) -> dict[str, Any]:
    choice = choose(settings, system, kernels, node["packages"])
    return {**choice._asdict(), "refusal": (choice.refusal or Refusal("", "", ""))._asdict()}


class FilterModule:
    """Filters of the role rdma_stack."""

    def filters(self) -> dict[str, object]:
        """Return the filters by name."""
        return {"rdma_stack_choice": _choice, "rdma_stack_preferences": preferences}
