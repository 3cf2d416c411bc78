"""Signed rpm repositories of the lab, and what nodes and inventories need to use them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.errors import LabError
from provision.lab.base import LabSpec, Progress
from provision.lab.container_image import ensure_packages
from provision.lab.el_image import SYSTEM_PACKAGES, VENDOR_PACKAGES
from provision.lab.package_managers import DNF
from provision.lab.services.gpg import Gpg, run_program
from provision.lab.services.kernel import DOCA_VERSION
from provision.lab.services.packages import build_doca_packages, build_packages
from provision.lab.systems import LabSystem

PROGRAMS = {"createrepo_c": "createrepo-c", "rpmsign": "rpm", "rpmbuild": "rpm"}
KEY_FILE = "/etc/pki/rpm-gpg/RPM-GPG-KEY-lab"
SOURCE_FILE = "/etc/yum.repos.d/lab.repo"
NVIDIA_PATH = "libnvidia-container/stable/rpm/x86_64"
"""The stand-ins for the NVIDIA Container Toolkit, with the layout of NVIDIA's repository."""

_TOP = "rpm"
_DOCKER = f"{_TOP}/docker"
_STAND_INS = f"{_TOP}/stand-ins"
_NVIDIA_PACKAGES = ("nvidia-container-toolkit", "libnvidia-container", "nvidia-docker2")


@dataclass(frozen=True)
class Content:
    """The packages of one repository."""

    packages: tuple[Path, ...]
    signs_packages: bool = True
    """Whether packages are signed, not only the index."""


def contents(spec: LabSpec, cache: Path, progress: Progress) -> dict[str, Content]:
    """Return path below the repository's URL -> its packages, for the systems of a lab that have rpm."""
    systems = {system.name: system for system in spec.systems if system.manager is DNF}
    if not systems:
        return {}
    stand_ins = tuple(build_packages(cache, DNF))
    toolkit = tuple(path for path in stand_ins if path.name.startswith(_NVIDIA_PACKAGES))
    made = {_STAND_INS: Content(stand_ins), NVIDIA_PATH: Content(toolkit, signs_packages=False)}
    doca = Content(tuple(build_doca_packages(cache, DNF)))
    for system in systems.values():
        made[doca_path(system)] = doca
        folder = ensure_packages(system, cache, progress)
        made[_system_path(system)] = Content(tuple(sorted((folder / SYSTEM_PACKAGES).glob("*.rpm"))))
        made[_docker_path(system)] = Content(tuple(sorted((folder / VENDOR_PACKAGES).glob("*.rpm"))))
    return made


def build(folder: Path, content: Content, gpg: Gpg) -> None:
    """Build a repository in `folder`."""
    folder.mkdir(parents=True)
    copies = [folder / path.name for path in content.packages]
    for source, copy in zip(content.packages, copies, strict=True):
        shutil.copyfile(source, copy)
    if content.signs_packages and copies:
        run_program(["rpmsign", "--addsign", *gpg.rpm_macros(), *map(str, copies)])
    run_program(["createrepo_c", "--quiet", "--no-database", "--general-compress-type=gz", str(folder)])
    gpg.run(["--armor", "--detach-sign", str(folder / "repodata/repomd.xml")])


def node_files(system: LabSystem, url: str, key: str) -> dict[str, str]:
    """Return the files with which nodes use the system's own repository: path -> content; none without rpm."""
    if system.manager is not DNF:
        return {}
    pairs = {
        "name": f"{system.title} (SIMULATED)",
        "baseurl": f"{url}/{_system_path(system)}",
        "enabled": "1",
        "gpgcheck": "1",
        "repo_gpgcheck": "1",
        "gpgkey": f"file://{KEY_FILE}",
    }
    return {SOURCE_FILE: "".join(["[lab]\n", *(f"{name}={value}\n" for name, value in pairs.items())]), KEY_FILE: key}


def variables(system: LabSystem, url: str, key: str) -> Mapping[str, Any]:
    """Return the variables of a node with the system in the lab's inventory."""
    if system.manager is not DNF:
        return {}
    python = {"ansible_python_interpreter": "/usr/libexec/platform-python"} if system.python else {}
    entry = {"name": "provision-lab", "uris": f"{url}/{_STAND_INS}", "suites": "/", "key": key}
    return {
        **python,
        "platform_extra_repositories": [entry],
        "docker_engine_source": "docker",
        "docker_engine_repository_uri": f"{url}/{_DOCKER}",
        "docker_engine_repository_key": key,
    }


def require_programs(systems: Sequence[LabSystem]) -> None:
    """Check that this machine can make the repositories of these systems.

    Raises:
        LabError: a program is missing.
    """
    missing = {name: package for name, package in PROGRAMS.items() if not shutil.which(name)}
    needing = [system.name for system in systems if system.manager is DNF]
    if missing and needing:
        raise LabError(
            f"{', '.join(missing)} not installed; required for the packages of {', '.join(needing)}",
            remedy=f"Run: apt-get install --no-install-recommends {' '.join(sorted(set(missing.values())))}",
        )


def _system_path(system: LabSystem) -> str:
    return f"{_TOP}/{system.name}"


def doca_path(system: LabSystem) -> str:
    """Return the path of the stand-ins for DOCA, with the layout of NVIDIA's repository."""
    major = system.rpm.major if system.rpm else ""
    return f"doca/{DOCA_VERSION[DNF]}/rhel{major}/x86_64"


def _docker_path(system: LabSystem) -> str:
    """Return the path of Docker's repository, whose layout is that of the real one."""
    major = system.rpm.major if system.rpm else ""
    return f"{_DOCKER}/{major}/x86_64/stable"
