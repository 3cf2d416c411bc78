"""Parse the entries of ``cluster_operators`` and ``cluster_submitters``. A role uses this file as a filter plugin.

It imports only the standard library, because Ansible also loads it where this package is not installed.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

VARIABLES = {"cluster_operators": "operator", "cluster_submitters": "submitter"}
"""Variable of the inventory -> role of its people."""

_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}\Z")
_USER = re.compile(r"[1-9][0-9]{0,9}:[1-9][0-9]{0,9}(,[1-9][0-9]{0,9}){0,31}\Z")
_BLOB = re.compile(r"[A-Za-z0-9+/]+={0,2}\Z")
_LARGEST_ID = 4294967294
_KEY_LIMIT = 8192
_KEYS: Mapping[str, tuple[int, ...]] = {
    "ssh-ed25519": (32,),
    "ecdsa-sha2-nistp256": (8, 65),
    "ecdsa-sha2-nistp384": (8, 97),
    "ecdsa-sha2-nistp521": (8, 133),
    "ssh-rsa": (0, 0),
}
"""Key type -> lengths of the parts after the type in the blob; 0 for any length. Keys of these types can sign."""
_RSA = "ssh-rsa"
_RSA_BITS = 2048


def people(variables: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the people in a node's variables, each with ``name``, ``key``, ``role`` and ``user``.

    Raises:
        ValueError: An entry is invalid. The text has one line per problem.
    """
    problems = [f"{variable}: {text}" for variable, text in entry_problems(variables)]
    if problems:
        raise ValueError("\n".join(problems))
    return [
        {"name": one["name"], "key": public_key(one["key"]), "role": role, "user": one.get("user") or ""}
        for variable, role in VARIABLES.items()
        for one in variables.get(variable) or ()
    ]


def entry_problems(variables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (variable, problem) for every problem with the people in a node's variables."""
    names: dict[str, str] = {}
    keys: dict[str, str] = {}
    account = variables.get("cluster_agent_account")
    if account is not None and not (isinstance(account, str) and _NAME.match(account) and account != "root"):
        yield "cluster_agent_account", f"{_shown(account)} is not the name of an account of its own"
    for variable, role in VARIABLES.items():
        entries = variables.get(variable)
        if entries is None:
            continue
        if not isinstance(entries, list):
            yield variable, f"must be a list of people, not {_shown(entries)}"
            continue
        for number, entry in enumerate(entries, start=1):
            here = f"entry {number}"
            for text in _problems_of(entry, role):
                yield variable, f"{here}: {text}"
            if not isinstance(entry, Mapping):
                continue
            yield from ((variable, f"{here}: {text}") for text in _repeated(entry, f"{variable}, {here}", names, keys))


def public_key(text: Any) -> str:
    """Return an SSH public key as ``TYPE BLOB``, without its comment.

    Raises:
        ValueError: The text is not one line with a key of a supported type.
    """
    if not isinstance(text, str):
        raise ValueError(f"an SSH public key must be text, not {_shown(text)}")  # noqa: TRY004 - ValueError like all problems
    if len(text) > _KEY_LIMIT or not text.strip().isprintable():
        raise ValueError("an SSH public key must be one line of printable characters")
    kind, _, rest = text.strip().partition(" ")
    blob = rest.strip().partition(" ")[0]
    if kind not in _KEYS:
        raise ValueError(f"{_shown(kind)} is not a supported type of SSH public key; supported: {', '.join(_KEYS)}")
    if not _BLOB.match(blob):
        raise ValueError(f"the {kind} key is not valid base64")
    try:
        parts = list(_parts(base64.b64decode(blob, validate=True)))
    except (ValueError, binascii.Error):
        raise ValueError(f"the {kind} key is incomplete") from None
    lengths = _KEYS[kind]
    if not parts or parts[0] != kind.encode():
        raise ValueError(f"the key is declared as {kind}, but contains a key of another type")
    if len(parts) != len(lengths) + 1 or any(n and len(one) != n for n, one in zip(lengths, parts[1:])):  # noqa: B905 - Ansible's Python
        raise ValueError(f"the {kind} key has invalid parts")
    if kind == _RSA and int.from_bytes(parts[2], "big").bit_length() < _RSA_BITS:
        raise ValueError(f"the ssh-rsa key has fewer than {_RSA_BITS} bits")
    return f"{kind} {blob}"


def _parts(data: bytes) -> Iterator[bytes]:
    """Yield the length-prefixed parts of a key blob; ValueError if the data is truncated."""
    while data:
        if len(data) < 4:  # noqa: PLR2004 - size of a length
            raise ValueError("incomplete")
        (length,) = struct.unpack(">I", data[:4])
        if len(data) < 4 + length:
            raise ValueError("incomplete")
        yield data[4 : 4 + length]
        data = data[4 + length :]


def _problems_of(entry: Any, role: str) -> Iterator[str]:
    if not isinstance(entry, Mapping):
        yield f"must be a mapping with name and key, not {_shown(entry)}"
        return
    known = ("name", "key", "user") if role == "submitter" else ("name", "key")
    for key in entry:
        if key not in known:
            yield f"unknown field {_shown(key)}; the fields of a person are {', '.join(known)}"
    name, user = entry.get("name"), entry.get("user")
    if not isinstance(name, str) or not _NAME.match(name):
        yield (
            f"name: {_shown(name)} is not a name; use a lower-case letter, then lower-case letters, digits, _ or -, "
            "at most 32 characters"
        )
    try:
        public_key(entry.get("key"))
    except ValueError as error:
        yield f"key: {error}"
    if role == "submitter" and not _is_user(user):
        yield f"user: {_shown(user)} is not UID:GID[,GID...] of an account other than root, such as 1001:1001"


def _is_user(user: Any) -> bool:
    if not isinstance(user, str) or not _USER.match(user):
        return False
    return all(int(number) <= _LARGEST_ID for number in re.split("[:,]", user))


def _repeated(entry: Mapping[str, Any], place: str, names: dict[str, str], keys: dict[str, str]) -> Iterator[str]:
    """Yield problems if name or key belong to another person, and record them."""
    name = entry.get("name")
    if isinstance(name, str):
        if name in names:
            yield f"name: {_shown(name)} is also the name of {names[name]}"
        names.setdefault(name, place)
    try:
        key = public_key(entry.get("key"))
    except ValueError:
        return
    if key in keys:
        yield f"key: it is also the key of {keys[key]}; each person needs a separate key"
    keys.setdefault(key, place)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - length of a line


class FilterModule:
    """Filter plugin for Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"job_agent_people": people}
