"""Node images of SIMULATED Enterprise Linux: real dnf and rpm over the files of a Debian release.

mmdebstrap makes the files. Then ``files/el_node.py``, a program that runs in the new system, builds SIMULATED packages
of Enterprise Linux from packages of Debian, puts those that the node has into rpm's database, and removes apt and dpkg.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from provision.lab import python_bundle
from provision.lab.el_packages import IN_EVERY_NODE, PACKAGES, UNUSED_DEBS
from provision.lab.systems import LabSystem, Rpm
from provision.resources import package_path

OPTIONS = ("--skip=cleanup/apt", "--skip=cleanup/mmdebstrap")
"""mmdebstrap cannot clean up after apt once apt is removed; the program does."""
SYSTEM_PACKAGES, VENDOR_PACKAGES = "system", "vendor"
"""Folders of the built packages: those of the system's own repository, and those of vendors."""

_WORK = "/var/tmp/lab-el"  # noqa: S108 # nosec B108 # in the new system, which has no other users
_PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAM = package_path("lab", "files", "el_node.py")
_MACROS = """\
%_dbpath {database}
%dist .el{major}
%rhel {major}
%el{major} 1
%__gpg /usr/bin/gpg
"""
_DNF_CONF = """\
[main]
gpgcheck=1
installonly_limit=3
clean_requirements_on_remove=True
best=True
skip_if_unavailable=False
"""
_PRESETS = """\
enable dbus.*
enable getty@.service
enable sshd.service
enable systemd-*
disable *
"""


def files(system: LabSystem) -> dict[str, str]:
    """Return the files of a node that its package manager reads, and those that name the release: path -> content."""
    rpm = _rpm(system)
    release = f"Enterprise Linux release {rpm.release} (SIMULATED: files of {system.files_of})\n"
    return {
        "/etc/rpm/macros": _MACROS.format(database=rpm.database, major=rpm.major),
        "/etc/dnf/dnf.conf": _DNF_CONF,
        "/etc/redhat-release": release,
        "/etc/system-release": release,
        "/usr/lib/systemd/system-preset/90-lab.preset": _PRESETS,
    }


def description(system: LabSystem) -> dict[str, Any]:
    """Return the input of the program in the new system."""
    rpm = _rpm(system)
    return {
        "title": system.title,
        "files_of": system.files_of,
        "major": rpm.major,
        "database": rpm.database,
        "packages": [asdict(package) for package in PACKAGES],
        "unused_debs": UNUSED_DEBS,
        "in_every_node": IN_EVERY_NODE,
        "python": python_bundle.folder_on_nodes(rpm.python) if system.python else "",
        "vendor_folder": VENDOR_PACKAGES,
        "system_folder": SYSTEM_PACKAGES,
    }


def recipe(system: LabSystem) -> list[object]:
    """Return what determines the image beyond mmdebstrap's packages and the files of `files`."""
    program = _PROGRAM.read_text(encoding="utf-8")
    return [program, description(system), Path(system.python).parts[-3:]]


def hooks(system: LabSystem, scratch: Path, built: Path) -> Iterator[str]:
    """Yield mmdebstrap's hooks that run the program and copy the built packages into the folder `built`."""
    built.mkdir(exist_ok=True)
    plan = scratch / "el_node.json"
    plan.write_text(json.dumps(description(system)), encoding="utf-8")
    if system.python:
        archive = scratch / "python.tar"
        python_bundle.pack(system.python, _rpm(system).python, archive)
        yield f"--customize-hook=tar-in {archive} /"
    yield f'--customize-hook=mkdir -p "$1"{_WORK}'
    yield f"--customize-hook=upload {_PROGRAM} {_WORK}/el_node.py"
    yield f"--customize-hook=upload {plan} {_WORK}/el_node.json"
    yield f'--customize-hook=chroot "$1" /usr/bin/env {_PATH} python3 -I {_WORK}/el_node.py {_WORK}/el_node.json'
    yield f"--customize-hook=copy-out {_WORK}/{SYSTEM_PACKAGES} {_WORK}/{VENDOR_PACKAGES} {built}"
    yield f'--customize-hook=rm -rf "$1"{_WORK}'


def _rpm(system: LabSystem) -> Rpm:
    if system.rpm is None:
        raise TypeError(f"{system.name} has no rpm")
    return system.rpm
