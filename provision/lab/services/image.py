"""The training image: Open MPI, sshd, mpi4py, NumPy and perftest, built from the controller's mirror.

It is built without a Docker engine from compressed layers and two JSON documents. The first layer is built by
mmdebstrap, the second has the lab's programs, so that changes to them take seconds. Both are cached by the hash of
their recipe.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from provision.documents import decode
from provision.documents.lab import BaseLayer
from provision.lab.access import file_lock
from provision.lab.base import Progress
from provision.lab.mirror import MirrorSources, mirror_sources
from provision.lab.services.rootfs import CLEAN, EPOCH, LEFT_OUT, Blob, Layer, compress, make_root
from provision.lab.systems import DEFAULT_SYSTEM, lab_system
from provision.resources import package_path

PACKAGES = (
    "ibverbs-providers",
    "ibverbs-utils",
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
PROGRAMS = {
    "usr/local/bin/provision-smoke": "provision_smoke.py",
    "usr/local/bin/provision-allreduce-bench": "provision_allreduce_bench.py",
}
"""Programs of the lab, and their files in ``provision/lab/files``."""
SETTINGS = {
    # Reading another process's memory requires CAP_SYS_PTRACE; in a container without it each large message would warn.
    "etc/openmpi/openmpi-mca-params.conf": "btl_vader_single_copy_mechanism = none\n",
}

_FILES = package_path("lab", "files")
_ABOUT = "layer.json"
_CREATED = "2024-01-01T00:00:00Z"
_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
_LAYER_TYPE = "application/vnd.docker.image.rootfs.diff.tar.gzip"


@dataclass(frozen=True)
class TrainingImage:
    """An image as files in the cache."""

    layers: tuple[Blob, ...]
    config: Blob
    manifest: bytes
    media_type: str = _MANIFEST_TYPE

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """The blobs that a registry requires before the manifest."""
        return (*self.layers, self.config)

    @property
    def digest(self) -> str:
        """The digest of the image in a registry."""
        return _digest(self.manifest)


def ensure_training_image(cache: Path, progress: Progress) -> TrainingImage:
    """Return the training image, built unless cached; a second caller waits for the first.

    Raises:
        LabError: mmdebstrap is missing or failed.
    """
    sources = mirror_sources(lab_system(DEFAULT_SYSTEM))
    images = cache / "images"
    images.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = images / f"training-base-{base_key(sources)}"
    if not (folder / _ABOUT).exists():
        progress.step("building the training image (once; about 2 minutes), or waiting for another lab that does")
    with file_lock(images / ".training.lock"):
        base = _base_layer(folder, sources)
        return _assemble(images / f"training-{program_key()}", base, sources.system.suite)


def base_key(sources: MirrorSources) -> str:
    """Return the key of the first layer, which depends on all its contents."""
    recipe = json.dumps([PACKAGES, LEFT_OUT, CLEAN, EPOCH, sources.lines])
    return hashlib.sha256(recipe.encode()).hexdigest()[:16]


def program_key() -> str:
    """Return the key of the second layer."""
    return hashlib.sha256(json.dumps(sorted(_own_files().items())).encode()).hexdigest()[:16]


def _base_layer(folder: Path, sources: MirrorSources) -> Layer:
    about = folder / _ABOUT
    if not about.exists():
        _drop(folder.parent, "training-*", ".build-training-*")
        with tempfile.TemporaryDirectory(prefix=".build-training-", dir=folder.parent) as name:
            root = make_root(sources, PACKAGES, Path(name), log=folder.parent / "training.log")
            made = Path(name) / "made"
            made.mkdir()
            layer = compress(root, made / "layer.tar.gz")
            (made / about.name).write_text(json.dumps(asdict(layer), default=str))
            made.rename(folder)
    document = decode(about.read_bytes(), BaseLayer, node="", what=str(about))
    return Layer(Blob(folder / "layer.tar.gz", document.blob.digest, document.blob.size), document.diff_id)


def _assemble(folder: Path, base: Layer, suite: str) -> TrainingImage:
    """Add the lab's own layer to `base`; the result is reproducible, so only the files are stored."""
    folder.mkdir(exist_ok=True)
    plain = folder / "own.tar"
    with tarfile.open(plain, "w") as archive:
        for path, text in sorted(_own_files().items()):
            _add(archive, path, text, 0o755 if "/bin/" in path else 0o644)
    layers = (base, compress(plain, folder / "own.tar.gz.new"))
    plain.unlink()
    config = _config(layers, suite)
    manifest = _manifest(layers, config)
    own = (folder / "own.tar.gz.new").rename(folder / "own.tar.gz")
    (folder / "config.json.new").write_bytes(config)
    config_path = (folder / "config.json.new").rename(folder / "config.json")
    return TrainingImage(
        layers=(base.blob, Blob(own, layers[1].blob.digest, layers[1].blob.size)),
        config=Blob(config_path, _digest(config), len(config)),
        manifest=manifest,
    )


def _own_files() -> dict[str, str]:
    programs = {path: (_FILES / name).read_text(encoding="utf-8") for path, name in PROGRAMS.items()}
    return {**programs, **SETTINGS}


def _add(archive: tarfile.TarFile, path: str, text: str, mode: int) -> None:
    data = text.encode()
    member = tarfile.TarInfo(path)
    member.size, member.mode, member.mtime = len(data), mode, EPOCH
    archive.addfile(member, io.BytesIO(data))


def _drop(folder: Path, *patterns: str) -> None:
    """Remove older recipes and files of killed builds; the caller holds the lock."""
    for pattern in patterns:
        for old in folder.glob(pattern):
            shutil.rmtree(old, ignore_errors=True)


def _config(layers: Sequence[Layer], suite: str) -> bytes:
    document = {
        "architecture": "amd64",
        "os": "linux",
        "created": _CREATED,
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"],
            "Cmd": ["bash"],
            "Labels": {"org.opencontainers.image.title": "provision training image", "provision.suite": suite},
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": _CREATED, "created_by": "provision lab"} for _ in layers],
    }
    return json.dumps(document, sort_keys=True).encode()


def _manifest(layers: Sequence[Layer], config: bytes) -> bytes:
    document = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST_TYPE,
        "config": {"mediaType": _CONFIG_TYPE, "digest": _digest(config), "size": len(config)},
        "layers": [
            {"mediaType": _LAYER_TYPE, "digest": layer.blob.digest, "size": layer.blob.size} for layer in layers
        ],
    }
    return json.dumps(document, indent=2).encode()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
