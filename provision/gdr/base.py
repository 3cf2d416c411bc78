"""The inputs and results of the GPUDirect RDMA verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from provision.model.reason import Reason


class GdrPath(StrEnum):
    """A path from a network card to GPU memory; the values are an interface."""

    DMA_BUF = "dma_buf"
    NVIDIA_PEERMEM = "nvidia_peermem"
    NV_PEER_MEM = "nv_peer_mem"
    NONE = "none"

    @property
    def spelling(self) -> str:
        """The usual spelling of its name."""
        return {"dma_buf": "DMA-BUF", "nvidia_peermem": "nvidia-peermem"}.get(self.value, self.value)


class Flavor(StrEnum):
    """The kind of kernel modules that a driver has."""

    OPEN = "open"
    PROPRIETARY = "proprietary"


class Stack(StrEnum):
    """The origin of the RDMA stack."""

    INBOX = "inbox"
    """The kernel's own."""
    OFED = "ofed"
    """MLNX_OFED 5 and later, or DOCA-OFED."""
    OFED_LEGACY = "ofed-4.9"
    """MLNX_OFED up to 4.9, with the old peer memory interface."""


class Cards(StrEnum):
    """The kind of RDMA devices."""

    HARD = "hard"
    SOFT = "soft"
    """Only software devices (Soft-RoCE), which copy through the host."""
    NONE = "none"


@dataclass(frozen=True)
class Evidence:
    """Observations that need a probe of a node. None means not observed: then versions decide."""

    serves: bool = False
    """Whether nvidia-smi lists the GPUs, so the driver supports them."""
    geforce: bool = False
    stack_title: str = ""
    """The stack's own name: ``MLNX_OFED_LINUX-5.8-1.1.2.1``."""
    peer_api: bool | None = None
    """Whether ib_register_peer_memory_client exists, now and for builds."""
    extended: bool | None = None
    """Whether the stack's headers have struct peer_memory_client_ex."""
    clients: frozenset[str] | None = None
    """Existing files among those that NCCL checks."""
    dma_buf_kernel: bool | None = None
    dma_buf_library: bool | None = None
    missing_options: tuple[str, ...] = ()
    peermem_file: bool | None = None
    """Whether the running kernel can load nvidia_peermem."""
    peermem_stub: bool | None = None
    """Whether that module was built without a peer memory interface."""
    loaded: frozenset[str] | None = None
    """Loaded modules of nvidia_peermem and nv_peer_mem."""
    bound: frozenset[str] = frozenset()
    """Those of them that are registered."""
    peerdirect: bool | None = None
    """Whether the loaded nvidia_peermem, or the next one that is loaded, has ``peerdirect_support=1``."""
    peerdirect_written: bool = False
    """Whether modprobe.d sets that option, which does not affect a loaded module."""
    rebuildable: bool | None = None
    """Whether DKMS has the driver's sources and can rebuild its modules."""
    headers: bool | None = None
    zstd: bool = False
    """Whether the driver's module files are compressed with zstd, which nv_peer_mem cannot read."""
    refused: frozenset[str] = frozenset()
    """Unsigned modules on a kernel that requires signatures."""
    redirecting: tuple[str, ...] = ()
    """PCIe bridges that redirect traffic between devices to the root complex, on a physical machine."""
    translated: tuple[str, ...] = ()
    """GPUs and cards behind a translating IOMMU, on a physical machine."""
    nearest: str = ""
    """The topology class between the closest GPU and card: ``PIX``, ...; empty if unknown."""
    gid_index: int | None = None
    """The common index of the RoCE v2 GIDs of IPv4 addresses on all active RoCE ports."""


@dataclass(frozen=True)
class Situation:
    """The properties of a real or hypothetical node that affect GPUDirect RDMA."""

    driver: str
    """Empty if no driver serves the GPUs."""
    kernel: str
    stack: Stack
    flavor: Flavor | None = None
    """None if unknown."""
    gpus: tuple[str, ...] = ()
    """Names of architectures, as in ``versions.ARCHITECTURES``; empty if unknown."""
    nccl: str = ""
    """Empty if unknown."""
    cards: Cards = Cards.HARD
    evidence: Evidence = field(default_factory=Evidence)


@dataclass(frozen=True)
class Unmet:
    """An unmet precondition of a path."""

    path: GdrPath
    precondition: Reason
    """Its message names what the path needs, its remedy how to meet that."""
    blocking: bool = True
    """False if it can be fixed without replacing software or hardware: build, sign or load a module, set an option."""
    needs_hardware: bool = False
    """Whether only other hardware meets it."""


@dataclass(frozen=True)
class GdrVerdict:
    """The path from GPU memory to the network, and the reasons."""

    path: GdrPath
    reasons: tuple[Reason, ...]
    """The first one is the main reason; without a path it has a remedy."""
    unmet: tuple[Unmet, ...] = ()
    """Unmet preconditions of the other paths, and remaining steps for this one."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for NCCL."""

    @property
    def to_do(self) -> tuple[Unmet, ...]:
        """The remaining steps for the chosen path."""
        return tuple(item for item in self.unmet if item.path is self.path)


@dataclass(frozen=True)
class NodeGdr:
    """The verdict for one node of the inventory."""

    name: str
    verdict: GdrVerdict
    simulated: bool = False
    """Whether the verdict depends on simulated components of the lab."""
    error: Reason | None = None
    """Why there is no verdict: the node is unreachable or facts are missing. The path is then ``none``."""
