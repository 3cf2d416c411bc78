"""The long outputs that a cluster's nodes print alike: kept from look to look, so that they are not sent again."""

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
    """Keep what this look has brought, if it has brought anything."""
    if outputs.new:
        cache_files.write(_KIND, _key(names), json.dumps(outputs.texts()).encode())


def _key(names: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([_FORMAT, *names]).encode()).hexdigest()
