"""What a role is made of, read once for each command: whether it has changed since it ran."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from provision.facts import Unknown
from provision.planning import ROLES, RoleSource, fingerprint, salt_of

if TYPE_CHECKING:
    from provision.workflow.plan import Look

__all__ = ["role_sources", "write_fingerprints"]

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DECLARED = re.compile(r"^\w+:", re.MULTILINE)
_SHARED = "platform"
"""Every role uses this one's modules and ends with its tasks."""
_LEFT_OUT = frozenset({"molecule", "__pycache__", "README.md"})
"""What makes no difference to a node."""


@cache
def role_sources() -> dict[str, RoleSource]:
    """Return the hash of every role's files, and the words in them; an apply looks at its nodes several times."""
    from provision.inventory.specs import roles_folder

    folders = sorted(file.parent.parent for file in roles_folder().glob("*/tasks/main.yml"))
    contents = {folder.name: _contents(folder) for folder in folders}
    shared = contents.get(_SHARED, {})
    return {role: RoleSource(_hash(shared, own), _words(own)) for role, own in contents.items()}


def _contents(folder: Path) -> dict[str, bytes]:
    """Return path below the role -> content."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    named = ((path.relative_to(folder), path) for path in files)
    return {str(name): path.read_bytes() for name, path in named if not _LEFT_OUT.intersection(name.parts)}


def _hash(*parts: dict[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name, content in (item for part in parts for item in part.items()):
        whole.update(f"{name}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()[:32]


def _words(contents: dict[str, bytes]) -> frozenset[str]:
    """Return the words by which the role can see a variable; to declare one or give it a default is not to see it."""
    found: set[str] = set()
    for name, content in contents.items():
        text = content.decode(errors="replace")
        if name.startswith("defaults/"):
            text = _DECLARED.sub("", text)
        if not name.startswith("meta/"):
            found.update(_WORD.findall(text))
    return frozenset(found)


def write_fingerprints(folder: Path, found: Look, names: Sequence[str]) -> None:
    """Write for each node what its roles' receipts are to keep of the roles and of the variables that they see."""
    folder.chmod(0o700)
    for name in names:
        receipts = found.facts[name].receipts
        known = {} if isinstance(receipts, Unknown) else receipts
        node, made = found.cluster.node(name), {}
        for role in ROLES:
            before = known[role].content.get("fingerprint") if role in known else None
            salt = salt_of(before) or secrets.token_hex(16)
            made[role] = fingerprint(role, node, found.cluster, found.sources, salt)
        path = folder / f"{name}.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(made))
