"""SIMULATED packages for what lab nodes cannot have: NVIDIA's driver and container toolkit, a vendor's RDMA stack.

Each is marked as SIMULATED in its description, in the output of its programs, and by a file with one line in
``/usr/share/provision/simulated``, which `verify` reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from provision.errors import LabError
from provision.lab.access import file_lock
from provision.lab.machines import Machine, load, names, to_json
from provision.lab.marks import mark
from provision.lab.services.kernel import kernel_stand_ins
from provision.lab.services.stand_in import StandIn
from provision.lab.systems import LabSystem
from provision.resources import package_path

MACHINE_FILE = "/etc/provision-lab/machine.json"
"""The data file of the simulated nvidia-smi on a node."""

TOOLKIT_VERSION = "1.18.2~simulated"
_DOCKER2_VERSION = "2.14.0~simulated"
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


def build_packages(cache: Path) -> list[Path]:
    """Return the .deb files of all stand-ins, built unless cached.

    Raises:
        LabError: dpkg-deb is missing or failed.
    """
    packages = stand_ins()
    recipe = json.dumps([asdict(package) for package in packages], sort_keys=True, default=dict)
    folder = cache / "packages" / hashlib.sha256(f"{_EPOCH}{recipe}".encode()).hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not folder.exists():
        with file_lock(folder.parent / ".lock"):
            if not folder.exists():
                _build_all(packages, folder)
    return [folder / package.file_name for package in packages]


def stand_ins() -> list[StandIn]:
    """Return all stand-ins of the lab: the tools, and one package for each described machine."""
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
        *kernel_stand_ins(),
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


def _build_all(packages: list[StandIn], folder: Path) -> None:
    if shutil.which("dpkg-deb") is None:
        raise LabError("dpkg-deb is not installed; it is required for the lab's packages", remedy="Use Debian.")
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder.parent) as name:
        made = Path(name) / "made"
        made.mkdir()
        for package in packages:
            _build(package, Path(name) / package.file_name, made)
        made.rename(folder)
    for old in folder.parent.iterdir():
        if old.is_dir() and old != folder:
            shutil.rmtree(old, ignore_errors=True)


def _build(package: StandIn, tree: Path, target: Path) -> None:
    for path, text in package.files.items():
        file = tree / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755 if "/bin/" in path or text.startswith("#!") else 0o644)
    control = tree / "DEBIAN"
    control.mkdir()
    for name, text in {"control": _control(package), **package.scripts}.items():
        (control / name).write_text(text, encoding="utf-8")
        (control / name).chmod(0o644 if name == "control" else 0o755)
    for folder in (tree, *(path for path in tree.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    done = subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", str(tree), str(target / package.file_name)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(_EPOCH)},
    )
    if done.returncode:
        raise LabError(f"dpkg-deb failed for the SIMULATED package {package.name}", output=done.stderr)


def _control(package: StandIn) -> str:
    values = {
        "Package": package.name,
        "Version": package.version,
        "Architecture": "all",
        "Maintainer": "provision lab <root@localhost>",
        "Section": "misc",
        "Priority": "optional",
        **package.fields,
        "Description": f"SIMULATED: {package.summary}\n A stand-in of a provision lab; nothing of NVIDIA's is in it.",
    }
    return "".join(f"{name}: {value}\n" for name, value in values.items())
