"""Taking secrets out of texts and documents before they leave this machine.

Three nets, each enough for what it knows: values that are known to be secret (passwords of the inventory), keys that
name a secret, and shapes that only secrets have (private keys, credentials in addresses, authorization headers).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from provision.model import Secret

__all__ = ["REMOVED", "Redactor", "secrets_of"]

REMOVED = "[removed]"

_SHORTEST = 4
"""A known value below this length is only taken out where its key says so: it would match half of any text."""

_KEY = re.compile(
    r"(?i)(pass(word|wd|phrase)?$|passw|passphrase|secret|token|credential|private_?key|api_?key|access_?key|_pass$"
    r"|become_pass|^auths?$|authorization|cookie|vault)"
)
_NO_SECRET = re.compile(r"(?i)(_enabled|_allowed|_seconds|_file|_path|_count|_names?|fingerprint|public)$")

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|\Z)",
            re.DOTALL,
        ),
        REMOVED,
    ),
    (re.compile(r"\$ANSIBLE_VAULT;[0-9.]+;\S+(?:\s+[0-9a-f]{20,})*"), REMOVED),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@\"'<>]*:[^\s/\"'<>]*@"), rf"\1{REMOVED}@"),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@:\"'<>]+@(?=[^\s/]+)"), rf"\1{REMOVED}@"),
    (re.compile(r"(?i)\b(authorization['\"]?\s*[:=]\s*['\"]?(?:basic|bearer|token)?\s*)[^\s'\",]+"), rf"\1{REMOVED}"),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}"), rf"\1{REMOVED}"),
    (
        re.compile(
            r"(?i)((?:^|[\s\"'{,;&?-])[\w.-]*(?:passw(?:or)?d|passphrase|passwd|secret|token|api_?key|access_?key"
            r"|private_?key|credentials?|become_pass|_pass|\"auth\")[\"']?\s*(?::\s*|=\s*|\s+(?=\S+$))[\"']?)"
            r"(?!\[removed\])([^\s\"',;&}]+|(?<=\")[^\"]+|(?<=')[^']+)",
            re.MULTILINE,
        ),
        rf"\1{REMOVED}",
    ),
    (re.compile(r"(?<!\S)(--?(?:password|passwd|token|secret|pass))(?:[ =])(\S+)"), rf"\1 {REMOVED}"),
    (re.compile(r"\b(?:ghp|gho|ghs|github_pat|glpat|hf|xox[bp]|nvapi|AKIA|dckr_pat)[-_]?[A-Za-z0-9_-]{16,}"), REMOVED),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"), REMOVED),
)


def secrets_of(value: Any, *, key: str = "") -> set[str]:
    """Return every string inside `value` that is a Secret or stands under a key that names a secret."""
    if isinstance(value, Secret):
        return {value.reveal()}
    if isinstance(value, str):
        named = bool(key) and _names_secret(key)
        return {value, *_credentials(value)} if named else _credentials(value)
    if isinstance(value, Mapping):
        return {found for name, item in value.items() for found in secrets_of(item, key=_deeper(key, str(name)))}
    if isinstance(value, list | tuple | set | frozenset):
        return {found for item in value for found in secrets_of(item, key=key)}
    return set()


def _names_secret(key: str) -> bool:
    return bool(_KEY.search(key)) and not _NO_SECRET.search(key)


def _deeper(key: str, name: str) -> str:
    """A key inside something secret is secret as well: ``registry_secret: {name: value}``."""
    return key if key and _names_secret(key) and not _NO_SECRET.search(name) else name


def _credentials(text: str) -> set[str]:
    found = re.findall(r"://([^\s/@:\"']*):([^\s/\"']*)@", text)
    return {password for _, password in found if password}


class Redactor:
    """Takes secrets out; the known ones in every spelling in which programs print them.

    Args:
        known: values that are secret, whatever stands around them.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        values = {value.strip() for value in known} | {line for value in known for line in value.splitlines()}
        spellings = {form for value in values if len(value.strip()) >= _SHORTEST for form in _spellings(value.strip())}
        self._known = tuple(sorted(spellings, key=len, reverse=True))

    def text(self, text: str) -> str:
        """Return `text` without secrets."""
        for value in self._known:
            text = text.replace(value, REMOVED)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text

    def data(self, value: Any, *, key: str = "") -> Any:
        """Return a JSON-like value without secrets; what stands under a key that names a secret is taken out whole."""
        if isinstance(value, Secret):
            return REMOVED
        if isinstance(value, Mapping):
            return {self.text(str(name)): self.data(item, key=_deeper(key, str(name))) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item, key=key) for item in value]
        if isinstance(value, str):
            return REMOVED if value and key and _names_secret(key) else self.text(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and key and _names_secret(key):
            return REMOVED
        return value


def _spellings(value: str) -> set[str]:
    escaped = {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    return {value, quote(value, safe=""), quote(value), base64.b64encode(value.encode()).decode(), *escaped}
