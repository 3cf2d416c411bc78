"""Modules for packages as Enterprise Linux 8 gets them: under the oldest Python, with rpm and dnf of the test."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.facts.system import SystemFact
from tests.support.interpreters import OLDEST
from tests.support.light_modules import light, run_light

RPM = """\
#!/bin/sh
case "$*" in
*gpg-pubkey) ;;
*PROVIDES*) awk '{{print $1 "\\t" $2 "\\t" $1 " \\t"}}' {database} ;;
-qa*) awk '{{print $1 " installed " $2 " x86_64"}}' {database} ;;
-q*) shift 3; for name; do awk -v name="$name" '$1 == name {{print $1 " installed " $2 " x86_64"}}' {database}; done ;;
esac
"""
DNF = """\
#!/bin/sh
[ "${{LANGUAGE:-C}}" = C ] || {{ echo "Fehler: Keine Übereinstimmung gefunden: absent"; exit 1; }}
while [ $# != 0 ] && [ "$1" != install ]; do shift; done
[ $# = 0 ] || shift
for name; do
  [ $name != absent ] || {{ echo "Error: Unable to find a match: absent"; exit 1; }}
  echo "$name 0:1-1.el8" >>{database}
done
"""
REFUSED = "#!/bin/sh\nexit 1\n"
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run_module(tmp_path: Path) -> Run:
    """Run a module on a node with dnf, and with apt and dpkg of EPEL; no program of this machine is in its path."""
    database, programs = tmp_path / "database", tmp_path / "bin"
    database.write_text("bash 0:4.4-1.el8\nkernel 4.18-1.el8\nkernel 4.18-2.el8\n")
    programs.mkdir()
    for name, text in (("rpm", RPM), ("dnf", DNF), ("apt-get", REFUSED), ("apt-mark", REFUSED), ("dpkg", REFUSED)):
        (programs / name).write_text(text.format(database=database))
        (programs / name).chmod(0o755)
    (programs / "awk").symlink_to(shutil.which("awk") or "awk")
    places = {
        "/var/lib/provision/": f"{tmp_path}/state/",
        "/var/lib/dpkg/status": "/no/status",
        "/usr/bin/apt-get": f"{programs}/apt-get",
    }

    def run(name: str, env: dict[str, str] | None = None, **arguments: Any) -> dict[str, Any]:
        document = light.decoded(light.light_program(name, arguments))
        for old, new in places.items():
            document["parts"] = [[part, path, text.replace(old, new)] for part, path, text in document["parts"]]
            document["source"] = document["source"].replace(old, new)
        return run_light(OLDEST, light.encoded(document), env={"PATH": str(programs), **(env or {})})[1]

    return run


def test_packages_are_installed_under_the_oldest_python(run_module: Run) -> None:
    """An installed package needs nothing, a missing one is installed once."""
    results = [run_module("platform_packages", packages=["bash", "pigz"]) for _ in range(2)]

    assert [result.get("installed") for result in results] == [["pigz"], []]


def test_the_facts_of_the_role_are_read_under_the_oldest_python(run_module: Run) -> None:
    """Versions have no epoch of 0; of several kernels the newest counts, and each has its full name too."""
    node = run_module("platform_node")["node"]

    assert node["package_manager"] == "dnf"
    full = {f"kernel-{version}.x86_64": version for version in ("4.18-1.el8", "4.18-2.el8")}
    assert node["packages"] == {"bash": "4.4-1.el8", "kernel": "4.18-2.el8", **full}


def test_messages_of_dnf_do_not_depend_on_the_language_of_the_login(run_module: Run) -> None:
    """Python prefers LANGUAGE to LC_ALL, and sudo may preserve it."""
    result = run_module("platform_packages", packages=["absent"], env={"LANGUAGE": "de"})

    assert result["reason"] == "packages.missing"


@pytest.mark.parametrize(("text", "manager"), [("", "dnf"), ("Package: dpkg\n", "apt-get")])
def test_the_probe_reports_apt_only_where_dpkg_has_packages(tmp_path: Path, text: str, manager: str) -> None:
    """EPEL has apt and dpkg, and Debian has dnf and rpm."""
    (tmp_path / "status").write_text(text)
    for name in ("apt-get", "dnf"):
        (tmp_path / name).write_text(REFUSED)
        (tmp_path / name).chmod(0o755)
    command = SystemFact.command.replace("/var/lib/dpkg/status", str(tmp_path / "status"))
    done = subprocess.run(
        ["/bin/sh", "-c", command], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )

    assert f"probe_package_manager={manager}\n" in done.stdout
