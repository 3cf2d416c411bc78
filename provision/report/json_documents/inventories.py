"""Documents of the verbs that write inventories."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class HostKey(TypedDict):
    """A host key."""

    type: str
    """Its algorithm, e.g. `ssh-ed25519`."""
    fingerprint: str
    """Its SHA-256 fingerprint."""


class TrustedKey(HostKey):
    """A host key, and why it is trusted."""

    source: str
    """`file` (of `--known-hosts`), `known` (in known_hosts), `fingerprint` (as specified) or `new` (approved)."""


class LoginError(TypedDict):
    """Why a login failed."""

    message: str
    """What is wrong."""
    remedy: str | None
    """What to do."""
    code: str
    """The code of the error."""


class Login(TypedDict):
    """A login to a new node."""

    ok: bool
    """Whether it succeeded."""
    error: LoginError | None
    """Why it failed."""


class InventoryNode(TypedDict):
    """A node of an inventory."""

    name: str
    """Its name in the inventory."""
    address: str
    """The address of its SSH server."""
    port: int | None
    """The port of its SSH server; null for the default."""
    data_address: str | None
    """Its address on the data network."""
    key: NotRequired[TrustedKey]
    """Of a new node: its host key."""
    login: NotRequired[Login]
    """Of a new node: whether the login works."""


class Inventory(TypedDict):
    """A written inventory."""

    name: str
    """The name of the cluster."""
    inventory: str
    """The path of the inventory."""
    nodes: list[InventoryNode]
    """All nodes of the inventory."""
    removed: NotRequired[list[str]]
    """With `--remove`: the removed nodes."""


class ChangedInventory(TypedDict):
    """Changed settings of an existing inventory."""

    name: str
    """The name of the cluster."""
    inventory: str
    """The path of the inventory."""
    changed: list[str]
    """The changed variables."""


class KeyChange(TypedDict):
    """The host key of a node."""

    name: str
    """Its name in the inventory."""
    changed: bool
    """Whether the key was replaced."""
    old: list[HostKey]
    """The recorded keys."""
    key: TrustedKey
    """The new key."""


class ReplacedKeys(TypedDict):
    """Replaced host keys."""

    name: str
    """The name of the cluster."""
    inventory: str
    """The path of the inventory."""
    nodes: list[KeyChange]
    """The nodes."""


class LabelledNodes(TypedDict):
    """Labels that were set or removed."""

    nodes: dict[str, dict[str, Any]]
    """Node -> its changed variables in the inventory."""
    files: list[str]
    """The files that were written."""
