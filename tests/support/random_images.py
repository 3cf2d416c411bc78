"""Images of random layers, and a registry with a password that counts the bytes it sends."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import secrets
import socket
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import bcrypt

from provision.lab.services import processes, registry
from provision.lab.services.image import TrainingImage
from provision.lab.services.rootfs import Blob
from tests.support.command import eventually

__all__ = ["USER", "CountingRegistry", "RandomImage", "counting_registry", "make", "random_layer", "save", "upload"]

_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_SENT = re.compile(r'^(\S+) - (\S+) \[[^]]*\] "GET (\S+) [^"]*" 2\d\d (\d+)', re.MULTILINE)
USER = "robot"


@dataclass(frozen=True)
class RandomImage:
    """An image in a folder, as a registry stores it, and its layers unpacked."""

    image: TrainingImage
    layers: tuple[bytes, ...]
    config: bytes

    @property
    def id(self) -> str:
        """The ID of the image in Docker's own store."""
        return _digest(self.config)

    @property
    def size(self) -> int:
        """The bytes that one pull transfers."""
        return sum(blob.size for blob in self.image.blobs)


def random_layer(megabytes: int) -> bytes:
    """Return a layer with a file that cannot be compressed."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo(f"data/{secrets.token_hex(8)}")
        member.size = megabytes * 1_000_000
        archive.addfile(member, io.BytesIO(secrets.token_bytes(member.size)))
    return packed.getvalue()


def make(folder: Path, layers: Sequence[bytes]) -> RandomImage:
    """Write an image of these layers into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    blobs = [_blob(folder, gzip.compress(layer, 1, mtime=0)) for layer in layers]
    document = {"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/none"]}}
    config = json.dumps({**document, "rootfs": {"type": "layers", "diff_ids": [*map(_digest, layers)]}}).encode()
    own = _blob(folder, config)
    entries = [{"mediaType": _LAYER, "size": blob.size, "digest": blob.digest} for blob in blobs]
    about = {"mediaType": _CONFIG, "size": own.size, "digest": own.digest}
    manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": about, "layers": entries}
    return RandomImage(TrainingImage(tuple(blobs), own, json.dumps(manifest).encode()), tuple(layers), config)


def save(image: RandomImage, path: Path, tag: str) -> None:
    """Write an image as `docker save` does."""
    names = [f"{number}/layer.tar" for number, _ in enumerate(image.layers)]
    entry = {"Config": f"{image.id.partition(':')[2]}.json", "RepoTags": [tag], "Layers": names}
    contents = {entry["Config"]: image.config, **dict(zip(names, image.layers, strict=True))}
    with tarfile.open(path, "w") as archive:
        for name, data in {**contents, "manifest.json": json.dumps([entry]).encode()}.items():
            member = tarfile.TarInfo(str(name))
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def upload(image: RandomImage, repository: str, tag: str, services: Path, port: int) -> None:
    """Push an image to the lab's registry on this machine."""
    registry.push(image.image, repository, tag, port=port, authority=services / "ca.crt")


def _blob(folder: Path, data: bytes) -> Blob:
    digest = _digest(data)
    path = folder / digest.partition(":")[2]
    path.write_bytes(data)
    return Blob(path, digest, len(data))


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass(frozen=True)
class CountingRegistry:
    """A registry that requires a password and logs what it sends."""

    server: str
    """``HOST:PORT``."""
    password: str
    log: Path

    def sent(self) -> list[tuple[str, str, str, int]]:
        """Return address, user, path and bytes of every successful download."""
        return [(one[1], one[2], one[3], int(one[4])) for one in _SENT.finditer(self.log.read_text())]

    def bytes_sent(self) -> int:
        """Return the bytes of all downloads."""
        return sum(size for _, _, _, size in self.sent())

    def clients(self) -> set[str]:
        """Return the addresses that logged in."""
        return {address for address, user, _, _ in self.sent() if user == USER}


@contextmanager
def counting_registry(folder: Path, services: Path, address: str) -> Iterator[CountingRegistry]:
    """Run a second registry of the lab's images, with a password."""
    password, passwords, log = f"m4rk{secrets.token_hex(8)}", folder / "passwords", folder / "registry.log"
    passwords.write_text(f"{USER}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(5)).decode()}\n")
    with socket.create_server((address, 0)) as listener:
        port = listener.getsockname()[1]
    config = json.loads((services / f"registry-{address}.yml").read_text())
    config["http"]["addr"] = f"{address}:{port}"
    config["log"]["accesslog"] = {"disabled": False}
    config["auth"] = {"htpasswd": {"realm": "lab", "path": str(passwords)}}
    (folder / "registry.yml").write_text(json.dumps(config))
    with log.open("wb") as output:
        argv = ["docker-registry", "serve", str(folder / "registry.yml")]
        server = subprocess.Popen(argv, stdout=output, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: processes.answers(address, port), seconds=30, what="the registry answers")
        yield CountingRegistry(f"{address}:{port}", password, log)
    finally:
        server.terminate()
        server.wait()
