"""Versions that the verdict depends on. A new driver, architecture or NCCL needs one line here and no other code.

GPU products are in `provision.model.gpu_products`.

Sources: README of nvidia-peermem in the driver; NVIDIA's GPU operator documentation on GPUDirect RDMA (DMA-BUF);
NCCL's release tags (the files that each version checks); dkms.conf and history of Mellanox/nv_peer_memory; driver
release notes for the first and last branch of each GPU architecture.
"""

from __future__ import annotations

from dataclasses import dataclass

PEERMEM_DRIVER = "470"
"""The first driver that includes nvidia-peermem; older drivers need nv_peer_mem."""
OPEN_MODULES_DRIVER = "515"
"""The first driver with open kernel modules; only these export GPU memory as DMA-BUF."""
OPEN_MODULES_USUAL_DRIVER = "560"
"""Since this version the driver's installer selects the open modules by default."""

DMA_BUF_KERNEL = "5.12"
"""The first kernel whose RDMA stack registers a DMA-BUF."""
DMA_BUF_RDMA_CORE = "34"
DMA_BUF_NCCL = "2.13"

NO_PEERS_FOLDER_KERNEL = "6.4"
"""Since this version /sys/kernel/mm/memory_peers does not exist, and an NCCL that checks only that finds no module."""
PEERMEM_ITSELF_SEEN_NCCL = "2.23"
"""The first NCCL that checks /sys/module/nvidia_peermem; 2.22.3 and older do not."""
GID_INDEX_BY_ITSELF_NCCL = "2.21"
"""The first NCCL that selects a RoCE GID itself; older ones use index 0."""

LEGACY_OFED = "4.9"
"""Up to this MLNX_OFED the peer memory interface is the old one: ``peerdirect_support=1``, nv_peer_mem 1.1."""
NV_PEER_MEM_LEGACY = "1.1"
NV_PEER_MEM_EXTENDED = "1.3"
"""Needs struct peer_memory_client_ex in the RDMA stack's headers."""
NV_PEER_MEM_NO_KERNEL = "6.0"
"""Drivers that need nv_peer_mem do not build on kernels since this version."""

NEAR = ("PIX", "PXB")
"""NCCL uses GPUDirect RDMA by default within these distances; Grace Hopper differs."""

_PEERS = "/sys/kernel/mm/memory_peers"
NCCL_MODULE_FILES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("2.23", (f"{_PEERS}/nv_mem/version", f"{_PEERS}/nv_mem_nc/version", "/sys/module/nvidia_peermem/version")),
    ("2.22", (f"{_PEERS}/nv_mem/version", f"{_PEERS}/nv_mem_nc/version")),
    ("2.9.8", (f"{_PEERS}/nv_mem/version", f"{_PEERS}/nvidia-peermem/version")),
    ("2.0", (f"{_PEERS}/nv_mem/version",)),
)
"""First NCCL -> files of which one must exist for NCCL to use a peer memory module; newest first."""


@dataclass(frozen=True)
class Architecture:
    """Driver versions for the GPUs of one architecture."""

    title: str
    oldest_driver: str
    newest_branch: str = ""
    """The last driver branch for it; empty while new branches support it."""
    open_modules: bool = True
    proprietary_modules: bool = True


ARCHITECTURES: dict[str, Architecture] = {
    "maxwell": Architecture("Maxwell", "340", "580", open_modules=False),
    "pascal": Architecture("Pascal", "367", "580", open_modules=False),
    "volta": Architecture("Volta", "384", "580", open_modules=False),
    "turing": Architecture("Turing", "410"),
    "ampere": Architecture("Ampere", "450"),
    "ada": Architecture("Ada", "520"),
    "grace-hopper": Architecture("Grace Hopper", "520", proprietary_modules=False),
    "hopper": Architecture("Hopper", "520"),
    "blackwell": Architecture("Blackwell", "570.133.20", proprietary_modules=False),
}
"""Name, as in `provision.model.gpu_products`, -> its drivers, oldest first."""
