"""Hashes of the roles' sources, and the fingerprints that receipts record to detect changes."""

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
    from provision.workflow.plan_result import PlanResult


@cache
def role_sources() -> dict[str, RoleSource]:
    """Return the hash of every role's files, and the words in them; cached for one apply."""
    from provision.inventory.role_files import code_of_roles
    from provision.resources import roles_folder

    return {role: RoleSource(code, frozenset(words)) for role, (code, words) in code_of_roles(roles_folder()).items()}


def write_fingerprints(folder: Path, snapshot: PlanResult, names: Sequence[str]) -> None:
    """Write for each node the fingerprints of the roles and their variables, for the roles' receipts."""
    folder.chmod(0o700)
    for name in names:
        receipts = snapshot.facts[name].receipts
        receipt_by_role = {} if isinstance(receipts, Unknown) else receipts
        node, fingerprints = snapshot.cluster.node(name), {}
        for role in ROLES:
            before = receipt_by_role[role].content.get("fingerprint") if role in receipt_by_role else None
            salt = salt_of(before) or secrets.token_hex(16)
            fingerprints[role] = fingerprint(role, node, snapshot.cluster, snapshot.sources, salt)
        path = folder / f"{name}.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(fingerprints))
