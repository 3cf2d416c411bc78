"""Width and speed of the PCIe links of GPUs and network cards, compared with their maximum and their slots'."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from provision.facts.base import RawOutput

_COLUMNS = 9
_WIDTHS = range(1, 33)  # a device that has fallen off the bus reads as 63 lanes

CARDS = r"""
cards=
for card in /sys/bus/pci/devices/*; do
  { read -r vendor <"$card/vendor"; } 2>/dev/null || continue
  case $vendor in 0x10de|0x15b3) cards="$cards ${card##*/}";; esac
done
for device in /sys/class/infiniband/*; do
  [ -e "$device/device" ] && [ ! -e "$device/parent" ] || continue
  card=$(readlink -f "$device/device"); card=${card##*/}
  case " $cards " in *" $card "*) ;; *) cards=$(printf '%s\n' $cards "$card" | sort | tr '\n' ' ');; esac
done
"""
"""Shell code that sets ``cards`` to the addresses of NVIDIA and Mellanox devices, and of other RDMA devices.

A software RDMA device may point to the network card below it; it has a ``parent``, which is ignored here.
"""


@dataclass(frozen=True)
class PciLink:
    """One device's link to the bridge above it; None for values that the kernel does not report."""

    address: str
    gpu: bool
    """Whether it is a GPU; otherwise a network card."""
    width: int | None
    width_max: int | None
    """Maximum of the device."""
    speed: float | None
    """In GT/s; an idle GPU lowers it."""
    speed_max: float | None
    slot_width: int | None
    """Maximum of the bridge above it."""
    slot_speed: float | None

    @cached_property
    def expected_width(self) -> int | None:
        """The width that both device and slot support."""
        return min((width for width in (self.width_max, self.slot_width) if width is not None), default=None)

    @cached_property
    def expected_speed(self) -> float | None:
        """The speed that both device and slot support, in GT/s."""
        return min((speed for speed in (self.speed_max, self.slot_speed) if speed is not None), default=None)


class PciLinksFact:
    """Reads sysfs, which needs no driver; virtual functions have no link of their own."""

    name: ClassVar[str] = "pci_links"
    label: ClassVar[str] = "cat /sys/bus/pci/devices"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = r"""
get() { value=; { read -r value <"$1"; } 2>/dev/null; }
CARDS
for card in $cards; do
  card=/sys/bus/pci/devices/$card
  [ -e "$card" ] && [ ! -e "$card/physfn" ] || continue
  get "$card/class"
  case $value in 0x0300*|0x0302*) kind=gpu;; 0x02*|0x0c06*) kind=nic;; *) continue;; esac
  printf 'link\t%s\t%s' "${card##*/}" "$kind"
  for file in current_link_width max_link_width current_link_speed max_link_speed \
    ../max_link_width ../max_link_speed; do
    get "$card/$file"; printf '\t%s' "$value"
  done
  echo
done
exit 0
""".replace("CARDS", CARDS.strip())

    def parse(self, raw: RawOutput) -> tuple[PciLink, ...]:
        """Parse the columns: address, kind, width and speed (current, maximum), then those of the bridge."""
        rows = [line.split("\t") for line in raw.lines()]
        return tuple(_link(row) for row in rows if row[0] == "link" and len(row) == _COLUMNS)


def _link(row: list[str]) -> PciLink:
    _, address, kind, width, width_max, speed, speed_max, slot_width, slot_speed = row
    return PciLink(
        address,
        kind == "gpu",
        _width(width),
        _width(width_max),
        _speed(speed),
        _speed(speed_max),
        _width(slot_width),
        _speed(slot_speed),
    )


def _width(text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text) in _WIDTHS else None


def _speed(text: str) -> float | None:
    """Parse ``32.0 GT/s PCIe``; old kernels print ``8 GT/s``, or ``Unknown``."""
    match = re.match(r"([\d.]+) GT/s", text)
    return float(match[1]) if match else None
