"""Which host key of each node to pin: one the operator trusts already, one from a file, or one to be approved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from provision.errors import ConnectionFailed, ProvisionError, UsageError
from provision.inventory.hostkeys import HostKey, Target, in_parallel, known_keys, preferred, scan
from provision.inventory.sources import shown

__all__ = ["KeySource", "PinnedKey", "all_or_error", "keys_from_file", "keys_from_network", "shared_keys"]

Out = TypeVar("Out")


class KeySource(StrEnum):
    """Why a key is believed."""

    FILE = "file"
    """It is in the file that ``--known-hosts`` names."""
    KNOWN = "known"
    """The node shows it, and the operator's own known_hosts has it."""
    FINGERPRINT = "fingerprint"
    """The node shows it, and the operator gave its fingerprint."""
    NEW = "new"
    """The node shows it; a person has to approve it."""


@dataclass(frozen=True)
class PinnedKey:
    """The host key that the inventory will hold for a node."""

    target: Target
    key: HostKey
    source: KeySource


def keys_from_file(targets: Sequence[Target], file: Path) -> list[PinnedKey]:
    """Take the keys out of a known_hosts file; UsageError names every node that it lacks."""
    if not file.is_file():
        raise UsageError(f"--known-hosts {file}: there is no such file")

    def take(target: Target) -> PinnedKey:
        keys = [key for key in known_keys(target, [file]) if not key.revoked]
        if not keys:
            looked = ", ".join(dict.fromkeys([*target.names, target.connection.host]))
            raise UsageError(f"{shown(file)} has no key for it (looked for {looked})", node=target.name)
        return PinnedKey(target, preferred(keys), KeySource.FILE)

    return all_or_error(
        in_parallel(take, targets), f"Add the missing keys to {shown(file)}, or leave --known-hosts out."
    )


def keys_from_network(targets: Sequence[Target]) -> list[PinnedKey]:
    """Look at every node's keys; ConnectionFailed when one cannot be reached, or shows another key than is trusted."""
    return all_or_error(in_parallel(_look, targets), "Nothing was written.")


def shared_keys(pinned: Sequence[PinnedKey]) -> list[tuple[str, ...]]:
    """Return the groups of nodes that show one and the same host key, as machines copied from one image do."""
    by_key: dict[str, list[str]] = {}
    for item in pinned:
        by_key.setdefault(item.key.blob, []).append(item.target.name)
    return [tuple(names) for names in by_key.values() if len(names) > 1]


def all_or_error(results: Sequence[Out | ProvisionError], remedy: str) -> list[Out]:
    """Return the results when every node has one; else one error that names every node without."""
    errors = [result for result in results if isinstance(result, ProvisionError)]
    if not errors:
        return [result for result in results if not isinstance(result, ProvisionError)]
    kind = UsageError if all(isinstance(error, UsageError) for error in errors) else ConnectionFailed
    if len(errors) == 1:
        raise kind(errors[0].message, node=errors[0].node, remedy=errors[0].remedy or remedy)
    lines = "\n".join(f"  {error}" for error in errors)
    remedies = list(dict.fromkeys(error.remedy for error in errors if error.remedy))
    raise kind(f"{len(errors)} of {len(results)} nodes cannot be used:\n{lines}", remedy=" ".join([*remedies, remedy]))


def _look(target: Target) -> PinnedKey:
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
                f"its host key has changed: it shows {new.fingerprint}, "
                f"your known_hosts has {old.fingerprint} ({old.type})",
                node=target.name,
                remedy="If the machine was installed anew, forget its old key: "
                + " ".join(f"ssh-keygen -R '{name}'" for name in target.names[:1])
                + " ; if not, somebody may stand between you and it.",
            )
    return PinnedKey(target, preferred(shows), KeySource.NEW)
