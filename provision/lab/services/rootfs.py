"""Root file systems of images: a system built by mmdebstrap from the controller's mirror, as a compressed layer."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.errors import LabError
from provision.lab.mirror import MirrorSources

EPOCH = 1704067200
"""The newest modification time of files in an image, so that equal contents give equal images."""
LEFT_OUT = (
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    "/usr/share/lintian/*",
    "/usr/share/bash-completion/*",
    "/usr/share/X11/*",
    "/usr/share/zoneinfo/posix/*",
    "/usr/share/zoneinfo/right/*",
    "/lib/udev/hwdb*",
    "/usr/lib/x86_64-linux-gnu/gconv/*",
    # hwloc's plugins for displays, OpenCL and XML, and 40 MB of libraries for the last one, which is not required.
    "/usr/lib/x86_64-linux-gnu/hwloc/hwloc_xml_libxml.so",
    "/usr/lib/x86_64-linux-gnu/hwloc/hwloc_opencl.so",
    "/usr/lib/x86_64-linux-gnu/hwloc/hwloc_gl.so",
    "/usr/lib/x86_64-linux-gnu/libxml2.so*",
    "/usr/lib/x86_64-linux-gnu/libicu*",
)
"""Package files that jobs do not need; an emulated node unpacks 50 files or 2 MB per second."""
# Host keys must not be in an image, because all its containers would share them.
CLEAN = """\
rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/resolv.conf "$1"/etc/hostname
rm -rf "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* "$1"/var/cache/debconf/*-old
rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/var/lib/dpkg/*-old
: > "$1/etc/machine-id"
mkdir -p "$1/run/sshd"
# Perl's modules are needed while packages are configured; what runs later makes do with those of perl-base.
rm -rf "$1"/usr/share/perl/5.* "$1"/usr/lib/x86_64-linux-gnu/perl
cd "$1/usr/lib"
rm -rf python3/dist-packages/numpy/tests python3/dist-packages/numpy/*/tests python3.*/test
rm -f udev/hwdb.bin
"""
_CHUNK = 1 << 20
_BUILD_SECONDS = 1800


@dataclass(frozen=True)
class Blob:
    """A file identified by its digest in a registry."""

    path: Path
    digest: str
    size: int


@dataclass(frozen=True)
class Layer:
    """A compressed layer, and the digest of its contents."""

    blob: Blob
    diff_id: str


def make_root(sources: MirrorSources, packages: Sequence[str], scratch: Path, *, log: Path) -> Path:
    """Build a root file system of `packages` and return its tar file in `scratch`.

    Raises:
        LabError: mmdebstrap is missing or failed.
    """
    program = shutil.which("mmdebstrap")
    if program is None:
        raise LabError(
            "mmdebstrap is not installed; it is required to build the training image",
            remedy="Run: apt-get install --no-install-recommends mmdebstrap",
        )
    clean = scratch / "clean"
    clean.write_text(f"#!/bin/sh\nset -eu\n{CLEAN}", encoding="utf-8")
    clean.chmod(0o700)
    root = scratch / "root.tar"
    options, mirrors = sources.arguments(scratch)
    argv = [
        program,
        "--variant=minbase",
        "--skip=output/dev",
        f"--include={','.join(packages)}",
        '--aptopt=APT::Install-Recommends "false"',
        *options,
        *(f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT),
        f"--customize-hook={clean}",
        sources.system.suite,
        str(root),
        *mirrors,
    ]
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "SOURCE_DATE_EPOCH": str(EPOCH)}
    with log.open("wb") as output:
        code = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            check=False,
            timeout=_BUILD_SECONDS,
        ).returncode
    if code:
        raise LabError(
            f"building the training image failed (mmdebstrap exit {code}; log: {log})",
            remedy="Check that apt-get update works on the controller; the image uses the same mirror.",
            output="\n".join(log.read_text(errors="replace").splitlines()[-15:]),
        )
    log.unlink()
    return root


def compress(source: Path, target: Path) -> Layer:
    """Compress a tar file to `target` with gzip, because Docker 20.10 does not support zstd."""
    plain, packed = hashlib.sha256(), hashlib.sha256()
    squeezer = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(_CHUNK):
            plain.update(chunk)
            data = squeezer.compress(chunk)
            packed.update(data)
            writer.write(data)
        data = squeezer.flush()
        packed.update(data)
        writer.write(data)
    blob = Blob(target, f"sha256:{packed.hexdigest()}", target.stat().st_size)
    return Layer(blob, f"sha256:{plain.hexdigest()}")
