"""Kernel modules that give RDMA cards access to GPU memory: per installed kernel, and as loaded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from provision.facts.base import RawOutput

PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")


_SPELLINGS = r"nvidia([-_](current|legacy|tesla)([-_][0-9]+(xx)?)?([-_]open)?)?([-_]peermem)?"
"""File names of the driver's two modules, as a regular expression for both grep and Python.

Debian's packages can install several drivers (``nvidia-current.ko``, ``nvidia-tesla-535-peermem.ko``); lines such as
``install nvidia modprobe -i nvidia-current`` in modprobe.d select one. When loaded, the modules are called nvidia and
nvidia_peermem, as everywhere.
"""
_INSTALL_LINES = r"""
grep -hsE '^[[:space:]]*install[[:space:]]+nvidia([-_]peermem)?[[:space:]]' \
  /etc/modprobe.d/*.conf /run/modprobe.d/*.conf /usr/lib/modprobe.d/*.conf /lib/modprobe.d/*.conf
"""


def module_name(path: str) -> str:
    """Return the name of a module file once it is loaded.

    ``updates/dkms/nvidia-peermem.ko.zst`` and Debian's ``nvidia-current-peermem.ko`` are nvidia_peermem.
    """
    name = _file_name(path)
    match = re.fullmatch(_SPELLINGS, name)
    return name if match is None else "nvidia_peermem" if match[6] else "nvidia"


def _file_name(path: str) -> str:
    return path.rpartition("/")[2].partition(".ko")[0].replace("-", "_")


def _installed(lines: Iterable[str]) -> frozenset[str]:
    """Return the names of files that modprobe loads instead of nvidia and nvidia_peermem."""
    words = [line.split() for line in lines if line.split()[:1] == ["install"]]
    return frozenset(_file_name(word) for row in words for word in row[2:] if re.fullmatch(_SPELLINGS, word))


def _rank(path: str, chosen: frozenset[str]) -> tuple[int, str]:
    """Return the sort key of a file among those with the same name once loaded; modprobe loads the lowest.

    Without a configured choice, both modules come from the same driver.
    """
    name = _file_name(path)
    return 0 if name == module_name(path) else 1 if name in chosen else 2, name.removesuffix("_peermem")


@dataclass(frozen=True)
class ModuleFile:
    """A module that a kernel can load."""

    path: str
    """As in modules.dep: relative to /lib/modules/RELEASE, or absolute."""
    needs: frozenset[str]
    """The modules that it depends on."""


@dataclass(frozen=True)
class InstalledKernel:
    """A kernel that the node runs or can boot."""

    release: str
    running: bool
    headers: bool
    """Whether modules can be built for it."""
    modules: Mapping[str, ModuleFile]
    """Those of nvidia, nvidia_peermem, nv_peer_mem and ib_core that it can load."""

    @property
    def stub(self) -> bool:
        """Whether nvidia_peermem was built without a peer memory interface: then it depends on no RDMA module."""
        peermem = self.modules.get("nvidia_peermem")
        return peermem is not None and "ib_core" in self.modules and not peermem.needs & {"ib_core", "ib_uverbs"}


class KernelsFact:
    """Reads modules.dep, as modprobe does: modprobe does not load a file that depmod has not listed."""

    name: ClassVar[str] = "kernels"
    label: ClassVar[str] = "cat /lib/modules/*/modules.dep"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = r"""
here=$PROBE_RELEASE
set --
for folder in /lib/modules/*; do
  [ -r "$folder/modules.dep" ] || continue
  release=${folder##*/}; state=gone; headers=no
  for image in "/boot/vmlinuz-$release" "/boot/vmlinux-$release" "/boot/Image-$release" "$folder/vmlinuz"; do
    [ ! -e "$image" ] || state=installed
  done
  [ "$release" != "$here" ] || state=running
  [ ! -e "$folder/build/Makefile" ] || headers=yes
  printf 'kernel\t%s\t%s\t%s\n' "$release" "$state" "$headers"
  set -- "$@" "$folder/modules.dep"
done
if [ $# -gt 0 ]; then
  grep -HE '^([^:]*/)?(SPELLINGS|nv_peer_mem|ib_core)\.ko(\.(xz|zst|gz))?:' "$@"
  INSTALL_LINES
fi
exit 0
""".replace("SPELLINGS", _SPELLINGS).replace("INSTALL_LINES", _INSTALL_LINES.strip())

    def parse(self, raw: RawOutput) -> tuple[InstalledKernel, ...]:
        """Ignore folders of removed kernels."""
        modules: dict[str, dict[str, ModuleFile]] = {}
        chosen = _installed(raw.lines())
        for line in raw.lines():
            match = re.match(r"/lib/modules/([^/]+)/modules\.dep:([^:]+):(.*)", line)
            if match:
                needs = frozenset(module_name(path) for path in match[3].split())
                known = modules.setdefault(match[1], {})
                other = known.get(module_name(match[2]))
                if other is None or _rank(match[2], chosen) <= _rank(other.path, chosen):
                    known[module_name(match[2])] = ModuleFile(match[2], needs)
        rows = [row for row in (line.split("\t") for line in raw.lines()) if row[0] == "kernel" and len(row) == 4]  # noqa: PLR2004
        return tuple(
            InstalledKernel(release, state == "running", headers == "yes", modules.get(release, {}))
            for _, release, state, headers in rows
            if state != "gone"
        )


@dataclass(frozen=True)
class NvidiaModules:
    """The NVIDIA driver's kernel modules: the loaded ones, and those that the running kernel would load."""

    loaded: str
    """Version of the loaded driver; empty if none is loaded."""
    flavor: str
    """``open``, ``proprietary``, or empty without a driver."""
    installed: str
    """Version of the module file for the running kernel; if it differs from ``loaded``, a reboot is pending."""
    signers: Mapping[str, str]
    """Module file -> its signer, empty if unsigned; for nvidia, nvidia_peermem and nv_peer_mem."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Module file -> checksum of its sources (modinfo's srcversion)."""
    dkms: bool | None = None
    """Whether DKMS has the driver's sources and can rebuild its modules; None if unknown."""


class NvidiaModulesFact:
    """Queries the loaded driver, and modinfo for the installed files."""

    name: ClassVar[str] = "nvidia_modules"
    label: ClassVar[str] = "modinfo nvidia"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = r"""
[ ! -r /proc/driver/nvidia/version ] || while IFS= read -r line; do echo "loaded=$line"; break
done </proc/driver/nvidia/version
listed=/lib/modules/$PROBE_RELEASE/modules.dep others=
[ ! -r "$listed" ] || others=$(grep -soE '(^|/)(SPELLINGS|nv_peer_mem)\.ko' "$listed" | while read -r file; do
  file=${file##*/}; echo "${file%.ko}"
done | sort -u)
for module in $others ${others:+nvidia nvidia_peermem nv_peer_mem}; do
  modinfo "$module" 2>/dev/null | while IFS=: read -r key value; do
    case $key in filename|version|license|signer|srcversion) echo "$module.$key=$value";; esac
  done
done
if [ -n "$others" ]; then
  INSTALL_LINES
fi
dkms=no
for source in /var/lib/dkms/nvidia*/*/source; do
  [ ! -e "$source" ] || dkms=yes
done
echo "dkms=$dkms"
exit 0
""".replace("SPELLINGS", _SPELLINGS).replace("INSTALL_LINES", _INSTALL_LINES.strip())

    def parse(self, raw: RawOutput) -> NvidiaModules:
        """Detect open modules by /proc/driver/nvidia/version, or by their license."""
        pairs = _by_loaded_name(raw)
        loaded, license_ = pairs.get("loaded", ""), pairs.get("nvidia.license", "")
        words = loaded.partition("Kernel Module")[2].split()
        version = next((word for word in words if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})+", word)), "")
        if loaded:
            flavor = "open" if "Open Kernel Module" in loaded else "proprietary"
        else:
            flavor = ("open" if "GPL" in license_ else "proprietary") if license_ else ""
        return NvidiaModules(
            loaded=version,
            flavor=flavor,
            installed=pairs.get("nvidia.version", ""),
            signers={
                module: pairs.get(f"{module}.signer", "")
                for module in ("nvidia", *PEER_MODULES)
                if f"{module}.filename" in pairs
            },
            sources=_under(pairs, "srcversion"),
            dkms={"yes": True, "no": False}.get(pairs.get("dkms", "")),
        )


def _by_loaded_name(raw: RawOutput) -> dict[str, str]:
    """Return modinfo's output for each file under the name that the module has once it is loaded."""
    chosen = _installed(raw.lines())
    pairs = raw.pairs()
    file_names = {key.partition(".")[0] for key in pairs if key.endswith(".filename")}
    preferred: dict[str, str] = {}
    for name in sorted(file_names, key=lambda name: _rank(name, chosen)):
        preferred.setdefault(module_name(name), name)
    for module, name in preferred.items():
        if module != name:
            values = {key.partition(".")[2]: value for key, value in pairs.items() if key.startswith(f"{name}.")}
            pairs |= {f"{module}.{key}": value for key, value in values.items()}
    return pairs


@dataclass(frozen=True)
class PeerMemory:
    """Modules that give RDMA cards access to GPU memory, and the interfaces between them, the RDMA stack and NCCL."""

    loaded: Mapping[str, str]
    """Loaded modules of nvidia_peermem and nv_peer_mem, with their versions."""
    bound: frozenset[str]
    """Those that use ib_core or ib_uverbs; a loaded module that is not bound has no effect."""
    provider: str
    """The module (or ``kernel``) that provides ib_register_peer_memory_client now, else empty."""
    symvers: tuple[str, ...]
    """Files that provide ib_register_peer_memory_client to modules built for the running kernel."""
    extended: bool
    """Whether the RDMA stack's headers have struct peer_memory_client_ex, which nv_peer_mem 1.2 and later need."""
    clients: frozenset[str]
    """Existing files among those that any version of NCCL checks."""
    peerdirect: bool
    """Whether nvidia_peermem has ``peerdirect_support=1``; before it is loaded, whether it will have it."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Loaded module -> checksum of its sources."""
    peerdirect_written: bool = False
    """Whether modprobe.d sets ``peerdirect_support=1``, which takes effect when the module is loaded."""


class PeerMemoryFact:
    """Reads /proc and /sys, and searches the RDMA stack's build files. Kernel addresses are not reported."""

    name: ClassVar[str] = "peer_memory"
    label: ClassVar[str] = "grep ib_register_peer_memory_client /proc/kallsyms"
    limit_seconds: ClassVar[int] = 30
    command: ClassVar[str] = r"""
get() { value=; { read -r value <"$1"; } 2>/dev/null; }
[ ! -e /proc/modules ] || grep -E '^(nvidia_peermem|nv_peer_mem|ib_core|ib_uverbs) ' /proc/modules
for module in nvidia_peermem nv_peer_mem; do
  get /sys/module/$module/version; [ -z "$value" ] || echo "version.$module=$value"
  get /sys/module/$module/srcversion; [ -z "$value" ] || echo "$module.srcversion=$value"
done
for file in /sys/kernel/mm/memory_peers/*/version /sys/kernel/memory_peers/*/version /sys/memory_peers/*/version \
  /sys/module/nvidia_peermem/version; do
  [ ! -e "$file" ] || echo "client=$file"
done
get /sys/module/nvidia_peermem/parameters/peerdirect_support; echo "peerdirect=$value"
grep -hsE '^[[:space:]]*options[[:space:]]+nvidia[-_]peermem[[:space:]]' \
  /etc/modprobe.d/*.conf /run/modprobe.d/*.conf /usr/lib/modprobe.d/*.conf /lib/modprobe.d/*.conf
if [ -d /sys/class/infiniband ] || { [ -e /proc/modules ] && grep -q '^ib_' /proc/modules; }; then
  grep -w ib_register_peer_memory_client /proc/kallsyms 2>/dev/null | while read -r _ _ _ module; do
    echo "provider=${module:-kernel}"
  done
fi
release=$PROBE_RELEASE; ofed=/usr/src/ofa_kernel
# Print the files that contain the word; grep is started only if there is a readable one.
files_with() {
  word=$1 title=$2; shift 2
  for file; do
    shift; [ ! -r "$file" ] || set -- "$@" "$file"
  done
  [ $# -eq 0 ] || grep -lsw "$word" "$@" | while read -r file; do echo "$title=$file"; done
}
files_with ib_register_peer_memory_client symvers "$ofed/$PROBE_MACHINE/$release/Module.symvers" \
  "$ofed/$release/Module.symvers" "$ofed/default/Module.symvers" "/lib/modules/$release/build/Module.symvers" \
  /var/lib/dkms/mlnx-ofed-kernel/*/build/Module.symvers
files_with peer_memory_client_ex extended $ofed/*/include/rdma/peer_mem.h $ofed/*/*/include/rdma/peer_mem.h
exit 0
"""

    def parse(self, raw: RawOutput) -> PeerMemory:
        """Accept lines of /proc/modules and of ``lsmod``: name, size, count, users."""
        rows = [line.split() for line in raw.lines()]
        users = {row[0]: row[3] if len(row) > 3 else "" for row in rows if len(row) > 2 and row[1].isdecimal()}  # noqa: PLR2004
        rdma = {name for module in ("ib_core", "ib_uverbs") for name in users.get(module, "").split(",")}
        pairs = raw.pairs()
        loaded = {name: pairs.get(f"version.{name}", "") for name in PEER_MODULES if name in users}
        written = any("peerdirect_support=1" in row for row in rows if row[0] == "options")
        running = pairs.get("peerdirect", "")
        return PeerMemory(
            loaded=loaded,
            bound=frozenset(loaded) & rdma,
            provider=pairs.get("provider", "").strip("[]"),
            symvers=_values(raw, "symvers"),
            extended="extended" in pairs,
            clients=frozenset(_values(raw, "client")),
            peerdirect=running == "1" if running else written,
            sources=_under(pairs, "srcversion"),
            peerdirect_written=written,
        )


def _under(pairs: Mapping[str, str], key: str) -> dict[str, str]:
    """Return the value of `key` for each peer memory module that has it."""
    return {module: value for module in PEER_MODULES if (value := pairs.get(f"{module}.{key}", "").strip())}


def _values(raw: RawOutput, key: str) -> tuple[str, ...]:
    return tuple(line.partition("=")[2] for line in raw.lines() if line.startswith(f"{key}="))
