"""Settings of network interfaces, PCIe cards, RoCE ports, hugepages, CPU governors and the boot menu."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from provision.facts.base import RawOutput

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,15}")
_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_GOVERNOR = re.compile(r"[a-z_]{1,16}")
_BOOT_TOOLS = ("grubby", "grub-mkconfig")
_LINUX = frozenset({"linux", "linux16", "linuxefi"})
_IMAGE = re.compile(r"vmlinu[xz]-")
_RECOVERY = frozenset({"single", "recovery", "systemd.unit=rescue.target"})
_DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_ROCE_MODES = {"IB/RoCE v1": "v1", "RoCE v2": "v2"}
_NVIDIA, _MELLANOX = "0x10de", "0x15b3"
_GPUS = ("0x0300", "0x0302")
_QOS = ("trust", "pfc", "roce_np", "roce_rp")
_PRIORITIES = 8
_MOST_CPUS = 8192
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
class Card:
    """One network card or GPU; virtual functions are left out."""

    bridges: tuple[str, ...] = ()
    """The PCIe bridges above it, from the root."""
    peer: bool = False
    """Whether it is a GPU, a Mellanox card or an RDMA device, which exchange data directly with each other."""
    max_read_request: int | None = None
    """In bytes; None if the card is no PCIe device, or setpci is missing."""


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
    kernel_arguments: frozenset[str] = frozenset()
    """Those of the running kernel."""
    boot_tool: str = ""
    """What changes the boot menu: ``grubby``, ``grub-mkconfig``, or empty for another boot loader than GRUB 2."""
    boot_arguments: frozenset[str] | None = None
    """The arguments that every entry of the boot menu has, except recovery entries; None if no entry is readable."""
    lower: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Bond, bridge or VLAN -> the interfaces below it."""
    cards: Mapping[str, Card] = field(default_factory=dict)
    """By PCI address."""
    assigned: tuple[str, ...] = ()
    """PCI addresses of devices that may be assigned to virtual machines (vfio)."""
    roce: Mapping[tuple[str, int], tuple[str, int | None]] = field(default_factory=dict)
    """RDMA device and port -> default RoCE mode (``v1``, ``v2``) and type of service; read where the role sets them."""
    qos: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Interface -> setting (``trust``, ``pfc``, ``roce_np``, ``roce_rp``) -> value; read where the role sets them."""
    interrupts: Mapping[str, int | None] = field(default_factory=dict)
    """PCI address of a card -> how many of its interrupts may run on other NUMA nodes, where the role sets them.

    None: its NUMA node is unknown."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Name -> PCI address of the card, from the files of the role for systemd; they have an effect at the next boot."""

    def below(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return interfaces and all those below them."""
        left, known = list(names), []
        while left:
            name = left.pop(0)
            known.append(name)
            left += [one for one in self.lower.get(name, ()) if one not in known and one not in left]
        return tuple(known)

    def at(self, address: str) -> str:
        """Return the interface of the card at a PCI address, empty if there is none or several."""
        names = [name for name, one in self.interfaces.items() if one.pci == address]
        return names[0] if len(names) == 1 else ""

    def cards_of(self, names: Iterable[str]) -> dict[str, Card]:
        """Return the cards of interfaces, by address; a bond has those of the interfaces below it."""
        addresses = (self.interfaces[name].pci for name in self.below(names) if name in self.interfaces)
        return {address: self.cards[address] for address in addresses if address in self.cards}


class FabricFact:
    """Reads sysfs, /proc and the boot menu. Interfaces of containers (veth) are left out.

    The defaults of RoCE ports are visible while a folder for the device exists in configfs. It is created on nodes
    where the role sets them, and removed at once: the module rdma_cm cannot be unloaded while it exists.
    """

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
  for below in "$link"/lower_*; do [ ! -e "$below" ] || printf 'lower\t%s\t%s\n' "$name" "${below##*/lower_}"; done
done
setpci=; ! command -v setpci >/dev/null || setpci=yes
for link in /sys/bus/pci/devices/*; do
  get "$link/class"
  case $value in 0x02*|0x0300*|0x0302*|0x0c06*) class=$value;; *) continue;; esac
  [ ! -e "$link/physfn" ] || continue
  get "$link/vendor"; request=
  case $setpci$class in yes0x02*) request=$(setpci -s "${link##*/}" CAP_EXP+8.w 2>/dev/null);; esac
  printf 'card\t%s\t%s\t%s\t%s\n' "$(cd -P "$link" && pwd)" "$value" "$class" "$request"
done
for link in /sys/class/infiniband/*; do
  [ -e "$link/device" ] && [ ! -e "$link/parent" ] && printf 'rdma\t%s\n' "$(cd -P "$link/device" && pwd)"
done
for link in /sys/bus/pci/drivers/*vfio*/*:*:*; do [ ! -e "$link" ] || printf 'vfio\t%s\n' "${link##*/}"; done
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
if grep -qs default_roce /usr/local/lib/provision/fabric-setup && [ -d /sys/kernel/config/rdma_cm ]; then
  for device in /sys/class/infiniband/*; do
    folder=/sys/kernel/config/rdma_cm/${device##*/}; new=
    [ -d "$folder" ] || { mkdir "$folder" 2>/dev/null || continue; new=yes; }
    for port in "$folder"/ports/*; do
      get "$port/default_roce_mode"; mode=$value; get "$port/default_roce_tos"
      [ -z "$mode" ] || printf 'roce\t%s\t%s\t%s\t%s\n' "${folder##*/}" "${port##*/}" "$mode" "$value"
    done
    [ -z "$new" ] || rmdir "$folder"
  done
fi
script=/usr/local/lib/provision/fabric-setup
for name in $(sed -nE 's/^(# )?qos ([A-Za-z0-9_.-]+) .*/\2/p' "$script" 2>/dev/null | sort -u); do
  [ -e "/sys/class/net/$name" ] || continue
  printf 'qos\t%s\n' "$name"
  mlnx_qos -i "$name" 2>/dev/null | sed -nE "s/^Priority trust state: (pcp|dscp)[[:space:]]*\$/qos $name trust \1/p
    s/^[[:space:]]+enabled(([[:space:]]+[01]){8})[[:space:]]*\$/qos $name pfc\1/p"
  for point in roce_np roce_rp; do
    printf 'qos %s %s' "$name" "$point"
    for priority in 0 1 2 3 4 5 6 7; do
      get "/sys/class/net/$name/ecn/$point/enable/$priority"; printf ' %s' "$value"
    done
    echo
  done
done
for card in $(sed -nE 's/^(# )?interrupts ([0-9a-f:.]+) .*/\2/p' "$script" 2>/dev/null); do
  get "/sys/bus/pci/devices/$card/numa_node"; node=$value
  get "/sys/bus/pci/devices/$card/local_cpulist"; [ -n "$value" ] || continue
  printf 'interrupts %s %s %s' "$card" "$node" "$value"
  for entry in "/sys/bus/pci/devices/$card/msi_irqs"/*; do
    get "/proc/irq/${entry##*/}/smp_affinity_list"; [ -z "$value" ] || printf ' %s' "$value"
  done
  echo
done
for file in /etc/systemd/network/05-provision-*.link; do
  [ -f "$file" ] || continue
  printf 'name'
  sed -nE 's/^(Path=\*pci-|Name=)//p' "$file" | while read -r value; do printf '\t%s' "$value"; done
  echo
done
{ read -r value; } 2>/dev/null </proc/cmdline && printf 'arguments\t%s\n' "$value"
if [ -x /usr/sbin/grubby ]; then printf 'boot\tgrubby\n'
elif [ -x /usr/sbin/grub-mkconfig ] && [ -e /boot/grub/grub.cfg ]; then printf 'boot\tgrub-mkconfig\n'; fi
grep -hsE '^[[:space:]]*(linux|linux16|linuxefi|options)[[:space:]]|^kernelopts=' /boot/grub/grub.cfg \
  /boot/grub2/grubenv /etc/grub2.cfg /etc/grub2-efi.cfg /boot/loader/entries/*.conf
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
        return Fabric(
            interfaces,
            pages,
            governors,
            (memory[0] if memory else None) or 0,
            frozenset(word for row in rows if row[0] == "arguments" for word in " ".join(row[1:]).split()),
            next((row[1] for row in rows if row[0] == "boot" and row[1:] in ([tool] for tool in _BOOT_TOOLS)), ""),
            _boot_arguments(raw.lines()),
            _lower(rows),
            _cards(rows),
            tuple(sorted(row[1] for row in rows if row[0] == "vfio" and _PCI.fullmatch("".join(row[1:])))),
            dict(_roce(rows)),
            _qos(raw.lines()),
            dict(_interrupts(raw.lines())),
            {
                row[2]: row[1]
                for row in rows
                if row[0] == "name" and len(row) == 3  # noqa: PLR2004 - word, address, name
                and _PCI.fullmatch(row[1]) and _NAME.fullmatch(row[2])
            },
        )  # fmt: skip


def _roce(rows: Iterable[list[str]]) -> Iterator[tuple[tuple[str, int], tuple[str, int | None]]]:
    for row in rows:
        if row[0] == "roce" and len(row) == 5:  # noqa: PLR2004 - word and four values
            _, device, port, mode, tos = row
            number = _number(port)
            if _DEVICE.fullmatch(device) and number is not None and mode in _ROCE_MODES:
                yield (device, number), (_ROCE_MODES[mode], _number(tos))


def _qos(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the settings of interfaces; one without a valid setting has none."""
    settings: dict[str, dict[str, str]] = {}
    for words in map(str.split, lines):
        if words[:1] != ["qos"] or not _NAME.fullmatch("".join(words[1:2])):
            continue
        values = settings.setdefault(words[1], {})
        kind, flags = "".join(words[2:3]), words[3:]
        is_valid = (
            flags in (["pcp"], ["dscp"]) if kind == "trust" else len(flags) == _PRIORITIES and {*flags} <= {"0", "1"}
        )
        if kind in _QOS and is_valid:
            values[kind] = ",".join(flags)
    return settings


def _interrupts(lines: Iterable[str]) -> Iterator[tuple[str, int | None]]:
    for words in map(str.split, lines):
        if words[:1] != ["interrupts"] or not _PCI.fullmatch("".join(words[1:2])):
            continue
        masks = [_cpus(text) for text in words[3:]]
        if masks and None not in masks:
            local, *others = (mask or 0 for mask in masks)
            yield words[1], None if words[2] == "-1" else sum(bool(mask & ~local) for mask in others)


def _cpus(text: str) -> int | None:
    """Return the CPUs of a list such as ``0-3,8`` as bits; None for a text of another form."""
    mask = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = _number(first), _number(last or first)
        if start is None or end is None or not start <= end < _MOST_CPUS:
            return None
        mask |= (1 << end + 1) - (1 << start)
    return mask


def _lower(rows: Iterable[list[str]]) -> dict[str, tuple[str, ...]]:
    below: dict[str, tuple[str, ...]] = {}
    for row in rows:
        if row[0] == "lower" and len(row) == 3 and all(map(_NAME.fullmatch, row[1:])):  # noqa: PLR2004 - word, two names
            below[row[1]] = (*below.get(row[1], ()), row[2])
    return below


def _cards(rows: list[list[str]]) -> dict[str, Card]:
    rdma = {path[-1] for row in rows if row[0] == "rdma" and (path := _addresses("".join(row[1:])))}
    cards = {}
    for row in rows:
        path = _addresses(row[1]) if row[0] == "card" and len(row) == 5 else []  # noqa: PLR2004 - word and four values
        if path:
            _, _, vendor, kind, request = row
            peer = (vendor == _NVIDIA and kind.startswith(_GPUS)) or (vendor == _MELLANOX and kind.startswith("0x02"))
            cards[path[-1]] = Card(tuple(path[:-1]), peer or path[-1] in rdma, _read_request(request))
    return cards


def _addresses(path: str) -> list[str]:
    return [part for part in path.split("/") if _PCI.fullmatch(part)]


def _read_request(register: str) -> int | None:
    """Return the maximum read request of PCIe device control, of which it is bits 12 to 14."""
    is_valid = re.fullmatch(r"[0-9a-f]{4}", register) and register != "ffff"
    return 128 << (int(register, 16) >> 12 & 7) if is_valid else None


def _boot_arguments(lines: Iterable[str]) -> frozenset[str] | None:
    """Return the arguments that all entries have in common, from GRUB's menu or files of entries."""
    entries: list[list[str]] = []
    variable: list[str] = []
    for line in lines:
        words = line.split()
        if line.startswith("kernelopts="):
            variable = line.partition("=")[2].split()
        elif words[0] in _LINUX and _IMAGE.search("".join(words[1:2])):
            entries.append(words[2:])
        elif words[0] == "options":
            entries.append(words[1:])
    options = [
        frozenset(word for name in entry for word in (variable if name == "$kernelopts" else [name]))
        for entry in entries
        if entry
    ]
    normal = [entry for entry in options if not entry & _RECOVERY]
    return frozenset.intersection(*normal) if normal else None


def _interface(row: list[str]) -> Interface:
    cards = _addresses(row[3])
    return Interface(_number(row[2]) or 0, cards[-1] if cards else "", *map(_number, row[4:]))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None
