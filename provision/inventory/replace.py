"""Replace the recorded host keys of reinstalled nodes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from provision.errors import HostNotTrusted, InventoryError, ProvisionError, UsageError
from provision.inventory.hostkeys import (
    HostKey,
    Target,
    in_parallel,
    known_keys,
    known_line_numbers,
    line_for,
    preferred,
    scan,
)
from provision.inventory.init import InitRequest, existing, targets_of
from provision.inventory.load import load
from provision.inventory.ranges import expand
from provision.inventory.sources import shown
from provision.inventory.trust import KeySource, all_or_error, keys_from_file
from provision.inventory.write import with_key
from provision.local_files import write_private
from provision.model import Cluster

_PREFIX = "SHA256:"


@dataclass(frozen=True)
class KeyChange:
    """Host keys of one node: recorded and new."""

    target: Target
    file: Path
    """The inventory's known_hosts file."""
    old: tuple[HostKey, ...]
    """All keys of the node in the file."""
    new: HostKey
    source: KeySource
    others: tuple[str, ...] = ()
    """Other nodes of the inventory with the new key on record."""

    @property
    def changed(self) -> bool:
        """Return whether the file has to be written."""
        return self.old != (self.new,)


@dataclass(frozen=True)
class Replaced:
    """Result: the inventory and every node's keys."""

    cluster: Cluster
    keys: tuple[KeyChange, ...]


class ReplacementAsker(Protocol):
    """Dialog with the operator during a replacement."""

    def step(self, message: str) -> None:
        """Report the start of an action."""

    def approve_changes(self, changes: Sequence[KeyChange]) -> None:
        """Show old and new fingerprints; return only if every unverified key is approved."""


def replace_keys(request: InitRequest, asker: ReplacementAsker) -> Replaced:
    """Record the current host keys of nodes after approval; the file is changed atomically.

    A key is approved at a terminal, by its fingerprint in `request`, or by a file of known keys.
    """
    path = existing(request)
    cluster = load(path)
    names = _names(request, cluster, path)
    expected = expected_fingerprints(request.fingerprints, names)
    connections = {name: cluster.node(name).connection for name in names}
    targets = targets_of(expand(names), connections)
    files = {target.name: _file(target, path) for target in targets}
    if request.known_hosts is not None:
        entries = [(p.target, p.key, p.source) for p in keys_from_file(targets, request.known_hosts.expanduser())]
    else:
        asker.step(f"reading the SSH host keys of {', '.join(names)}")
        entries = _shown_keys(targets, files, expected)
    changes = [_change(target, files[target.name], key, source, cluster) for target, key, source in entries]
    due = [change for change in changes if change.changed]
    if due:
        asker.approve_changes(due)
    for file in dict.fromkeys(change.file for change in due):
        _write(file, [change for change in due if change.file == file])
    return Replaced(cluster, tuple(changes))


def expected_fingerprints(words: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the expected fingerprint of each node, from ``[NODE=]SHA256:...``; UsageError for invalid words."""
    expected: dict[str, str] = {}
    for word in words:
        name, equals, text = word.rpartition("=") if not word.startswith(_PREFIX) else ("", "", word)
        if word.startswith(_PREFIX) and len(names) == 1:
            name = names[0]
        text = text.rstrip("=")
        if not text.startswith(_PREFIX) or (not equals and not word.startswith(_PREFIX)):
            raise UsageError(
                f"--fingerprint {word}: not a SHA256 fingerprint",
                remedy="Print it on the node's console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
            )
        if name not in names:
            raise UsageError(
                f"--fingerprint {word}: must name one of the nodes {', '.join(names)}",
                remedy="With several nodes use --fingerprint NODE=SHA256:... for each.",
            )
        expected[name] = text
    return expected


def _names(request: InitRequest, cluster: Cluster, path: Path) -> list[str]:
    words = expand(request.words)
    addressed = next((word.name for word in words if word.address is not None), None)
    if addressed:
        raise UsageError(f"--replace-key: {addressed} has an address", remedy="Specify names of the inventory only.")
    known = [node.name for node in cluster.nodes]
    unknown = [word.name for word in words if word.name not in known]
    if unknown:
        raise UsageError(f"{shown(path)} has no host {', '.join(unknown)}", remedy=f"Its hosts are {', '.join(known)}.")
    local = next((word.name for word in words if cluster.node(word.name).connection.local), None)
    if local:
        raise UsageError(f"{local} is the controller, which has no host key on record")
    return [word.name for word in words]


def _file(target: Target, path: Path) -> Path:
    """Return the known_hosts file of the node in the inventory."""
    file = target.connection.known_hosts
    if file is None:
        raise InventoryError(
            f"{shown(path)} sets no known_hosts file for {target.name}, so that your own one is used",
            remedy=f"Remove the old key there: ssh-keygen -R '{target.names[0]}'",
        )
    return file.resolve()


def _shown_keys(
    targets: Sequence[Target], files: Mapping[str, Path], expected: Mapping[str, str]
) -> list[tuple[Target, HostKey, KeySource]]:
    def chosen(target: Target) -> tuple[Target, HostKey, KeySource]:
        keys = scan(target)
        revoked = {key.blob for key in known_keys(target, [files[target.name], *target.trusted_files]) if key.revoked}
        if bad := next((key for key in keys if key.blob in revoked), None):
            raise HostNotTrusted(f"its host key {bad.fingerprint} is marked as revoked", node=target.name)
        recorded = [key for key in known_keys(target, [files[target.name]]) if key in keys]
        wanted = expected.get(target.name)
        if wanted is None:
            return target, (recorded or [preferred(keys)])[0], KeySource.NEW
        match = next((key for key in keys if key.fingerprint == wanted), None)
        if match is None:
            shows = ", ".join(f"{key.fingerprint} ({key.type})" for key in keys)
            raise HostNotTrusted(
                f"its key is {shows}, but --fingerprint is {wanted}",
                node=target.name,
                remedy="Nothing was written. Compare it with the node's console: another machine may answer.",
            )
        return target, match, KeySource.FINGERPRINT

    return all_or_error(in_parallel(chosen, targets), "Nothing was written.")


def _change(target: Target, file: Path, key: HostKey, source: KeySource, cluster: Cluster) -> KeyChange:
    old = tuple(known for known in known_keys(target, [file]) if not known.revoked)
    return KeyChange(target, file, old, key, source, _others(file, key, target, cluster))


def _others(file: Path, key: HostKey, target: Target, cluster: Cluster) -> tuple[str, ...]:
    """Return the other nodes with this key on record, by the comments of their lines."""
    words = [line.split() for line in _text(file).splitlines()]
    comments = {word[3] for word in words if len(word) > 3 and word[2] == key.blob}  # noqa: PLR2004 - names, type, key
    return tuple(node.name for node in cluster.nodes if node.name in comments and node.name != target.name)


def _write(file: Path, changes: Sequence[KeyChange]) -> None:
    """Write the file with all changes. It is read again, because the approval may have taken minutes."""
    text = _text(file)
    with tempfile.TemporaryDirectory(prefix="provision-") as folder:
        for change in changes:
            copy = Path(folder, "known_hosts")
            copy.write_text(text, encoding="utf-8")
            mine = known_line_numbers(change.target, copy)
            names = change.target.names
            text = with_key(text, change.target.name, names, mine, line_for(change.target, change.new), file)
    try:
        mode = file.stat().st_mode & 0o777 if file.exists() else 0o644
        write_private(file, text, mode=mode, durable=True)
    except OSError as error:
        raise ProvisionError(f"{shown(file)} cannot be written: {error.strerror}") from error


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InventoryError(f"{shown(file)} cannot be read: {error}") from error
