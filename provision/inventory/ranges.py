"""Host patterns of the command line: ``gpu[1-8]``, ``a[01-16]b[1,3]``, ``NAME=ADDRESS[:PORT]``."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from provision.errors import UsageError

MAX_HOSTS = 4096
"""Maximum number of hosts on one command line; more are assumed to be a typing error."""

_RANGE = re.compile(r"\[([0-9a-zA-Z][0-9a-zA-Z,\-]*)\]")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
_HOST_NAME_LIMIT = 253
_RESERVED = frozenset({"all", "ungrouped", "gpu_nodes", "localhost"})
_EXAMPLE = "Examples: 'gpu[1-8]'  'gpu[01-16]'  'gpu1=10.0.0.11'  'gpu[1-8]=10.0.0.[11-18]:2222'."


@dataclass(frozen=True)
class HostWord:
    """One host of a host pattern."""

    name: str
    address: str | None = None
    """None if the name itself is the address."""
    port: int | None = None


def expand(words: Iterable[str]) -> tuple[HostWord, ...]:
    """Return all hosts of `words` in order; UsageError for invalid patterns and duplicates."""
    hosts: list[HostWord] = []
    for word in words:
        for part in _split(word):
            hosts.extend(expand_word(part))
            if len(hosts) > MAX_HOSTS:
                raise UsageError(f"more than {MAX_HOSTS} hosts", remedy="Check the ranges. " + _EXAMPLE)
    if not hosts:
        raise UsageError("no hosts given", remedy=_EXAMPLE)
    _refuse_duplicates(hosts)
    return tuple(hosts)


def expand_word(word: str) -> tuple[HostWord, ...]:
    """Expand one word without commas between hosts."""
    if "@" in word:
        raise UsageError(f"host pattern '{word}': must not contain a user", remedy="Set the SSH user with --user.")
    name_part, equals, address_part = word.partition("=")
    names = _ranges(name_part, word)
    if not equals:
        return tuple(_bare(name, word) for name in names)
    if not address_part:
        raise UsageError(f"host pattern '{word}' has no address after '='", remedy=_EXAMPLE)
    text, port = _port(address_part, word)
    addresses = [text] if text.startswith("[") and ":" in text else _ranges(text, word)
    if len(addresses) != len(names):
        raise UsageError(
            f"host pattern '{word}' has {len(names)} names but {len(addresses)} addresses",
            remedy="Use the same number on both sides.",
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
            raise UsageError(
                f"host pattern '{word}' expands to more than {MAX_HOSTS} hosts", remedy="Check the range. " + _EXAMPLE
            )
        end = match.end()
    pieces.append([text[end:]])
    rest = "".join(piece[0] for piece in pieces[::2])
    if "[" in rest or "]" in rest:
        raise UsageError(f"host pattern '{word}': invalid range in brackets", remedy=_EXAMPLE)
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
            raise UsageError(f"host pattern '{word}': '{part}' is not a range", remedy=_EXAMPLE)
    return members


def _numbers(first: str, last: str, word: str) -> list[str]:
    low, high = int(first), int(last)
    if low > high:
        raise UsageError(
            f"host pattern '{word}': the range {first}-{last} is descending", remedy=f"Write [{last}-{first}]."
        )
    if high - low >= MAX_HOSTS:
        raise UsageError(
            f"host pattern '{word}' expands to more than {MAX_HOSTS} hosts", remedy="Check the range. " + _EXAMPLE
        )
    width = len(first) if first.startswith("0") else 0
    return [str(number).zfill(width) for number in range(low, high + 1)]


def _bare(name: str, word: str) -> HostWord:
    """Split a word without '=' into name, address and port; an address gets a name derived from it."""
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
    if not 0 < port < 65536:  # noqa: PLR2004 - highest TCP port
        raise UsageError(f"host pattern '{word}': {port} is not a TCP port")
    return match.group(1), port


def _checked(name: str, word: str) -> str:
    if not _NAME.fullmatch(name) or len(name) > _HOST_NAME_LIMIT:
        raise UsageError(
            f"host pattern '{word}': '{name}' is not a host name",
            remedy="Use letters, digits, '-', '_' and '.', with a letter or digit at both ends. " + _EXAMPLE,
        )
    if name in _RESERVED:
        raise UsageError(f"host pattern '{word}': '{name}' is reserved by Ansible", remedy=f"Name it 'node1={name}'.")
    return name


def _checked_address(text: str, word: str) -> str:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        pass
    if not _NAME.fullmatch(bare) or re.fullmatch(r"[0-9.]+", bare):
        raise UsageError(f"host pattern '{word}': '{bare}' is neither an address nor a host name", remedy=_EXAMPLE)
    return bare


def _refuse_duplicates(hosts: list[HostWord]) -> None:
    names: dict[str, HostWord] = {}
    places: dict[tuple[str, int | None], HostWord] = {}
    for host in hosts:
        if host.name in names:
            raise UsageError(f"{host.name}: duplicate host", remedy="Specify each host once.")
        names[host.name] = host
        place = (host.address or host.name, host.port)
        if place in places:
            raise UsageError(
                f"{places[place].name} and {host.name} have the same address, {place[0]}",
                remedy="Give each host its own address.",
            )
        places[place] = host
