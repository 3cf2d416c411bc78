"""Xid errors: messages of the NVIDIA driver in the kernel log about errors of GPUs and NVLink switches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown

_EVENT = re.compile(
    r"^(?P<count>\d+) \[\s*(?P<seconds>[\d.]+)\]"
    r".*?(?P<switch>S?)Xid \((?P<address>[^)]*)\): (?P<number>\d+)(?P<text>.*)"
)


@dataclass(frozen=True)
class Xid:
    """One error number of one GPU or switch, with all its occurrences."""

    number: int
    address: str
    """As the driver prints it: ``PCI:0000:3b:00``."""
    count: int
    seconds: float | None
    """Last occurrence in seconds since boot; None in a log without times."""
    text: str
    """The driver's text after the number in the last occurrence."""
    switch: bool = False
    """Whether it is an SXid, from an NVLink switch."""

    @property
    def pci(self) -> str:
        """Domain, bus and device in lower case, ``0000:3b:00``, for every notation of the address."""
        parts = self.address.lower().removeprefix("pci:").partition(".")[0].split(":")
        return ":".join([parts[0][-4:], *parts[1:]]) if len(parts) > 2 else ":".join(parts)  # noqa: PLR2004


@dataclass(frozen=True)
class XidLog:
    """The Xids since boot that the kernel log still contains."""

    uptime: float
    since: float
    """Seconds after boot at which the log starts."""
    xids: tuple[Xid, ...]

    @property
    def complete(self) -> bool:
        """Whether the log reaches back to the boot."""
        return self.since < _FROM_BOOT


_FROM_BOOT = 60
"""Seconds after boot; no GPU has worked before."""


class XidsFact:
    """Reads dmesg, or the journal if the kernel's buffer has overflowed.

    Xids come in storms, so they are counted on the node. Without NVIDIA hardware or software nothing is read.
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
        """Return Unknown for an empty log, which means that it could not be read."""
        first = re.search(r"^first (?:\[\s*([\d.]+)\])?", raw.stdout, re.MULTILINE)
        if first is None:
            return Unknown(f"the kernel log cannot be read with dmesg or journalctl ({raw.last_line()})")
        xids = [event for line in raw.lines() if (event := _xid(line))]
        return XidLog(
            uptime=float(raw.pairs().get("uptime", "0") or 0),
            since=float(first[1] or 0),
            xids=tuple(sorted(xids, key=lambda xid: (xid.switch, xid.number, xid.address))),
        )


def _xid(line: str) -> Xid | None:
    event = _EVENT.match(line) or _EVENT.match(re.sub(r"^(\d+) ", r"\1 [0] ", line))
    if event is None:
        return None
    timed = re.match(r"\d+ \[\s*[\d.]+\]", line)
    return Xid(
        number=int(event["number"]),
        address=event["address"],
        count=int(event["count"]),
        seconds=float(event["seconds"]) if timed else None,
        text=event["text"].strip(" ,"),
        switch=bool(event["switch"]),
    )
