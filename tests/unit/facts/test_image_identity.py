"""The identity of images in containerd's store: manifests, indexes with platforms and attestations, and damage."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from provision.facts.docker import DockerInfo, DockerInfoFact
from provision.node.probe import images
from provision.node.probe.images import config_digest, content_folders, identities, is_containerd_store
from tests.unit.facts.test_parsers import engine

AMD64 = {"Os": "linux", "Architecture": "amd64"}
CONFIG, OTHER = "sha256:" + "c" * 64, "sha256:" + "d" * 64
CONTENT = "io.containerd.content.v1.content/blobs/sha256"


class Store:
    """The content store of containerd, in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / CONTENT
        self.folder.mkdir(parents=True)

    def put(self, document: object) -> str:
        """Store a document; return its digest."""
        data = json.dumps(document).encode()
        name = hashlib.sha256(data).hexdigest()
        (self.folder / name).write_bytes(data)
        return f"sha256:{name}"

    def manifest(self, config: str) -> str:
        """Store a manifest; return its digest."""
        return self.put({"schemaVersion": 2, "config": {"digest": config, "size": 9}, "layers": []})

    def index(self, *entries: dict[str, Any]) -> str:
        """Store an index; return its digest."""
        return self.put({"schemaVersion": 2, "manifests": list(entries)})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The only content store of this node."""
    monkeypatch.setattr(images, "CONTAINERD_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setattr(images, "ROOTS", (str(tmp_path / "containerd"),))
    return Store(tmp_path / "containerd")


def entry(digest: str, architecture: str, variant: str = "", **more: Any) -> dict[str, Any]:
    """Return an entry of an index."""
    platform = {"os": "linux", "architecture": architecture, **({"variant": variant} if variant else {})}
    return {"digest": digest, "platform": platform, **more}


def test_an_image_of_dockers_own_store_is_identified_by_its_id_and_registry_digests() -> None:
    image = {"Id": CONFIG, "RepoDigests": [f"r:5000/t@{OTHER}"]}

    assert identities(image) == [CONFIG, OTHER]
    assert config_digest(image) == CONFIG


def test_the_manifest_names_the_configuration(store: Store) -> None:
    identity = store.manifest(CONFIG)

    assert identities({"Id": identity, "RepoDigests": [f"t@{identity}"], **AMD64}) == [identity, CONFIG]


def test_an_index_names_the_manifest_of_the_platform(store: Store) -> None:
    """The engine reports the platform that it chose. Attestations have a manifest of their own, and no platform."""
    attestation = store.manifest("sha256:" + "e" * 64)
    note = {"vnd.docker.reference.type": "attestation-manifest"}
    index = store.index(
        {"digest": attestation, "annotations": note},
        entry(attestation, "amd64", annotations=note),
        entry(store.manifest(OTHER), "arm64", "v8"),
        entry(store.manifest(CONFIG), "amd64"),
    )

    assert config_digest({"Id": index, **AMD64}) == CONFIG
    assert config_digest({"Id": index, "Os": "linux", "Architecture": "arm64", "Variant": "v8"}) == OTHER
    assert config_digest({"Id": index, "Os": "linux", "Architecture": "arm64"}) == OTHER
    assert config_digest({"Id": index, "Os": "linux", "Architecture": "arm64", "Variant": "v9"}) == index
    assert config_digest({"Id": index, "Os": "", "Architecture": ""}) == index


def test_an_index_with_two_images_for_a_platform_names_no_configuration(store: Store) -> None:
    """The engine may run the other one. An image that was not pulled does not count."""
    first, second = entry(store.manifest(CONFIG), "amd64"), entry(store.manifest(OTHER), "amd64")
    two, one = store.index(first, second), store.index(first, entry("sha256:" + "e" * 64, "amd64"))

    assert config_digest({"Id": two, **AMD64}) == two
    assert config_digest({"Id": one, **AMD64}) == CONFIG


@pytest.mark.parametrize(
    "document",
    [
        [], {}, {"config": []}, {"config": {"digest": 1}}, {"config": {"digest": []}}, {"manifests": [1]},
        {"config": {"digest": "sha256:../../x"}},
        {"manifests": [{"digest": None, "platform": {"os": "linux", "architecture": "amd64"}}]},
        {"config": {"Env": ["PATH=/bin"]}, "rootfs": {}},
    ],
)  # fmt: skip
def test_a_document_of_another_form_names_no_configuration(store: Store, document: object) -> None:
    """Registries determine the content of manifests."""
    identity = store.put(document)

    assert config_digest({"Id": identity, **AMD64}) == identity


def test_damaged_and_long_files_of_the_store_are_not_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their digest is verified, and a manifest has at most 4 MiB."""
    damaged, long = store.manifest(CONFIG), store.put({"config": {"digest": CONFIG}, "x": "x" * 500})
    (store.folder / damaged.partition(":")[2]).write_text(json.dumps({"config": {"digest": OTHER}}))
    monkeypatch.setattr(images, "MOST_BYTES", 500)

    assert config_digest({"Id": damaged, **AMD64}) == damaged
    assert config_digest({"Id": long, **AMD64}) == long


def test_the_configured_root_folder_of_containerd_is_searched(store: Store, tmp_path: Path) -> None:
    """The data root of Docker does not move containerd's images, so operators move this folder."""
    (tmp_path / "config.toml").write_text(f'version = 2\nroot = "{tmp_path}/raid"\n[plugins]\n  root = "/x"\n')
    identity = Store(tmp_path / "raid").manifest(CONFIG)

    assert config_digest({"Id": identity, **AMD64}) == CONFIG
    assert content_folders() == [f"{tmp_path}/raid/{CONTENT}", str(store.folder)]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ([["driver-type", "io.containerd.snapshotter.v1"]], True),
        ([["Backing Filesystem", "extfs"], ["Supports d_type", "true"]], False),
        (None, False),
        ("x", False),
    ],
)
def test_the_engine_reports_its_image_store(status: object, expected: bool) -> None:  # noqa: FBT001
    assert is_containerd_store(status) is expected


def test_the_probe_reports_the_image_store() -> None:
    status = [["driver-type", "io.containerd.snapshotter.v1"]]
    info = DockerInfoFact().parse(
        engine(info={"ServerVersion": "29.1.3", "Driver": "overlayfs", "DriverStatus": status})
    )

    assert isinstance(info, DockerInfo)
    assert info.containerd_store
