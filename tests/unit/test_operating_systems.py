"""Each operating system that the roles support, with one row; CONTRIBUTING.md says what a new one takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from provision import workflow
from provision.checks.systems import nearest
from provision.facts.base import RawOutput
from provision.facts.system import SystemFact
from provision.inventory.role_files import systems
from provision.lab import container_image
from provision.lab.mirror import mirror_sources
from provision.lab.systems import lab_system, system_names
from provision.lab.vm_recipe import recipe_for
from provision.resources import roles_folder
from tests.support.modules import load


@dataclass(frozen=True)
class Row:
    """What is true of a system."""

    os_release: str
    """Of its /etc/os-release."""
    lab: str
    """Its name for ``lab up --distro``."""
    suite: str
    """Its release's name in apt."""


FOLDER = "roles/platform/vars"
ROWS = {
    "debian_12": Row('ID=debian\nVERSION_ID="12"\n', "debian12", "bookworm"),
    "debian_13": Row('ID=debian\nVERSION_ID="13"\n', "debian13", "trixie"),
}
"""Name of the file in `FOLDER` -> its row."""


@pytest.fixture(params=ROWS)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each system of a row; the controller uses a mirror of its archive."""
    name: str = request.param
    monkeypatch.setenv(lab_system(ROWS[name].lab).mirror_variable, "http://mirror.example/archive")
    return name


def system_of_the_role(os_release: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what the module of the shared role calls the system of an os-release file."""
    module = load("platform", "platform_node")
    monkeypatch.setattr(module, "text", lambda path: os_release if path == "/etc/os-release" else "")
    facts = module.os_release()
    return str(facts["system"])


def test_every_system_has_a_row() -> None:
    """A system without a row is not tested."""
    files, named = set(systems(roles_folder())), sorted(row.lab for row in ROWS.values())
    assert set(ROWS) == files, f"no row in ROWS: {files - set(ROWS)}; no file in {FOLDER}: {set(ROWS) - files}"
    assert named == system_names(), "the name for the lab is the file's name without the first underscore"


def test_nodes_with_the_system_are_supported(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan, apply and verify, and the role on the node, find the variables of the roles by os-release."""
    parsed = SystemFact().parse(RawOutput(f"{ROWS[system].os_release}probe_uname=6.1.0 x86_64\n", 0))

    assert parsed.variables == system
    assert parsed.name in workflow.supported_systems()
    assert system_of_the_role(ROWS[system].os_release, monkeypatch) == system


@pytest.mark.parametrize(
    ("os_release", "name"),
    [
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n', "ubuntu_24.04"),
        ("ID=debian\nVERSION_CODENAME=forky\n", "debian_forky"),
        ("ID='rocky'\nID_LIKE='rhel centos fedora'\nVERSION_ID='9.4'\n", "el_9"),
        ('ID="almalinux"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n', "el_9"),
        ('ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="9.4"\n', "el_9"),
        ('ID="ol"\nID_LIKE="fedora"\nVERSION_ID="8.10"\n', "el_8"),
        ('ID="centos"\nID_LIKE="rhel fedora"\nVERSION_ID="10"\n', "el_10"),
        ('ID="alinux"\nID_LIKE="rhel fedora centos anolis"\nVERSION_ID="3"\n', "alinux_3"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\nVERSION_ID="15.6"\n', "opensuse-leap_15.6"),
    ],
)
def test_the_probe_and_the_role_give_a_system_the_same_name(
    os_release: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a file of variables would be found by only one of them."""
    parsed = SystemFact().parse(RawOutput(os_release, 0))

    assert parsed.variables == name
    assert system_of_the_role(os_release, monkeypatch) == name


@pytest.mark.parametrize(
    ("os_release", "centos_release", "full_name"),
    [
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n', "", "rocky 9.4"),
        ('ID="centos"\nID_LIKE="rhel fedora"\nVERSION_ID="7"\n', "CentOS Linux release 7.6.1810 (Core)", "centos 7.6"),
        ('ID="centos"\nID_LIKE="rhel fedora"\nVERSION_ID="9"\n', "CentOS Stream release 9", "centos 9"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n', "Rocky Linux release 9.9", "rocky 9.4"),
        ('ID="centos"\nID_LIKE="rhel fedora"\nVERSION_ID="7"\n', "CentOS Linux release 8.2.2004", "centos 7"),
        ("ID=debian\nVERSION_ID=12\n", "", "debian 12"),
    ],
)
def test_the_minor_version_is_reported(os_release: str, centos_release: str, full_name: str) -> None:
    """CentOS 7 has it in a file of its own, which counts only if it does not contradict os-release."""
    parsed = SystemFact().parse(RawOutput(f"{os_release}probe_centos={centos_release}\n", 0))

    assert parsed.full_name == full_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("debian 11", "debian 12"),
        ("debian 14", "debian 13"),
        ("ubuntu 23.10", "ubuntu 24.04"),
        ("ubuntu 22.10", "ubuntu 22.04"),
        ("debian forky", "debian 12"),
        ("el 7", ""),
    ],
)
def test_the_nearest_supported_release_of_a_system(name: str, expected: str) -> None:
    """Of two as near the newer one, and none of another system."""
    assert nearest(name, ["debian 12", "debian 13", "ubuntu 22.04", "ubuntu 24.04"]) == expected


def test_the_lab_has_a_recipe_for_its_container_and_its_virtual_machine(system: str, tmp_path: Path) -> None:
    """Both come from the suite and the archive of the file; virtual machines have its kernel."""
    row = ROWS[system]
    lab = lab_system(row.lab)
    areas = " ".join(lab.areas)
    container = container_image.arguments(mirror_sources(lab), tmp_path)
    machine = recipe_for(row.lab).mmdebstrap("root", "early.tar", "late.tar")

    for words in (container, machine):
        assert row.suite in words
        assert f"deb [signed-by={lab.keyring}] http://mirror.example/archive {row.suite} {areas}" in words
    assert lab.kernel in next(word for word in machine if word.startswith("--include=")).split(",")
