"""SIMULATED packages: their names, their marks, and that they are built once."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from provision.lab.machines import names
from provision.lab.services.packages import build_packages, simulated_things, stand_ins
from provision.lab.systems import lab_system

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")


@pytest.mark.parametrize("package", stand_ins(), ids=lambda package: package.file_name)
def test_every_simulated_package_has_a_mark_for_verify(package):
    """Each package has a line in the folder from which `verify` reads what is SIMULATED."""
    marks = [text for path, text in package.files.items() if path.startswith("/usr/share/provision/simulated/")]

    assert len(marks) == 1
    assert marks[0].count("\n") == 1
    assert "~simulated" in package.version


def test_every_machine_has_a_package():
    """Whatever `--machine` takes can be installed on a node."""
    assert {f"provision-lab-machine-{name}" for name in names()} <= {package.name for package in stand_ins()}


def test_the_toolkit_depends_on_its_exact_parts():
    """Like the real one, the toolkit pins its four packages to one version."""
    packages = {package.name: package for package in stand_ins()}
    version = packages["nvidia-container-toolkit"].version

    assert f"nvidia-container-toolkit-base (= {version})" in packages["nvidia-container-toolkit"].fields["Depends"]
    assert packages["nvidia-container-toolkit-base"].version == version
    assert packages["libnvidia-container1"].version == version


@needs_dpkg
def test_packages_are_built_once_and_described(tmp_path):
    """A second call builds nothing, and dpkg shows the word SIMULATED."""
    first = build_packages(tmp_path)
    times = [path.stat().st_mtime_ns for path in first]

    again = build_packages(tmp_path)

    assert (again, [path.stat().st_mtime_ns for path in again]) == (first, times)
    for path in first:
        described = subprocess.run(["dpkg-deb", "-f", path, "Description"], capture_output=True, text=True, check=True)
        assert described.stdout.startswith("SIMULATED: ")


def test_a_lab_without_gpus_simulates_no_gpus():
    """The demo's summary names GPUs only where a machine was chosen."""
    assert not any("GPUs and their driver" in thing for thing in simulated_things(None))
    assert any("dgx1v" in thing for thing in simulated_things("dgx1v"))


@pytest.mark.parametrize(("python", "expected"), [("/opt/python3.6", False), ("", True)])
def test_a_system_without_its_python_says_so(monkeypatch, python, expected):
    """Programs on its nodes run on another version than those of the system."""
    monkeypatch.setattr("provision.lab.systems.python_program", lambda _: python)
    [text, _] = simulated_things(None, [lab_system("el8")])

    assert text.startswith("Enterprise Linux 8: dnf and rpm over the files of Debian 11 with the os-release of")
    assert text.endswith("; without Python 3.6") is expected


def test_a_simulated_system_is_named_once_for_all_its_nodes():
    """Real systems are not."""
    systems = [lab_system(name) for name in ("debian12", "ubuntu24", "ubuntu24")]

    assert [thing for thing in simulated_things("pair", systems) if "os-release" in thing] == [
        "Ubuntu 24.04 LTS: the files of Debian 13 with the os-release of Ubuntu 24.04 LTS"
    ]
