"""The driver of a node as the probe reads it; the words are those of the real programs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from provision.facts import RawOutput
from provision.facts.gpu import GpusFact
from provision.facts.nvidia_driver import DkmsTree, NvidiaDevice, NvidiaDriver, NvidiaDriverFact

SMI = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n"
)
"""What nvidia-smi 535.261.03 prints on a machine without a GPU; it exits with 9."""


def parsed(text: str) -> NvidiaDriver:
    """Return what the probe makes of an output."""
    return NvidiaDriverFact().parse(RawOutput(text, 0))


def test_devices_builds_daemon_and_messages_are_read() -> None:
    """A node whose build failed."""
    driver = parsed(
        "device=0000:17:00.0 0x20b2 0x030200\n"
        "device=0000:c3:00.0 0x1af1 0x068000\n"
        "tree=nvidia-current-open 535.261.03 no\n"
        "make=nv.c:1: error: implicit declaration of function 'x'\n"
        "make=make[2]: *** [nv.o] Error 1\n"
        "tree=nvidia 550.90.07 yes\n"
        "blocked=yes\nActiveState=failed\nUnitFileState=enabled\nimex=active\nimex_recorded=yes\n"
        "gsp=550.90.07\ngsp=550.90.07\ngsp=$(rm)\n"
        "kernel=[   12.3] NVRM: No NVIDIA GPU found.\n"
    )

    assert driver.gpus == (NvidiaDevice("0000:17:00.0", "20b2"),)
    assert driver.switches == (NvidiaDevice("0000:c3:00.0", "1af1"),)
    assert driver.trees == (
        DkmsTree(
            "nvidia-current-open",
            "535.261.03",
            built=False,
            errors=("nv.c:1: error: implicit declaration of function 'x'", "make[2]: *** [nv.o] Error 1"),
        ),
        DkmsTree("nvidia", "550.90.07", built=True),
    )
    assert (driver.nouveau_blocked, driver.persistence, driver.persistence_enabled) == (True, "failed", True)
    assert (driver.imex, driver.imex_recorded, driver.gsp) == ("active", True, ("550.90.07",))
    assert driver.messages == ("[   12.3] NVRM: No NVIDIA GPU found.",)


@pytest.mark.parametrize(
    ("state", "enabled"), [("enabled", True), ("static", True), ("disabled", False), ("masked", False), ("", False)]
)
def test_a_unit_that_something_starts_is_enabled(state: str, enabled: bool) -> None:  # noqa: FBT001
    """udev starts Ubuntu's, which is static."""
    assert parsed(f"ActiveState=active\nUnitFileState={state}\n").persistence_enabled is enabled


def test_other_lines_and_endless_outputs_are_ignored() -> None:
    """A node cannot fill the memory of the controller, or pass anything but IDs on."""
    bad = "device=0000:17:00.0 0x20b2;rm 0x030200\ndevice=x 20b2 030200\ntree=a b\ntree=n v maybe\nmake=before a tree\n"
    long = "".join(f"make=error {number} {'x' * 1000}\n" for number in range(1000))
    driver = parsed(bad + "tree=nvidia 1 no\n" + long + "kernel=x\n" * 1000)

    assert driver.gpus == driver.switches == ()
    assert len(driver.trees) == 1
    assert len(driver.trees[0].errors) == len(driver.messages) == 20
    assert max(map(len, driver.trees[0].errors)) == 400


def test_the_command_runs_here() -> None:
    """It is valid shell, and a machine without driver has none."""
    done = subprocess.run(
        ["sh", "-c", NvidiaDriverFact.command],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PROBE_RELEASE": "0.0.0-none"},
    )

    assert done.stderr == ""
    assert isinstance(parsed(done.stdout), NvidiaDriver)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder in place of the root, with a failed build of DKMS."""
    build = tmp_path / "var/lib/dkms/nvidia-current-open/535.261.03/build"
    build.mkdir(parents=True)
    (build.parent / "source").mkdir()
    (build / "make.log").write_text(
        "DKMS make.log for nvidia-current-open-535.261.03 for kernel 6.1.0 (x86_64)\n"
        "   gcc-12 -Wp,-MMD,/build/nvidia/.nv.o.d -Wall -Werror=implicit-function-declaration -Werror=date-time nv.c\n"
        "#define NV_IS_EXPORT_SYMBOL_PRESENT_drm_error 0\n"
        "/build/nvidia/nv.c:12:5: error: too few arguments to function 'get_user_pages'\n"
        "make[2]: *** [/build/nvidia/nv.o] Error 1\n"
    )
    return tmp_path


def probed(root: Path) -> NvidiaDriver:
    """Run the command with another root."""
    command = NvidiaDriverFact.command
    for folder in ("/sys/", "/var/", "/etc/", "/run/", "/usr/lib/", "/lib/"):
        command = command.replace(f" {folder}", f" {root}{folder}").replace(f'"{folder}', f'"{root}{folder}')
    done = subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PROBE_RELEASE": "6.1.0"},
    )
    return parsed(done.stdout)


def test_a_failed_build_has_the_line_of_the_compiler(tree: Path) -> None:
    """A build for the running kernel ends that."""
    [failed] = probed(tree).trees
    assert (failed.name, failed.version, failed.built) == ("nvidia-current-open", "535.261.03", False)
    assert [line.partition("/build/nvidia/")[2] for line in failed.errors] == [
        "nv.c:12:5: error: too few arguments to function 'get_user_pages'",
        "nv.o] Error 1",
    ]

    modules = tree / "var/lib/dkms/nvidia-current-open/535.261.03/6.1.0/x86_64/module"
    modules.mkdir(parents=True)
    assert [one.built for one in probed(tree).trees] == [False]
    (modules / "nvidia-current-open.ko").touch()
    assert probed(tree).trees == (DkmsTree("nvidia-current-open", "535.261.03", built=True),)


def test_devices_on_the_bus_are_read_without_those_of_virtual_machines(tree: Path) -> None:
    """And nouveau is blocked by a line of modprobe.d."""
    for address, device, kind in (("0000:17:00.0", "0x20b2", "0x030200"), ("0000:c3:00.0", "0x1af1", "0x068000")):
        card = tree / "sys/bus/pci/devices" / address
        card.mkdir(parents=True)
        for name, text in (("vendor", "0x10de"), ("device", device), ("class", kind)):
            (card / name).write_text(f"{text}\n")
    (tree / "etc/modprobe.d").mkdir(parents=True)
    file = tree / "etc/modprobe.d/x.conf"
    file.write_text("# blacklist nouveau\nblacklist nouveau-like\n")

    assert probed(tree).gpus == (NvidiaDevice("0000:17:00.0", "20b2"),)
    assert not probed(tree).nouveau_blocked
    file.write_text("blacklist nouveau\n")
    assert probed(tree).nouveau_blocked
    (tree / "sys/bus/pci/drivers/vfio-pci/0000:17:00.0").mkdir(parents=True)
    assert probed(tree).gpus == ()
    assert [one.device for one in probed(tree).switches] == ["1af1"]


def test_the_file_of_the_role_is_read_without_device_and_build(tmp_path: Path) -> None:
    """Signed modules on a node whose GPUs are added later."""
    folder = tmp_path / "etc/modprobe.d"
    folder.mkdir(parents=True)
    (folder / "other.conf").write_text("blacklist nouveau\n")
    assert not probed(tmp_path).nouveau_blocked

    (folder / "provision-nvidia-driver.conf").write_text("blacklist nouveau\n")
    assert probed(tmp_path).nouveau_blocked


def gpus(tmp_path: Path, *, device: bool, marker: bool = False) -> object:
    """Return the GPUs of a node whose nvidia-smi does not reach the driver."""
    root, programs = tmp_path / "root", tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    (tmp_path / "words").write_text(SMI)
    (programs / "nvidia-smi").write_text(f"#!/bin/sh\ncat {tmp_path}/words\nexit 9\n")
    (programs / "nvidia-smi").chmod(0o755)
    card = root / "sys/bus/pci/devices/0000:17:00.0"
    card.mkdir(parents=True, exist_ok=True)
    (card / "vendor").write_text("0x10de\n" if device else "0x8086\n")
    (card / "class").write_text("0x030200\n")
    if marker:
        (root / "usr/share/provision/simulated").mkdir(parents=True)
        (root / "usr/share/provision/simulated/gpus").touch()
    command = GpusFact.command.replace(" /sys/", f" {root}/sys/").replace(" /usr/share/", f" {root}/usr/share/")
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, env=environment)
    return GpusFact().parse(RawOutput(done.stdout, done.returncode, done.stderr))


def test_a_driver_on_a_node_without_gpu_means_no_gpus(tmp_path: Path) -> None:
    """nvidia-smi fails there, which is no failure of a GPU."""
    assert gpus(tmp_path, device=False) == ()


def test_a_driver_that_does_not_answer_for_a_gpu_is_a_failure(tmp_path: Path) -> None:
    """Also for simulated GPUs, which are on no bus."""
    assert "couldn't communicate" in str(gpus(tmp_path, device=True))
    assert "couldn't communicate" in str(gpus(tmp_path, device=False, marker=True))
