"""Read the entries of ``cluster_operators`` and ``cluster_submitters``; a link to this file is a filter of a role.

It imports the standard library only, because Ansible also loads it where this package is not installed.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["VARIABLES", "FilterModule", "entry_problems", "people", "public_key"]

VARIABLES = {"cluster_operators": "operator", "cluster_submitters": "submitter"}
"""Variable of the inventory -> role of the people in it."""

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
"""Type -> the lengths of the parts that follow the type in the blob; 0: any length. Keys of these types can sign."""
_RSA = "ssh-rsa"
_RSA_BITS = 2048


def people(variables: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the people that a node's variables name, each with ``name``, ``key``, ``role`` and ``user``.

    Raises:
        ValueError: an entry is not valid; the text has one line for each problem.
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
    """Yield (variable, problem) for everything that is wrong with the people of a node's variables."""
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
        ValueError: it is not one line with a key of a supported type.
    """
    if not isinstance(text, str):
        raise ValueError(f"an SSH public key must be text, not {_shown(text)}")  # noqa: TRY004 - as all that is wrong
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
        raise ValueError(f"the {kind} key is not complete") from None
    lengths = _KEYS[kind]
    if not parts or parts[0] != kind.encode():
        raise ValueError(f"the key says {kind}, but contains a key of another type")
    if len(parts) != len(lengths) + 1 or any(n and len(one) != n for n, one in zip(lengths, parts[1:])):  # noqa: B905 - Ansible's Python
        raise ValueError(f"the {kind} key does not have the parts of such a key")
    if kind == _RSA and int.from_bytes(parts[2], "big").bit_length() < _RSA_BITS:
        raise ValueError(f"the ssh-rsa key has fewer than {_RSA_BITS} bits")
    return f"{kind} {blob}"


def _parts(data: bytes) -> Iterator[bytes]:
    """Yield the length-prefixed parts of a key blob; ValueError where the data ends within one."""
    while data:
        if len(data) < 4:  # noqa: PLR2004 - the length of a length
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
            yield f"{_shown(key)} is not a field of a person here; the fields are {', '.join(known)}"
    name, user = entry.get("name"), entry.get("user")
    if not isinstance(name, str) or not _NAME.match(name):
        yield (
            f"name: {_shown(name)} is not a name; use a lower-case letter, then lower-case letters, digits, _ or -, "
            "32 at most"
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
    """Yield whether name or key are those of another person, and remember them."""
    name = entry.get("name")
    if isinstance(name, str):
        if name in names:
            yield f"name: {_shown(name)} is the name of {names[name]} too"
        names.setdefault(name, place)
    try:
        key = public_key(entry.get("key"))
    except ValueError:
        return
    if key in keys:
        yield f"key: it is the key of {keys[key]} too; each person needs a key of his own"
    keys.setdefault(key, place)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - what fits on a line


class FilterModule:
    """What Ansible loads."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"job_agent_people": people}
