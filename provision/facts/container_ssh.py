"""The SSH that training containers use among each other: a node's own part, and whom it trusts."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from provision.facts.base import RawOutput

__all__ = ["ContainerSsh", "ContainerSshFact", "ContainerTrust", "ContainerTrustFact", "fingerprint"]


@dataclass(frozen=True)
class ContainerSsh:
    """A node's own part of the SSH that containers use among each other."""

    files: Mapping[str, str]
    """File name -> octal mode."""
    host_key: str
    """Type and base64 text of the container's host key."""
    client_key: str


@dataclass(frozen=True)
class ContainerTrust:
    """Whom the containers let in and whom they know: the same on all nodes of a cluster."""

    known_hosts: Mapping[str, tuple[str, ...]]
    """``[name]:port`` -> the keys (type and base64 text) pinned for it."""
    authorized: tuple[str, ...]
    """Client keys (type and base64 text) that may log in."""
    authorized_nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node, by the comment of its line in authorized_keys -> its keys; a key without a comment by its fingerprint."""
    known_nodes: tuple[str, ...] = ()
    """The nodes of known_hosts, by the comments of its lines; a line without a comment by its first name."""


class ContainerSshFact:
    """Reads public halves only; of private keys just the mode.

    The folder ``keys`` belongs to the container's account: what it holds may be a link, a pipe or anything.
    """

    name: ClassVar[str] = "container_ssh"
    label: ClassVar[str] = "cat /var/lib/provision/container_ssh"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = r"""
cd /var/lib/provision/container_ssh 2>/dev/null || exit 0
stat -c 'mode %a %n' authorized_keys known_hosts ssh_config sshd_config \
  keys/ssh_host_ed25519_key keys/id_ed25519 2>/dev/null
cd keys 2>/dev/null || exit 0
for file in ssh_host_ed25519_key.pub id_ed25519.pub; do
  [ -f $file ] && [ ! -h $file ] || continue
  printf '\n:%s:' $file; dd if=$file iflag=nofollow,nonblock bs=1024 count=1 2>/dev/null
done | tr -cd ':A-Za-z0-9+/=@._ \n-'
exit 0
"""

    def parse(self, raw: RawOutput) -> ContainerSsh | None:
        """None means that nothing was ever made on this node."""
        files: dict[str, str] = {}
        keys: dict[str, str] = {}
        ours, *theirs = f"\n{raw.stdout}".split("\n:")  # of a key's file only what stands in its first line counts
        for line in ours.splitlines():
            if line.startswith("mode ") and len(words := line.split(None, 2)) == 3:  # noqa: PLR2004 - word, mode, name
                files[words[2].removeprefix("keys/")] = words[1]
        for part in theirs:
            title, _, text = part.partition("\n")[0].partition(":")
            if title not in keys and (key := next(iter(_keys(text)), "")):
                keys[title] = key
        if not files:
            return None
        return ContainerSsh(files, keys.get("ssh_host_ed25519_key.pub", ""), keys.get("id_ed25519.pub", ""))


class ContainerTrustFact:
    """Reads the files that are the same on all nodes, a line for each node in each; their own keys are elsewhere.

    So all nodes print the same text, which is read once for a thousand nodes.
    """

    name: ClassVar[str] = "container_trust"
    label: ClassVar[str] = "cat /var/lib/provision/container_ssh/known_hosts"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = """
cd /var/lib/provision/container_ssh 2>/dev/null && grep -H '' known_hosts authorized_keys 2>/dev/null
exit 0
"""

    def parse(self, raw: RawOutput) -> ContainerTrust:
        """A file that is not there knows nobody."""
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
    """Type and base64 text of each key; options before it and the comment behind it are dropped."""
    found: list[str] = []
    for line in text.splitlines():
        words = line.split()
        for index, word in enumerate(words[:-1]):
            if word.startswith(("ssh-", "ecdsa-", "sk-")) and words[index + 1].startswith("AAAA"):
                found.append(f"{word} {words[index + 1]}")
                break
    return found


def _owners(lines: Sequence[str], *, named: bool = False) -> dict[str, tuple[str, ...]]:
    """Comment of each key's line -> keys; without a comment the line's first name, or else the key's fingerprint."""
    found: dict[str, tuple[str, ...]] = {}
    for line in lines:
        key = next(iter(_keys(line)), "")
        if not key or line.startswith("#"):
            continue
        comment = line.partition(key.split()[1])[2].strip()
        owner = comment or (line.split()[0].split(",")[0] if named else fingerprint(key))
        found[owner] = (*found.get(owner, ()), key)
    return found


def _known_hosts(lines: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for line in lines:
        names, _, rest = line.strip().partition(" ")
        key = next(iter(_keys(rest)), "")
        if not key or names.startswith(("#", "@")):
            continue
        for name in names.split(","):
            found[name] = (*found.get(name, ()), key)
    return found
