"""The active firewall of a node, firewalld or ufw, and what it admits from an address."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Ports = tuple[int, int]
"""First and last port."""

_HEADER = re.compile(r"(\S+)(?: \([a-z, ]{1,40}\))?")
_ATTRIBUTE = re.compile(r"  ([a-z-]+(?: [a-z-]+)?):(?: (.*))?")
_RICH = re.compile(r'\trule (?:priority="-?\d{1,5}" )?family="ipv[46]" source address="([0-9A-Fa-f.:/]{2,49})" accept')
_TUPLE = "### tuple ### "
_ACTIONS = frozenset({"allow", "deny", "reject", "limit"})
_ANY = frozenset({"0.0.0.0/0", "::/0"})
_MOST_PORT = 65535


@dataclass(frozen=True)
class Zone:
    """A zone of firewalld."""

    name: str
    target: str
    """``ACCEPT`` admits everything."""
    interfaces: tuple[str, ...] = ()
    sources: tuple[Network, ...] = ()
    ports: tuple[Ports, ...] = ()
    """TCP ports that are open to everybody."""
    admitted: tuple[Network, ...] = ()
    """Networks that a rich rule admits to all ports."""


@dataclass(frozen=True)
class UfwRule:
    """A rule of ufw for incoming TCP packets."""

    action: str
    """``allow``, ``deny``, ``reject`` or ``limit``."""
    source: Network
    ports: tuple[Ports, ...]
    """Empty: every port."""
    interface: str
    """Empty: every interface."""


@dataclass(frozen=True)
class Admission:
    """What a firewall admits from one address."""

    everything: bool
    ports: tuple[Ports, ...] = ()
    """The open TCP ports, if not everything is admitted."""
    zone: str = ""
    """The zone of firewalld that decides."""
    decided_by: str = ""
    """The rule of the operator that an additional rule cannot change; empty: there is none."""

    def has_ports(self, first: int, last: int) -> bool:
        """Return whether one range of open ports contains these."""
        return self.everything or any(start <= first and last <= end for start, end in self.ports)


@dataclass(frozen=True)
class Firewall:
    """The active firewall."""

    program: str
    """``firewalld`` or ``ufw``; empty: none is active."""
    default_zone: str = ""
    zones: tuple[Zone, ...] = ()
    admits_by_default: bool = False
    """Whether the policy of ufw admits what no rule mentions."""
    rules: tuple[UfwRule, ...] = ()

    def admission(self, address: str, interface: str) -> Admission:
        """Return what the firewall admits from an address whose packets arrive at an interface."""
        if not self.program:
            return Admission(everything=True)
        source = ipaddress.ip_address(address)
        return self._by_zone(source, interface) if self.program == "firewalld" else self._by_rules(source, interface)

    def _by_zone(self, source: ipaddress.IPv4Address | ipaddress.IPv6Address, interface: str) -> Admission:
        """A zone with the source takes precedence over that of the interface."""
        by_source = [(network.prefixlen, zone) for zone in self.zones for network in zone.sources if source in network]
        zone = max(by_source, key=lambda pair: pair[0])[1] if by_source else None
        if zone is None:
            names = {name: one for one in self.zones for name in one.interfaces}
            zone = names.get(interface) or next((one for one in self.zones if one.name == self.default_zone), None)
        if zone is None:
            return Admission(everything=False)
        is_open = zone.target == "ACCEPT" or any(source in network for network in zone.admitted)
        decided = f"the zone {zone.name} has its address" if by_source and not is_open else ""
        return Admission(is_open, zone.ports, zone.name, decided)

    def _by_rules(self, source: ipaddress.IPv4Address | ipaddress.IPv6Address, interface: str) -> Admission:
        """The first rule that matches decides."""
        ports: list[Ports] = []
        for rule in self.rules:
            if rule.interface not in {"", interface} or source not in rule.source:
                continue
            if not rule.ports and rule.action == "allow":
                return Admission(everything=True)
            if not rule.ports:
                return Admission(False, tuple(ports), decided_by=f"the rule {rule.action} from {rule.source}")  # noqa: FBT003
            ports += rule.ports if rule.action == "allow" else ()
        return Admission(self.admits_by_default, tuple(ports))


class FirewallFact:
    """Asks firewalld for its zones; reads the files of ufw, whose rules are equal to those in effect."""

    name: ClassVar[str] = "firewall"
    label: ClassVar[str] = "firewall-cmd --list-all-zones"
    limit_seconds: ClassVar[int] = 30
    command: ClassVar[str] = r"""
if command -v firewall-cmd >/dev/null && systemctl -q is-active firewalld; then
  echo program=firewalld
  sed -n 's/^DefaultZone=/default_zone=/p' /etc/firewalld/firewalld.conf
  firewall-cmd --list-all-zones
elif [ -r /etc/ufw/ufw.conf ] && grep -qix 'ENABLED="\{0,1\}yes"\{0,1\}' /etc/ufw/ufw.conf; then
  echo program=ufw
  sed -n 's/^DEFAULT_INPUT_POLICY=/policy=/p' /etc/default/ufw
  grep -hF '### tuple ### ' /etc/ufw/user.rules /etc/ufw/user6.rules
  exit 0
else
  exit 0
fi
"""

    def parse(self, raw: RawOutput) -> Firewall | Unknown:
        """Return Unknown for output of another form: an assumed rule could hide a blocked network."""
        pairs = raw.pairs()
        try:
            if pairs.get("program") == "firewalld":
                return _firewalld(raw, pairs.get("default_zone", ""))
            if pairs.get("program") == "ufw":
                tuples = [line.removeprefix(_TUPLE) for line in raw.lines() if line.startswith(_TUPLE)]
                rules = tuple(rule for line in tuples if (rule := _ufw_rule(line)))
                policy = pairs.get("policy", "").strip("\"'").upper()
                return Firewall("ufw", admits_by_default=policy == "ACCEPT", rules=rules)
        except ValueError as problem:
            return Unknown(f"the rules of {pairs['program']} cannot be read: {problem}")
        return Firewall("")


def _firewalld(raw: RawOutput, default_zone: str) -> Firewall | Unknown:
    if raw.exit_code:
        return Unknown(f"firewall-cmd failed: {raw.last_line()}")
    blocks: list[tuple[str, dict[str, str], list[str]]] = []
    for line in raw.lines()[1:]:
        attribute, header = _ATTRIBUTE.fullmatch(line), _HEADER.fullmatch(line)
        if line.startswith(("default_zone=", "\tport=")):
            continue
        if header and not line.startswith((" ", "\t")):
            blocks.append((header[1], {}, []))
        elif attribute and blocks:
            blocks[-1][1][attribute[1]] = (attribute[2] or "").strip()
        elif line.startswith("\trule ") and blocks:
            blocks[-1][2].append(line.rstrip())
        else:
            raise ValueError(line.strip()[:80])
    if not blocks:
        return Unknown("firewall-cmd printed no zones")
    return Firewall("firewalld", default_zone, tuple(_zone(*block) for block in blocks))


def _zone(name: str, values: dict[str, str], rules: list[str]) -> Zone:
    networks = (_network(word) for word in values.get("sources", "").split())
    ports = (word.partition("/") for word in values.get("ports", "").split())
    return Zone(
        name,
        values.get("target", ""),
        tuple(values.get("interfaces", "").split()),
        tuple(network for network in networks if network),
        tuple(_ports(number, "-") for number, _, protocol in ports if protocol == "tcp"),
        tuple(network for rule in rules if (match := _RICH.fullmatch(rule)) and (network := _network(match[1]))),
    )


def _network(text: str) -> Network | None:
    """Return a network; None for a hardware address or an ipset, which firewalld accepts as sources too."""
    if text.startswith("ipset:") or re.fullmatch(r"([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}", text):
        return None
    return ipaddress.ip_network(text, strict=False)


def _ports(text: str, separator: str) -> Ports:
    first, _, last = text.partition(separator)
    numbers = int(first), int(last or first)
    if not 0 < numbers[0] <= numbers[1] <= _MOST_PORT:
        raise ValueError(f"ports {text}")
    return numbers


def _ufw_rule(text: str) -> UfwRule | None:
    """Return a rule from a comment in ufw's file; None if it is not about incoming TCP packets.

    Its words are action, protocol, ports, destination, source ports, source, the names of two applications where one is
    given, and direction with interface.
    """
    words = [word for word in text.split() if not word.startswith("comment=")]
    if len(words) not in {7, 9}:
        raise ValueError(text[:80])
    action, protocol, ports, destination, source_ports, source = words[:6]
    direction, _, interface = words[-1].partition("_")
    verb = action.partition("_")[0]
    if action.startswith("route:") or direction != "in" or protocol not in {"any", "tcp"}:
        return None
    if destination not in _ANY or source_ports != "any":
        return None
    if verb not in _ACTIONS or "!" in interface:
        raise ValueError(text[:80])
    return UfwRule(verb, ipaddress.ip_network(source, strict=False), _list(ports), interface)


def _list(text: str) -> tuple[Ports, ...]:
    parts: Iterable[str] = () if text == "any" else text.split(",")
    return tuple(_ports(part, ":") for part in parts)
