"""Settings of the kernel and the base system: sysctls, modules, packages, time synchronization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown
from provision.facts.units import UNITS, units
from provision.node.probe.units import TIME_SERVICES


class SysctlsFact:
    """Reads the sysctls that the inventory sets; the shell's `read` would return only their first byte."""

    name: ClassVar[str] = "sysctls"
    label: ClassVar[str] = "cat /proc/sys"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = "@sysctls"

    def parse(self, raw: RawOutput) -> Mapping[str, str]:
        """Join several numbers with single spaces; of several lines the first counts."""
        keys = [line.removeprefix("key ") for line in raw.lines() if line.startswith("key ")]
        values: dict[str, str] = {}
        for line in raw.lines():
            path, colon, value = line.partition(":")
            if colon and path.startswith("/proc/sys/"):
                values.setdefault(path.removeprefix("/proc/sys/").replace("/", "."), " ".join(value.split()))
        return {key: values[key] for key in keys if key in values}


class ModulesFact:
    """Lists the loaded kernel modules."""

    name: ClassVar[str] = "modules"
    label: ClassVar[str] = "cat /proc/modules"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = "@modules"

    def parse(self, raw: RawOutput) -> frozenset[str] | Unknown:
        """Accept the output of ``lsmod``, with a heading, and of /proc/modules, without."""
        names = {line.split()[0] for line in raw.lines()}
        return frozenset(name for name in names if name != "Module" and not name.startswith("#"))


class PackagesFact:
    """Lists the fully installed packages with their versions."""

    name: ClassVar[str] = "packages"
    label: ClassVar[str] = "dpkg-query or rpm"
    limit_seconds: ClassVar[int] = 30
    command: ClassVar[str] = "@packages"

    def parse(self, raw: RawOutput) -> Mapping[str, str] | Unknown:
        """Ignore packages that are removed, half-configured, or on hold without being installed."""
        versions: dict[str, str] = {}
        for line in raw.lines():
            status, _, rest = line.partition("|")
            name, _, version = rest.partition("|")
            if status[1:2] == "i" and name:
                versions[name] = version
        return versions or Unknown(f"the packages cannot be listed: {raw.last_line()}")


@dataclass(frozen=True)
class TimeSync:
    """Whether the clock is synchronized."""

    synchronized: bool
    services: tuple[str, ...]
    """Active units that synchronize the clock."""


class TimeSyncFact:
    """Lists the active time services, and queries synchronization only if there is one: the query starts a service."""

    name: ClassVar[str] = "time_sync"
    label: ClassVar[str] = "timedatectl"
    limit_seconds: ClassVar[int] = 30
    command: ClassVar[str] = UNITS

    def parse(self, raw: RawOutput) -> TimeSync:
        """Return only the services if timedatectl is missing."""
        states = units(raw)
        services = tuple(name for name in TIME_SERVICES if states.get(name, {}).get("ActiveState") == "active")
        return TimeSync(raw.pairs().get("NTPSynchronized") == "yes", services)
