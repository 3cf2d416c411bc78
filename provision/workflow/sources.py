"""What a role is made of, and what of it receipts keep: whether it has changed since it ran."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from provision.components import ROLES
from provision.facts import Unknown
from provision.planning import RoleSource, fingerprint, salt_of

if TYPE_CHECKING:
    from provision.workflow.plan import Look

__all__ = ["role_sources", "write_fingerprints"]


@cache
def role_sources() -> dict[str, RoleSource]:
    """Return the hash of every role's files, and the words in them; an apply looks at its nodes several times."""
    from provision.inventory.role_files import code_of_roles
    from provision.inventory.specs import roles_folder

    return {role: RoleSource(code, frozenset(words)) for role, (code, words) in code_of_roles(roles_folder()).items()}


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
