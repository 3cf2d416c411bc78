"""Filter of the role training_image: what identifies the image in an archive of `docker save`."""

import json
import posixpath
import re

_DIGEST = re.compile("sha256:[0-9a-f]{64}")
_REGISTRIES = ("", "docker.io/", "docker.io/library/")
_NAME = "io.containerd.image.name"


def training_image_archive(text):
    """Return what identifies the first image of an archive.

    Args:
        text: a line for each file at the top of the archive: its name, a space and its content, without line breaks.

    Returns:
        `config`, the digest of the image's configuration, which is the image ID in docker's own image store; `manifest`, the
        digest of its manifest or index, which is the ID in containerd's store, empty if the archive has none (docker before
        version 25, other programs); and `tags`. An empty dictionary if this is no archive of `docker save`.
    """
    files = dict(line.partition(" ")[::2] for line in text.splitlines())
    try:
        first = json.loads(files["manifest.json"])[0]
        config = "sha256:" + posixpath.splitext(posixpath.basename(first["Config"]))[0]
        tags = [str(tag) for tag in first.get("RepoTags") or []]
        entries = json.loads(files.get("index.json", "{}")).get("manifests") or []
        named = {str(entry["digest"]): (entry.get("annotations") or {}).get(_NAME) for entry in entries}
    except (KeyError, IndexError, ValueError, TypeError, AttributeError):
        return {}
    if not _DIGEST.fullmatch(config):
        return {}
    full_names = {registry + tag for tag in tags for registry in _REGISTRIES}
    digests = list(named) if len(named) == 1 else [digest for digest, name in named.items() if name in full_names]
    manifest = digests[0] if len(digests) == 1 and _DIGEST.fullmatch(digests[0]) else ""
    return {"config": config, "manifest": manifest, "tags": tags}


class FilterModule:
    """The filters that Ansible loads."""

    def filters(self):
        """Return the filters by name."""
        return {"training_image_archive": training_image_archive}
