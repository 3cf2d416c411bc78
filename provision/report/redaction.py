"""Taking secrets out of texts and documents before they leave this machine.

Three nets, each enough for what it knows: values that are known to be secret (passwords of the inventory), keys that
name a secret (`secret_names`), and shapes that only secrets have (private keys, credentials in addresses, headers).
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

__all__ = ["REMOVED", "Redactor", "secrets_of"]

REMOVED = "[removed]"

_SHORTEST = 4
"""A known value below this length is only taken out where its key says so: it would match half of any text."""

_KEY = re.compile(
    r"(?i)(pass(word|wd|phrase)?$|passw|passphrase|secret|token|credential|private_?key|api_?key|access_?key|_pass$"
    r"|become_pass|^auths?$|authorization|cookie|vault|_pwd$)"
)
_NO_SECRET = re.compile(r"(?i)(_enabled|_allowed|_seconds|_file|_path|_count|_names?|fingerprint|public)$")

_USERINFO = r"[^\s/@\"'<>]*:(?!\d{1,5}/\S*@sha256:)[^\s\"'<>]*"
"""User and password of an address, up to its last @: passwords hold @ and / where nobody has encoded them."""
_HEADER = r"(?:(?:proxy-)?authorization|(?:set-)?cookie)"
_ARGUMENT = r"(?:\"[^\"\n]*\"?|'[^'\n]*'?|[^\s\"']+)"

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|\Z)",
            re.DOTALL,
        ),
        REMOVED,
    ),
    (re.compile(r"\$ANSIBLE_VAULT;[0-9.]+;\S+(?:\s+[0-9a-f]{20,})*"), REMOVED),
    (re.compile(rf"(?i)\b([a-z][a-z0-9+.-]*://){_USERINFO}@"), rf"\1{REMOVED}@"),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@:\"'<>]+@(?=[^\s/]+)"), rf"\1{REMOVED}@"),
    # A header with its own quotes, one whose value is quoted, one that takes the rest of the line.
    (re.compile(rf"(?i)(?<=([\"']))({_HEADER}\s*:\s*)(?:\\.|(?!\1)[^\\\n])+"), rf"\2{REMOVED}"),
    (re.compile(rf"(?i)\b({_HEADER}\\*[\"']?\s*[:=]\s*\\*([\"']))(?:\\.|(?!\2)[^\\\n])+"), rf"\1{REMOVED}"),
    (re.compile(rf"(?i)\b({_HEADER}\s*:[ \t]*)(?!\[removed\][\"'])[^\s\"'][^\n]*"), rf"\1{REMOVED}"),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}"), rf"\1{REMOVED}"),
    # Passwords that programs take by a short option.
    (re.compile(rf"(\bsshpass\s+(?:-[^p\s]\S*\s+)*-p\s*){_ARGUMENT}"), rf"\1{REMOVED}"),
    (
        re.compile(rf"(\b(?:docker|podman|nerdctl|skopeo|buildah)\s+login\b[^\n|;]*?\s-p[ =]?){_ARGUMENT}"),
        rf"\1{REMOVED}",
    ),
    (re.compile(rf"(\bmysql\w*\b[^\n|;]*?\s-p)(?=\S){_ARGUMENT}"), rf"\1{REMOVED}"),
    (re.compile(r"(?<![\w$])\$(?:1|2[abxy]?|5|6|7|y|gy|md5|sha1|apr1|argon2\w*)\$[./0-9A-Za-z$=,+-]{16,}"), REMOVED),
    (
        re.compile(
            r"\b(?:gh[pousr]|github_pat|glpat|hf|xox[abp]|xapp|nvapi|AKIA|ASIA|AIza|npm|pypi|dckr_pat)[-_]?"
            r"[A-Za-z0-9_-]{16,}"
        ),
        REMOVED,
    ),
    (re.compile(r"(?<![\w-])sk-(?!ssh-|ecdsa-)[A-Za-z0-9_-]{16,}"), REMOVED),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"), REMOVED),
)
_CURL = re.compile(r"\bcurl\b[^\n|;]*")
_CURL_USER = re.compile(
    r"(\s(?:-[A-Za-z]*?[uU]\s*|--(?:proxy-)?user[ =]))(?:\"[^\":\n]*:[^\"\n]*\"?|'[^':\n]*:[^'\n]*'?|[^\s:\"'-]+:\S+)"
)


def secrets_of(value: Any, *, key: str = "") -> set[str]:
    """Return every string inside `value` that is a Secret or stands under a key that names a secret."""
    if isinstance(value, Secret):
        return {value.reveal()}
    if isinstance(value, str):
        named = _is_secret(key, value)
        return {value, *_credentials(value)} if named else _credentials(value)
    if isinstance(value, Mapping):
        return _logins(value) | {
            found for name, item in value.items() for found in secrets_of(item, key=_deeper(key, str(name)))
        }
    if isinstance(value, list | tuple | set | frozenset):
        return {found for item in value for found in secrets_of(item, key=key)}
    return set()


def _is_secret(key: str, value: str) -> bool:
    if not key or _NO_SECRET.search(key):
        return False
    return bool(_KEY.search(key)) or (names_secret(key) != "" and not is_plain(value))


def _logins(values: Mapping[Any, Any]) -> set[str]:
    """``user:password`` of a login, which programs write in base64."""
    users = [str(item) for name, item in values.items() if str(name).endswith(("user", "username", "login"))]
    passwords = [item for name, item in values.items() if isinstance(item, str | Secret) and _names_secret(str(name))]
    shown = [item.reveal() if isinstance(item, Secret) else item for item in passwords]
    return {f"{user}:{password}" for user in users for password in shown if user and password}


def _names_secret(key: str) -> bool:
    return bool(_KEY.search(key)) and not _NO_SECRET.search(key)


def _deeper(key: str, name: str) -> str:
    """A key inside something secret is secret as well: ``registry_secret: {name: value}``."""
    return key if key and _names_secret(key) and not _NO_SECRET.search(name) else name


def _credentials(text: str) -> set[str]:
    found = re.findall(rf"://({_USERINFO})@", text)
    return {password for password in (each.partition(":")[2] for each in found) if password}


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
        text = _CURL.sub(lambda call: _CURL_USER.sub(rf"\1{REMOVED}", call.group()), text)
        return _without(text, assigned_secrets(text))

    def data(self, value: Any, *, key: str = "") -> Any:
        """Return a JSON-like value without secrets; what stands under a key that names a secret is taken out whole."""
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


def _without(text: str, places: Iterable[tuple[int, int]]) -> str:
    parts, last = [], 0
    for start, end in places:
        parts += [text[last:start], REMOVED]
        last = end
    return "".join((*parts, text[last:]))


def _spellings(value: str) -> set[str]:
    escaped = {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    return {value, quote(value, safe=""), quote(value), base64.b64encode(value.encode()).decode(), *escaped}
