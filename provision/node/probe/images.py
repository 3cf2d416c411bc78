"""The identity of images in both image stores of the Docker engine.

In Docker's own store, the ID of an image is the digest of its configuration. In containerd's store, the default of new
installations since Docker 29, it is the digest of a manifest, or of an index of manifests for several platforms. The
manifest names the configuration. The engine does not report it, so it is read from the content store of containerd,
whose files are named by their digests.

Roles use this module too.
"""

import hashlib
import json
import os
import re
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional

CONTAINERD_CONFIG = "/etc/containerd/config.toml"
ROOTS = ("/var/lib/containerd", "/var/lib/docker/containerd/daemon")
CONTENT = "io.containerd.content.v1.content/blobs/sha256"
DRIVER_TYPE = ["driver-type", "io.containerd.snapshotter.v1"]
MOST_BYTES = 4 << 20  # a manifest of a registry has at most 4 MiB
DIGEST = re.compile(r"sha256:([0-9a-f]{64})\Z")
ROOT_SETTING = re.compile(r"""^root\s*=\s*["'](/[^"'\n]*)["']""", re.MULTILINE)
REFERENCE_TYPE = "vnd.docker.reference.type"  # an attestation, which is about another manifest of the index


def is_containerd_store(driver_status: Any) -> bool:
    """Return whether an engine stores images in containerd, by `DriverStatus` of its `/info`."""
    return isinstance(driver_status, list) and DRIVER_TYPE in driver_status


def identities(image: Mapping[str, Any]) -> List[str]:
    """Return all digests that identify an image, by its description of the engine; the first is its ID."""
    references = image.get("RepoDigests") or []
    digests = [str(image.get("Id") or ""), config_digest(image), *(str(item).rpartition("@")[2] for item in references)]
    return list(dict.fromkeys(digest for digest in digests if DIGEST.match(digest)))


def config_digest(image: Mapping[str, Any]) -> str:
    """Return the digest of an image's configuration, by the description of the engine.

    It is the same in both stores. The image's ID is returned if containerd's content cannot be read, or is ambiguous.
    """
    identity, folders = str(image.get("Id") or ""), content_folders()
    configs = [manifest.get("config") for manifest in manifests(blob(folders, identity) or {}, image, folders)]
    digests = {str(config.get("digest")) for config in configs if isinstance(config, dict)}
    digest = digests.pop() if len(digests) == 1 else identity
    return digest if DIGEST.match(digest) else identity


def manifests(document: Dict[str, Any], image: Mapping[str, Any], folders: List[str]) -> Iterator[Dict[str, Any]]:
    """Yield the manifest, or those of an index that are for the platform of the image as the engine describes it."""
    entries = document.get("manifests")
    if not isinstance(entries, list):
        yield document
        return
    for entry in entries:
        if isinstance(entry, dict) and is_of_platform(entry, image):
            yield blob(folders, str(entry.get("digest"))) or {}


def is_of_platform(entry: Mapping[str, Any], image: Mapping[str, Any]) -> bool:
    """Return whether an entry of an index is the image for the platform that the engine chose, and no attestation."""
    platform, notes = entry.get("platform"), entry.get("annotations")
    if isinstance(notes, dict) and REFERENCE_TYPE in notes:
        return False
    if not isinstance(platform, dict):
        return True
    variants = {platform.get("variant") or "", image.get("Variant") or ""}
    return (
        platform.get("os") == image.get("Os")
        and platform.get("architecture") == image.get("Architecture")
        and (len(variants) == 1 or "" in variants)
    )


def content_folders() -> List[str]:
    """Return the folders that may be containerd's content store: the configured one, and the usual ones."""
    try:
        with open(CONTAINERD_CONFIG, encoding="utf-8", errors="replace") as stream:
            text = stream.read(MOST_BYTES)
    except OSError:
        text = ""
    setting = ROOT_SETTING.search(text)
    return [os.path.join(root, CONTENT) for root in ([setting.group(1)] if setting else []) + list(ROOTS)]


def blob(folders: Iterable[str], digest: str) -> Optional[Dict[str, Any]]:
    """Return a JSON object of the content store; None if it is missing, too long, or has another digest."""
    name = DIGEST.match(digest)
    for folder in folders if name else ():
        try:
            with open(os.path.join(folder, name.group(1)), "rb") as stream:  # type: ignore[union-attr]
                data = stream.read(MOST_BYTES + 1)
            if len(data) <= MOST_BYTES and "sha256:" + hashlib.sha256(data).hexdigest() == digest:
                document = json.loads(data.decode())
                return document if isinstance(document, dict) else None
        except (OSError, ValueError, RecursionError):
            continue
    return None
