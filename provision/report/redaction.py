"""Removal of secrets from texts and documents before they leave the controller.

Three methods complement each other: known secret values (passwords of the inventory), keys that name a secret
(`secret_names`), and formats that only secrets have (`secret_shapes`). Time is linear in the length of the text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from provision.model import Secret
from provision.report.secret_names import assigned_secrets, is_plain, names_secret
from provision.report.secret_shapes import REMOVED, address_credentials, format_spans, without, without_arguments

__all__ = ["REMOVED", "Redactor", "secrets_of"]

_SHORTEST = 4
"""A known value shorter than this is only removed if its key names a secret: it would match too much of any text."""

_KEY = re.compile(
    r"(?i)(pass(word|wd|phrase)?$|passw|passphrase|secret|token|credential|private_?key|api_?key|access_?key|_pass$"
    r"|become_pass|^auths?$|authorization|cookie|vault|_pwd$)"
)
_NO_SECRET = re.compile(r"(?i)(_enabled|_allowed|_seconds|_file|_path|_count|_names?|fingerprint|public)$")


def secrets_of(value: Any, *, key: str = "") -> set[str]:
    """Return every string inside `value` that is a Secret or has a key that names a secret."""
    if isinstance(value, Secret):
        return {value.reveal()}
    if isinstance(value, str):
        named = _is_secret(key, value)
        return {value, *address_credentials(value)} if named else address_credentials(value)
    if isinstance(value, Mapping):
        return _logins(value) | {
            secret for name, item in value.items() for secret in secrets_of(item, key=_deeper(key, str(name)))
        }
    if isinstance(value, list | tuple | set | frozenset):
        return {secret for item in value for secret in secrets_of(item, key=key)}
    return set()


def _is_secret(key: str, value: str) -> bool:
    if not key or _NO_SECRET.search(key):
        return False
    return bool(_KEY.search(key)) or (names_secret(key) != "" and not is_plain(value))


def _logins(values: Mapping[Any, Any]) -> set[str]:
    """Return ``user:password`` of each credential, which programs write in base64."""
    users = [str(item) for name, item in values.items() if str(name).endswith(("user", "username", "login"))]
    passwords = [item for name, item in values.items() if isinstance(item, str | Secret) and _names_secret(str(name))]
    shown = [item.reveal() if isinstance(item, Secret) else item for item in passwords]
    return {f"{user}:{password}" for user in users for password in shown if user and password}


def _names_secret(key: str) -> bool:
    return bool(_KEY.search(key)) and not _NO_SECRET.search(key)


def _deeper(key: str, name: str) -> str:
    """Return the key for an item; items inside a secret are secret too: ``registry_secret: {name: value}``."""
    return key if key and _names_secret(key) and not _NO_SECRET.search(name) else name


class Redactor:
    """Removes secrets, known ones in every encoding in which programs print them."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        values = {value.strip() for value in known} | {line for value in known for line in value.splitlines()}
        spellings = {form for value in values if len(value.strip()) >= _SHORTEST for form in _spellings(value.strip())}
        self._known = tuple(sorted(spellings, key=len, reverse=True))

    def text(self, text: str) -> str:
        """Return `text` without secrets."""
        for value in self._known:
            text = text.replace(value, REMOVED)
        # Both search the original text, because one could remove what the other recognises a secret by.
        return without_arguments(without(text, [*format_spans(text), *assigned_secrets(text)]))

    def data(self, value: Any, *, key: str = "") -> Any:
        """Return a JSON-like value without secrets; values whose key names a secret are removed completely."""
        if isinstance(value, Secret):
            return REMOVED
        if isinstance(value, Mapping):
            return {self.text(str(name)): self.data(item, key=_deeper(key, str(name))) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item, key=key) for item in value]
        if isinstance(value, str):
            return REMOVED if value and _is_secret(key, value) else self.text(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and key and _names_secret(key):
            return REMOVED
        return value


def _spellings(value: str) -> set[str]:
    escaped = {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    return {value, quote(value, safe=""), quote(value), base64.b64encode(value.encode()).decode(), *escaped}
