"""The lab's signed package repository: stand-ins for packages that Debian lacks, served like a vendor's repository.

It also contains the source tree of nv_peer_mem as a git repository that `git clone` reads over plain HTTP.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from provision.errors import LabError
from provision.lab.package_managers import APT
from provision.lab.services import processes, rpm_repository
from provision.lab.services.gpg import Gpg, run_program
from provision.lab.services.kernel import DOCA_VERSION, GIT_FOLDER, build_git, git_history
from provision.local_files import write_private
from provision.resources import package_path

SUITE = "lab"
COMPONENT = "main"
NVIDIA_ADDRESS = "libnvidia-container/stable/deb/$(ARCH)"
"""A flat repository of the stand-ins for the NVIDIA Container Toolkit, with the layout of NVIDIA's repository."""
_NVIDIA_PATH = NVIDIA_ADDRESS.replace("$(ARCH)", "amd64")
DOCA_PATH = f"doca/{DOCA_VERSION[APT]}/debian12.5/x86_64"
"""A flat repository of the stand-ins for DOCA, with the layout and the label of NVIDIA's repository."""
DOCA_LABEL = "DOCA-HOST"
_LABEL = "provision lab, SIMULATED"

_SERVER = package_path("lab", "files", "serve_repository.py")
_NVIDIA_PACKAGES = ("nvidia-container-toolkit", "libnvidia-container", "nvidia-docker2")
PROGRAMS = {"apt-ftparchive": "apt-utils", "gpg": "gnupg"}


def ensure_repository(
    folder: Path,
    lab: str,
    packages: Sequence[Path],
    rpms: Mapping[str, rpm_repository.Content] | None = None,
    doca: Sequence[Path] = (),
) -> str:
    """Put `packages` into the signed repository below `folder`; return its public key.

    The key is created by the first call and reused; without changes nothing is written.

    Args:
        folder: the folder of the lab's services.
        lab: the name of the lab.
        packages: .deb files.
        rpms: path below the repository's URL -> content of an rpm repository.
        doca: .deb files of the repository of DOCA.
    """
    rpms = rpms or {}
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            raise LabError(
                f"{program} is not installed; it is required for the lab's package repository",
                remedy=f"Run: apt-get install --no-install-recommends {package}",
            )
    root, public, secret = folder / "repository", folder / "repository.pub", folder / "repository.key"
    sources = {path.name: path.read_bytes() for path in (*packages, *doca)} | {GIT_FOLDER: git_history().encode()}
    files = {path: [str(package) for package in content.packages] for path, content in rpms.items()}
    contents = json.dumps(
        {"layout": 3}
        | {name: hashlib.sha256(data).hexdigest() for name, data in sources.items()}
        | ({"rpm": files} if files else {})
    )
    with tempfile.TemporaryDirectory(prefix="provision-gpg-") as home:
        gpg = Gpg(Path(home))
        try:
            if not (secret.exists() and public.exists()):
                shutil.rmtree(root, ignore_errors=True)
                public_text, secret_text = gpg.make_key(f"provision lab {lab} (SIMULATED packages)")
                write_private(secret, secret_text)
                write_private(public, public_text)
            made_of = root / "contents.json"
            if not (made_of.exists() and made_of.read_text() == contents):
                gpg.run(["--import", str(secret)])
                _build(root, packages, rpms, contents, gpg, doca)
        finally:
            gpg.close()
    return public.read_text()


def ensure_running(folder: Path, addresses: Sequence[str], port: int) -> None:
    """Start the repository on `port` of each of `addresses`, unless it is running."""
    record = record_of(folder)
    if processes.running(record) and all(processes.answers(address, port) for address in addresses):
        return
    processes.stop(record)
    argv = [sys.executable, "-I", str(_SERVER), str(folder / "repository"), str(port), *addresses]
    processes.start(argv, record=record, log=folder / "repository.log", address=addresses[-1], port=port)


def record_of(folder: Path) -> Path:
    """Return the record of the repository's process."""
    return folder / "repository.json"


def _build(
    root: Path,
    packages: Sequence[Path],
    rpms: Mapping[str, rpm_repository.Content],
    contents: str,
    gpg: Gpg,
    doca: Sequence[Path],
) -> None:
    """Build next to `root` and exchange the folders; the server opens files by name for each request."""
    made = root.with_name("repository.new")
    shutil.rmtree(made, ignore_errors=True)
    pool, suite = made / "pool", made / "dists" / SUITE
    index = suite / COMPONENT / "binary-amd64"
    pool.mkdir(parents=True)
    index.mkdir(parents=True)
    for package in packages:
        shutil.copyfile(package, pool / package.name)
    (index / "Packages").write_text(run_program(["apt-ftparchive", "packages", "pool"], cwd=made))
    values = {
        "Origin": "provision lab",
        "Label": _LABEL,
        "Suite": SUITE,
        "Codename": SUITE,
        "Architectures": "amd64 all",
        "Components": COMPONENT,
        "Description": "SIMULATED stand-ins for vendor packages",
    }
    options = [f"-oAPT::FTPArchive::Release::{name}={value}" for name, value in values.items()]
    release = suite / "Release"
    release.write_text(run_program(["apt-ftparchive", *options, "release", str(suite.relative_to(made))], cwd=made))
    gpg.run(["--clearsign", "--output", str(suite / "InRelease"), str(release)])
    gpg.run(["--armor", "--detach-sign", "--output", str(suite / "Release.gpg"), str(release)])
    _build_flat(
        made / _NVIDIA_PATH, [package for package in packages if package.name.startswith(_NVIDIA_PACKAGES)], gpg
    )
    if doca:
        _build_flat(made / DOCA_PATH, doca, gpg, DOCA_LABEL)
    for path, content in rpms.items():
        rpm_repository.build(made / path, content, gpg)
    build_git(made / GIT_FOLDER)
    (made / "contents.json").write_text(contents)
    shutil.rmtree(root, ignore_errors=True)
    made.replace(root)


def _build_flat(folder: Path, packages: Sequence[Path], gpg: Gpg, label: str = _LABEL) -> None:
    """Build a signed repository with its index next to its packages."""
    folder.mkdir(parents=True)
    for package in packages:
        shutil.copyfile(package, folder / package.name)
    (folder / "Packages").write_text(run_program(["apt-ftparchive", "packages", "."], cwd=folder))
    values = {"Origin": "provision lab", "Label": label, "Architectures": "amd64"}
    options = [f"-oAPT::FTPArchive::Release::{name}={value}" for name, value in values.items()]
    release = run_program(["apt-ftparchive", *options, "release", "."], cwd=folder)
    (folder / "Release").write_text(release)
    gpg.run(["--clearsign", "--output", str(folder / "InRelease"), str(folder / "Release")])
