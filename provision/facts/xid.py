"""Xid: what the NVIDIA driver wrote into the kernel's log about errors of its GPUs and NVLink switches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown

__all__ = ["Xid", "XidLog", "XidsFact"]

_EVENT = re.compile(
    r"^(?P<count>\d+) \[\s*(?P<seconds>[\d.]+)\]"
    r".*?(?P<switch>S?)Xid \((?P<address>[^)]*)\): (?P<number>\d+)(?P<text>.*)"
)


@dataclass(frozen=True)
class Xid:
    """One number at one GPU or switch, however often it came."""

    number: int
    address: str
    """As the driver prints it: ``PCI:0000:3b:00``."""
    count: int
    seconds: float | None
    """When it came last, in seconds since boot; None in a log without times."""
    text: str
    """What the driver wrote behind the number the last time."""
    switch: bool = False
    """An SXid: it came from an NVLink switch."""

    @property
    def pci(self) -> str:
        """Domain, bus and device in lower case: ``0000:3b:00``, the same for every way of writing the address."""
        parts = self.address.lower().removeprefix("pci:").partition(".")[0].split(":")
        return ":".join([parts[0][-4:], *parts[1:]]) if len(parts) > 2 else ":".join(parts)  # noqa: PLR2004


@dataclass(frozen=True)
class XidLog:
    """What the kernel's log still holds of Xids since boot."""

    uptime: float
    since: float
    """From how many seconds after boot on the log reaches."""
    xids: tuple[Xid, ...]

    @property
    def complete(self) -> bool:
        """Whether the log reaches back to the boot."""
        return self.since < _FROM_BOOT


_FROM_BOOT = 60
"""Seconds after boot; no GPU has worked before."""


class XidsFact:
    """Reads dmesg, and the journal where the kernel's own buffer has run over.

    Xids come in storms, so they are counted on the node. Where nothing of NVIDIA is, there is nothing to be read.
    """

    name: ClassVar[str] = "xids"
    label: ClassVar[str] = "dmesg"
    limit_seconds: ClassVar[int] = 30
    command: ClassVar[str] = r"""
read -r up _ </proc/uptime; echo "uptime=$up"
there=
[ ! -e /proc/driver/nvidia ] && ! command -v nvidia-smi >/dev/null || there=yes
for card in /sys/bus/pci/devices/*; do
  [ -z "$there" ] || break
  { read -r vendor <"$card/vendor"; } 2>/dev/null && [ "$vendor" = 0x10de ] && there=yes
done
if [ -z "$there" ]; then
  echo 'first of all: nothing of NVIDIA is here that could write a line'
else
pick='NR == 1 { print "first " $0 }
match($0, /S?Xid \([^)]*\): [0-9]+/) { key = substr($0, RSTART, RLENGTH); seen[key]++; last[key] = $0 }
END { for (key in seen) print seen[key] " " last[key] }'
log=$(dmesg 2>/dev/null | awk "$pick")
first=${log#first \[}; first=${first%%[].]*}; first=${first##* }
case $first in ''|*[!0-9]*) first=none;; esac
# Without /dev/kmsg, as in a container, the journal has had nothing of the kernel's.
if [ -e /dev/kmsg ] && { [ "$first" = none ] || [ "$first" -ge 60 ]; }; then
  journal=$(journalctl -k -b -q --no-pager -o short-monotonic 2>/dev/null | awk "$pick")
  [ -z "$journal" ] || log=$journal
fi
printf '%s\n' "$log"
fi
exit 0
"""

    def parse(self, raw: RawOutput) -> XidLog | Unknown:
        """A log without any line is one that could not be read."""
        first = re.search(r"^first (?:\[\s*([\d.]+)\])?", raw.stdout, re.MULTILINE)
        if first is None:
            return Unknown(f"the kernel's log cannot be read: neither dmesg nor journalctl shows it ({raw.said()})")
        found = [event for line in raw.lines() if (event := _xid(line))]
        return XidLog(
            uptime=float(raw.pairs().get("uptime", "0") or 0),
            since=float(first[1] or 0),
            xids=tuple(sorted(found, key=lambda xid: (xid.switch, xid.number, xid.address))),
        )


def _xid(line: str) -> Xid | None:
    found = _EVENT.match(line) or _EVENT.match(re.sub(r"^(\d+) ", r"\1 [0] ", line))
    if found is None:
        return None
    timed = re.match(r"\d+ \[\s*[\d.]+\]", line)
    return Xid(
        number=int(found["number"]),
        address=found["address"],
        count=int(found["count"]),
        seconds=float(found["seconds"]) if timed else None,
        text=found["text"].strip(" ,"),
        switch=bool(found["switch"]),
    )
