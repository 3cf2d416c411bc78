"""Build one SIMULATED package of the lab as a .rpm file, from the same description as the .deb file."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from provision.errors import LabError
from provision.lab.services.stand_in import StandIn

PROGRAM, PACKAGE = "rpmbuild", "rpm"
LAB_PYTHON = "/usr/libexec/lab-python"
"""The interpreter of the lab's programs on nodes with rpm: their python3 may be too old."""

_RELEASE = "1"
_DEBIAN_PYTHON = re.compile(r"(?m)(?<=^#!)/usr/bin/python3|(?<=^exec )/usr/bin/python3")
_RELATION = re.compile(r"(?P<name>[a-z0-9.+_-]+)(?: \((?P<relation><<|>>|<=|>=|=) (?P<version>\S+)\))?")
_RELATIONS = {"<<": "<", ">>": ">"}
_FIELDS = {"Depends": "Requires", "Provides": "Provides", "Conflicts": "Conflicts"}
_SCRIPTS = {"postinst": ("post", ""), "prerm": ("preun", '[ "$1" -eq 0 ] || exit 0\n')}
"""Script of a .deb -> its section here, and what comes first: the old package's script runs in upgrades too."""
_MACROS = {
    "_build_name_fmt": "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm",
    "_binary_payload": "w1.gzdio",
    "_buildhost": "lab",
    "__os_install_post": "%{nil}",
    "use_source_date_epoch_as_buildtime": "1",
    "clamp_mtime_to_source_date_epoch": "1",
}


def file_name(package: StandIn) -> str:
    """Return the name of the package's file."""
    version, release = _version(package.version)
    return f"{package.name}-{version}-{release}.{_architecture(package)}.rpm"


def build(package: StandIn, tree: Path, target: Path, epoch: int) -> None:
    """Build `package` of the files in `tree` in the folder `target`; `epoch` is the newest time of files.

    Raises:
        LabError: rpmbuild failed.
    """
    for path in package.files:
        file = tree / path.lstrip("/")
        text = file.read_text(encoding="utf-8")
        file.write_text(_DEBIAN_PYTHON.sub(LAB_PYTHON, text), encoding="utf-8")
    work = tree.with_name(f"{tree.name}.rpmbuild")
    work.mkdir()
    spec = work / "package.spec"
    spec.write_text("\n".join(_spec(package, tree)) + "\n", encoding="utf-8")
    macros = {**_MACROS, "_topdir": str(work), "_rpmdir": str(target), "_dbpath": str(work / "database")}
    definitions = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
    done = subprocess.run(
        [PROGRAM, "-bb", "--quiet", "--target", _architecture(package), *definitions, str(spec)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "LC_ALL": "C.UTF-8"},
    )
    if done.returncode:
        raise LabError(f"{PROGRAM} failed for the SIMULATED package {package.name}", output=done.stderr)


def _version(text: str) -> tuple[str, str]:
    """Return version and release: the release is after a hyphen, if there is one."""
    version, _, release = text.partition("-")
    return version, release or _RELEASE


def _architecture(package: StandIn) -> str:
    return package.fields.get("Architecture", "noarch")


def _spec(package: StandIn, tree: Path) -> Iterator[str]:
    """Yield the lines of the specification."""
    yield f"Name: {package.name}"
    version, release = _version(package.version)
    yield f"Version: {version}"
    yield f"Release: {release}"
    yield f"Summary: SIMULATED: {package.summary}"
    yield "License: none"
    if _architecture(package) == "noarch":
        yield "BuildArch: noarch"
    yield "AutoReqProv: no"
    for field, tag in _FIELDS.items():
        for relation in _relations(package.fields.get(field, "")):
            yield f"{tag}: {relation}"
    yield "%description"
    yield f"SIMULATED: {package.summary}. A stand-in of a provision lab; nothing of NVIDIA's is in it."
    yield "%install"
    yield 'rm -rf "$RPM_BUILD_ROOT"'
    yield f'cp -a "{tree}" "$RPM_BUILD_ROOT"'
    for script, (section, head) in _SCRIPTS.items():
        if script in package.scripts:
            yield f"%{section}\n{head}{package.scripts[script].replace('%', '%%')}"
    yield "%files"
    yield "%defattr(-,root,root,-)"
    folders = {str(folder) for path in package.files for folder in PurePosixPath(path).parents}
    for folder in sorted(folder for folder in folders if folder.startswith("/usr/src/")):
        yield f'%dir "{folder}"'
    for path in sorted(package.files):
        yield f'"{path}"'


def _relations(text: str) -> Iterator[str]:
    """Yield relations of rpm for those of a field of a .deb: ``name (= 1)`` is ``name = 1-1``."""
    for word in filter(None, (word.strip() for word in text.split(","))):
        match = _RELATION.fullmatch(word)
        if match is None:
            raise ValueError(f"unknown relation {word!r}")
        if match["version"]:
            relation = _RELATIONS.get(match["relation"], match["relation"])
            yield f"{match['name']} {relation} {'-'.join(_version(match['version']))}"
        else:
            yield match["name"]
