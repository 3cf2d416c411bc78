"""Settings of network interfaces, hugepages and CPU governors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from provision.facts.base import RawOutput

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,15}")
_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_GOVERNOR = re.compile(r"[a-z_]{1,16}")
_COLUMNS = 7
_DIGITS = 10


@dataclass(frozen=True)
class Interface:
    """One network interface."""

    mtu: int
    pci: str = ""
    """PCI address of its card; empty for a virtual interface."""
    rp_filter: int | None = None
    arp_ignore: int | None = None
    arp_announce: int | None = None


@dataclass(frozen=True)
class Fabric:
    """What the role fabric_host sets."""

    interfaces: Mapping[str, Interface] = field(default_factory=dict)
    hugepages: Mapping[int, int] = field(default_factory=dict)
    """Size in KiB -> number of reserved pages."""
    governors: frozenset[str] = frozenset()
    """The governors of all CPUs; empty if the kernel does not scale frequencies."""
    memory_kib: int = 0
    """The memory of the node, of which hugepages are a part; 0 if it is unknown."""


class FabricFact:
    """Reads sysfs and /proc/sys. Interfaces of containers (veth) are left out."""

    name: ClassVar[str] = "fabric"
    label: ClassVar[str] = "cat /sys/class/net"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = r"""
get() { value=; { read -r value <"$1"; } 2>/dev/null; }
for link in /sys/class/net/*; do
  name=${link##*/}
  case $name in lo|veth*) continue;; esac
  get "$link/mtu"; [ -n "$value" ] || continue
  printf 'net\t%s\t%s\t' "$name" "$value"
  [ ! -e "$link/device" ] || printf '%s' "$(cd -P "$link/device" && pwd)"
  for key in rp_filter arp_ignore arp_announce; do
    get "/proc/sys/net/ipv4/conf/$name/$key"; printf '\t%s' "$value"
  done
  echo
done
{ read -r name value unit; } 2>/dev/null </proc/meminfo
[ "$name" != MemTotal: ] || printf 'memory\t%s\n' "$value"
for pages in /sys/kernel/mm/hugepages/hugepages-*kB; do
  get "$pages/nr_hugepages"; [ -z "$value" ] || printf 'hugepages\t%s\t%s\n' "${pages##*-}" "$value"
done
known=' '
for file in /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor; do
  get "$file"; [ -n "$value" ] || continue
  case $known in *" $value "*) ;; *) known="$known$value "; printf 'governor\t%s\n' "$value";; esac
done
exit 0
"""

    def parse(self, raw: RawOutput) -> Fabric:
        """Ignore lines of another form."""
        rows = [line.split("\t") for line in raw.lines()]
        interfaces = {
            row[1]: _interface(row)
            for row in rows
            if row[0] == "net" and len(row) == _COLUMNS and _NAME.fullmatch(row[1]) and _number(row[2]) is not None
        }
        pages = {
            size: count
            for row in rows
            if row[0] == "hugepages" and len(row) == 3  # noqa: PLR2004 - word, size, number
            and (size := _number(row[1].removesuffix("kB"))) is not None and (count := _number(row[2])) is not None
        }  # fmt: skip
        governors = frozenset(row[1] for row in rows if row[0] == "governor" and _GOVERNOR.fullmatch("".join(row[1:2])))
        memory = [_number(row[1]) for row in rows if row[0] == "memory" and len(row) == 2]  # noqa: PLR2004 - word, number
        return Fabric(interfaces, pages, governors, (memory[0] if memory else None) or 0)


def _interface(row: list[str]) -> Interface:
    cards = [part for part in row[3].split("/") if _PCI.fullmatch(part)]
    return Interface(_number(row[2]) or 0, cards[-1] if cards else "", *map(_number, row[4:]))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None
