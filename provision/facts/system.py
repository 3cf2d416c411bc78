"""The operating system, the kind of machine, and its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown
from provision.facts.os_release import is_interim, parse_os_release, variables_of


@dataclass(frozen=True)
class System:
    """The running operating system."""

    id: str
    version: str
    title: str
    kernel: str
    architecture: str
    python3: str = ""
    """The path of the node's python3, which Ansible needs; empty if there is none."""
    package_manager: str = ""
    """apt-get, dnf, yum or zypper; empty if there is none of them."""
    release: str = ""
    """The complete version, 7.6; empty: the version."""

    @property
    def variables(self) -> str:
        """The name of the roles' file of variables for it: ``debian_12``, ``el_9``."""
        return variables_of(self.id, self.version)

    @property
    def name(self) -> str:
        """The name by which the roles support it: ``debian 12``, ``el 9``."""
        return self.variables.replace("_", " ", 1)

    @property
    def is_interim(self) -> bool:
        """Whether it is a release between two with long-term support, which the roles never support."""
        return is_interim(self.id, self.version)

    @property
    def full_name(self) -> str:
        """The distribution with its complete version: ``debian 12``, ``rocky 9.4``, ``centos 7.6``."""
        return f"{self.id} {self.release or self.version}"


class SystemFact:
    """Reads os-release and the kernel version."""

    name: ClassVar[str] = "system"
    label: ClassVar[str] = "cat /etc/os-release"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = """
for file in /etc/os-release /usr/lib/os-release; do
  [ ! -r $file ] || { while IFS= read -r line || [ -n "$line" ]; do printf '%s\\n' "$line"; done <$file; break; }
done
[ ! -r /etc/centos-release ] || { read -r line </etc/centos-release; echo "probe_centos=$line"; }
echo "probe_uname=$PROBE_RELEASE $PROBE_MACHINE"
printf probe_python3=; command -v python3 || echo
for manager in apt-get dnf yum zypper; do
  [ $manager != apt-get ] || [ -s /var/lib/dpkg/status ] || continue
  ! command -v $manager >/dev/null || { echo "probe_package_manager=$manager"; break; }
done
"""

    def parse(self, raw: RawOutput) -> System | Unknown:
        """Parse either copy of os-release; CentOS 6 and older have none."""
        pairs = raw.pairs()
        release = parse_os_release(raw.stdout, pairs.get("probe_centos", ""))
        if release is None:
            return Unknown("there is no /etc/os-release with an ID")
        kernel, _, architecture = pairs.get("probe_uname", "").partition(" ")
        return System(
            id=release.id,
            version=release.version,
            title=release.title,
            kernel=kernel,
            architecture=architecture,
            python3=pairs.get("probe_python3", ""),
            package_manager=pairs.get("probe_package_manager", ""),
            release=release.release,
        )


class NodeKind(StrEnum):
    """What a node is; a container can neither load modules nor set sysctls."""

    METAL = "metal"
    VM = "vm"
    CONTAINER = "container"


@dataclass(frozen=True)
class Kind:
    """The kind of a node, and its evidence."""

    kind: NodeKind
    detail: str
    """The product name or the name of the virtualisation."""
    sysctls_writable: bool


class KindFact:
    """Queries systemd, or else checks PID 1 and DMI."""

    name: ClassVar[str] = "kind"
    label: ClassVar[str] = "systemd-detect-virt"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = r"""
if [ -e /.dockerenv ]; then
  echo container=docker
elif command -v systemd-detect-virt >/dev/null; then
  container=$(systemd-detect-virt --container); echo "container=$container"
  [ "$container" != none ] || echo "vm=$(systemd-detect-virt --vm)"
else
  tr '\0' '\n' </proc/1/environ 2>/dev/null | sed -n 's/^container=/container=/p'
  [ ! -e /run/.containerenv ] || echo container=podman
  ! grep -q '^flags.* hypervisor' /proc/cpuinfo || echo vm=hypervisor
fi
for item in sys_vendor product_name; do
  [ ! -r /sys/class/dmi/id/$item ] || { read -r text </sys/class/dmi/id/$item; echo "$item=$text"; }
done
sysctl=/proc/sys/kernel/panic
[ ! -e $sysctl ] || [ -w $sysctl ] || echo proc_sys=ro
"""

    def parse(self, raw: RawOutput) -> Kind | Unknown:
        """Classify a container inside a virtual machine as a container."""
        pairs = {key: value for key, value in raw.pairs().items() if value and value != "none"}
        product = " ".join(pairs[key] for key in ("sys_vendor", "product_name") if key in pairs)
        writable = "ro" not in pairs.get("proc_sys", "").split(",")
        if "container" in pairs:
            return Kind(NodeKind.CONTAINER, pairs["container"], writable)
        if "vm" in pairs:
            return Kind(NodeKind.VM, f"{pairs['vm']}, {product}" if product else pairs["vm"], writable)
        return Kind(NodeKind.METAL, product or "unnamed product", writable)


_MOST_UPTIME = 10**10
"""The most seconds since a boot: what is computed from them, such as when a trial ends, must not be endless."""


@dataclass(frozen=True)
class Boot:
    """Uptime of a node, and the id that changes with every boot."""

    uptime_seconds: int
    boot_id: str


class BootFact:
    """Reads uptime and boot id from the kernel."""

    name: ClassVar[str] = "boot"
    label: ClassVar[str] = "cat /proc/uptime"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = """
read -r up _ </proc/uptime; echo "uptime=$up"
read -r id </proc/sys/kernel/random/boot_id; echo "boot_id=$id"
"""

    def parse(self, raw: RawOutput) -> Boot | Unknown:
        """Truncate to whole seconds."""
        pairs = raw.pairs()
        try:
            boot = Boot(int(float(pairs["uptime"])), pairs["boot_id"])
        except (KeyError, ValueError, OverflowError):
            return Unknown(f"/proc/uptime cannot be read: {raw.last_line()}")
        if not 0 <= boot.uptime_seconds <= _MOST_UPTIME:
            return Unknown(f"/proc/uptime has no valid time: {raw.last_line()}")
        return boot


@dataclass(frozen=True)
class Hardware:
    """Usable CPUs, and memory."""

    cpus: int
    memory_mib: int


class HardwareFact:
    """Counts CPUs that the scheduler lets the session use."""

    name: ClassVar[str] = "hardware"
    label: ClassVar[str] = "nproc"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = """
echo "cpus=$(nproc)"
while read -r key value _; do [ "$key" != MemTotal: ] || { echo "memory=$value"; break; }; done </proc/meminfo
"""

    def parse(self, raw: RawOutput) -> Hardware | Unknown:
        """Convert KiB of /proc/meminfo to MiB."""
        pairs = raw.pairs()
        try:
            return Hardware(int(pairs["cpus"]), int(pairs["memory"]) // 1024)
        except (KeyError, ValueError):
            return Unknown(f"CPUs and memory cannot be read: {raw.last_line()}")


@dataclass(frozen=True)
class Limits:
    """Hard limits by the kernel's names (``Max locked memory``); None means unlimited."""

    session: Mapping[str, int | None]
    """Of a root session over SSH, as for jobs."""
    init: Mapping[str, int | None]
    """Of PID 1: no process can exceed these without CAP_SYS_RESOURCE."""


class LimitsFact:
    """Reads the limits of the session and of PID 1."""

    name: ClassVar[str] = "limits"
    label: ClassVar[str] = "cat /proc/self/limits"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = "@limits"

    def parse(self, raw: RawOutput) -> Limits | Unknown:
        """Split columns at two or more spaces."""
        session, _, init = raw.stdout.partition("== init")
        limits = Limits(parse_limits(session), parse_limits(init))
        return limits if limits.session else Unknown(f"the limits cannot be read: {raw.last_line()}")


def parse_limits(text: str) -> dict[str, int | None]:
    """Return the hard limits in the text of ``/proc/PID/limits``."""
    limits: dict[str, int | None] = {}
    for line in text.splitlines():
        columns = [part.strip() for part in line.split("  ") if part.strip()]
        if len(columns) >= 3 and columns[0].startswith("Max "):  # noqa: PLR2004 - name, soft, hard
            if columns[2] == "unlimited":
                limits[columns[0]] = None
            elif columns[2].isdecimal():
                limits[columns[0]] = int(columns[2])
    return limits


@dataclass(frozen=True)
class Disk:
    """Free space of the file system that holds a path."""

    path: str
    free_mib: int
    total_mib: int
    inodes_free: int | None = None
    """None if the file system does not count them."""
    writable: bool = True
    """False if it is mounted read-only."""


class DisksFact:
    """Queries the file system of each path that exists."""

    name: ClassVar[str] = "disks"
    label: ClassVar[str] = "stat -f"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = """
set --
for path in $PROBE_PATHS; do
  [ ! -e "$path" ] || { echo "path=$path"; set -- "$@" "$path"; [ -w "$path" ] || echo "readonly=$path"; }
done
[ $# -eq 0 ] || stat -f -c 'disk %S %b %a %c %d' "$@"
"""

    def parse(self, raw: RawOutput) -> tuple[Disk, ...] | Unknown:
        """Parse one line for each path, in the same order: block size, blocks, free blocks, inodes, free inodes."""
        lines = raw.lines()
        paths = [line.removeprefix("path=") for line in lines if line.startswith("path=")]
        read_only = {line.removeprefix("readonly=") for line in lines if line.startswith("readonly=")}
        rows = [row for line in lines if line.startswith("disk ") and (row := _numbers(line))]
        if len(rows) != len(paths):
            return Unknown(f"stat -f failed: {raw.last_line()}")
        return tuple(
            Disk(
                path,
                free * size // 2**20,
                total * size // 2**20,
                inodes_free if inodes else None,
                path not in read_only,
            )
            for path, (size, total, free, inodes, inodes_free) in zip(paths, rows, strict=True)
        )


def _numbers(line: str) -> tuple[int, int, int, int, int] | None:
    """Return the numbers of a file system; one that allocates inodes on demand reports 0 in total."""
    words = line.split()[1:]
    if len(words) != 5 or not all(map(str.isdecimal, words)):  # noqa: PLR2004
        return None
    size, total, free, inodes, inodes_free = map(int, words)
    return size, total, free, inodes, inodes_free
