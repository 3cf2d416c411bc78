"""Addresses, routes, name resolution and listening ports."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown


@dataclass(frozen=True)
class Address:
    """One address of one network interface."""

    interface: str
    address: str
    prefix: int
    scope: str

    @property
    def version(self) -> int:
        """4 or 6; 0 where the node printed something else."""
        try:
            return ipaddress.ip_address(self.address).version
        except ValueError:
            return 0


class AddressesFact:
    """Lists all addresses, one per line."""

    name: ClassVar[str] = "addresses"
    label: ClassVar[str] = "ip -o addr"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = "ip -o addr"

    def parse(self, raw: RawOutput) -> tuple[Address, ...] | Unknown:
        """Parse addresses; a peer address (``10.0.0.1 peer 10.0.0.2/32``) has its prefix length after the peer."""
        if raw.exit_code != 0:
            return Unknown(f"ip -o addr failed: {raw.last_line()}")
        addresses: list[Address] = []
        for line in raw.lines():
            words = line.split()
            if len(words) < 4 or words[2] not in {"inet", "inet6"}:  # noqa: PLR2004 - index, name, family, address
                continue
            address, _, prefix = words[3].partition("/")
            if not prefix and "peer" in words:
                prefix = words[words.index("peer") + 1].partition("/")[2]
            scope = words[words.index("scope") + 1] if "scope" in words[:-1] else ""
            interface = words[1].partition("@")[0]
            addresses.append(Address(interface, address, int(prefix) if prefix.isdecimal() else 0, scope))
        return tuple(addresses)


@dataclass(frozen=True)
class Route:
    """One route; ``destination`` is ``default`` or a network."""

    destination: str
    interface: str
    source: str
    """The source address of packets, if the route sets one."""


class RoutesFact:
    """Lists the main routing table of IPv4."""

    name: ClassVar[str] = "routes"
    label: ClassVar[str] = "ip -4 route"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = "ip -4 -o route show table main"

    def parse(self, raw: RawOutput) -> tuple[Route, ...] | Unknown:
        """Parse routes; those without an interface (blackhole, unreachable) have an empty one."""
        if raw.exit_code != 0:
            return Unknown(f"ip -4 route failed: {raw.last_line()}")
        return tuple(
            Route(words[0], _after("dev", words), _after("src", words)) for words in (ln.split() for ln in raw.lines())
        )


def _after(key: str, words: list[str]) -> str:
    return words[words.index(key) + 1] if key in words[:-1] else ""


class NamesFact:
    """Resolves the cluster's names as programs on the node do."""

    name: ClassVar[str] = "names"
    label: ClassVar[str] = "getent ahosts"
    limit_seconds: ClassVar[int] = 40
    command: ClassVar[str] = """
[ -n "$PROBE_NAMES" ] || exit 0
if all=$(getent ahosts $PROBE_NAMES); then
  echo "names=$PROBE_NAMES"; printf '%s\\n' "$all"; exit 0
fi
for name in $PROBE_NAMES; do
  echo "name=$name"
  getent ahosts "$name"
done
exit 0
"""

    def parse(self, raw: RawOutput) -> Mapping[str, tuple[str, ...]] | Unknown:
        """Return the unique addresses of each name in order; a name that does not resolve has none."""
        if raw.stdout.startswith("names="):
            return _all_resolved(raw.stdout)
        _, *parts = f"\n{raw.stdout}".split("\nname=")
        return dict(map(_resolved, parts))


def _all_resolved(text: str) -> Mapping[str, tuple[str, ...]] | Unknown:
    """Parse the output for several names; the first address of each name has the name beside it."""
    names, _, lines = text.removeprefix("names=").partition("\n")
    resolved: list[dict[str, None]] = []
    for words in map(str.split, lines.splitlines()):
        if len(words) > 2:  # noqa: PLR2004 - address, type, name
            resolved.append({})
        if words and resolved:
            resolved[-1][words[0]] = None
    if len(resolved) != len(names.split()):
        return Unknown("getent ahosts: unexpected output for the names of the nodes")
    return {name: tuple(addresses) for name, addresses in zip(names.split(), resolved, strict=True)}


@lru_cache(maxsize=4096)
def _resolved(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a name and its addresses. The cache helps because nodes that cannot resolve all names share most."""
    name, _, lines = text.partition("\n")
    addresses = dict.fromkeys(line.split()[0] for line in lines.splitlines() if line.strip())
    return name, tuple(addresses) if name else ()


@dataclass(frozen=True)
class Listening:
    """A listening TCP port; ``address`` is empty for all addresses."""

    address: str
    port: int


class ListeningFact:
    """Lists listening sockets with ss, or from the kernel's table of all TCP sockets, which takes longer.

    ss may be missing, and it would load the kernel module tcp_diag if that is not loaded.
    """

    name: ClassVar[str] = "listening"
    label: ClassVar[str] = "cat /proc/net/tcp"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = r"""
{ [ ! -e /proc/modules ] || [ -e /sys/module/tcp_diag ]; } && ss -Hltn 2>/dev/null ||
sed -nE 's/^ *[0-9]+: ([0-9A-F:]+) [0-9A-F:]+ 0A .*/\1/p' /proc/net/tcp /proc/net/tcp6 2>/dev/null
exit 0
"""

    def parse(self, raw: RawOutput) -> tuple[Listening, ...]:
        """Parse both formats; /proc has little-endian addresses, and an IPv6 socket on all addresses accepts IPv4."""
        sockets: list[Listening] = []
        for line in raw.lines():
            words = line.split()
            try:
                sockets.append(_listening(words[3]) if words[0] == "LISTEN" else _listening_in_proc(words[0]))
            except (ValueError, IndexError):
                continue
        return tuple(sockets)


def _listening(text: str) -> Listening:
    """Parse an entry of ss: ``0.0.0.0:22``, ``[::]:22``, ``*:22``, ``127.0.0.53%lo:53``."""
    address, _, port = text.rpartition(":")
    address = address.partition("%")[0].strip("[]")
    everywhere = address == "*" or not int(ipaddress.ip_address(address))
    return Listening("" if everywhere else str(ipaddress.ip_address(address)), int(port))


def _listening_in_proc(text: str) -> Listening:
    """Parse an entry of /proc/net/tcp: ``0100007F:0016``."""
    address, _, port = text.partition(":")
    return Listening(_address(address), int(port, 16))


def _address(text: str) -> str:
    if int(text, 16) == 0:
        return ""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))
