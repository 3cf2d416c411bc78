"""Combinations of versions that are known not to work, each with its source.

A row is a report about exactly these versions; newer releases of a driver's branch may build. So a row covers a branch
up to the last release of which a failure was reported, and kernels from the first one on. It says nothing about
combinations that are not in the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from provision.gdr.compare import at_least, numbers
from provision.gdr.versions import NV_PEER_MEM_NO_KERNEL, PEERMEM_DRIVER
from provision.model.reason import Reason, reason
from provision.model.stack import INBOX, Stack


@dataclass(frozen=True)
class Range:
    """Versions of one component."""

    component: str
    first: str = "0"
    last: str = ""
    """The last version, which is included; empty: no end."""
    until: str = ""
    """The first version after the range; empty: no end."""

    def contains(self, version: str) -> bool:
        """Return whether the range contains a version; an unknown one is in no range."""
        if not numbers(version):
            return False
        after = (self.last and not at_least(self.last, version)) or (self.until and at_least(version, self.until))
        return at_least(version, self.first) and not after


@dataclass(frozen=True)
class KnownConflict:
    """Two ranges of versions that do not work together."""

    name: str
    newer: Range
    """The component that changed, such as the kernel."""
    older: Range
    """The component that does not support the change."""
    effect: str
    """What happens, as a part of a sentence."""
    source: str


_OPEN = "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/"
CONFLICTS = (
    KnownConflict(
        "driver-530-kernel-6.4",
        Range("kernel", "6.4"),
        Range("driver", "530", "530.41.03"),
        "its kernel modules do not build",
        f"{_OPEN}501",
    ),
    KnownConflict(
        "driver-535-kernel-6.12",
        Range("kernel", "6.12"),
        Range("driver", "535", "535.216.03"),
        "its kernel modules do not build (follow_pfn was removed)",
        f"{_OPEN}837",
    ),
    KnownConflict(
        "driver-550-kernel-6.10",
        Range("kernel", "6.10"),
        Range("driver", "550", "550.78"),
        "its kernel modules do not build (follow_pfn was removed)",
        f"{_OPEN}642 and https://github.com/NixOS/nixpkgs/issues/332350",
    ),
    KnownConflict(
        "driver-550-kernel-6.17",
        Range("kernel", "6.17"),
        Range("driver", "550", "550.163.01"),
        "its kernel modules do not build",
        f"{_OPEN}1143",
    ),
    KnownConflict(
        "driver-555-kernel-6.10",
        Range("kernel", "6.10"),
        Range("driver", "555", "555.42.02"),
        "its kernel modules do not build (follow_pfn was removed)",
        f"{_OPEN}642",
    ),
    KnownConflict(
        "driver-555-kernel-6.17",
        Range("kernel", "6.17"),
        Range("driver", "555", "555.58.02"),
        "its kernel modules do not build",
        f"{_OPEN}1143",
    ),
    KnownConflict(
        "driver-565-kernel-6.13",
        Range("kernel", "6.13"),
        Range("driver", "565", "565.77"),
        "its kernel modules do not build (MODULE_IMPORT_NS takes a text)",
        f"{_OPEN}751",
    ),
    KnownConflict(
        "driver-575-kernel-6.15",
        Range("kernel", "6.15"),
        Range("driver", "575", "575.51.02"),
        "its kernel modules do not build",
        f"{_OPEN}840",
    ),
    KnownConflict(
        "peer-memory-kernel-6.0",
        Range("kernel", NV_PEER_MEM_NO_KERNEL),
        Range("driver", "1", until=PEERMEM_DRIVER),
        "it needs nv_peer_mem for GPUDirect RDMA, and neither builds",
        "README of nvidia-peermem in driver 470; dkms.conf and history of Mellanox/nv_peer_memory",
    ),
    KnownConflict(
        "ofed-4.9-kernel-5.14",
        Range("kernel", "5.14"),
        Range("rdma", "4.9", until="4.10"),
        "its kernel modules do not build",
        "https://github.com/uclasystem/hermit/issues/8 and https://github.com/microsoft/lisa/pull/3007",
    ),
)
FABRIC_MANAGER_SOURCE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/"


def conflicts_of(stack: Stack) -> Iterator[Reason]:
    """Yield what of a stack is known not to work, except the conflicts that the stack accepts."""
    for row in CONFLICTS:
        if row.name in stack.accepted:
            continue
        newer, older = stack.version(row.newer.component), stack.version(row.older.component)
        if older != INBOX and row.newer.contains(newer) and row.older.contains(older):
            yield reason(
                "stack.conflict",
                older=row.older.component,
                older_version=older,
                newer=row.newer.component,
                newer_version=newer,
                effect=row.effect,
                source=row.source,
                name=row.name,
            )
    manager, driver = stack.version("fabric_manager"), stack.version("driver")
    if manager and driver and manager != driver:
        yield reason("stack.conflict.fabric_manager", manager=manager, driver=driver, source=FABRIC_MANAGER_SOURCE)
