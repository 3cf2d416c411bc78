"""What identifies the image in an archive of `docker save`, by the formats of several programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.modules import load

read = load("training_image", "training_image_archive", part="filter_plugins").training_image_archive
CONFIG, MANIFEST, OTHER = (f"sha256:{letter * 64}" for letter in "abc")


def files(config: str, tags: list[str] | None, *entries: dict[str, Any] | str) -> str:
    """Return the files at the top of an archive, as the role reads them."""
    manifests = [{"digest": entry} if isinstance(entry, str) else entry for entry in entries]
    lines = [f"manifest.json {json.dumps([{'Config': config, 'RepoTags': tags, 'Layers': []}])}"]
    lines += [f"index.json {json.dumps({'schemaVersion': 2, 'manifests': manifests})}"] if entries else []
    return "\n".join(["oci-layout {}", *lines, ""])


def named(digest: str, name: str) -> dict[str, Any]:
    """Return an entry of an index with the name of an image."""
    return {"digest": digest, "annotations": {"io.containerd.image.name": name}}


@pytest.mark.parametrize("config", [f"{CONFIG[7:]}.json", f"blobs/sha256/{CONFIG[7:]}"])
def test_an_archive_without_manifest_is_identified_by_its_configuration(config: str) -> None:
    """Docker before version 25, podman and skopeo write no index."""
    assert read(files(config, ["t:1"])) == {"config": CONFIG, "manifest": "", "tags": ["t:1"]}


def test_an_archive_with_manifest_has_both_digests() -> None:
    """An archive of `docker save ID` has no name."""
    assert read(files(f"blobs/sha256/{CONFIG[7:]}", None, MANIFEST)) == {
        "config": CONFIG, "manifest": MANIFEST, "tags": [],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["docker.io/library/t:1", "docker.io/t:1", "t:1"])
def test_the_manifest_of_the_first_image_is_chosen_by_its_name(name: str) -> None:
    """The archive has two images, the first under two names."""
    entries = [named(OTHER, "docker.io/library/x:1"), named(MANIFEST, name), named(MANIFEST, "r:5000/t:1")]

    assert read(files(f"blobs/sha256/{CONFIG[7:]}", ["t:1", "r:5000/t:1"], *entries))["manifest"] == MANIFEST


def test_a_manifest_that_cannot_be_assigned_is_not_used() -> None:
    """The configuration identifies the image then."""
    assert read(files(f"{CONFIG[7:]}.json", ["t:1"], MANIFEST, OTHER)) == {
        "config": CONFIG, "manifest": "", "tags": ["t:1"],
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "", "manifest.json", "manifest.json []", "manifest.json {}", "manifest.json [{}]", "manifest.json [1]",
        'manifest.json [{"Config": "x.json"}]', 'manifest.json [{"Config": 1}]', "index.json {}",
        f'manifest.json [{{"Config": "{"a" * 64}.json"}}]\nindex.json []',
        f'manifest.json [{{"Config": "{"a" * 64}.json"}}]\nindex.json {{"manifests": [1]}}',
    ],
)  # fmt: skip
def test_anything_else_is_no_archive(text: str) -> None:
    assert read(text) == {}
