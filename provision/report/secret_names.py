"""Names that announce a secret, and the position of the value that follows such a name in a text."""

from __future__ import annotations

import re
from collections.abc import Iterator

_STRONG = re.compile(
    r"(passw(or)?d|passwd|passphrase|passcode|secret|token|credentials?|_pwd|_pass|cookie|(^|_)psk|key_data"
    r"|(api|access|secret|private|account|shared|encryption|master|license|subscription)_?key"
    r"|amz_signature|goog_signature|access_signature)$"
)
_WEAK = re.compile(r"(^auth|_auth|_key|[a-z0-9]pass)$")
"""Names that usually announce a secret; the value decides, see `is_plain`."""
_IN_ADDRESS = re.compile(r"(sig|signature|code|key)$")
"""Names of URL parameters, after ``?`` or ``&``."""
_ORDINARY = re.compile(
    r"(bypass|compass|trespass|surpass|overpass|underpass|multipass"
    r"|(^|_)(public|pub|host|sort|cache|primary|foreign|apt|gpg|signing|repository|partition|index|image|recipe"
    r"|authorized|known|lookup|group|unique|rsa|dsa|ecdsa|ed25519|device|dict|map|json|item|config|fact|state)_?key)$"
)
_PLAIN = re.compile(
    r"(?i)(|true|false|yes|no|on|off|none|null|~|[-+]?\d+(\.\d+)?|(ssh|ecdsa|sk)-\S+ AAAA.*|(https?|file)://.*|[/~.]/?.*"
    r"|-----BEGIN (PGP )?PUBLIC.*)",
    re.DOTALL,
)
_NAME = re.compile(r"(?<![\w.-])[\w.-]+(?=(?P<after>\\*[\"'])?(?P<sep>[ \t]*=[ \t]*|[ \t]*:(?![:/])[ \t]*))")
_OPTION = re.compile(r"(?<![\w.-])--?[A-Za-z][\w.-]*(?=(?P<after>\\*[\"'])?(?P<sep>,?[ \t]+))")
_TWO_WORDS = re.compile(r"(?<![\w./-])\w[\w.-]*(?P<after>)(?P<sep>[ \t]+)(?=\S+$)", re.MULTILINE)
_INDENT = re.compile(r"[^\S\n]*+")
_BEFORE_NAME = re.compile(r"[^\S\n]*+(?:- |export |set )?")
_BLANK = re.compile(r"[^\S\n]*+")
_BLOCK = re.compile(r"[|>][-+0-9]*[ \t]*")
_NO_WORD_END = re.compile(r"[^\s\\\"']+")
_LONGEST_PLAIN = 2048
"""The maximum length of a plain value. Names in a plain value are searched again, so this limits the time."""
_QUOTE = re.compile(r"(\\*)([\"'])")
_BRACKETS = {"{": "}", "[": "]"}


def names_secret(name: str) -> str:
    """Return ``"strong"`` for a name that announces a secret, ``"weak"`` if the value decides, else an empty string."""
    spread = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_").replace(".", "_").strip("_")
    if _ORDINARY.search(spread):
        return ""
    return "strong" if _STRONG.search(spread) else "weak" if _WEAK.search(spread) else ""


def is_plain(value: str) -> bool:
    """Return whether a value looks harmless: a number, a path, a URL, a public key, yes or no."""
    return len(value) <= _LONGEST_PLAIN and _PLAIN.fullmatch(value.strip().strip("\"'")) is not None


def assigned_secrets(text: str) -> Iterator[tuple[int, int]]:
    """Yield the positions of secret values in `text`: ``name: value``, ``name=value``, ``--name value``."""
    done = 0
    matches = [(match, False) for match in _NAME.finditer(text)] + [(match, True) for match in _OPTION.finditer(text)]
    matches += [(match, False) for match in _TWO_WORDS.finditer(text)]
    line = _Line(text)
    for match, option in sorted(matches, key=lambda each: each[0].start()):
        strength = _strength(text, match, option=option)
        if not strength or match.start() < done:
            continue
        line.move_to(match.start())
        begin, end = _value(line, match, _value_start(match))
        value = text[begin:end]
        if end > begin and not (is_plain(value) if strength == "weak" else _is_nothing(value)):
            yield begin, end
            done = end


class _Line:
    """The line of a text that contains a name. It only moves forward, so that time stays linear."""

    def __init__(self, text: str) -> None:
        self.text, self.start, self.end = text, 0, -1
        self.move_to(0)

    def move_to(self, position: int) -> None:
        """Move to the line that contains `place`."""
        if position <= self.end:
            return
        self.start = self.text.rfind("\n", max(self.end, 0), position) + 1 or self.start
        self.end = self.text.find("\n", position)
        self.end = len(self.text) if self.end < 0 else self.end
        self.first = {pattern.match(self.text, self.start, self.end).end() for pattern in (_INDENT, _BEFORE_NAME)}  # type: ignore[union-attr]
        self._quotes = {"'": (self.start, 0), '"': (self.start, 0)}

    def is_open(self, quote: str, position: int) -> bool:
        """Return whether an odd number of these quotes precedes a position."""
        last, count = self._quotes[quote]
        if position >= last:
            count += self.text.count(quote, last, position)
        else:
            count -= self.text.count(quote, position, last)
        self._quotes[quote] = position, count
        return count % 2 == 1


def _value_start(match: re.Match[str]) -> int:
    return match.end() + (0 if match.re is _TWO_WORDS else len(match["after"] or "") + len(match["sep"]))


def _strength(text: str, match: re.Match[str], *, option: bool) -> str:
    name, before = match.group(), text[max(0, match.start() - 1) : match.start()]
    if match.re is _TWO_WORDS:  # words of a sentence: only the clearest names count
        name = name[: -len(match["sep"])]
        return "strong" if names_secret(name) == "strong" else ""
    if option:
        start = _value_start(match)
        return "" if "ask" in name or text[start : start + 1] in ("-", "") else names_secret(name)
    if before in ("?", "&") and _IN_ADDRESS.search(name.lower()):
        return "strong"
    if before == "/" and ":" in match["sep"]:  # a path and a message about it
        return ""
    if name.lower() == "pass" and "=" in match["sep"]:
        return "weak"
    return names_secret(name)


def _is_nothing(value: str) -> bool:
    return value.strip().strip("\"'").lower() in ("", "null", "none", "true", "false", "~")


def _value(line: _Line, match: re.Match[str], start: int) -> tuple[int, int]:
    """Return the value's position, up to a closing or enclosing quote, or the end of the word or line."""
    text = line.text
    quote = _QUOTE.match(text, start, line.end)
    if quote:
        return quote.end(), _closing(text, quote.end(), line.end, len(quote[1]), quote[2])
    before = match.start() - 1
    if before >= line.start and text[before] in "\"'" and not match["after"]:
        return start, _closing(text, start, line.end, _slashes(text, line.start, before), text[before])
    if match["after"]:
        return start, _json_end(line, start)
    is_first = match.start() in line.first
    if is_first and _BLOCK.fullmatch(text, start, line.end):
        return line.end, _block_end(text, line.end, match.start() - line.start)
    if is_first and (":" in match["sep"] or match["sep"] != "="):
        return start, line.end
    return start, _word_end(line, start)


def _slashes(text: str, start: int, end: int) -> int:
    """Return the number of backslashes before `end`."""
    at = end
    while at > start and text[at - 1] == "\\":
        at -= 1
    return end - at


def _closing(text: str, start: int, limit: int, slashes: int, quote: str) -> int:
    """Return the end of the quote: the next one that is not escaped more deeply and not doubled."""
    at = start
    while (at := text.find(quote, at, limit)) >= 0:
        run = _slashes(text, start, at)
        if (run % 2 == 0) if not slashes else run <= slashes:
            rest = text[at + 1 : at + 3]
            if not rest.startswith(quote) and not rest.startswith("\\" + quote):
                return at - (run if slashes else 0)
            at += 1
        at += 1
    return limit


def _json_end(line: _Line, start: int) -> int:
    text, limit = line.text, line.end
    opening = text[start : start + 1]
    if opening in _BRACKETS and not _BLANK.fullmatch(text, start + 1, limit):
        depth = 0
        for at in range(start, limit):
            depth += (text[at] == opening) - (text[at] == _BRACKETS[opening])
            if not depth:
                return at + 1
        return limit
    if opening in _BRACKETS:  # an object over several lines: its own names are searched
        return start
    end = _word_end(line, start)
    return start + len(text[start:end].rstrip(",}])"))


def _word_end(line: _Line, start: int) -> int:
    """Return the end of a shell word; a quote ends it if it closes one that was open before."""
    text, at = line.text, start
    while at < line.end and not text[at].isspace():
        if text[at] == "\\":
            at += 2
        elif text[at] in "\"'":
            if line.is_open(text[at], start):
                return at
            at = _closing(text, at + 1, line.end, 0, text[at]) + 1
        elif rest := _NO_WORD_END.match(text, at, line.end):
            at = rest.end()
    return min(at, line.end)


def _block_end(text: str, start: int, indent: int) -> int:
    """Return the end of a YAML block, whose lines are indented more than the name."""
    at = start
    while at < len(text):
        end = text.find("\n", at + 1)
        end = len(text) if end < 0 else end
        line = text[at + 1 : end]
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            break
        at = end
    return at
