"""The program that makes SIMULATED Enterprise Linux of a Debian file system: what it does without one."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from provision.lab import el_image
from provision.lab.el_packages import PACKAGES, ElPackage
from provision.lab.systems import SYSTEMS, lab_system
from provision.resources import package_path

needs_rpm = pytest.mark.skipif(
    not all(shutil.which(program) for program in ("rpmbuild", "dpkg-deb")), reason="rpm or dpkg is not installed"
)
TITLE = "Enterprise Linux 9"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, with folders of the test's own."""
    spec = importlib.util.spec_from_file_location("el_node", package_path("lab", "files", "el_node.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr(module, "WORK", work)
    own = {"_topdir": f"{work}/rpmbuild", "_fileattrsdir": f"{work}/attributes", "dist": ".el9"}
    monkeypatch.setattr(module, "MACROS", {**module.MACROS, **own})
    return module


def entry(name: str, **more: Any) -> dict[str, Any]:
    """Return a package as the program reads it."""
    values = vars(ElPackage(name))
    return {**values, "files": ["*"], **more}


@pytest.fixture
def deb(tmp_path: Path) -> Callable[..., Path]:
    """Build a .deb file."""

    def make(name: str, version: str, files: dict[str, str], depends: str = "") -> Path:
        tree = tmp_path / f"{name}.tree"
        for path, text in {"/usr/share/doc/notes": "", **files}.items():
            file = tree / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (tree / "DEBIAN").mkdir()
        fields = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: a <b@c>\nDescription: d\n"
        (tree / "DEBIAN/control").write_text(fields + (f"Depends: {depends}\n" if depends else ""))
        path = tmp_path / f"{name}.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, path], check=True, capture_output=True)
        return path

    return make


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("20.10.24+dfsg1-1+deb12u1+b6", "20.10.24"),
        ("1.6.20~ds1-1+deb12u3", "1.6.20"),
        ("2:4.0.2-3", "4.0.2"),
        ("20250419~deb12u2", "20250419"),
        ("30+20221128-1", "30"),
    ],
)
def test_versions_lose_what_only_debian_has(program: ModuleType, version: str, expected: str) -> None:
    """Epoch, revision and suffix of repacked sources."""
    assert program.upstream(version) == expected


def test_dependencies_are_names_without_versions(program: ModuleType) -> None:
    """Of each alternative."""
    assert program.alternatives(" iptables (>= 1.8) | nftables:any") == ["iptables", "nftables"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/sbin/ip", "/usr/sbin/ip"), ("/lib/systemd/x", "/usr/lib/systemd/x"), ("/usr/bin/a", "/usr/bin/a")],
)
def test_paths_follow_the_merged_folders(program: ModuleType, path: str, expected: str) -> None:
    """A package with a folder /bin would conflict with the link of that name."""
    assert program.merged(path) == expected


@needs_rpm
def test_packages_have_the_files_of_debian_under_other_names(
    program: ModuleType, deb: Callable[..., Path], tmp_path: Path
) -> None:
    """With the names of what they require, scripts as in the system, and the word SIMULATED."""
    unit = "[Unit]\nDescription=x\n[Install]\nWantedBy=multi-user.target\n"
    engine = {"/lib/systemd/system/engine.service": unit, "/usr/bin/engine": "#!/bin/sh\n", "/usr/bin/client": ""}
    paths = [
        deb("engine.io", "1:2.0+dfsg1-3", engine, "helper (>= 1), other, unknown"),
        deb("helper", "3.1-1", {"/etc/helper.conf": "a\n", "/usr/bin/helper-real": ""}),
        deb("other", "4-1", {"/usr/share/other/file": ""}),
    ]
    debs = {made.name: made for made in map(program.Deb, paths)}
    client = entry("engine-cli", debs=["missing", "engine.io"], files=["/usr/bin/client"], is_vendors=True)
    whole = entry("engine-ce", debs=["engine.io"], is_vendors=True, epoch=3, requires=["engine-cli"], group="engine")
    packages = [
        program.Package(one)
        for one in (client, whole, entry("helper-el", debs=["helper"], links={"/usr/bin/helper": "helper-real"}))
    ]
    plan = {"title": TITLE, "files_of": "Debian 12", "major": "9", "in_every_node": ["bash"]}
    program.assign(packages, debs, {"other"})
    for each in debs.values():
        program.unpack(each, packages)
    program.build({**plan, "system_folder": "system", "vendor_folder": "vendor"}, packages, debs)

    def asked(path: str, *words: str) -> str:
        [file] = (tmp_path / "work").glob(path)
        return subprocess.run(["rpm", "-qp", *words, file], capture_output=True, text=True, check=True).stdout

    assert asked("vendor/engine-ce-*", "--qf", "%{EPOCH}:%{VERSION}-%{RELEASE} %{SUMMARY}") == (
        "3:2.0-1.el9 SIMULATED: engine.io of Debian 12"
    )
    assert {"engine-cli", "helper-el", "other"} <= set(asked("vendor/engine-ce-*", "--requires").split())
    assert "unknown" not in asked("vendor/engine-ce-*", "--requires")
    assert asked("vendor/engine-ce-*", "-l").split() == ["/usr/bin/engine", "/usr/lib/systemd/system/engine.service"]
    scripts = asked("vendor/engine-ce-*", "--scripts")
    assert "groupadd --system engine; systemctl --no-reload preset engine.service" in scripts
    assert "disable --now engine.service" in scripts
    assert asked("vendor/engine-cli-*", "-l").split() == ["/usr/bin/client"]
    assert "helper-el" not in asked("vendor/engine-cli-*", "--requires")
    assert asked("system/helper-el-*", "-l").split() == ["/etc/helper.conf", "/usr/bin/helper", "/usr/bin/helper-real"]
    assert asked("system/helper-el-*", "-c").split() == ["/etc/helper.conf"]
    assert asked("system/other-*", "--qf", "%{SUMMARY}") == "SIMULATED: other of Debian 12"
    assert {"bash", "/bin/sh", "system-release(releasever)"} <= set(asked("system/lab-base-*", "--provides").split())


@needs_rpm
def test_a_package_whose_files_the_node_has_is_installed(program: ModuleType, deb: Callable[..., Path]) -> None:
    """It requires none that is not, because the node has the files of that one too."""
    paths = [
        deb("tool", "1-1", {}, "liba, libb"),
        deb("liba", "1-1", {}),
        deb("libb", "1-1", {}),
        deb("libc", "1-1", {}),
    ]
    debs = {made.name: made for made in map(program.Deb, paths)}
    both = entry("b-and-c", debs=["libb", "libc"])
    packages = [program.Package(one) for one in (entry("tool-el", debs=["tool"]), entry("a", debs=["liba"]), both)]
    program.assign(packages, debs, {"tool", "liba", "libb"})

    in_image = {package.name for package in packages if package.in_image}
    assert in_image == {"tool-el", "a"}
    names = {"tool": "tool-el", "liba": "a", "libb": "b-and-c", "libc": "b-and-c"}
    lines = program.package_lines({"files_of": "Debian 12", "title": TITLE}, packages[0], names, in_image)
    assert [line for line in lines if line.startswith("Requires: ")] == ["Requires: a"]


@needs_rpm
def test_the_removal_of_a_package_leaves_the_libraries_of_every_node(
    program: ModuleType, deb: Callable[..., Path], tmp_path: Path
) -> None:
    """A package of which the node has a part has only the files of the rest."""
    paths = [deb("liba", "1-1", {"/usr/lib/liba.txt": "a"}), deb("libb", "1-1", {"/usr/lib/libb.txt": "b"})]
    debs = {made.name: made for made in map(program.Deb, paths)}
    packages = [program.Package(entry("libs", debs=["liba", "libb"]))]
    plan = {"title": TITLE, "files_of": "Debian 11", "major": "8", "in_every_node": ["bash"]}
    program.assign(packages, debs, {"liba"})
    for each in debs.values():
        program.unpack(each, packages)
    program.build({**plan, "system_folder": "system", "vendor_folder": "vendor"}, packages, debs)

    [file] = (tmp_path / "work").glob("system/libs-*")
    files = subprocess.run(["rpm", "-qpl", file], capture_output=True, text=True, check=True).stdout.split()
    assert files == ["/usr/lib/libb.txt"]


def test_a_node_has_no_second_sshd_from_a_script_of_system_v(program: ModuleType, tmp_path: Path) -> None:
    """It would listen on port 22 before sshd.service."""
    for name in ("init.d/ssh", "rc2.d/S01ssh", "rc.local"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    program.remove_init_scripts(tmp_path)

    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["rc.local"]


def test_every_package_of_the_roles_exists() -> None:
    """The system's own, those of vendors, and what every node has."""
    from provision.inventory.role_files import systems
    from provision.lab.el_packages import IN_EVERY_NODE
    from provision.lab.package_managers import DNF
    from provision.lab.services.packages import stand_ins
    from provision.resources import roles_folder

    existing = {package.name for package in PACKAGES} | {package.name for package in stand_ins(DNF)} | {*IN_EVERY_NODE}
    for row in SYSTEMS.values():
        sets = systems(roles_folder())[row.variables]["__platform_package_sets"] if row.rpm else {}
        for role, packages in sets.items():
            lists = packages.values() if isinstance(packages, dict) else [packages]
            missing = {name for names in lists for name in names} - existing
            assert not missing or role == "slurm", role


def test_the_recipe_of_an_image_depends_on_the_program_and_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a changed lab would use an old image."""
    system = lab_system("el9")
    before = el_image.recipe(system)
    monkeypatch.setattr(el_image, "PACKAGES", PACKAGES[1:])

    assert el_image.recipe(system) != before
    assert before[0] == package_path("lab", "files", "el_node.py").read_text(encoding="utf-8")


def test_a_node_starts_nothing_that_a_package_installs() -> None:
    """As in the system: its presets disable what they do not list, and packages ask the presets."""
    presets = el_image.files(lab_system("el9"))["/usr/lib/systemd/system-preset/90-lab.preset"].splitlines()

    assert presets[-1] == "disable *"
    assert "enable sshd.service" in presets
    assert not any("docker" in line for line in presets)
