"""The values that the verdict is made from and made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Cards", "Evidence", "Flavor", "GdrPath", "GdrVerdict", "NodeGdr", "Situation", "Stack", "Unmet"]


class GdrPath(StrEnum):
    """A way for a network card to reach GPU memory; the values are an interface."""

    DMA_BUF = "dma_buf"
    NVIDIA_PEERMEM = "nvidia_peermem"
    NV_PEER_MEM = "nv_peer_mem"
    NONE = "none"

    @property
    def spelling(self) -> str:
        """The name that people know it by."""
        return {"dma_buf": "DMA-BUF", "nvidia_peermem": "nvidia-peermem"}.get(self.value, self.value)


class Flavor(StrEnum):
    """Which of its two sets of kernel modules a driver runs with."""

    OPEN = "open"
    PROPRIETARY = "proprietary"


class Stack(StrEnum):
    """Where the RDMA stack comes from."""

    INBOX = "inbox"
    """The kernel's own."""
    OFED = "ofed"
    """MLNX_OFED 5 and later, or DOCA-OFED."""
    OFED_LEGACY = "ofed-4.9"
    """MLNX_OFED up to 4.9, with the old peer-memory interface."""


class Cards(StrEnum):
    """What there is to send with."""

    HARD = "hard"
    SOFT = "soft"
    """Only devices made in software (Soft-RoCE), which copy through the host."""
    NONE = "none"


@dataclass(frozen=True)
class Evidence:
    """What only a look at a node can tell. None: nobody looked, and versions decide."""

    serves: bool = False
    """nvidia-smi lists the GPUs, so this driver does drive them."""
    geforce: bool = False
    stack_title: str = ""
    """As the stack calls itself: ``MLNX_OFED_LINUX-5.8-1.1.2.1``."""
    peer_api: bool | None = None
    """Whether ib_register_peer_memory_client is there, now and for building."""
    extended: bool | None = None
    """Whether the stack's headers have struct peer_memory_client_ex."""
    clients: frozenset[str] | None = None
    """Of the files that NCCL looks for those that exist."""
    dma_buf_kernel: bool | None = None
    dma_buf_library: bool | None = None
    missing_options: tuple[str, ...] = ()
    peermem_file: bool | None = None
    """Whether the running kernel can load nvidia_peermem."""
    peermem_stub: bool | None = None
    """Whether that was built without a peer-memory interface."""
    loaded: frozenset[str] | None = None
    """Of nvidia_peermem and nv_peer_mem those that are loaded."""
    bound: frozenset[str] = frozenset()
    """Those of them that do something."""
    peerdirect: bool | None = None
    """Whether nvidia_peermem has ``peerdirect_support=1``: the loaded module, or the next that is loaded."""
    peerdirect_written: bool = False
    """Whether modprobe.d has that option, which a module that is loaded already knows nothing of."""
    rebuildable: bool | None = None
    """Whether DKMS has the driver's sources, so that its modules can be built anew."""
    headers: bool | None = None
    zstd: bool = False
    """Whether the driver's module files are compressed with zstd, which nv_peer_mem cannot read."""
    refused: frozenset[str] = frozenset()
    """Modules without a signature on a kernel that wants one."""
    redirecting: tuple[str, ...] = ()
    """PCIe bridges that send traffic between devices up to the root, on a physical machine."""
    translated: tuple[str, ...] = ()
    """GPUs and cards behind a translating IOMMU, on a physical machine."""
    nearest: str = ""
    """The class between the GPU and the card that are nearest to each other: ``PIX``, ...; empty: not known."""
    gid_index: int | None = None
    """The index that all active RoCE ports have their RoCE v2 GID of an IPv4 address at."""


@dataclass(frozen=True)
class Situation:
    """A node, or a machine that one thinks of buying, as far as GPUDirect RDMA is concerned."""

    driver: str
    """Empty when no driver serves the GPUs."""
    kernel: str
    stack: Stack
    flavor: Flavor | None = None
    """None: not known."""
    gpus: tuple[str, ...] = ()
    """Names of architectures, as in ``versions.ARCHITECTURES``; empty: not known."""
    nccl: str = ""
    """Empty: not known."""
    cards: Cards = Cards.HARD
    evidence: Evidence = field(default_factory=Evidence)


@dataclass(frozen=True)
class Unmet:
    """Something that a path wants and that is not so."""

    path: GdrPath
    precondition: str
    remedy: str
    blocking: bool = True
    """False for what can be had without changing the machine: a module to build, sign or load, an option to set."""


@dataclass(frozen=True)
class GdrVerdict:
    """Which way GPU memory goes over the network, and why."""

    path: GdrPath
    reasons: tuple[str, ...]
    """The first one is the main one."""
    unmet: tuple[Unmet, ...] = ()
    """What the other paths lack, and what is still to be done for this one."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for NCCL."""

    @property
    def to_do(self) -> tuple[Unmet, ...]:
        """What the chosen path still wants."""
        return tuple(item for item in self.unmet if item.path is self.path)


@dataclass(frozen=True)
class NodeGdr:
    """The verdict on one node of the inventory."""

    name: str
    verdict: GdrVerdict
    simulated: bool = False
    """Whether a stand-in of the lab told some of what the verdict rests on."""
    error: str | None = None
    """Why there is no verdict: the node was not reached, or does not tell enough. The path is ``none`` then."""
    remedy: str | None = None
    """What to do about the error."""
