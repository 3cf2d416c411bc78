"""Docker stores images in containerd, as Docker 29 does on new installations: from a bare node to a job.

The node runs Debian 13, whose Docker 26 has this store as a feature. Images have other IDs there than in Docker's own.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision.lab.services.image import TrainingImage, ensure_training_image
from provision.local_files import cache_folder
from tests.support.command import Provision

pytestmark = pytest.mark.long

LAB = f"store{os.getpid()}"
NODE = f"{LAB}-1"
CONTAINERD = {"docker_engine_daemon_options": {"features": {"containerd-snapshotter": True}}}
REFERENCE = "archives.example.org/training:1"
OTHER = "sha256:" + "0" * 64
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


class Silent:
    """Receives the progress of a build."""

    def step(self, message: str) -> None:
        """Print nothing."""


@dataclass(frozen=True)
class Site:
    """The lab's node, with an inventory of the test."""

    provision: Provision
    inventory: Path

    def configure(self, **variables: Any) -> None:
        """Set variables of the node, beside those of the lab and the image store."""
        text = yaml.safe_dump({**CONTAINERD, **variables})
        (self.inventory / "group_vars/gpu_nodes.yml").write_text(text, encoding="utf-8")

    def apply(self) -> dict[str, Any]:
        """Apply the inventory; return the result of the node."""
        done = self.provision("apply", "-i", str(self.inventory), "--yes", "--json")
        [node] = done.document["nodes"]
        assert (done.code == 0) is (node["status"] in {"changed", "unchanged"}), str(done)
        result: dict[str, Any] = node
        return result

    def converge(self) -> None:
        """Apply twice: the first time changes the node, the second time changes nothing."""
        assert [self.apply()["status"], self.apply()["status"]] == ["changed", "unchanged"]

    def checks(self) -> dict[str, str]:
        """Return the results of the node's checks."""
        [node] = self.provision.ok("verify", "-i", str(self.inventory), "--json").document["nodes"]
        return {check["id"]: check["status"] for check in node["checks"]}

    def shell(self, command: str) -> str:
        """Return the output of a command on the node; it must succeed."""
        return self.provision.ok("lab", "ssh", LAB, NODE, "--", command).out.strip()

    def image_id(self, name: str) -> str:
        """Return the ID of an image on the node."""
        return self.shell(f"docker image inspect --format '{{{{.Id}}}}' {name}")

    def run_job(self) -> str:
        """Return what two ranks of a job print."""
        return self.provision.ok("run", "-i", str(self.inventory), "-n", "2", "--", "echo", "trained").out


@pytest.fixture(scope="module")
def site(provision: Provision) -> Iterator[Site]:
    """One bare node. The overlay file system of its root has no overlays, so containerd gets a folder of the volume."""
    words = ("--driver", "container", "--system", "debian13", "--nodes", "1", "--machine", "pair")
    try:
        provision.ok("lab", "up", LAB, *words)
        own = provision.folder / "image-store"
        shutil.copytree(provision.folder / "state/provision/labs" / LAB / "inventory", own)
        (own / "group_vars").mkdir(exist_ok=True)
        made = Site(provision, own)
        made.shell("mkdir -p /var/lib/docker/images-of-containerd /var/lib/containerd")
        made.shell("mount --bind /var/lib/docker/images-of-containerd /var/lib/containerd")
        made.configure()
        yield made
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


@pytest.fixture(scope="module")
def image() -> TrainingImage:
    """The training image of the lab, in the cache that all labs share."""
    return ensure_training_image(cache_folder(), Silent())


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def older_archive(image: TrainingImage, path: Path) -> None:
    """Write an archive as Docker before version 25, podman and skopeo do: it has no manifest of a registry."""
    name = image.config.digest.partition(":")[2]
    layers = [f"{number}/layer.tar" for number, _ in enumerate(image.layers)]
    manifest = [{"Config": f"{name}.json", "RepoTags": None, "Layers": layers}]
    with tarfile.open(path, "w") as archive:
        for layer, blob in zip(layers, image.layers, strict=True):
            archive.add(blob.path, layer)
        archive.add(image.config.path, f"{name}.json")
        add(archive, "manifest.json", json.dumps(manifest).encode())


def newer_archive(image: TrainingImage, path: Path) -> str:
    """Write an archive with an index of a platform and an attestation, as `docker save` of a built image does.

    Returns:
        The digest of the index.
    """
    statement = json.dumps({"_type": "https://in-toto.io/Statement/v0.1"}).encode()
    attested = json.dumps({"architecture": "unknown", "os": "unknown", "rootfs": {"type": "layers"}}).encode()
    attestation = manifest(attested, (("application/vnd.in-toto+json", statement),))
    unknown = {"architecture": "unknown", "os": "unknown"}
    note = {"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": image.digest}
    entries = [
        descriptor(attestation, MANIFEST_TYPE, platform=unknown, annotations=note),
        descriptor(image.manifest, image.media_type, platform={"architecture": "amd64", "os": "linux"}),
    ]
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries}).encode()
    top = json.dumps({"schemaVersion": 2, "manifests": [descriptor(index, INDEX_TYPE)]}).encode()
    layers = [blob_name(layer.digest) for layer in image.layers]
    tables = [{"Config": blob_name(image.config.digest), "RepoTags": None, "Layers": layers}]
    with tarfile.open(path, "w") as archive:
        for blob in image.blobs:
            archive.add(blob.path, blob_name(blob.digest))
        for data in (statement, attested, attestation, image.manifest, index):
            add(archive, blob_name(digest_of(data)), data)
        add(archive, "index.json", top)
        add(archive, "manifest.json", json.dumps(tables).encode())
        add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
    return digest_of(index)


def blob_name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def descriptor(data: bytes, media_type: str, **more: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data), **more}


def manifest(config: bytes, layers: tuple[tuple[str, bytes], ...]) -> bytes:
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": descriptor(config, "application/vnd.oci.image.config.v1+json"),
        "layers": [descriptor(data, media_type) for media_type, data in layers],
    }
    return json.dumps(document).encode()


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def test_an_image_from_a_registry_converges_and_runs_a_job(site: Site, image: TrainingImage) -> None:
    """Its ID is the digest of its manifest, and the inventory pins this digest."""
    site.converge()

    assert "io.containerd.snapshotter.v1" in site.shell("docker info --format '{{.DriverStatus}}'")
    assert site.image_id("$(docker image ls --quiet --no-trunc | head -n 1)") == image.digest
    checks = site.checks()
    assert (checks["training_image.digest"], checks["training_container.image"]) == ("pass", "pass")
    assert site.run_job().splitlines().count("[0] trained") == 1


def test_an_image_from_an_archive_is_loaded_and_verified(site: Site, image: TrainingImage, tmp_path: Path) -> None:
    """The node has no image. Docker generates its manifest when it loads the archive."""
    older_archive(image, tmp_path / "older.tar")
    site.shell("docker rm --force provision-training && docker image prune --all --force")
    site.configure(
        training_image_reference=REFERENCE,
        training_image_archive=str(tmp_path / "older.tar"),
        training_image_digest=image.config.digest,
    )

    site.converge()

    assert site.image_id(REFERENCE) not in {image.digest, image.config.digest}
    assert site.checks()["training_image.digest"] == "pass"
    assert "[1] trained" in site.run_job()


def test_an_index_with_an_attestation_is_identified_by_both_digests(
    site: Site, image: TrainingImage, tmp_path: Path
) -> None:
    """The node has the image under another ID, and keeps it; after its removal the ID is the digest of the index."""
    index = newer_archive(image, tmp_path / "newer.tar")
    before = site.image_id(REFERENCE)
    site.configure(
        training_image_reference=REFERENCE,
        training_image_archive=str(tmp_path / "newer.tar"),
        training_image_digest=image.config.digest,
    )
    site.apply()
    after = site.image_id(REFERENCE)
    site.shell("docker rm --force provision-training && docker image prune --all --force")
    site.converge()

    assert (after, site.image_id(REFERENCE)) == (before, index)
    assert site.checks()["training_image.digest"] == "pass"
    assert "[1] trained" in site.run_job()


def test_an_archive_with_another_digest_is_refused(site: Site, image: TrainingImage, tmp_path: Path) -> None:
    """Before the node changes; the message has both digests."""
    newer_archive(image, tmp_path / "newer.tar")
    archive = str(tmp_path / "newer.tar")
    site.configure(training_image_reference=REFERENCE, training_image_archive=archive, training_image_digest=OTHER)
    before = site.shell("docker image ls --all --quiet --no-trunc")

    result = site.apply()

    assert result["status"] == "failed"
    assert result["error"]["role"] == "training_image"
    assert image.config.digest in result["error"]["message"]
    assert OTHER in result["error"]["message"]
    assert site.shell("docker image ls --all --quiet --no-trunc") == before


def test_an_image_of_a_registry_with_another_digest_is_refused(site: Site) -> None:
    """The plan asks the registry for the digest."""
    site.configure(training_image_digest=OTHER)
    before = site.shell("docker image ls --all --quiet --no-trunc")

    refused = site.provision("apply", "-i", str(site.inventory), "--yes", "--json")

    assert refused.code != 0, str(refused)
    assert OTHER in refused.out
    assert site.shell("docker image ls --all --quiet --no-trunc") == before
