"""The starter of jobs as one archive: our own modules and msgspec, for the Python of compute nodes.

The archive is the same, byte by byte, for the same sources, version of msgspec and zlib. Its SHA-256 is its name.
"""

from __future__ import annotations

import copy
import functools
import gzip
import hashlib
import io
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from provision.errors import ProvisionError
from provision.local_files import cache_folder
from provision.model.reason import reason
from provision.report.reasons import error_of
from provision.resources import lock_file

OLDEST, NEWEST = (3, 11), (3, 14)
"""The oldest and the newest Python of compute nodes."""
_PACKAGE = Path(__file__).resolve().parents[3]
_LEFT_OUT = frozenset({"cli", "data", "lab"})
"""Folders that the starter never uses."""
_START = """import sys
sys.path.insert(0, __file__.rpartition("/")[0])
from provision.jobs.engines.slurm.starter import main
sys.exit(main(sys.argv[1]))
"""
_MSGSPEC = "msgspec"
_DOWNLOAD_SECONDS = 120
_MACHINES = frozenset({"x86_64", "aarch64"})


@dataclass(frozen=True)
class Target:
    """The Python of a compute node."""

    python: tuple[int, int]
    machine: str

    @property
    def version(self) -> str:
        """The version, such as ``3.11``."""
        return f"{self.python[0]}.{self.python[1]}"


_LOCKS = {
    Target((OLDEST[0], minor), machine): threading.Lock()
    for minor in range(OLDEST[1], NEWEST[1] + 1)
    for machine in _MACHINES
}


@dataclass(frozen=True)
class Bundle:
    """The archive of the starter."""

    content: bytes
    sha: str


def bundle_for(target: Target) -> Bundle:
    """Return the starter for the Python of a node.

    Raises:
        ProvisionError: the Python is too old or not known yet, the machine is not known, or msgspec cannot be had.
    """
    if target.python < OLDEST:
        raise error_of(ProvisionError, reason("slurm.python_too_old", version=target.version))
    if target.python > NEWEST:
        raise error_of(ProvisionError, reason("slurm.python_too_new", version=target.version))
    if target.machine not in _MACHINES:
        raise error_of(ProvisionError, reason("slurm.machine_unknown", machine=target.machine))
    with _LOCKS[target]:  # nodes are prepared in parallel
        bundle = _bundle(target)
    if isinstance(bundle, ProvisionError):
        raise copy.copy(bundle)  # callers add the name of their node
    return bundle


@functools.cache
def _bundle(target: Target) -> Bundle | ProvisionError:
    """Return the starter; an error of the download is remembered too, which can take minutes."""
    try:
        files = {"start.py": _START.encode(), **_sources(), **_msgspec_files(target)}
    except ProvisionError as error:
        return error
    content = pack(files)
    return Bundle(content, hashlib.sha256(content).hexdigest())


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return a compressed archive of files by path; it does not depend on time, user or order."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, compresslevel=1) as stream:
        stream.write(plain.getvalue())
    return packed.getvalue()


def _sources() -> dict[str, bytes]:
    """Return our own modules by path, and the programs that they send to nodes."""
    files = {}
    for path in _PACKAGE.rglob("*"):
        inside = path.relative_to(_PACKAGE)
        if inside.parts[0] in _LEFT_OUT or "__pycache__" in inside.parts or path.suffix not in {".py", ".sh"}:
            continue
        files[f"provision/{inside.as_posix()}"] = path.read_bytes()
    return files


def _msgspec_files(target: Target) -> dict[str, bytes]:
    """Return msgspec for a node: this controller's own where it fits, else that of the package index."""
    if target.python == sys.version_info[:2] and target.machine == platform.machine():
        return dict(_installed())
    return dict(_unpacked(_downloaded(target)))


def _installed() -> Iterator[tuple[str, bytes]]:
    import msgspec

    folder = Path(msgspec.__file__).parent
    for path in sorted(folder.iterdir()):
        if path.suffix in {".py", ".so"}:
            yield f"{_MSGSPEC}/{path.name}", path.read_bytes()


def _unpacked(wheel: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith(f"{_MSGSPEC}/") and name.endswith((".py", ".so")) and ".." not in name:
                yield name, archive.read(name)


def _downloaded(target: Target) -> Path:
    """Return the wheel of msgspec for a node; it has one of the hashes of our lock file.

    Raises:
        ProvisionError: it cannot be had.
    """
    requirement = _requirement()
    folder_of_wheels = (
        cache_folder()
        / "wheels"
        / f"{hashlib.sha256(requirement.encode()).hexdigest()[:16]}-{target.version}-{target.machine}"
    )
    cached = _locked_wheel(folder_of_wheels, requirement)
    if cached is not None:
        return cached
    folder_of_wheels.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder_of_wheels.parent) as folder:  # several threads may download it
        _download(target, requirement, Path(folder))
        wheel = _locked_wheel(Path(folder), requirement)
        if wheel is None:
            raise _no_msgspec(target, "pip has stored no wheel with a hash of the lock file")
        return wheel.replace(folder_of_wheels / wheel.name)


def _locked_wheel(folder: Path, requirement: str) -> Path | None:
    """Return the wheel in a folder that has a hash of the lock file; remove others, such as damaged ones."""
    hashes = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", requirement))
    for wheel in sorted(folder.glob(f"{_MSGSPEC}-*.whl")):
        if hashlib.sha256(wheel.read_bytes()).hexdigest() in hashes:
            return wheel
        wheel.unlink(missing_ok=True)
    return None


def _download(target: Target, requirement: str, destination: Path) -> None:
    """Download the wheel of msgspec for a node; pip accepts only the hashes of our lock file.

    Raises:
        ProvisionError: it cannot be had.
    """
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "requirements.txt")
        listed.write_text(requirement, encoding="utf-8")
        platforms = [f"manylinux{tag}_{target.machine}" for tag in ("2014", "_2_17", "_2_28")]
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        words += [
            "--only-binary",
            ":all:",
            "--require-hashes",
            "--python-version",
            target.version,
            "--dest",
            str(destination),
        ]
        words += [f"--platform={one}" for one in platforms]
        try:
            done = subprocess.run(
                [*words, "-r", str(listed)], capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _no_msgspec(target, str(error)[:300]) from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise _no_msgspec(target, lines[-1][:300] if lines else f"pip ended with {done.returncode}")


def _requirement() -> str:
    """Return the entry of msgspec in the lock file, with its hashes."""
    text = lock_file().read_text(encoding="utf-8")
    match = re.search(rf"^{_MSGSPEC}==.*?(?=^\S)", text, re.MULTILINE | re.DOTALL)
    if match is None:
        raise ProvisionError(f"{lock_file()}: no hashes of {_MSGSPEC}", remedy="Install provision again.")
    return match[0]


def _no_msgspec(target: Target, cause: str) -> ProvisionError:
    return error_of(
        ProvisionError, reason("slurm.no_msgspec", version=target.version, machine=target.machine, cause=cause)
    )
