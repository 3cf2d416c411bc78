"""What of the kernel and the base system can be set: sysctls, modules, packages, the clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown

__all__ = ["ModulesFact", "PackagesFact", "SysctlsFact", "TimeSync", "TimeSyncFact"]


class SysctlsFact:
    """Reads the sysctls that the inventory sets; by cat, because such a file gives all of itself in its first read."""

    name: ClassVar[str] = "sysctls"
    label: ClassVar[str] = "cat /proc/sys"
    limit_seconds: ClassVar[int] = 10
    command: ClassVar[str] = r"""
for key in $PROBE_SYSCTLS; do
  file=/proc/sys/$(echo "$key" | tr . /)
  [ ! -r "$file" ] || echo "$key=$(cat "$file")"
done
"""

    def parse(self, raw: RawOutput) -> Mapping[str, str]:
        """Values of several numbers are separated by single spaces."""
        return {key: " ".join(value.split()) for key, value in raw.pairs().items()}


class ModulesFact:
    """Lists the kernel modules that are loaded."""

    name: ClassVar[str] = "modules"
    label: ClassVar[str] = "cat /proc/modules"
    limit_seconds: ClassVar[int] = 10
    command: ClassVar[str] = "[ ! -e /proc/modules ] || cat /proc/modules"

    def parse(self, raw: RawOutput) -> frozenset[str] | Unknown:
        """``lsmod`` prints a heading, /proc/modules does not; both are understood."""
        names = {line.split()[0] for line in raw.lines()}
        return frozenset(name for name in names if name != "Module" and not name.startswith("#"))


class PackagesFact:
    """Lists the packages that are fully installed, with their versions."""

    name: ClassVar[str] = "packages"
    label: ClassVar[str] = "dpkg-query or rpm"
    limit_seconds: ClassVar[int] = 20
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
    """Asks systemd whether the clock is synchronized and which service does it."""

    name: ClassVar[str] = "time_sync"
    label: ClassVar[str] = "timedatectl"
    limit_seconds: ClassVar[int] = 15
    command: ClassVar[str] = """
timedatectl show -p NTPSynchronized 2>/dev/null
for unit in chrony chronyd systemd-timesyncd ntp ntpd ntpsec; do
  ! systemctl is-active --quiet $unit 2>/dev/null || echo "service=$unit"
done
exit 0
"""

    def parse(self, raw: RawOutput) -> TimeSync:
        """Without timedatectl only the services are known."""
        services = tuple(line.partition("=")[2] for line in raw.lines() if line.startswith("service="))
        return TimeSync(raw.pairs().get("NTPSynchronized") == "yes", services)
