"""SIMULATED packages for what lab nodes cannot have: NVIDIA's driver and container toolkit, a vendor's RDMA stack.

Each is marked as SIMULATED in its description, in the output of its programs, and by a file with one line in
``/usr/share/provision/simulated``, which `verify` reads.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from provision.errors import LabError
from provision.lab.access import file_lock
from provision.lab.machines import Machine, load, names, to_json
from provision.lab.marks import mark
from provision.lab.package_managers import APT, DNF, PackageManager
from provision.lab.services import deb_packages, rpm_packages
from provision.lab.services.kernel import doca_stand_ins, kernel_headers, kernel_stand_ins
from provision.lab.services.stand_in import StandIn
from provision.lab.systems import LabSystem
from provision.resources import package_path

MACHINE_FILE = "/etc/provision-lab/machine.json"
"""The data file of the simulated nvidia-smi on a node."""

TOOLKIT_VERSION = "1.18.2~simulated"
_DOCKER2_VERSION = "2.14.0~simulated"
_MLNX_TOOLS_VERSION = "24.10~simulated"
_SMI_VERSION = "1.0~simulated"
_DEVICES_UNIT = "/usr/lib/systemd/system/provision-lab-gpus.service"
_DEVICES_PROGRAM = "/usr/lib/provision-lab/make-gpu-devices"
_SYSTEMCTL = "systemctl {} provision-lab-gpus.service >/dev/null 2>&1 || :"
_DEVICES_SCRIPTS = {
    "postinst": f"#!/bin/sh\nset -e\n{_DEVICES_PROGRAM}\n{_SYSTEMCTL.format('enable')}\n",
    "prerm": f"#!/bin/sh\n{_SYSTEMCTL.format('disable')}\n{_DEVICES_PROGRAM} remove\n",
}
_FILES = package_path("lab", "files")
_EPOCH = 1704067200  # the newest modification time of files, so that equal recipes give equal packages


_BUILDERS: Mapping[PackageManager, ModuleType] = {APT: deb_packages, DNF: rpm_packages}
"""Package manager -> the module that builds its packages."""


def build_packages(cache: Path, manager: PackageManager = APT) -> list[Path]:
    """Return the files of all stand-ins for a package manager, built unless cached.

    Raises:
        LabError: the program that builds them is missing or failed.
    """
    return _built(cache / ("packages" if manager is APT else f"packages-{manager.name}"), stand_ins(manager), manager)


def build_doca_packages(cache: Path, manager: PackageManager = APT) -> list[Path]:
    """Return the files of the stand-ins for DOCA, built unless cached. They are in a repository of their own.

    Raises:
        LabError: the program that builds them is missing or failed.
    """
    return _built(cache / f"packages-doca-{manager.name}", doca_stand_ins(manager), manager)


def _built(parent: Path, packages: list[StandIn], manager: PackageManager) -> list[Path]:
    builder = _BUILDERS[manager]
    names = [file_name(package, manager) for package in packages]
    recipe = json.dumps([asdict(package) for package in packages], sort_keys=True, default=dict)
    recipe += "" if manager is APT else Path(str(builder.__file__)).read_text(encoding="utf-8")
    folder = parent / hashlib.sha256(f"{_EPOCH}{recipe}".encode()).hexdigest()[:16]
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not folder.exists():
        with file_lock(parent / ".lock"):
            if not folder.exists():
                _build_all(packages, folder, builder)
    return [folder / name for name in names]


def file_name(package: StandIn, manager: PackageManager) -> str:
    """Return the name of a stand-in's file for a package manager."""
    return package.file_name if manager is APT else rpm_packages.file_name(package)


def stand_ins(manager: PackageManager = APT) -> list[StandIn]:
    """Return all stand-ins of the lab: the tools, and one package for each described machine.

    Kernel modules exist only for apt: a kernel is in virtual machines, and these have systems with apt. For dnf there
    are headers of a kernel.
    """
    return [
        *_toolkit_stand_ins(),
        StandIn(
            "nvidia-smi-simulated",
            _SMI_VERSION,
            "nvidia-smi for a described machine",
            {
                "/usr/bin/nvidia-smi": smi_program(),
                **mark("nvidia-smi", "nvidia-smi and the driver: they describe a machine of the lab, there is no GPU"),
            },
            {"Depends": "python3", "Provides": "nvidia-smi", "Conflicts": "nvidia-smi"},
        ),
        StandIn(
            "mlnx-tools",
            _MLNX_TOOLS_VERSION,
            "mlnx_qos for interfaces without such a card",
            {
                "/usr/bin/mlnx_qos": _source("mlnx_qos.py"),
                **mark("mlnx-tools", "mlnx_qos: it stores trust and PFC of an interface, no card has them"),
            },
            {"Depends": "python3"},
        ),
        *(kernel_stand_ins() if manager is APT else [kernel_headers()]),
        *(_machine_package(load(name)) for name in names()),
    ]


def _toolkit_stand_ins() -> list[StandIn]:
    """Return the packages of the NVIDIA Container Toolkit."""
    same = f"(= {TOOLKIT_VERSION})"
    return [
        StandIn(
            "nvidia-container-toolkit",
            TOOLKIT_VERSION,
            "hook that lets docker run --gpus work",
            {
                "/usr/bin/nvidia-container-runtime-hook": _source("nvidia_container_runtime_hook.py"),
                **mark("nvidia-container-toolkit", "NVIDIA Container Toolkit: no GPU device reaches a container"),
            },
            {"Depends": f"nvidia-container-toolkit-base {same}, libnvidia-container-tools {same}, python3"},
        ),
        StandIn(
            "nvidia-container-toolkit-base",
            TOOLKIT_VERSION,
            "nvidia-ctk and the container runtime",
            {
                "/usr/bin/nvidia-ctk": _source("nvidia_ctk.py"),
                "/usr/bin/nvidia-container-runtime": _source("nvidia_container_runtime.py"),
                **mark("nvidia-container-toolkit-base", "NVIDIA Container Toolkit: nvidia-ctk and the runtime"),
            },
            {"Depends": "python3"},
        ),
        StandIn(
            "libnvidia-container-tools",
            TOOLKIT_VERSION,
            "nvidia-container-cli",
            {
                "/usr/bin/nvidia-container-cli": _source("nvidia_container_cli.py"),
                **mark("libnvidia-container-tools", "nvidia-container-cli"),
            },
            {"Depends": f"libnvidia-container1 {same}, python3"},
        ),
        StandIn(
            "libnvidia-container1",
            TOOLKIT_VERSION,
            "nothing, but the real toolkit has it",
            mark("libnvidia-container1", "NVIDIA's container library: empty here"),
        ),
        StandIn(
            "nvidia-docker2",
            _DOCKER2_VERSION,
            "nothing: it only asks for the toolkit",
            mark("nvidia-docker2", "the old name of the NVIDIA Container Toolkit: an empty package"),
            {"Depends": "nvidia-container-toolkit"},
        ),
    ]


def machine_files(machine: Machine) -> dict[str, str]:
    """Return the files for a simulated nvidia-smi of `machine`: path -> content."""
    return {
        MACHINE_FILE: to_json(machine),
        _DEVICES_UNIT: _source("provision-lab-gpus.service"),
        _DEVICES_PROGRAM: _source("make_gpu_devices.py"),
        **mark("gpus", f"the GPUs: {machine.name}, {machine.description}"),
    }


def machine_package_name(machine: str) -> str:
    """Return the name of the package with the simulated hardware of `machine`."""
    return f"provision-lab-machine-{machine}"


def simulated_things(machine: str | None, systems: Sequence[LabSystem] = ()) -> list[str]:
    """Return the SIMULATED parts of a lab with this machine and these systems, as sentences."""
    identities = list(dict.fromkeys(system.simulated for system in systems if system.simulated))
    toolkit = "the NVIDIA Container Toolkit (stand-in packages: --gpus works, no GPU device reaches a container)"
    if machine is None:
        return [*identities, toolkit]
    described = load(machine)
    return [
        *identities,
        f"the GPUs and their driver (stand-in nvidia-smi that describes {described.name}: {described.description})",
        toolkit,
        "the RDMA stack, the GPU driver's modules and nv_peer_mem, where they are installed (stand-ins; real modules)",
    ]


def smi_program() -> str:
    """Return the simulated nvidia-smi: a script with cached answers, followed by the program that computes them."""
    return _source("nvidia_smi.sh") + _source("nvidia_smi.py")


def _machine_package(machine: Machine) -> StandIn:
    others = {
        "Provides": "provision-lab-machine",
        "Conflicts": "provision-lab-machine",
        "Depends": "nvidia-smi-simulated",
    }
    name = machine_package_name(machine.name)
    return StandIn(name, _SMI_VERSION, machine.description, machine_files(machine), others, _DEVICES_SCRIPTS)


def _source(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8").replace("@VERSION@", TOOLKIT_VERSION)


def _build_all(packages: list[StandIn], folder: Path, builder: ModuleType) -> None:
    if shutil.which(builder.PROGRAM) is None:
        raise LabError(
            f"{builder.PROGRAM} is not installed; it is required for the lab's packages",
            remedy=f"Run: apt-get install --no-install-recommends {builder.PACKAGE}",
        )
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder.parent) as name:
        made = Path(name) / "made"
        made.mkdir()
        for package in packages:
            tree = Path(name) / package.file_name
            _write_tree(package, tree)
            builder.build(package, tree, made, _EPOCH)
        made.rename(folder)
    for old in folder.parent.iterdir():
        if old.is_dir() and old != folder:
            shutil.rmtree(old, ignore_errors=True)


def _write_tree(package: StandIn, tree: Path) -> None:
    """Write the files of a package below a folder."""
    tree.mkdir()
    for path, text in package.files.items():
        file = tree / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755 if "/bin/" in path or text.startswith("#!") else 0o644)
    for folder in (tree, *(path for path in tree.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
