"""The training image: Open MPI, sshd, mpi4py, NumPy and perftest on Debian, built from the machine's mirror.

No docker engine is needed: mmdebstrap makes the root filesystem, and an image is that as a compressed layer with two
small JSON documents. It is kept in the cache under the hash of its recipe.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from provision.errors import LabError
from provision.lab.access import file_lock
from provision.lab.base import Progress
from provision.lab.mirror import MirrorSources, debian_sources

__all__ = ["Blob", "TrainingImage", "ensure_training_image", "write_archive"]

SUITE = "bookworm"
PACKAGES = (
    "ibverbs-providers",
    "iproute2",
    "openmpi-bin",
    "openssh-client",
    "openssh-server",
    "perftest",
    "procps",
    "python3",
    "python3-mpi4py",
    "python3-numpy",
    "rdma-core",
)
PROGRAMS = {"provision-smoke": "provision_smoke.py", "provision-allreduce-bench": "provision_allreduce_bench.py"}
"""Programs of ours in /usr/local/bin, and the files of ``provision/lab/files`` that they are."""

_FILES = Path(__file__).parent.parent / "files"
_LEFT_OUT = (
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    "/usr/share/lintian/*",
    "/usr/lib/udev/hwdb*",
)
# Host keys belong to a container, never to an image: all containers started from it would share them.
_CLEAN = """\
rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/resolv.conf "$1"/etc/hostname
rm -rf "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* "$1"/var/cache/debconf/*-old
rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/var/lib/dpkg/*-old
: > "$1/etc/machine-id"
mkdir -p "$1/run/sshd"
"""
_EPOCH = 1704067200  # no file is newer, so that the same packages give the same image
_CHUNK = 1 << 20
_BUILD_SECONDS = 1800
_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"


@dataclass(frozen=True)
class Blob:
    """A file that a registry knows by its digest."""

    path: Path
    digest: str
    size: int


@dataclass(frozen=True)
class TrainingImage:
    """An image as files in the cache."""

    config: Blob
    layer: Blob
    manifest: bytes
    media_type: str = _MANIFEST_TYPE

    @property
    def blobs(self) -> tuple[Blob, Blob]:
        """What a registry must hold before it takes the manifest."""
        return (self.layer, self.config)

    @property
    def digest(self) -> str:
        """The digest that pins the image in a registry."""
        return f"sha256:{hashlib.sha256(self.manifest).hexdigest()}"


def ensure_training_image(cache: Path, progress: Progress) -> TrainingImage:
    """Return the training image, built now unless the cache has it; a second caller waits for the first.

    Raises:
        LabError: mmdebstrap is missing or failed.
    """
    sources = debian_sources(SUITE)
    images = cache / "images"
    images.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = images / f"training-{recipe_key(sources)}"
    if not _complete(folder):
        with file_lock(images / ".training.lock"):
            if not _complete(folder):
                progress.step("building the training image (once; about 2 minutes)")
                _build(sources, folder)
                _drop_others(folder)
    return _load(folder)


def recipe_key(sources: MirrorSources) -> str:
    """Return the cache's key, which changes with whatever goes into the image."""
    programs = {name: (_FILES / file).read_text(encoding="utf-8") for name, file in PROGRAMS.items()}
    recipe = json.dumps([PACKAGES, _LEFT_OUT, _CLEAN, _EPOCH, _config("", ""), programs, sources.lines], sort_keys=True)
    return hashlib.sha256(recipe.encode()).hexdigest()[:16]


def write_archive(image: TrainingImage, target: Path, reference: str) -> None:
    """Write `image` as the tar file that ``docker load`` takes, for nodes without a registry."""
    index = [{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar.gz"]}]
    with tarfile.open(target, "w") as archive:
        archive.add(image.config.path, "config.json")
        archive.add(image.layer.path, "layer.tar.gz")
        text = json.dumps(index).encode()
        member = tarfile.TarInfo("manifest.json")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))


def _complete(folder: Path) -> bool:
    return (folder / "manifest.json").exists()


def _load(folder: Path) -> TrainingImage:
    manifest = (folder / "manifest.json").read_bytes()
    document = json.loads(manifest)
    layer, config = document["layers"][0], document["config"]
    return TrainingImage(
        config=Blob(folder / "config.json", config["digest"], config["size"]),
        layer=Blob(folder / "layer.tar.gz", layer["digest"], layer["size"]),
        manifest=manifest,
    )


def _drop_others(folder: Path) -> None:
    for old in folder.parent.glob("training-*"):
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)


def _build(sources: MirrorSources, folder: Path) -> None:
    """Build in a scratch folder beside `folder` and move the finished one into place."""
    for leftover in folder.parent.glob(".build-training-*"):  # of a build that was killed; we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".build-training-", dir=folder.parent) as name:
        scratch = Path(name)
        _make_root(sources, scratch, log=folder.parent / "training.log")
        made = scratch / "image"
        made.mkdir()
        diff_id, layer = _compress(scratch / "root.tar", made / "layer.tar.gz")
        config = json.dumps(_config(diff_id, SUITE), sort_keys=True).encode()
        (made / "config.json").write_bytes(config)
        (made / "manifest.json").write_bytes(_manifest(config, layer))
        made.replace(folder)


def _make_root(sources: MirrorSources, scratch: Path, *, log: Path) -> None:
    program = shutil.which("mmdebstrap")
    if program is None:
        raise LabError(
            "mmdebstrap is not installed, so the training image cannot be built",
            remedy="apt-get install --no-install-recommends mmdebstrap",
        )
    clean = scratch / "clean"
    clean.write_text(f"#!/bin/sh\nset -eu\n{_CLEAN}", encoding="utf-8")
    clean.chmod(0o700)
    hooks = [
        hook
        for name, file in PROGRAMS.items()
        for hook in (f"upload {_FILES / file} /usr/local/bin/{name}", f'chmod 0755 "$1/usr/local/bin/{name}"')
    ]
    argv = [
        program,
        "--variant=minbase",
        "--skip=output/dev",
        f"--include={','.join(PACKAGES)}",
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--aptopt={option}" for option in sources.aptopts),
        *(f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT),
        *(f"--customize-hook={hook}" for hook in (*hooks, str(clean))),
        sources.suite,
        str(scratch / "root.tar"),
        *sources.lines,
    ]
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "SOURCE_DATE_EPOCH": str(_EPOCH)}
    with log.open("wb") as output:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            check=False,
            timeout=_BUILD_SECONDS,
        )
    if done.returncode:
        raise LabError(
            f"building the training image failed (mmdebstrap exit {done.returncode}; log: {log})",
            remedy="Check that apt-get update works on this machine; the image comes from the same mirror.",
            output="\n".join(log.read_text(errors="replace").splitlines()[-15:]),
        )
    log.unlink()


def _compress(source: Path, target: Path) -> tuple[str, Blob]:
    """Compress `source`; return the digest of what it held and the result. gzip, because docker 20.10 reads no zstd."""
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
    return f"sha256:{plain.hexdigest()}", Blob(target, f"sha256:{packed.hexdigest()}", target.stat().st_size)


def _config(diff_id: str, suite: str) -> dict[str, object]:
    return {
        "architecture": "amd64",
        "os": "linux",
        "created": "2024-01-01T00:00:00Z",
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"],
            "Cmd": ["bash"],
            "Labels": {"org.opencontainers.image.title": "provision training image", "provision.suite": suite},
        },
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created": "2024-01-01T00:00:00Z", "created_by": "provision lab"}],
    }


def _manifest(config: bytes, layer: Blob) -> bytes:
    document = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST_TYPE,
        "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            "digest": f"sha256:{hashlib.sha256(config).hexdigest()}",
            "size": len(config),
        },
        "layers": [
            {
                "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                "digest": layer.digest,
                "size": layer.size,
            }
        ],
    }
    return json.dumps(document, indent=2).encode()
