"""Host words of the command line: ``gpu[1-8]``, ``a[01-16]b[1,3]``, ``NAME=ADDRESS[:PORT]``."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from provision.errors import UsageError

__all__ = ["MAX_HOSTS", "HostWord", "expand", "expand_word"]

MAX_HOSTS = 4096
"""More hosts than this on one command line are taken for a slip of the pen."""

_RANGE = re.compile(r"\[([0-9a-zA-Z][0-9a-zA-Z,\-]*)\]")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
_HOST_NAME_LIMIT = 253
_RESERVED = frozenset({"all", "ungrouped", "gpu_nodes", "localhost"})
_EXAMPLE = "Examples: 'gpu[1-8]'  'gpu[01-16]'  'gpu1=10.0.0.11'  'gpu[1-8]=10.0.0.[11-18]:2222'."


@dataclass(frozen=True)
class HostWord:
    """One host as the command line names it."""

    name: str
    address: str | None = None
    """None when the name itself is where the node is reached."""
    port: int | None = None


def expand(words: Iterable[str]) -> tuple[HostWord, ...]:
    """Return every host that `words` name, in their order; UsageError for anything odd or named twice."""
    hosts: list[HostWord] = []
    for word in words:
        for part in _split(word):
            hosts.extend(expand_word(part))
            if len(hosts) > MAX_HOSTS:
                raise UsageError(f"more than {MAX_HOSTS} hosts are named", remedy="Check the ranges. " + _EXAMPLE)
    if not hosts:
        raise UsageError("no host is named", remedy=_EXAMPLE)
    _refuse_duplicates(hosts)
    return tuple(hosts)


def expand_word(word: str) -> tuple[HostWord, ...]:
    """Expand one word without commas between hosts."""
    if "@" in word:
        raise UsageError(f"'{word}': a host is named without a user", remedy="Give the login user with --user.")
    name_part, equals, address_part = word.partition("=")
    names = _ranges(name_part, word)
    if not equals:
        return tuple(_bare(name, word) for name in names)
    if not address_part:
        raise UsageError(f"'{word}' has no address after '='", remedy=_EXAMPLE)
    text, port = _port(address_part, word)
    addresses = [text] if text.startswith("[") and ":" in text else _ranges(text, word)
    if len(addresses) != len(names):
        raise UsageError(
            f"'{word}' names {len(names)} hosts but {len(addresses)} addresses",
            remedy="Both sides need the same count.",
        )
    return tuple(
        HostWord(_checked(name, word), _checked_address(address, word), port)
        for name, address in zip(names, addresses, strict=True)
    )


def _split(word: str) -> list[str]:
    """Split at commas outside brackets."""
    return [part for part in re.split(r",(?![^\[\]]*\])", word.strip()) if part]


def _ranges(text: str, word: str) -> list[str]:
    pieces: list[list[str]] = []
    end = 0
    count = 1
    for match in _RANGE.finditer(text):
        pieces.append([text[end : match.start()]])
        pieces.append(_members(match.group(1), word))
        count *= len(pieces[-1])
        if count > MAX_HOSTS:
            raise UsageError(f"'{word}' names more than {MAX_HOSTS} hosts", remedy="Check the range. " + _EXAMPLE)
        end = match.end()
    pieces.append([text[end:]])
    rest = "".join(piece[0] for piece in pieces[::2])
    if "[" in rest or "]" in rest:
        raise UsageError(f"'{word}': the range in brackets cannot be read", remedy=_EXAMPLE)
    return ["".join(parts) for parts in itertools.product(*pieces)]


def _members(text: str, word: str) -> list[str]:
    members: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash and first:
            members.append(first)
        elif first.isdecimal() and last.isdecimal():
            members.extend(_numbers(first, last, word))
        elif len(first) == len(last) == 1 and first.isalpha() and last.isalpha() and first <= last:
            members.extend(chr(code) for code in range(ord(first), ord(last) + 1))
        else:
            raise UsageError(f"'{word}': '{part}' is not a range", remedy=_EXAMPLE)
    return members


def _numbers(first: str, last: str, word: str) -> list[str]:
    low, high = int(first), int(last)
    if low > high:
        raise UsageError(f"'{word}': the range {first}-{last} runs backwards", remedy=f"Write [{last}-{first}].")
    if high - low >= MAX_HOSTS:
        raise UsageError(f"'{word}' names more than {MAX_HOSTS} hosts", remedy="Check the range. " + _EXAMPLE)
    width = len(first) if first.startswith("0") else 0
    return [str(number).zfill(width) for number in range(low, high + 1)]


def _bare(name: str, word: str) -> HostWord:
    """A word without '=': a name, or an address, which then gets a name made from it."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return HostWord(_checked(name, word))
    return HostWord("node-" + re.sub(r"[.:]+", "-", str(address)).strip("-"), str(address))


def _port(text: str, word: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(.+?):([0-9]+)", text)
    if match is None or (":" in match.group(1) and not match.group(1).endswith("]")):
        return text, None
    port = int(match.group(2))
    if not 0 < port < 65536:  # noqa: PLR2004 - the last TCP port
        raise UsageError(f"'{word}': {port} is not a TCP port")
    return match.group(1), port


def _checked(name: str, word: str) -> str:
    if not _NAME.fullmatch(name) or len(name) > _HOST_NAME_LIMIT:
        raise UsageError(
            f"'{word}': '{name}' is not a host name",
            remedy="Use letters, digits, '-', '_' and '.', beginning and ending with a letter or digit. " + _EXAMPLE,
        )
    if name in _RESERVED:
        raise UsageError(f"'{word}': '{name}' has a meaning of its own for Ansible", remedy=f"Name it 'node1={name}'.")
    return name


def _checked_address(text: str, word: str) -> str:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        pass
    if not _NAME.fullmatch(bare) or re.fullmatch(r"[0-9.]+", bare):
        raise UsageError(f"'{word}': '{bare}' is neither an address nor a host name", remedy=_EXAMPLE)
    return bare


def _refuse_duplicates(hosts: list[HostWord]) -> None:
    names: dict[str, HostWord] = {}
    places: dict[tuple[str, int | None], HostWord] = {}
    for host in hosts:
        if host.name in names:
            raise UsageError(f"{host.name} is named twice", remedy="Name each host once.")
        names[host.name] = host
        place = (host.address or host.name, host.port)
        if place in places:
            raise UsageError(
                f"{places[place].name} and {host.name} have one address, {place[0]}", remedy="Give each its own."
            )
        places[place] = host
