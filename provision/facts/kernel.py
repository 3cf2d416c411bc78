"""What of the kernel and the base system can be set: sysctls, modules, packages, the clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown
from provision.facts.units import TIME_KEEPERS, UNITS, units

__all__ = ["ModulesFact", "PackagesFact", "SysctlsFact", "TimeSync", "TimeSyncFact"]


class SysctlsFact:
    """Reads the sysctls that the inventory sets; the shell itself would get no more than their first byte."""

    name: ClassVar[str] = "sysctls"
    label: ClassVar[str] = "cat /proc/sys"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = r"""
set --
for key in $PROBE_SYSCTLS; do
  IFS=.; part=/proc/sys; for word in $key; do part=$part/$word; done; unset IFS
  [ ! -r "$part" ] || { echo "key $key"; set -- "$@" "$part"; }
done
[ $# -eq 0 ] || grep -H . "$@"
exit 0
"""

    def parse(self, raw: RawOutput) -> Mapping[str, str]:
        """Values of several numbers are separated by single spaces; of several lines the first counts."""
        keys = [line.removeprefix("key ") for line in raw.lines() if line.startswith("key ")]
        found: dict[str, str] = {}
        for line in raw.lines():
            path, mark, value = line.partition(":")
            if mark and path.startswith("/proc/sys/"):
                found.setdefault(path.removeprefix("/proc/sys/").replace("/", "."), " ".join(value.split()))
        return {key: found[key] for key in keys if key in found}


class ModulesFact:
    """Lists the kernel modules that are loaded."""

    name: ClassVar[str] = "modules"
    label: ClassVar[str] = "cat /proc/modules"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = "[ ! -e /proc/modules ] || cat /proc/modules"

    def parse(self, raw: RawOutput) -> frozenset[str] | Unknown:
        """``lsmod`` prints a heading, /proc/modules does not; both are understood."""
        names = {line.split()[0] for line in raw.lines()}
        return frozenset(name for name in names if name != "Module" and not name.startswith("#"))


class PackagesFact:
    """Lists the packages that are fully installed, with their versions."""

    name: ClassVar[str] = "packages"
    label: ClassVar[str] = "dpkg-query or rpm"
    limit_seconds: ClassVar[int] = 30
    command: ClassVar[str] = r"""
if command -v dpkg-query >/dev/null; then
  dpkg-query -W -f '${db:Status-Abbrev}|${Package}|${Version}\n'
elif command -v rpm >/dev/null; then
  rpm -qa --queryformat 'ii |%{NAME}|%{EVR}\n'
else
  echo 'neither dpkg-query nor rpm is there' >&2; exit 1
fi
"""

    def parse(self, raw: RawOutput) -> Mapping[str, str] | Unknown:
        """A package that is removed, half-configured or on hold without being installed is left out."""
        found: dict[str, str] = {}
        for line in raw.lines():
            status, _, rest = line.partition("|")
            name, _, version = rest.partition("|")
            if status[1:2] == "i" and name:
                found[name] = version
        return found or Unknown(f"the packages cannot be listed: {raw.said()}")


@dataclass(frozen=True)
class TimeSync:
    """Whether something keeps the clock right."""

    synchronized: bool
    services: tuple[str, ...]
    """Units that are active and keep time."""


class TimeSyncFact:
    """Asks which service keeps time, and only then whether it succeeds: that question starts one of its own."""

    name: ClassVar[str] = "time_sync"
    label: ClassVar[str] = "timedatectl"
    limit_seconds: ClassVar[int] = 30
    command: ClassVar[str] = UNITS

    def parse(self, raw: RawOutput) -> TimeSync:
        """Without timedatectl only the services are known."""
        states = units(raw)
        services = tuple(name for name in TIME_KEEPERS if states.get(name, {}).get("ActiveState") == "active")
        return TimeSync(raw.pairs().get("NTPSynchronized") == "yes", services)
