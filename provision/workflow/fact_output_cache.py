"""Stores the long outputs that are equal on all nodes of a cluster, so that the next probe does not send them again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress

from provision import cache_files
from provision.documents import decode
from provision.errors import InvalidDocument
from provision.facts import Outputs

_FORMAT = 1
_KIND = "outputs"


def load(names: Sequence[str]) -> Outputs:
    """Return what is kept of the cluster whose nodes have these names; nothing where there is nothing."""
    content = cache_files.read(_KIND, _key(names))
    with suppress(InvalidDocument):
        return Outputs(decode(content or b"{}", dict[str, str], node="", what="outputs of earlier probes"))
    return Outputs()


def save(names: Sequence[str], outputs: Outputs) -> None:
    """Store the new outputs of a probe, if there are any."""
    if outputs.new:
        cache_files.write(_KIND, _key(names), json.dumps(outputs.texts()).encode())


def _key(names: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([_FORMAT, *names]).encode()).hexdigest()
