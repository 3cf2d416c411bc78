"""RDMA devices as shown by sysfs; no tool of an RDMA stack is needed."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from provision.facts.base import RawOutput
from provision.facts.nvidia_driver import DkmsTree

_MAPPED = "0000:0000:0000:0000:0000:ffff:"
"""Prefix of the GID of an IPv4 address."""
_CODED_8B10B = frozenset({"SDR", "DDR", "QDR"})
"""InfiniBand speeds with 8b/10b encoding; the loss of FDR and later (2 in 66 bits) is within the thresholds."""


@dataclass(frozen=True)
class Gid:
    """One entry of a port's GID table."""

    index: int
    gid: str
    type: str
    """``RoCE v2``, ``IB/RoCE v1``, or empty if the kernel does not report it."""
    netdev: str

    @property
    def routable_ipv4(self) -> bool:
        """Whether this is the RoCE v2 GID of an IPv4 address, which can cross subnets."""
        return self.type == "RoCE v2" and self.gid.startswith(_MAPPED)

    @property
    def ipv4(self) -> str:
        """The IPv4 address of the GID; empty for other GIDs."""
        digits = self.gid.removeprefix(_MAPPED).replace(":", "")
        if not self.gid.startswith(_MAPPED) or not re.fullmatch(r"[0-9a-f]{8}", digits):
            return ""
        return str(ipaddress.IPv4Address(int(digits, 16)))


_NUMBER = r"\d{1,6}(?:\.\d{1,3})?"


@lru_cache(maxsize=64)
def _gbit(rate: str) -> float | None:
    match = re.match(rf"({_NUMBER}) Gb/sec", rate)
    return float(match[1]) if match else None


@lru_cache(maxsize=64)
def _lanes(rate: str) -> int | None:
    match = re.search(r"\((\d{1,3})X", rate)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class RdmaPort:
    """One port of a device."""

    number: int
    link_layer: str
    """``InfiniBand`` or ``Ethernet``."""
    state: str
    """``ACTIVE``, ``DOWN``, ``INIT``, ..."""
    physical_state: str
    rate: str
    gids: tuple[Gid, ...] = ()

    @property
    def active(self) -> bool:
        """Whether traffic can pass."""
        return self.state == "ACTIVE"

    @property
    def gbit(self) -> float | None:
        """The rate in Gbit/s; None if it is not reported."""
        return _gbit(self.rate)

    @property
    def lanes(self) -> int | None:
        """The number of lanes in use, from ``400 Gb/sec (4X NDR)``; None if it is not reported."""
        return _lanes(self.rate)

    @property
    def line_rate_gbit(self) -> float | None:
        """The usable rate in Gbit/s, from sysfs; None if the port does not report it.

        The rates of older InfiniBand speeds include their line code, which takes a fifth; Ethernet rates do not.
        """
        match = re.match(rf"({_NUMBER}) Gb/sec(?:.*\b([A-Z]+\d*)\))?", self.rate)
        if not match:
            return None
        coded = self.link_layer == "InfiniBand" and match[2] in _CODED_8B10B
        return float(match[1]) * (0.8 if coded else 1.0)


@dataclass(frozen=True)
class RdmaDevice:
    """One RDMA device."""

    name: str
    driver: str
    """The driver of its PCI device; empty for a software device (rxe, siw)."""
    uverbs: str
    """The name of its device node, e.g. ``uverbs0``."""
    netdevs: tuple[str, ...]
    ports: tuple[RdmaPort, ...]
    firmware: str = ""
    board: str = ""
    """The card's model (its PSID, as ``MT_0000000838``); empty if the driver does not report it."""

    @property
    def soft(self) -> bool:
        """Whether it is a software RDMA device."""
        return not self.driver

    @property
    def active(self) -> bool:
        """Whether any port can carry traffic."""
        return any(port.active for port in self.ports)


@dataclass(frozen=True)
class VendorStack:
    """The kernel modules of an installed MLNX or DOCA OFED, as far as DKMS builds them, and their service."""

    trees: tuple[DkmsTree, ...] = ()
    replaced: tuple[str, ...] = ()
    """Loaded modules that differ from those on the disk: a reboot, or a restart of openibd, is pending."""
    openibd: str = ""
    """State of openibd.service: ``active``, ``inactive``, ``failed``; empty without the unit."""
    openibd_enabled: bool = False


@dataclass(frozen=True)
class RdmaStack:
    """All RDMA devices and their environment on the node."""

    devices: tuple[RdmaDevice, ...]
    pci_cards: int
    """Mellanox and NVIDIA network cards on the PCI bus, with or without a driver."""
    nodes: tuple[str, ...]
    """Names under /dev/infiniband."""
    ofed: str
    """The version of an installed MLNX or DOCA OFED, else empty."""
    vendor: VendorStack = VendorStack()


_ERRORS, _TREES = 20, 20
_LOADED = frozenset({"ib_core", "ib_uverbs", "mlx5_core", "mlx5_ib", "mlx4_core"})
_STATES = frozenset({"active", "reloading", "inactive", "failed", "activating", "deactivating", "maintenance"})
_ENABLED = frozenset({"enabled", "enabled-runtime", "static", "indirect", "generated", "alias"})


class RdmaFact:
    """Walks /sys/class/infiniband; unreadable GID entries are empty, which is not an error.

    Without sources of a vendor's stack in DKMS it starts no other program than ``ofed_info``.
    """

    name: ClassVar[str] = "rdma"
    label: ClassVar[str] = "cat /sys/class/infiniband"
    limit_seconds: ClassVar[int] = 30
    command: ClassVar[str] = r"""
get() { value=; { read -r value <"$1"; } 2>/dev/null; }
for device in /sys/class/infiniband/*; do
  [ -d "$device" ] || continue
  driver=; [ ! -e "$device/device/driver" ] || driver=$(basename "$(readlink -f "$device/device/driver")")
  get "$device/fw_ver"; firmware=$value; get "$device/board_id"
  printf 'device\t%s\t%s\t%s\t%s\n' "${device##*/}" "$driver" "$firmware" "$value"
  for net in "$device"/device/net/*; do [ ! -d "$net" ] || printf 'netdev\t%s\n' "${net##*/}"; done
  get "$device/parent"; [ -z "$value" ] || printf 'netdev\t%s\n' "$value"
  for port in "$device"/ports/*; do
    get "$port/link_layer"; layer=$value; get "$port/state"; state=$value
    get "$port/phys_state"; phys=$value; get "$port/rate"
    printf 'port\t%s\t%s\t%s\t%s\t%s\n' "${port##*/}" "$layer" "$state" "$phys" "$value"
    grep -H '[1-9a-f]' "$port"/gids/* 2>/dev/null | while IFS=: read -r entry gid; do
      case $gid in fe80:0000:0000:0000:0000:0000:0000:0000) continue;; esac
      get "$port/gid_attrs/types/${entry##*/}"; type=$value
      get "$port/gid_attrs/ndevs/${entry##*/}"
      printf 'gid\t%s\t%s\t%s\t%s\n' "${entry##*/}" "$gid" "$type" "$value"
    done
  done
done
for verbs in /sys/class/infiniband_verbs/uverbs*; do
  [ ! -r "$verbs/ibdev" ] || { get "$verbs/ibdev"; printf 'uverbs\t%s\t%s\n' "${verbs##*/}" "$value"; }
done
for node in /dev/infiniband/*; do [ ! -e "$node" ] || printf 'node\t%s\n' "${node##*/}"; done
for card in /sys/bus/pci/devices/*; do
  get "$card/vendor"; [ "$value" = 0x15b3 ] || continue
  get "$card/class"; case $value in 0x02*) printf 'pci\t%s\n' "${card##*/}";; esac
done
! command -v ofed_info >/dev/null || printf 'ofed\t%s\n' "$(ofed_info -s)"
vendor=
for tree in /var/lib/dkms/mlnx-ofed-kernel/[0-9]* /var/lib/dkms/mlnx-ofa_kernel/[0-9]*; do
  [ -e "$tree/source" ] || continue
  vendor=yes; version=${tree##*/}; name=${tree%/*}; built=no
  for module in "$tree/$PROBE_RELEASE"/*/module/*.ko*; do [ ! -e "$module" ] || built=yes; done
  printf 'tree\t%s\t%s\t%s\n' "${name##*/}" "$version" "$built"
  [ $built = yes ] || [ ! -r "$tree/build/make.log" ] ||
    grep -E 'error: |\*\*\* |: No such file|: cannot |not found|No space left' "$tree/build/make.log" | head -n 20 |
    while IFS= read -r line; do printf 'make\t%s\n' "$line"; done
done
if [ -n "$vendor" ]; then
  systemctl show -p ActiveState -p UnitFileState -p LoadState openibd.service 2>/dev/null |
    while IFS= read -r line; do printf 'openibd\t%s\n' "$line"; done
  for module in ib_core ib_uverbs mlx5_core mlx5_ib mlx4_core; do
    get "/sys/module/$module/srcversion"; loaded=$value
    [ -z "$loaded" ] || installed=$(modinfo -F srcversion "$module" 2>/dev/null) || installed=
    [ -z "$loaded" ] || [ -z "$installed" ] || [ "$loaded" = "$installed" ] || printf 'replaced\t%s\n' "$module"
  done
fi
exit 0
"""

    def parse(self, raw: RawOutput) -> RdmaStack:
        """Parse tab-separated lines of a keyword and values; ports and GIDs belong to the device above them."""
        rows = [line.split("\t") for line in raw.lines()]
        uverbs = {row[2]: row[1] for row in rows if row[0] == "uverbs" and len(row) > 2}  # noqa: PLR2004
        starts = [index for index, row in enumerate(rows) if row[0] == "device" and len(row) > 2]  # noqa: PLR2004
        ends = [*starts[1:], len(rows)]
        return RdmaStack(
            devices=tuple(_device(rows[a:b], uverbs) for a, b in zip(starts, ends, strict=False)),
            pci_cards=sum(row[0] == "pci" for row in rows),
            nodes=tuple(row[1] for row in rows if row[0] == "node" and len(row) > 1),
            ofed=next((row[1].rstrip(":") for row in rows if row[0] == "ofed" and len(row) > 1), ""),
            vendor=_vendor(rows),
        )


def _vendor(rows: list[list[str]]) -> VendorStack:
    trees: list[DkmsTree] = []
    for row in rows:
        if row[0] == "tree" and len(row) == 4 and re.fullmatch(r"\S{1,80} \S{1,60} (yes|no)", " ".join(row[1:])):  # noqa: PLR2004
            trees.append(DkmsTree(row[1], row[2], row[3] == "yes"))
            del trees[_TREES:]
        elif row[0] == "make" and len(row) > 1 and trees and len(trees[-1].errors) < _ERRORS:
            last = trees.pop()
            trees.append(DkmsTree(last.name, last.version, last.built, (*last.errors, row[1][:400])))
    unit = dict(row[1].split("=", 1) for row in rows if row[0] == "openibd" and len(row) > 1 and "=" in row[1])
    replaced = {row[1] for row in rows if row[0] == "replaced" and len(row) > 1}
    state = unit.get("ActiveState", "") if unit.get("LoadState") == "loaded" else ""
    return VendorStack(
        trees=tuple(trees),
        replaced=tuple(sorted(replaced & _LOADED)),
        openibd=state if state in _STATES else "",
        openibd_enabled=unit.get("UnitFileState", "") in _ENABLED,
    )


def _device(rows: list[list[str]], uverbs: dict[str, str]) -> RdmaDevice:
    ports: list[RdmaPort] = []
    gids: dict[int, list[Gid]] = {}
    for row in (row + [""] * 6 for row in rows):
        if row[0] == "port" and row[1].isdecimal():
            state, phys = (text.rpartition(":")[2].strip() for text in (row[3], row[4]))
            ports.append(RdmaPort(int(row[1]), row[2], state, phys, row[5]))
        elif row[0] == "gid" and row[1].isdecimal() and ports:
            gids.setdefault(ports[-1].number, []).append(Gid(int(row[1]), row[2], row[3], row[4]))
    netdevs = [row[1] for row in rows if row[0] == "netdev" and len(row) > 1]
    netdevs += [gid.netdev for entries in gids.values() for gid in entries if gid.netdev]
    return RdmaDevice(
        name=rows[0][1],
        driver=rows[0][2],
        uverbs=uverbs.get(rows[0][1], ""),
        netdevs=tuple(dict.fromkeys(netdevs)),
        ports=tuple(
            RdmaPort(p.number, p.link_layer, p.state, p.physical_state, p.rate, _by_index(gids.get(p.number, ())))
            for p in ports
        ),
        firmware=rows[0][3] if len(rows[0]) > 3 else "",  # noqa: PLR2004
        board=rows[0][4] if len(rows[0]) > 4 else "",  # noqa: PLR2004
    )


def _by_index(gids: list[Gid] | tuple[()]) -> tuple[Gid, ...]:
    return tuple(sorted(gids, key=lambda gid: gid.index))
