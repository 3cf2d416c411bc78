"""Select the host key to record for each node: one that is already trusted, from a file, or approved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from provision.errors import ConnectionFailed, ProvisionError, UsageError
from provision.inventory.hostkeys import HostKey, Target, in_parallel, known_keys, preferred, scan
from provision.inventory.sources import shown

Out = TypeVar("Out")


class KeySource(StrEnum):
    """Why a key is trusted."""

    FILE = "file"
    """It is in the file of ``--known-hosts``."""
    KNOWN = "known"
    """The node sends it, and it is in the operator's known_hosts."""
    FINGERPRINT = "fingerprint"
    """The node sends it, and the operator specified its fingerprint."""
    NEW = "new"
    """The node sends it; the operator has to approve it."""


@dataclass(frozen=True)
class PinnedKey:
    """The host key that the inventory records for a node."""

    target: Target
    key: HostKey
    source: KeySource


def keys_from_file(targets: Sequence[Target], file: Path) -> list[PinnedKey]:
    """Return the keys in a known_hosts file; UsageError with every node that is not in it."""
    if not file.is_file():
        raise UsageError(f"--known-hosts {file}: file not found")

    def take(target: Target) -> PinnedKey:
        keys = [key for key in known_keys(target, [file]) if not key.revoked]
        if not keys:
            looked = ", ".join(dict.fromkeys([*target.names, target.connection.host]))
            raise UsageError(f"{shown(file)} has no key for it (searched for {looked})", node=target.name)
        return PinnedKey(target, preferred(keys), KeySource.FILE)

    return all_or_error(in_parallel(take, targets), f"Add the missing keys to {shown(file)}, or omit --known-hosts.")


def keys_from_network(targets: Sequence[Target]) -> list[PinnedKey]:
    """Read every node's keys; ConnectionFailed if one is unreachable, or sends another key than the trusted one."""
    return all_or_error(in_parallel(_fetch_key, targets), "Nothing was written.")


def shared_keys(pinned: Sequence[PinnedKey]) -> list[tuple[str, ...]]:
    """Return the groups of nodes that send the same host key, as machines copied from one image do."""
    by_key: dict[str, list[str]] = {}
    for item in pinned:
        by_key.setdefault(item.key.blob, []).append(item.target.name)
    return [tuple(names) for names in by_key.values() if len(names) > 1]


def all_or_error(results: Sequence[Out | ProvisionError], remedy: str) -> list[Out]:
    """Return the results if all nodes have one, otherwise raise one error with every node without one."""
    errors = [result for result in results if isinstance(result, ProvisionError)]
    if not errors:
        return [result for result in results if not isinstance(result, ProvisionError)]
    kind = UsageError if all(isinstance(error, UsageError) for error in errors) else ConnectionFailed
    if len(errors) == 1:
        raise kind(errors[0].message, node=errors[0].node, remedy=errors[0].remedy or remedy)
    lines = "\n".join(f"  {error}" for error in errors)
    remedies = list(dict.fromkeys(error.remedy for error in errors if error.remedy))
    raise kind(f"{len(errors)} of {len(results)} nodes cannot be used:\n{lines}", remedy=" ".join([*remedies, remedy]))


def _fetch_key(target: Target) -> PinnedKey:
    shows = scan(target)
    trusted = known_keys(target, target.trusted_files)
    for old in trusted:
        if old.revoked and any(key.blob == old.blob for key in shows):
            raise ConnectionFailed(f"its host key {old.fingerprint} is marked as revoked", node=target.name)
    valid = [key for key in trusted if not key.revoked]
    match = next((key for key in shows if key in valid), None)
    if match is not None:
        return PinnedKey(target, match, KeySource.KNOWN)
    for old in valid:
        new = next((key for key in shows if key.type == old.type), None)
        if new is not None:
            raise ConnectionFailed(
                f"its host key has changed: it sends {new.fingerprint}, "
                f"your known_hosts has {old.fingerprint} ({old.type})",
                node=target.name,
                remedy="If the machine was reinstalled, remove its old key: "
                + " ".join(f"ssh-keygen -R '{name}'" for name in target.names[:1])
                + " ; otherwise the connection may be intercepted.",
            )
    return PinnedKey(target, preferred(shows), KeySource.NEW)
