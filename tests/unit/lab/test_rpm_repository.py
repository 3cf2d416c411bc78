"""Signed rpm repositories of the lab."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from provision.errors import LabError
from provision.lab.package_managers import DNF
from provision.lab.services import repository, rpm_repository
from provision.lab.services.kernel import EL_KERNEL
from provision.lab.services.packages import build_doca_packages, build_packages, stand_ins
from provision.lab.services.rpm_packages import LAB_PYTHON, file_name
from provision.lab.services.rpm_repository import Content
from provision.lab.systems import lab_system

needs_rpm = pytest.mark.skipif(
    not all(map(shutil.which, ("rpmbuild", "rpmsign", "createrepo_c", "gpg", "apt-ftparchive", "dpkg-deb"))),
    reason="rpm, createrepo-c, gnupg or apt-utils is not installed",
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The lab's stand-ins."""
    return build_packages(tmp_path_factory.mktemp("cache"), DNF)


@pytest.fixture(scope="module")
def served(packages: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the services of a lab with two rpm repositories."""
    folder = tmp_path_factory.mktemp("services")
    few = tuple(packages[:2])
    rpms = {"rpm/all": Content(few), "rpm/index": Content(few, signs_packages=False)}
    repository.ensure_repository(folder, "demo", [], rpms)
    return folder


def rpm(*words: str, code: int = 0) -> str:
    """Run rpm and return its output."""
    done = subprocess.run(["rpm", *words], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


@needs_rpm
def test_packages_are_signed_by_the_key_of_the_lab(served: Path, tmp_path: Path) -> None:
    """rpm accepts them with the published key only."""
    [package, *_] = (served / "repository/rpm/all").glob("*.rpm")
    database = ("--dbpath", str(tmp_path))
    unknown = subprocess.run(["rpmkeys", *database, "--checksig", package], capture_output=True, check=False)
    rpm(*database, "--import", str(served / "repository.pub"))
    known = subprocess.run(["rpmkeys", *database, "--checksig", package], capture_output=True, text=True, check=False)

    assert unknown.returncode != 0
    assert (known.returncode, known.stdout.rstrip().rpartition(": ")[2]) == (0, "digests signatures OK")


@needs_rpm
@pytest.mark.parametrize("name", ["all", "index"])
def test_the_index_is_signed(served: Path, tmp_path: Path, name: str) -> None:
    """A changed one is refused."""
    index = served / f"repository/rpm/{name}/repodata/repomd.xml"
    keyring = tmp_path / "key.gpg"
    subprocess.run(["gpg", "--dearmor", "--output", keyring, served / "repository.pub"], check=True)
    changed = tmp_path / "repomd.xml"
    changed.write_bytes(index.read_bytes() + b"\n")

    def code(data: Path) -> int:
        verify = ["gpgv", "--keyring", keyring, f"{index}.asc", data]
        return subprocess.run(verify, check=False, capture_output=True).returncode

    assert (code(index), code(changed)) == (0, 1)


@needs_rpm
def test_packages_of_a_repository_like_nvidias_are_not_signed(served: Path) -> None:
    """Only its index is."""
    [package, *_] = (served / "repository/rpm/index").glob("*.rpm")

    assert "(none)" in rpm("-qp", "--qf", "%{RSAHEADER:pgpsig} %{SIGPGP:pgpsig}", str(package))


@needs_rpm
def test_stand_ins_are_the_same_for_both_package_managers(packages: list[Path], tmp_path: Path) -> None:
    """Equal names, files and dependencies; programs run on the interpreter of the lab."""
    for package, path in zip(stand_ins(DNF), packages, strict=True):
        assert path.name == file_name(package)
        assert rpm("-qp", "--qf", "%{SUMMARY}", str(path)) == f"SIMULATED: {package.summary}"
        assert set(package.files) <= set(rpm("-qp", "-l", str(path)).split())
    [toolkit] = [path for path in packages if path.name.startswith("nvidia-container-toolkit-1")]
    assert f"nvidia-container-toolkit-base = {stand_ins(DNF)[0].version}-1" in rpm("-qp", "--requires", str(toolkit))
    copy = shutil.copy(toolkit, tmp_path)
    subprocess.run(["rpm2archive", copy], check=True)
    with tarfile.open(f"{copy}.tgz") as archive:
        program = archive.extractfile("./usr/bin/nvidia-container-runtime-hook")
        assert program is not None
        assert program.readline().decode() == f"#!{LAB_PYTHON}\n"


@needs_rpm
def test_headers_of_a_kernel_have_the_name_of_that_kernel(packages: list[Path]) -> None:
    """As the real ones: NAME-VERSION-RELEASE.ARCHITECTURE, of which the last three are the kernel's release."""
    [headers] = [path for path in packages if path.name.startswith("kernel-devel-")]

    assert rpm("-qp", "--qf", "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm", str(headers)) == headers.name
    assert headers.name == f"kernel-devel-{EL_KERNEL}.x86_64.rpm"
    assert f"/usr/src/kernels/{EL_KERNEL}.x86_64/Makefile" in rpm("-qp", "-l", str(headers)).split()


@needs_rpm
def test_the_profile_of_doca_requires_its_packages_in_its_version(tmp_path: Path) -> None:
    """Its names contain underscores, and its version has a release."""
    packages = {rpm("-qp", "--qf", "%{NAME}", str(path)): path for path in build_doca_packages(tmp_path, DNF)}
    modules = rpm("-qp", "--qf", "%{VERSION}-%{RELEASE}", str(packages["mlnx-ofa_kernel-dkms"]))

    assert f"mlnx-ofa_kernel-dkms = {modules}" in rpm("-qp", "--requires", str(packages["doca-ofed"])).splitlines()
    assert rpm("-qp", "--qf", "%{VERSION}-%{RELEASE}", str(packages["doca-ofed"])) == "3.2.2-000001~simulated"


def test_a_node_uses_the_repository_of_its_system_with_its_key() -> None:
    """The key is a file on the node, and both signatures are verified."""
    files = rpm_repository.node_files(lab_system("el9"), "http://10.78.1.1:1", "KEY\n")
    source = files["/etc/yum.repos.d/lab.repo"].splitlines()

    assert {"baseurl=http://10.78.1.1:1/rpm/el9", "gpgcheck=1", "repo_gpgcheck=1"} <= set(source)
    [key] = [line.removeprefix("gpgkey=file://") for line in source if line.startswith("gpgkey=")]
    assert files[key] == "KEY\n"
    assert rpm_repository.node_files(lab_system("debian12"), "http://10.78.1.1:1", "KEY\n") == {}


def test_missing_programs_are_reported_before_the_lab_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the packages that have them; systems with apt do not require them."""
    monkeypatch.setenv("PATH", "")
    rpm_repository.require_programs([lab_system("debian12")])
    with pytest.raises(LabError, match=r"createrepo_c, rpmsign, rpmbuild not installed; required for .* el9") as caught:
        rpm_repository.require_programs([lab_system("debian12"), lab_system("el9")])

    assert caught.value.remedy.endswith("createrepo-c rpm")
