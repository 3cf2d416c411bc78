"""Small packages and signed repositories of them, the same for dpkg and rpm."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = {
    "apt": ("dpkg-deb", "apt-ftparchive", "gpg"),
    "dnf": ("rpmbuild", "rpmsign", "createrepo_c", "modifyrepo_c", "gpg"),
}
"""Package manager -> the programs that build packages and repositories for it."""


@dataclass(frozen=True)
class Package:
    """A package without architecture; each file contains its own path and the package's version."""

    name: str
    version: str = "1.0-1"
    """EPOCH:VERSION-RELEASE."""
    requires: tuple[str, ...] = ()
    """Names, or `NAME = VERSION`."""
    conflicts: tuple[str, ...] = ()
    before: str = ""
    """Shell commands before its files are unpacked."""
    after: str = ""
    """Shell commands after that."""
    configuration: str = ""
    """The path of a configuration file."""
    large: str = ""
    """The path of a file of 8 MiB."""
    signed: bool = True
    """Whether the package itself is signed, which only rpm supports."""


@dataclass(frozen=True)
class Key:
    """A signing key."""

    home: Path
    public: str
    """The armored public key."""

    @contextmanager
    def agent(self) -> Iterator[Mapping[str, str]]:
        """Provide the environment of programs that sign, and stop the agent that gpg starts."""
        environment = {**os.environ, "GNUPGHOME": str(self.home)}
        try:
            yield environment
        finally:
            subprocess.run(["gpgconf", "--kill", "gpg-agent"], env=environment, check=False, capture_output=True)


def new_key(folder: Path) -> Key:
    """Create a signing key. gpg's agent requires a short path."""
    home = Path(tempfile.mkdtemp(prefix="keys-", dir=folder))
    home.chmod(0o700)
    key = Key(home, "")
    with key.agent() as environment:
        words = ["gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", f"{home.name}@test"]
        run([*words, "rsa2048", "sign", "never"], environment)
        public = run(["gpg", "--batch", "--armor", "--export"], environment)
    return Key(home, public)


def run(words: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    """Run a program that must succeed; return its output."""
    done = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def stop_place(name: str, point: str) -> str:
    """Return the path of the FIFO at which a script of a package blocks; `point` is ``before`` or ``after``."""
    return f"/run/stop-{name}-{point}"


def script(package: Package, commands: str, point: str) -> str:
    """Return a script that blocks at a point while the node has a FIFO there."""
    place = stop_place(package.name, point)
    wait = f"if [ -p {place} ]; then touch {place}-reached; read -r word <{place} || :; fi"
    return f"{wait}\n{commands or ':'}\n"


# dpkg


def build_deb(package: Package, target: Path) -> Path:
    """Build a package of dpkg."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        (tree / "DEBIAN").mkdir()
        depends = ", ".join(re.sub(r"(\S+) (=) (\S+)", r"\1 (\2 \3)", name) for name in package.requires)
        fields = {
            "Package": package.name,
            "Version": package.version,
            "Architecture": "all",
            "Maintainer": "nobody <nobody@example.org>",
            "Depends": depends,
            "Conflicts": ", ".join(package.conflicts),
            "Description": "package of a test",
        }
        control = "".join(f"{key}: {value}\n" for key, value in fields.items() if value)
        (tree / "DEBIAN/control").write_text(control)
        before = f"#!/bin/sh\nset -e\n{script(package, package.before, 'before')}"
        after = f'#!/bin/sh\nset -e\n[ "$1" = configure ] || exit 0\n{script(package, package.after, "after")}'
        for name, text in (("preinst", before), ("postinst", after)):
            (tree / "DEBIAN" / name).write_text(text)
            (tree / "DEBIAN" / name).chmod(0o755)
        if package.configuration:
            (tree / "DEBIAN/conffiles").write_text(package.configuration + "\n")
        _files(package, tree)
        file = target / f"{package.name}_{package.version.replace(':', '%3a')}_all.deb"
        run(["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", str(tree), str(file)])
        return file


def _files(package: Package, tree: Path) -> None:
    for path in (f"/usr/share/contract/{package.name}", package.configuration):
        if path:
            (tree / path[1:]).parent.mkdir(parents=True, exist_ok=True)
            (tree / path[1:]).write_text(f"{path} {package.version}\n")
    if package.large:
        (tree / package.large[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tree / package.large[1:]).write_bytes(os.urandom(8 * 2**20))


def index_debs(folder: Path, key: Key) -> None:
    """Write the signed index of a flat repository."""
    (folder / "Packages").write_text(run(["apt-ftparchive", "packages", "."], folder=folder))
    release = run(["apt-ftparchive", "-oAPT::FTPArchive::Release::Origin=contract", "release", "."], folder=folder)
    (folder / "Release").write_text(release)
    with key.agent() as environment:
        words = ["gpg", "--batch", "--yes", "--clearsign", "-o", str(folder / "InRelease")]
        run([*words, str(folder / "Release")], environment)


# rpm


def build_rpm(package: Package, target: Path) -> Path:
    """Build a package of rpm."""
    epoch, mark, rest = package.version.rpartition(":")
    version, _, release = rest.partition("-")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        tree.mkdir()
        _files(package, tree)
        paths = sorted("/" + str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())
        lines = [
            f"Name: {package.name}",
            *([f"Epoch: {epoch}"] if mark else []),
            f"Version: {version}",
            f"Release: {release}",
            "Summary: package of a test",
            "License: none",
            "BuildArch: noarch",
            "AutoReqProv: no",
            *(f"Requires: {name}" for name in package.requires),
            *(f"Conflicts: {name}" for name in package.conflicts),
            "%description\npackage of a test",
            "%pre -p /bin/sh",
            f"set -e\n{script(package, package.before, 'before')}",
            "%post -p /bin/sh",
            f"set -e\n{script(package, package.after, 'after')}",
            "%files",
            *(("%config(noreplace) " if path == package.configuration else "") + path for path in paths),
        ]
        spec = Path(folder, "package.spec")
        spec.write_text("\n".join(lines) + "\n")
        macros = {
            "_topdir": folder,
            "_rpmdir": str(target),
            "_build_name_fmt": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
            "_binary_payload": "w1.gzdio",
            "__os_install_post": "%{nil}",
        }
        options = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
        run(["rpmbuild", "-bb", "--quiet", *options, "--buildroot", str(tree), "--noclean", str(spec)])
    return target / f"{package.name}-{version}-{release}.noarch.rpm"


def index_rpms(folder: Path, key: Key, modules: str = "") -> None:
    """Write the signed index of a repository, with module streams if there are any."""
    run(["createrepo_c", "--quiet", "--general-compress-type=gz", "--no-database", "."], folder=folder)
    if modules:
        (folder / "modules.yaml").write_text(modules)
        run(["modifyrepo_c", "--mdtype=modules", "modules.yaml", "repodata"], folder=folder)
    with key.agent() as environment:
        index = folder / "repodata/repomd.xml"
        run(["gpg", "--batch", "--yes", "--armor", "--detach-sign", str(index)], environment)


def sign_rpm(file: Path, key: Key) -> None:
    """Sign a package."""
    with key.agent() as environment:
        macros = {"__gpg": "/usr/bin/gpg", "_gpg_name": f"{key.home.name}@test", "_gpg_digest_algo": "sha256"}
        options = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
        run(["rpmsign", *options, "--addsign", str(file)], environment)


@dataclass(frozen=True)
class Repository:
    """The content of a signed repository."""

    packages: tuple[Package, ...]
    key: Key
    """The key that signs it."""
    modules: str = ""
    """Module streams (dnf)."""
    files: dict[str, bytes] = field(default_factory=dict)
    """File -> content that replaces it after everything was signed."""


def build(repository: Repository, manager: str, folder: Path, cache: Path) -> Path:
    """Build a repository in an empty folder; equal packages are built once."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for package in repository.packages:
        name = hashlib.sha256(f"{manager} {package} {repository.key.home}".encode()).hexdigest()[:16]
        if not (cache / name).is_dir():
            made = Path(tempfile.mkdtemp(dir=cache))
            file = build_deb(package, made) if manager == "apt" else build_rpm(package, made)
            if manager == "dnf" and package.signed:
                sign_rpm(file, repository.key)
            made.rename(cache / name)
        for file in (cache / name).iterdir():
            shutil.copy(file, folder / file.name)
    index_debs(folder, repository.key) if manager == "apt" else index_rpms(folder, repository.key, repository.modules)
    return folder
