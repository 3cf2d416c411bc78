"""Each operating system that the roles support; CONTRIBUTING.md says what a new one takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision import workflow
from provision.checks.systems import LEVELS, UNTESTED, nearest, unsupported
from provision.errors import LabError
from provision.facts.base import RawOutput
from provision.facts.system import SystemFact
from provision.inventory.role_files import systems
from provision.lab import container_image, manager
from provision.lab.base import DriverName, LabSpec
from provision.lab.mirror import MirrorSources, Stanza, mirror_sources
from provision.lab.package_managers import APT, DNF
from provision.lab.systems import SYSTEMS, LabSystem, files_of, lab_system
from provision.lab.vm_recipe import Recipe, recipe_for
from provision.report.reasons import message, remedy
from provision.resources import roles_folder
from tests.support.expressions import Role
from tests.support.modules import load

FILES: Mapping[str, Mapping[str, Any]] = systems(roles_folder())
"""Name of a file of variables -> its content."""
LAB = {row.variables: name for name, row in SYSTEMS.items()}
"""Name of a file of variables -> the system's name in the lab."""
MIRROR = "http://mirror.example/archive"


@pytest.fixture(params=FILES)
def system(request: pytest.FixtureRequest) -> str:
    """Each supported system."""
    name: str = request.param
    return name


@pytest.fixture(params=LAB)
def tested(request: pytest.FixtureRequest) -> str:
    """Each system with nodes in the lab."""
    name: str = request.param
    return name


@pytest.fixture
def lab(tested: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name in the lab of each system. The controller uses a mirror of Debian."""
    monkeypatch.setenv("PROVISION_DEBIAN_MIRROR", MIRROR)
    return LAB[tested]


def os_release(system: str) -> str:
    """Return what os-release of a system says, by the name of its file of variables."""
    identity, _, version = system.partition("_")
    return f'ID={identity}\nVERSION_ID="{version}"\n'


def system_of_the_role(os_release: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what the module of the shared role calls the system of an os-release file."""
    module = load("platform", "platform_node")
    monkeypatch.setattr(module, "text", lambda path: os_release if path == "/etc/os-release" else "")
    facts = module.os_release()
    return str(facts["system"])


def test_every_system_has_a_row_in_the_lab() -> None:
    """A system without nodes in the lab is not tested, and its file says so."""
    tested = {name for name, variables in FILES.items() if variables["__platform_support"] == "tested"}
    assert {variables["__platform_support"] for variables in FILES.values()} <= {*LEVELS}
    assert set(LAB) == tested, "provision/lab/systems.py has a row for each tested system of roles/platform/vars"
    assert all(files_of(row.stand_in).suite for row in SYSTEMS.values() if row.stand_in)


def test_every_system_has_all_variables(system: str) -> None:
    """Each file has the keys of the others, and the same choices of packages."""
    ours, other = FILES[system], FILES["debian_12"]
    sets, others = ours["__platform_package_sets"], other["__platform_package_sets"]

    assert {key: type(value) for key, value in ours.items()} == {key: type(value) for key, value in other.items()}
    assert set(sets) == set(others)
    for role, packages in sets.items():
        choices = packages if isinstance(packages, dict) else {}
        assert set(choices) == (set(others[role]) if isinstance(others[role], dict) else set()), role


def test_the_repository_of_docker_is_that_of_the_distribution(system: str) -> None:
    """Docker has one for each distribution, and a suite for each release. That of RHEL 8 was empty at times."""
    uri, level = FILES[system]["__platform_docker_repository"], FILES[system]["__platform_support"]
    names = {"el_7": "centos", "el_8": "centos", "el_9": "rhel", "el_10": "rhel"}

    folder = names.get(system, system.partition("_")[0])
    assert uri == ("" if level == UNTESTED else f"https://download.docker.com/linux/{folder}")


def test_nodes_with_the_system_are_supported(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan, apply and verify, and the role on the node, find the variables of the roles by os-release."""
    parsed = SystemFact().parse(RawOutput(f"{os_release(system)}probe_uname=6.1.0 x86_64\n", 0))

    assert parsed.variables == system
    assert parsed.name in workflow.supported_systems()
    assert not parsed.is_interim
    assert system_of_the_role(os_release(system), monkeypatch) == system


@pytest.mark.parametrize(
    ("os_release", "name"),
    [
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n', "ubuntu_24.04"),
        ("ID=debian\nVERSION_CODENAME=forky\n", "debian_forky"),
        ("ID='rocky'\nID_LIKE='rhel centos fedora'\nVERSION_ID='9.4'\n", "el_9"),
        ('ID="almalinux"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n', "el_9"),
        ('ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="9.4"\n', "el_9"),
        ('ID="ol"\nID_LIKE="fedora"\nVERSION_ID="8.10"\n', "el_8"),
        ('ID="centos"\nID_LIKE="rhel fedora"\nVERSION_ID="7"\n', "el_7"),
        ('ID="openEuler"\nVERSION_ID="22.03"\nPRETTY_NAME="openEuler 22.03 (LTS-SP3)"\n', "openeuler_22.03"),
        ('ID="openEuler"\nVERSION_ID="24.03"\n', "openeuler_24.03"),
        ('ID="tencentos"\nID_LIKE="rhel fedora centos"\nVERSION_ID="3.1"\n', "tencentos_3"),
        ('ID="tencentos"\nVERSION_ID="4.4"\n', "tencentos_4"),
        ('ID="alinux"\nVERSION_ID="3"\nPRETTY_NAME="Alibaba Cloud Linux 3 (Soaring Falcon)"\n', "alinux_3"),
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


@pytest.mark.parametrize(
    ("version", "code", "nearest_one"),
    [
        ("22.10", "node.os.interim", "ubuntu 22.04"),
        ("23.04", "node.os.interim", "ubuntu 24.04"),
        ("23.10", "node.os.interim", "ubuntu 24.04"),
        ("24.10", "node.os.interim", "ubuntu 24.04"),
        ("25.04", "node.os.interim", "ubuntu 24.04"),
        ("20.04", "node.os.unsupported", "ubuntu 22.04"),
        ("26.04", "node.os.unsupported", "ubuntu 24.04"),
    ],
)
def test_an_interim_release_of_ubuntu_is_refused_by_name(version: str, code: str, nearest_one: str) -> None:
    """No file of variables makes it supported: the message names it and the nearest release with long-term support."""
    text = f'ID=ubuntu\nVERSION_ID="{version}"\nPRETTY_NAME="Ubuntu {version}"\n'
    why = unsupported(SystemFact().parse(RawOutput(text, 0)), workflow.supported_systems())

    assert (why.code, why.params["nearest"]) == (code, nearest_one)
    assert f"Ubuntu {version} (ubuntu {version})" in message(why)
    assert nearest_one in remedy(why)
    assert "docs/reference/systems.md" in remedy(why)
    assert ("roles/platform/vars" in remedy(why)) is (code == "node.os.unsupported")


@pytest.mark.parametrize(("version", "is_interim"), [("23.10", True), ("26.04", False)])
def test_plain_ansible_refuses_an_interim_release_by_name(
    version: str,
    is_interim: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file of variables is no remedy for it."""
    module = load("platform", "platform_node")
    text = f'ID=ubuntu\nVERSION_ID="{version}"\nPRETTY_NAME="Ubuntu {version}"\n'
    monkeypatch.setattr(module, "text", lambda path: text if path == "/etc/os-release" else "")
    node = module.os_release()
    task = "Check that the system is supported"
    role = Role("platform", inventory_hostname="gpu1", platform_node=node, platform_system=node["system"])
    words = role.says("node", task)

    assert not role.holds("node", task)
    assert f"Ubuntu {version} (ubuntu_{version})" in words
    assert ", ".join(sorted(FILES)) in words
    assert ("interim" in words) is is_interim
    assert (f"add roles/platform/vars/ubuntu_{version}.yml" in words) is not is_interim


@pytest.fixture
def without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller without the versions of Python of the systems, which would be packed."""
    monkeypatch.setattr("provision.lab.systems.python_program", lambda _: "")


@pytest.mark.usefixtures("without_python")
def test_the_lab_has_a_recipe_for_its_container_and_its_virtual_machine(lab: str, tmp_path: Path) -> None:
    """Both come from the suite and the archive of the files of its nodes; virtual machines have its kernel."""
    made = lab_system(lab)
    suite, areas = files_of(SYSTEMS[lab].stand_in or lab).suite, " ".join(made.areas)
    container = container_image.arguments(mirror_sources(made), tmp_path)
    machine = recipe_for(made).mmdebstrap("root", "early.tar", "late.tar")

    for words in (container, machine) if made.kernel else (container,):
        assert suite in words
        assert f"deb [signed-by={made.keyring}] {MIRROR} {suite} {areas}" in words
        packages = next(word for word in words if word.startswith("--include=")).removeprefix("--include=").split(",")
        assert {*made.packages} <= {*packages}
    assert not made.kernel or made.kernel in packages


SIMULATED = [name for name, row in SYSTEMS.items() if row.stand_in]


@pytest.mark.parametrize("name", SIMULATED)
def test_a_simulated_system_has_its_own_identity_and_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe and the role take its nodes for the system; os-release and the reports say SIMULATED."""
    made, variables = lab_system(name), SYSTEMS[name].variables
    text = made.os_release
    parsed = SystemFact().parse(RawOutput(text, 0))

    assert parsed.variables == variables
    assert system_of_the_role(text, monkeypatch) == variables
    assert parsed.title.startswith(f"{FILES[variables]['__platform_title']} (SIMULATED: files of Debian ")
    if made.manager is APT:
        assert f'VERSION_CODENAME="{FILES[variables]["__platform_repository_suite"]}"\n' in text
    assert made.label == f"{name} (SIMULATED)"
    assert made.simulated in made.files["/usr/share/provision/simulated/system"]


@pytest.mark.usefixtures("without_python")
@pytest.mark.parametrize("name", SIMULATED)
def test_no_image_of_another_system_is_used(name: str) -> None:
    """The files of a system alone do not identify an image."""
    made, files = lab_system(name), files_of(SYSTEMS[name].stand_in)
    base = LabSystem(made.name, files.suite, files.archive.name, files.archive.areas, files.archive.kernel)
    sources = MirrorSources(made, (Stanza((MIRROR,), (made.suite,), made.areas),))
    hashes = {container_image.image_tag(replace(sources, system=one)).rpartition("-")[2] for one in (made, base)}

    assert len(hashes) == 2


@pytest.mark.usefixtures("without_python")
@pytest.mark.parametrize("name", SIMULATED)
def test_the_container_of_a_simulated_system_has_its_identity(name: str, tmp_path: Path) -> None:
    """The text is what the lab's description says."""
    made = lab_system(name)
    words = container_image.arguments(MirrorSources(made, (Stanza((MIRROR,), (made.suite,), made.areas),)), tmp_path)
    upload = next(word for word in words if "=upload " in word and word.endswith(" /usr/lib/os-release"))

    assert Path(upload.split()[1]).read_text(encoding="utf-8") == made.os_release


WITH_APT = [name for name in SIMULATED if SYSTEMS[name].archive.manager is APT]


@pytest.mark.parametrize("name", WITH_APT)
def test_an_upgrade_does_not_undo_the_identity_of_a_simulated_system(name: str, tmp_path: Path) -> None:
    """The package that owns os-release writes it beside that of the lab, in containers and in virtual machines."""
    made = lab_system(name)
    sources = MirrorSources(made, (Stanza((MIRROR,), (made.suite,), made.areas),))
    words = container_image.arguments(sources, tmp_path)
    upload = next(word for word in words if "=upload " in word and word.endswith(" /usr/lib/os-release"))
    divert = next(word for word in words if "dpkg-divert" in word)
    recipe = Recipe(sources)

    assert words.index(divert) < words.index(upload)
    assert recipe.late["usr/lib/os-release"] == made.os_release
    assert any("dpkg-divert" in word for word in recipe.mmdebstrap("root", "early.tar", "late.tar"))


@pytest.mark.parametrize("name", [name for name, row in SYSTEMS.items() if row.archive.manager is DNF])
def test_a_system_with_rpm_is_always_simulated(name: str) -> None:
    """The lab cannot read its archive, and has no kernel for virtual machines."""
    with pytest.raises(LabError, match=f"{name}: nodes cannot be built from a mirror"):
        lab_system(name, "http://own.example/archive")
    with pytest.raises(LabError, match=f"{name} requires containers"):
        manager._check(LabSpec("demo", DriverName.VM, 1, distro=name))


@pytest.mark.parametrize("name", WITH_APT)
def test_with_a_mirror_of_its_archive_a_system_is_not_simulated(name: str) -> None:
    """Its nodes have its own files, from the mirror that the user names."""
    url, archive = "http://own.example/archive", SYSTEMS[name].archive
    made = lab_system(name, url)
    suite = FILES[SYSTEMS[name].variables]["__platform_repository_suite"]

    assert (made.label, made.simulated, made.files) == (name, "", {})
    key = f"[signed-by=/usr/share/keyrings/{archive.name}-archive-keyring.gpg]"
    assert mirror_sources(made).lines[0] == f"deb {key} {url} {suite} {' '.join(archive.areas)}"
    assert {*archive.packages} <= {*made.packages}
