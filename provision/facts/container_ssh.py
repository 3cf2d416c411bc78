"""The SSH between training containers: a node's own keys, and the keys that it trusts."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from provision.facts.base import RawOutput


@dataclass(frozen=True)
class ContainerSsh:
    """A node's own part of the SSH setup between containers."""

    files: Mapping[str, str]
    """File name -> octal mode."""
    host_key: str
    """Type and base64 text of the container's host key."""
    client_key: str


@dataclass(frozen=True)
class ContainerTrust:
    """Trusted client keys and pinned host keys: the same on all nodes of a cluster."""

    known_hosts: Mapping[str, tuple[str, ...]]
    """``[name]:port`` -> the keys (type and base64 text) pinned for it."""
    authorized: tuple[str, ...]
    """Client keys (type and base64 text) that may log in."""
    authorized_nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node, by the comment of its line in authorized_keys -> its keys; a key without a comment by its fingerprint."""
    known_nodes: tuple[str, ...] = ()
    """The nodes of known_hosts, by the comments of its lines; a line without a comment by its first name."""


class ContainerSshFact:
    """Reads public keys and files' modes; private keys are not read.

    The folder ``keys`` belongs to the container's account, so its entries may be links, pipes or anything else.
    """

    name: ClassVar[str] = "container_ssh"
    label: ClassVar[str] = "cat /var/lib/provision/container_ssh"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = "@container_ssh"

    def parse(self, raw: RawOutput) -> ContainerSsh | None:
        """Return None if the role never created anything on this node."""
        files: dict[str, str] = {}
        keys: dict[str, str] = {}
        listing, *key_parts = f"\n{raw.stdout}".split("\n:")  # only the first line of a key file counts
        for line in listing.splitlines():
            if line.startswith("mode ") and len(words := line.split(None, 2)) == 3:  # noqa: PLR2004 - word, mode, name
                files[words[2].removeprefix("keys/")] = words[1]
        for part in key_parts:
            title, _, text = part.partition("\n")[0].partition(":")
            if title not in keys and (key := next(iter(_keys(text)), "")):
                keys[title] = key
        if not files:
            return None
        return ContainerSsh(files, keys.get("ssh_host_ed25519_key.pub", ""), keys.get("id_ed25519.pub", ""))


class ContainerTrustFact:
    """Reads the files that are the same on all nodes, with one line for each node.

    All nodes print the same text, so it is parsed once for a thousand nodes.
    """

    name: ClassVar[str] = "container_trust"
    label: ClassVar[str] = "cat /var/lib/provision/container_ssh/known_hosts"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = "@container_trust"

    def parse(self, raw: RawOutput) -> ContainerTrust:
        """Return empty results for a missing file."""
        parts: dict[str, list[str]] = {"known_hosts": [], "authorized_keys": []}
        for line in raw.stdout.splitlines():
            title, _, text = line.partition(":")
            if title in parts:
                parts[title].append(text)
        known_hosts, authorized_keys = parts["known_hosts"], parts["authorized_keys"]
        return ContainerTrust(
            known_hosts=_known_hosts(known_hosts),
            authorized=tuple(key for line in authorized_keys for key in _keys(line)),
            authorized_nodes=_owners(authorized_keys),
            known_nodes=tuple(_owners(known_hosts, named=True)),
        )


def fingerprint(key: str) -> str:
    """Return the SHA256 fingerprint of a public key as ``ssh-keygen -l`` prints it; empty for no key."""
    words = key.split()
    try:
        blob = base64.b64decode(words[-1], validate=True) if words else b""
    except (ValueError, binascii.Error):
        return ""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=") if blob else ""


def _keys(text: str) -> list[str]:
    """Return type and base64 text of each key, without options and comments."""
    keys: list[str] = []
    for line in text.splitlines():
        words = line.split()
        for index, word in enumerate(words[:-1]):
            if word.startswith(("ssh-", "ecdsa-", "sk-")) and words[index + 1].startswith("AAAA"):
                keys.append(f"{word} {words[index + 1]}")
                break
    return keys


def _owners(lines: Sequence[str], *, named: bool = False) -> dict[str, tuple[str, ...]]:
    """Return comment -> keys. A line without a comment counts under its first name, or else the key's fingerprint."""
    owners: dict[str, tuple[str, ...]] = {}
    for line in lines:
        key = next(iter(_keys(line)), "")
        if not key or line.startswith("#"):
            continue
        comment = line.partition(key.split()[1])[2].strip()
        owner = comment or (line.split()[0].split(",")[0] if named else fingerprint(key))
        owners[owner] = (*owners.get(owner, ()), key)
    return owners


def _known_hosts(lines: Sequence[str]) -> dict[str, tuple[str, ...]]:
    hosts: dict[str, tuple[str, ...]] = {}
    for line in lines:
        names, _, rest = line.strip().partition(" ")
        key = next(iter(_keys(rest)), "")
        if not key or names.startswith(("#", "@")):
            continue
        for name in names.split(","):
            hosts[name] = (*hosts.get(name, ()), key)
    return hosts
