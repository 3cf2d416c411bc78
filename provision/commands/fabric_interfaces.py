"""The data interfaces of a node, for the role fabric_host and for its checks.

``roles/fabric_host/filter_plugins/fabric_host_interfaces.py`` is a link to this file.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def data_interfaces(addresses: Iterable[Mapping[str, Any]], networks: Sequence[str], data_interface: str) -> list[str]:
    """Return the interfaces with an address in one of the networks, in natural order.

    Without networks it is the data interface.

    An address has the keys ``interface`` and ``address``.
    """
    blocks = [ipaddress.ip_network(str(text), strict=False) for text in networks]
    if not blocks:
        return [data_interface] if data_interface else []
    names = {str(one["interface"]) for one in addresses if any(_address(one) in block for block in blocks)}
    return sorted(names, key=_natural)


def _address(entry: Mapping[str, Any]) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(str(entry["address"]).partition("%")[0])


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort eth2 before eth10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


class FilterModule:
    """The filters of the role fabric_host."""

    def filters(self) -> dict[str, object]:
        """Return the filters by name."""
        return {"fabric_host_data_interfaces": data_interfaces}
