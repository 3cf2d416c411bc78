"""Requirements of GPUDirect RDMA other than its modules: DMA-BUF, module signatures, PCIe routing, NCCL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown
from provision.facts.pci_links import CARDS


@dataclass(frozen=True)
class DmaBuf:
    """Support of the kernel and the verbs library for DMA-BUF memory regions."""

    kernel: bool | None
    """Whether the loaded RDMA stack can register a DMA-BUF; None if unknown."""
    missing_options: tuple[str, ...]
    """Options that the running kernel lacks."""
    library: bool | None
    """Whether the node's libibverbs has ibv_reg_dmabuf_mr; None if there is no libibverbs."""


class DmaBufFact:
    """Searches for the functions themselves, because distributions backport them to older versions.

    Reading all kernel symbols is slow, so they are read only if an RDMA stack is loaded.
    """

    name: ClassVar[str] = "dma_buf"
    label: ClassVar[str] = "grep ib_umem_dmabuf_get /proc/kallsyms"
    limit_seconds: ClassVar[int] = 30
    command: ClassVar[str] = r"""
[ ! -d /sys/module/ib_uverbs ] || echo uverbs=yes
if [ -d /sys/module/ib_uverbs ] || [ -d /sys/class/infiniband_verbs ]; then
  grep -cw ib_umem_dmabuf_get /proc/kallsyms 2>/dev/null | while read -r count; do echo "symbols=$count"; done
fi
release=$PROBE_RELEASE
for file in "/boot/config-$release" "/lib/modules/$release/config"; do
  [ -r "$file" ] || continue
  echo "config=$file"; grep -E '^CONFIG_(DMA_SHARED_BUFFER|PCI_P2PDMA)=' "$file"; break
done
for file in /usr/lib/*/libibverbs.so.1 /usr/lib64/libibverbs.so.1 /lib/*/libibverbs.so.1; do
  [ -r "$file" ] || continue
  if grep -q 'IBVERBS_1\.12' "$file"; then echo library=yes; else echo library=no; fi; break
done
exit 0
"""

    def parse(self, raw: RawOutput) -> DmaBuf:
        """Return None for the kernel before ib_uverbs, which contains ib_umem_dmabuf_get, is loaded."""
        pairs = raw.pairs()
        symbols = pairs.get("symbols", "0")
        kernel = True if symbols not in {"", "0"} else False if "uverbs" in pairs and "symbols" in pairs else None
        required = ("CONFIG_DMA_SHARED_BUFFER", "CONFIG_PCI_P2PDMA") if "config" in pairs else ()
        library = {"yes": True, "no": False}.get(pairs.get("library", ""))
        return DmaBuf(kernel, tuple(option for option in required if pairs.get(option) != "y"), library)


@dataclass(frozen=True)
class Signing:
    """Whether the kernel accepts unsigned modules."""

    secure_boot: bool | None
    """None if the firmware does not report it."""
    required: bool
    """Whether the running kernel refuses unsigned modules."""


class SigningFact:
    """Reads the firmware's variable and the kernel's state; runs mokutil if the variable is not accessible."""

    name: ClassVar[str] = "signing"
    label: ClassVar[str] = "mokutil --sb-state"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = r"""
get() { value=; { read -r value <"$1"; } 2>/dev/null; }
[ -d /sys/firmware/efi ] || echo firmware=bios
state=
for file in /sys/firmware/efi/efivars/SecureBoot-*; do
  [ ! -r "$file" ] || state=$(od -An -tu1 -j4 -N1 "$file")
done
echo "variable=$state"
[ -n "$state" ] || ! command -v mokutil >/dev/null || echo "mokutil=$(mokutil --sb-state 2>/dev/null)"
get /sys/module/module/parameters/sig_enforce; echo "enforce=$value"
get /sys/kernel/security/lockdown; echo "lockdown=$value"
exit 0
"""

    def parse(self, raw: RawOutput) -> Signing:
        """Treat a kernel in lockdown as requiring signatures; the active mode is in brackets."""
        pairs = raw.pairs()
        states = {"1": True, "0": False, "SecureBoot enabled": True, "SecureBoot disabled": False}
        on = states.get(pairs.get("variable", ""), states.get(pairs.get("mokutil", "")))
        if pairs.get("firmware") == "bios":
            on = False
        mode = re.search(r"\[(\w+)\]", pairs.get("lockdown", ""))
        known = mode is not None or pairs.get("enforce") == "Y"
        enforced = pairs.get("enforce") == "Y" or (mode is not None and mode[1] != "none")
        return Signing(on, enforced if known else on is True)


@dataclass(frozen=True)
class PciRouting:
    """PCIe settings that affect peer-to-peer traffic between two devices."""

    iommu: Mapping[str, str]
    """Address of each GPU and network card -> type of its IOMMU domain (``identity``, ``DMA``, ...), empty for none."""
    redirecting: tuple[str, ...] | None
    """Addresses of bridges that redirect such traffic to the root complex (ACS); None if unknown."""


class PciRoutingFact:
    """Reads the IOMMU from sysfs, and ACS from lspci, because sysfs does not show it."""

    name: ClassVar[str] = "pci_routing"
    label: ClassVar[str] = "lspci"
    limit_seconds: ClassVar[int] = 30
    command: ClassVar[str] = r"""
CARDS
for card in $cards; do
  card=/sys/bus/pci/devices/$card
  [ -r "$card/class" ] || continue
  read -r class <"$card/class"; case $class in 0x0300*|0x0302*|0x02*|0x0c06*) ;; *) continue;; esac
  kind=; [ ! -r "$card/iommu_group/type" ] || read -r kind <"$card/iommu_group/type"
  echo "iommu ${card##*/} $kind"
done
if command -v lspci >/dev/null && bridges=$(lspci -D -vv -d ::0604 2>/dev/null); then
  echo lspci
  [ -z "$bridges" ] || echo "$bridges" | grep -E '^[0-9a-f]|ACSCtl'
fi
exit 0
""".replace("CARDS", CARDS.strip())

    def parse(self, raw: RawOutput) -> PciRouting:
        """Report bridges with a redirecting ACS bit; SrcValid+ alone is harmless."""
        iommu = {row[1]: row[2] if len(row) > 2 else "" for row in map(str.split, raw.lines()) if row[0] == "iommu"}  # noqa: PLR2004
        _, mark, bridges = raw.stdout.partition("lspci\n")
        address, redirecting = "", []
        for line in bridges.splitlines():
            if "ACSCtl" not in line:
                address = line.partition(" ")[0]
            elif re.search(r"(?:ReqRedir|CmpltRedir|UpstreamFwd)\+", line):
                redirecting.append(address)
        return PciRouting(iommu, tuple(redirecting) if mark else None)


@dataclass(frozen=True)
class Nccl:
    """Versions of NCCL that jobs can load."""

    container: tuple[str, ...] | None
    """In the training container; None if it does not run."""
    node: tuple[str, ...]


class NcclFact:
    """Searches NCCL's library and Python package by file name, without running anything in the container.

    The container is identified by its entry point; its folders may be on a network share that hangs.
    """

    name: ClassVar[str] = "nccl"
    label: ClassVar[str] = "ls /opt/conda/lib (NCCL)"
    limit_seconds: ClassVar[int] = 30
    command: ClassVar[str] = r"""
list_nccl() {
  for file in "$2"/usr/lib/*/libnccl.so.2.* "$2"/usr/lib64/libnccl.so.2.* "$2"/usr/local/lib/libnccl.so.2.* \
    "$2"/usr/local/cuda/lib64/libnccl.so.2.* "$2"/opt/conda/lib/libnccl.so.2.* \
    "$2"/usr/lib/python3/dist-packages/nvidia_nccl_cu*.dist-info \
    "$2"/usr/local/lib/python3*/dist-packages/nvidia_nccl_cu*.dist-info \
    "$2"/usr/local/lib/python3*/site-packages/nvidia_nccl_cu*.dist-info \
    "$2"/opt/conda/lib/python3*/site-packages/nvidia_nccl_cu*.dist-info; do
    [ ! -e "$file" ] || echo "$1=${file##*/}"
  done
}
list_nccl node ''
for line in $(grep -lsa '[/]container-entrypoint' /proc/[0-9]*/cmdline); do
  root=${line%/cmdline}/root
  [ ! -e "$root/.dockerenv" ] || { echo running; list_nccl container "$root"; break; }
done
exit 0
"""

    def parse(self, raw: RawOutput) -> Nccl | Unknown:
        """Read the version from names such as ``libnccl.so.2.18.5`` and ``nvidia_nccl_cu12-2.21.5.dist-info``."""
        versions: dict[str, list[str]] = {"node": [], "container": []}
        for line in raw.lines():
            version = re.search(r"(?:libnccl\.so\.|nvidia_nccl_cu\d+-)(2(?:\.\d+)+)", line)
            location = line.partition("=")[0]
            if version and location in versions and version[1] not in versions[location]:
                versions[location].append(version[1])
        running = any(line == "running" for line in raw.lines())
        return Nccl(tuple(versions["container"]) if running else None, tuple(versions["node"]))
