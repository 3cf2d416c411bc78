"""What decides about the NVIDIA driver of a node, and its state: PCI devices, builds, kernel messages, daemon."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from provision.facts.base import RawOutput

_ERRORS = 20
_ENABLED = frozenset({"enabled", "enabled-runtime", "static", "indirect", "generated", "alias"})
"""States of a unit file that something starts; Ubuntu's is static, and udev starts it."""
_DEVICE = re.compile(r"device=([0-9a-f:.]{1,16}) 0x([0-9a-f]{4}) 0x([0-9a-f]{6})")
_GPU_CLASSES = ("0300", "0302")
_SWITCH_CLASS = "0680"


@dataclass(frozen=True)
class NvidiaDevice:
    """A PCI device of NVIDIA that its driver can use."""

    address: str
    device: str
    """PCI device ID, such as ``20b2``."""


@dataclass(frozen=True)
class DkmsTree:
    """The sources of a driver in DKMS."""

    name: str
    version: str
    built: bool
    """Whether DKMS has built the modules for the running kernel."""
    errors: tuple[str, ...] = ()
    """Lines of the last build that failed, which contain the compiler's errors."""


@dataclass(frozen=True)
class NvidiaDriver:
    """The state around the driver's modules; those themselves are in the fact ``nvidia_modules``."""

    gpus: tuple[NvidiaDevice, ...] = ()
    """GPUs on the PCI bus, without those that a virtual machine uses."""
    switches: tuple[NvidiaDevice, ...] = ()
    """NVLink switches on the PCI bus."""
    trees: tuple[DkmsTree, ...] = ()
    nouveau_blocked: bool = False
    """Whether modprobe.d keeps the kernel from loading nouveau by itself."""
    persistence: str = ""
    """State of nvidia-persistenced.service: ``active``, ``inactive``, ``failed``; empty without the unit."""
    persistence_enabled: bool = False
    imex: str = ""
    """State of nvidia-imex.service; empty without the unit."""
    imex_recorded: bool = False
    """Whether the role started IMEX for an NVLink domain."""
    gsp: tuple[str, ...] = ()
    """Versions of the firmware on the GPUs' system processors, as the driver reports them; ``N/A`` for one without."""
    messages: tuple[str, ...] = ()
    """Kernel messages of the driver (NVRM) if it is installed but not loaded."""


class NvidiaDriverFact:
    """Reads sysfs and DKMS's folders. Without a device, sources in DKMS or a file of the role it starts no program.

    The kernel's log is read only if the driver is installed and not loaded.
    """

    name: ClassVar[str] = "nvidia_driver"
    label: ClassVar[str] = "cat /sys/bus/pci/devices"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = r"""
some=
for card in /sys/bus/pci/devices/*; do
  { read -r vendor <"$card/vendor"; } 2>/dev/null && [ "$vendor" = 0x10de ] || continue
  [ ! -e "$card/physfn" ] && [ ! -e "/sys/bus/pci/drivers/vfio-pci/${card##*/}" ] || continue
  read -r device <"$card/device"; read -r class <"$card/class"
  case $class in 0x0300*|0x0302*|0x0680*) some=yes; echo "device=${card##*/} $device $class";; esac
done
for tree in /var/lib/dkms/nvidia*/[0-9]*; do
  [ -e "$tree/source" ] || continue
  some=yes; version=${tree##*/}; name=${tree%/*}; built=no
  for module in "$tree/$PROBE_RELEASE"/*/module/*.ko*; do [ ! -e "$module" ] || built=yes; done
  echo "tree=${name##*/} $version $built"
  [ $built = yes ] || [ ! -r "$tree/build/make.log" ] ||
    grep -E 'error: |\*\*\* |: No such file|: cannot |not found|No space left' "$tree/build/make.log" | head -n 20 |
    while IFS= read -r line; do echo "make=$line"; done
done
[ ! -e /etc/modprobe.d/provision-nvidia-driver.conf ] || some=yes
if [ -n "$some" ]; then
  grep -qsE '^[[:space:]]*(blacklist|install)[[:space:]]+nouveau([[:space:]]|$)' \
    /etc/modprobe.d/*.conf /run/modprobe.d/*.conf /usr/lib/modprobe.d/*.conf /lib/modprobe.d/*.conf && echo blocked=yes
  for folder in /etc/systemd/system /usr/lib/systemd/system /lib/systemd/system; do
    [ -e "$folder/nvidia-persistenced.service" ] || continue
    systemctl show -p ActiveState -p UnitFileState nvidia-persistenced.service; break
  done
  for folder in /etc/systemd/system /usr/lib/systemd/system /lib/systemd/system; do
    [ -e "$folder/nvidia-imex.service" ] || continue
    state=$(systemctl show -p ActiveState nvidia-imex.service); echo "imex=${state#ActiveState=}"; break
  done
  [ ! -s /var/lib/provision/nvidia_driver/imex ] || echo imex_recorded=yes
  for file in /proc/driver/nvidia/gpus/*/information; do
    while IFS=: read -r key value; do
      [ "$key" != 'GPU Firmware' ] || { set -- $value; echo "gsp=$1"; }
    done 2>/dev/null <"$file"
  done
  [ -d /sys/module/nvidia ] || [ ! -r "/lib/modules/$PROBE_RELEASE/modules.dep" ] ||
    ! grep -qE '(^|/)nvidia([-_](current|legacy|tesla)[^/]*)?\.ko' "/lib/modules/$PROBE_RELEASE/modules.dep" ||
    dmesg 2>/dev/null | grep -E 'NVRM|nvidia' | tail -n 20 | while IFS= read -r line; do echo "kernel=$line"; done
fi
exit 0
"""

    def parse(self, raw: RawOutput) -> NvidiaDriver:
        """Ignore lines of another form."""
        devices: dict[str, list[NvidiaDevice]] = {"gpus": [], "switches": []}
        trees: list[DkmsTree] = []
        messages, gsp = [], []
        pairs = raw.pairs()
        for line in raw.lines():
            key, _, value = line.partition("=")
            match = _DEVICE.fullmatch(line.strip())
            if match and match[3].startswith((*_GPU_CLASSES, _SWITCH_CLASS)):
                kind = "switches" if match[3].startswith(_SWITCH_CLASS) else "gpus"
                devices[kind].append(NvidiaDevice(match[1], match[2]))
            elif key == "tree" and (words := re.fullmatch(r"(\S{1,80}) (\S{1,40}) (yes|no)", value)):
                trees.append(DkmsTree(words[1], words[2], words[3] == "yes"))
            elif key == "make" and trees and len(trees[-1].errors) < _ERRORS:
                last = trees.pop()
                trees.append(DkmsTree(last.name, last.version, last.built, (*last.errors, value[:400])))
            elif key == "gsp" and re.fullmatch(r"[0-9.]{1,30}|N/A", value):
                gsp.append(value)
            elif key == "kernel":
                messages.append(value[:400])
        return NvidiaDriver(
            gpus=tuple(devices["gpus"]),
            switches=tuple(devices["switches"]),
            trees=tuple(trees),
            nouveau_blocked=pairs.get("blocked") == "yes",
            persistence=pairs.get("ActiveState", ""),
            persistence_enabled=pairs.get("UnitFileState", "") in _ENABLED,
            gsp=tuple(dict.fromkeys(gsp)),
            imex=pairs.get("imex", "")[:40],
            imex_recorded=pairs.get("imex_recorded") == "yes",
            messages=tuple(messages[-_ERRORS:]),
        )
