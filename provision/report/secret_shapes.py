"""Tokens and keys that are recognised by their format, independent of their names.

detect-secrets recognises less than half of these formats, and its expressions take quadratic time; Kingfisher is 36 MB
of native code with four seconds of start-up time, and misses WireGuard, kubeconfig and Discord.

Each expression takes linear time: before it fails, it reads a limited number of characters or consumes them. Repeated
parts therefore have an upper limit, or are followed by nothing that can fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

REMOVED = "[removed]"

_BASE64 = "A-Za-z0-9+/="
_URLSAFE = "A-Za-z0-9_-"

_KIND = "[A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?"
_BLOCKS = (
    # PEM and PGP, complete or truncated, and both inside base64 (kubeconfig's client-key-data, Kubernetes secrets).
    rf"-----BEGIN {_KIND}-----(?s:.*?)(?:-----END {_KIND}-----|\Z)",
    r"LS0tLS1CRUdJTiB(?:QUklWQVRF|SU0EgUFJJ|FQyBQUklW|EU0EgUFJJ|PUEVOU1NI|FTkNSWVBU|QR1AgUFJJ)" + rf"[{_BASE64}]*",
    rf"b3BlbnNzaC1rZXktdj[{_BASE64}]*(?:\r?\n[{_BASE64}]{{8,}})*",  # OpenSSH without its first and last line
    rf"(?<=Private-Lines: )\d{{1,4}}(?:\r?\n[{_BASE64}]+)*",  # PuTTY
    r"\$ANSIBLE_VAULT;[0-9.]{1,9};\S+(?:\s+[0-9a-f]{20,})*",
)
_TOKENS = (
    r"(?i:AGE-SECRET-KEY-(?:PQ-)?1)[A-Za-z0-9]{20,}",
    r"gh[pousr]_[A-Za-z0-9]{20,}",
    r"github_pat_[A-Za-z0-9_]{20,}",
    rf"gl(?:pat|dt|ft|soat|rt|cbt|imt|ptt|agent|oas|ffct)-[{_URLSAFE}]{{16,}}",
    rf"GR1348941[{_URLSAFE}]{{16,}}",
    r"npm_[A-Za-z0-9]{30,}",
    rf"pypi-A[{_URLSAFE}]{{16,}}",
    rf"dckr_[po]at_[{_URLSAFE}]{{16,}}",
    rf"nvapi-[{_URLSAFE}]{{16,}}",
    r"(?:hf|api_org)_[A-Za-z0-9]{20,}",
    r"wandb_v\d_[A-Za-z0-9_]{20,}",
    r"(?<=wandb login )[A-Za-z0-9]{20,}",
    r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{16,}",  # AWS; its secret keys are recognised by their names
    rf"AIza[{_URLSAFE}]{{30,}}",  # Google
    rf"ya29\.[{_URLSAFE}]{{20,}}",
    rf"GOCSPX-[{_URLSAFE}]{{20,}}",
    r"[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,}",  # Microsoft Entra
    r"(?<=AccountKey=)" + rf"[{_BASE64}]+",
    r"[rs]k_(?:org_)?(?:live|test|prod)_[A-Za-z0-9]{10,}",  # Stripe
    rf"whsec_[{_BASE64}]{{16,}}",
    r"xox[a-z]-[A-Za-z0-9-]{10,}",  # Slack
    r"xapp-[A-Za-z0-9-]{10,}",
    r"(?<=hooks\.slack\.com/)[A-Za-z]{1,20}/[A-Za-z0-9/_-]+",
    # Discord: the base64 of a decimal number, then a time and a signature.
    rf"(?:[MNO][DTjz][AEIMQUYcgk][wxyz0-5]){{5,6}}[A-Za-z0-9]{{0,3}}\.[{_URLSAFE}]{{6}}\.[.{_URLSAFE}]{{27,}}",
    rf"(?<=/webhooks/)\d{{15,22}}/[{_URLSAFE}]{{20,}}",
    rf"SG\.[{_URLSAFE}]{{16,64}}\.[.{_URLSAFE}]{{16,}}",  # SendGrid
    rf"\d{{8,10}}:AA[{_URLSAFE}]{{32,}}",  # Telegram
    rf"hv[sbr]\.[{_URLSAFE}]{{20,}}",  # HashiCorp Vault
    r"dapi[0-9a-f]{32}",  # Databricks
    rf"tskey-[a-z]{{1,16}}-[{_URLSAFE}]{{16,}}",  # Tailscale
    r"gsk_[A-Za-z0-9]{40,}",  # Groq
    r"r8_[A-Za-z0-9]{37,}",  # Replicate
    # OpenAI, Anthropic and others; sk-ssh-... are public SSH keys.
    rf"(?<![{_URLSAFE}])sk-(?!ssh-|ecdsa-)[{_URLSAFE}]{{16,}}",
    # Hashes of passwords.
    r"(?<![\w$])\$(?:1|2[abxy]?|5|6|7|y|gy|md5|sha1|apr1|argon2\w{0,2})\$[./0-9A-Za-z$=,+-]{16,}",
)
_SHAPES = tuple(re.compile(shape) for shape in (*_BLOCKS, *_TOKENS))
_WEB_TOKEN = re.compile(rf"eyJ[{_URLSAFE}]{{10,}}+((?:\.[{_URLSAFE}]*+)+)|eyJ[{_URLSAFE}]*+")
"""A JWT has two dots, a JWE four; without dots it is other JSON in base64."""

_HEADER = r"(?:(?:proxy-)?authorization|(?:set-)?cookie)"
_ARGUMENT = r"(?:\"[^\"\n]*\"?|'[^'\n]*'?|[^\s\"']+)"
_LOGIN = r"(?:\"[^\":\n]*:[^\"\n]*\"?|'[^':\n]*:[^'\n]*'?|[^\s:\"'-]+:\S+)"
_HEADERS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # A header inside quotes, one with a quoted value, one that extends to the end of the line.
        (rf"(?i)(?<=([\"']))({_HEADER}[ \t]*:[ \t]*)(?:\\.|(?!\1)[^\\\n])+", rf"\2{REMOVED}"),
        (rf"(?i)\b({_HEADER}\\*[\"']?\s*[:=]\s*\\*([\"']))(?:\\.|(?!\2)[^\\\n])+", rf"\1{REMOVED}"),
        (rf"(?i)\b({_HEADER}[ \t]*:[ \t]*)(?!\[removed\][\"'])[^\s\"'][^\n]*", rf"\1{REMOVED}"),
        (r"(?i)\b(bearer[ \t]+)[A-Za-z0-9._~+/=-]{8,}", rf"\1{REMOVED}"),
        (rf"(\bPSK[ \t]{{1,8}})(?:\"[^\"\n]*\"?|0[xXsS][{_BASE64}]+)", rf"\1{REMOVED}"),  # ipsec.secrets
        (rf"(\bsshpass\s+(?:-[^p\s]\S{{0,99}}\s+){{0,9}}-p\s*){_ARGUMENT}", rf"\1{REMOVED}"),
    )
)
_COMMANDS = tuple(
    (re.compile(rf"\b{command}\b[^\n]*"), re.compile(argument))
    for command, argument in (
        # Passwords in a short option, anywhere in the rest of the line.
        (r"(?:docker|podman|nerdctl|skopeo|buildah)\s{1,8}login", rf"(\s-p[ =]?){_ARGUMENT}"),
        (r"mysql\w{0,20}", rf"(\s-p)(?=\S){_ARGUMENT}"),
        ("curl", rf"(\s(?:-[A-Za-z]{{0,9}}?[uU]\s*|--(?:proxy-)?user[ =])){_LOGIN}"),
    )
)

_ADDRESS = re.compile(r"(?<=[A-Za-z0-9+.-]://)[^\s\"'<>]+")
"""The part of a URL after the scheme; it may contain further URLs."""
_HOST = re.compile(r"[^/@:]*+")
_PORT = re.compile(r"\d{1,5}/")


def format_spans(text: str) -> list[tuple[int, int]]:
    """Return the positions of credentials that are recognised by their format; they can overlap."""
    spans = [match.span() for shape in _SHAPES for match in shape.finditer(text)]
    spans += [match.span() for match in _WEB_TOKEN.finditer(text) if match[1]]
    return spans + [(start, end) for start, end, _ in _userinfos(text)]


def without_arguments(text: str) -> str:
    """Return `text` without the values of headers and without passwords in short options."""
    for pattern, replacement in _HEADERS:
        text = pattern.sub(replacement, text)
    for line, argument in _COMMANDS:
        text = line.sub(_without_argument(argument), text)
    return text


def without(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return `text` with each position replaced; overlapping ones are replaced once."""
    parts, last = [], 0
    for start, end in sorted(spans):
        if start >= last:
            parts += [text[last:start], REMOVED]
        last = max(last, end)
    return "".join((*parts, text[last:]))


def address_credentials(text: str) -> set[str]:
    """Return the passwords in the URLs in `text`."""
    return {password for _, _, password in _userinfos(text) if password}


def _without_argument(argument: re.Pattern[str]) -> Callable[[re.Match[str]], str]:
    return lambda line: argument.sub(rf"\1{REMOVED}", line.group())


def _userinfos(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the position of user and password in each URL, and the password.

    A password ends at the last @ of the word, because unencoded ones can contain @ and /.
    """
    for match in _ADDRESS.finditer(text):
        start, end = match.span()
        last = text.rfind("@", start, end)
        digest = text.rfind("@sha256:", start, end)
        while start <= last:
            stop = _host_end(text, start, last)
            if text[stop] == "@" and stop + 1 < end and text[stop + 1] != "/" and stop > start:
                yield start, stop, ""
            elif text[stop] == ":" and not (digest > stop and _PORT.match(text, stop + 1, end)):
                yield start, last, text[stop + 1 : last]
                break
            following = text.find("://", stop, last)
            if following < 0:
                break
            start = following + 3


def _host_end(text: str, start: int, last: int) -> int:
    match = _HOST.match(text, start, last)
    return match.end() if match else start
