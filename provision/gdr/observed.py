"""The GPUDirect RDMA situation of a node, from its facts."""

from __future__ import annotations

import functools
import re

from provision.facts import NodeFacts, Unknown
from provision.facts.gpu import Gpu
from provision.facts.peer_modules import InstalledKernel
from provision.facts.rdma import RdmaStack
from provision.facts.system import NodeKind
from provision.gdr import versions
from provision.gdr.base import Cards, Evidence, Flavor, GdrPath, GdrVerdict, Situation, Stack
from provision.gdr.compare import numbers
from provision.gdr.verdict import verdict
from provision.model import Same
from provision.model.gpu_products import find_architecture
from provision.model.reason import Reason, reason
from provision.topology.links import PCIE_CLASSES, card_links


def verdict_of(facts: NodeFacts) -> GdrVerdict:
    """Return the verdict for a node; ``none`` if it has no GPU or facts are missing."""
    return _verdict_of(Same(facts))


@functools.lru_cache(maxsize=4)
def _verdict_of(of: Same[NodeFacts]) -> GdrVerdict:
    """Return the verdict from a cache, because several checks of a node need it."""
    facts = of.it
    if not has_gpus(facts):
        return GdrVerdict(GdrPath.NONE, (reason("gdr.no_gpu"),))
    missing = missing_fact(facts)
    return GdrVerdict(GdrPath.NONE, (missing,)) if missing else verdict(situation(facts))


def missing_fact(facts: NodeFacts) -> Reason | None:
    """Return why a fact that the verdict needs is missing; None if none is."""
    needed = (facts.gpus, facts.rdma, facts.system, facts.nvidia_modules, facts.peer_memory)
    cause = next((value.reason for value in needed if isinstance(value, Unknown)), None)
    return None if cause is None else reason("gdr.fact_unavailable", cause=cause)


def has_gpus(facts: NodeFacts) -> bool:
    """Return whether there are GPUs, including those whose nvidia-smi hangs."""
    on_bus = not isinstance(facts.gpu_pci, Unknown) and bool(facts.gpu_pci)
    return isinstance(facts.gpus, Unknown) or bool(facts.gpus) or on_bus


def running_kernel(facts: NodeFacts) -> InstalledKernel | None:
    """Return the running kernel, if its modules could be read."""
    if isinstance(facts.kernels, Unknown):
        return None
    return next((kernel for kernel in facts.kernels if kernel.running), None)


def situation(facts: NodeFacts) -> Situation:
    """Return the input of the verdict; for Unknown facts, versions decide."""
    return _situation(Same(facts))


@functools.lru_cache(maxsize=4)
def _situation(of: Same[NodeFacts]) -> Situation:
    facts = of.it
    gpus = () if isinstance(facts.gpus, Unknown) else facts.gpus
    modules = facts.nvidia_modules
    flavor = "" if isinstance(modules, Unknown) else modules.flavor
    return Situation(
        driver=gpus[0].driver if gpus else "",
        kernel="" if isinstance(facts.system, Unknown) else facts.system.kernel,
        stack=_stack(facts),
        flavor=Flavor(flavor) if flavor else None,
        gpus=tuple(dict.fromkeys(name for gpu in gpus if (name := architecture(gpu)))),
        nccl=oldest_nccl(facts),
        cards=_cards(facts),
        evidence=_evidence(facts, gpus),
    )


def architecture(gpu: Gpu) -> str:
    """Return the name of a GPU's architecture; empty if neither capability nor product name identifies it."""
    return find_architecture(gpu.name, gpu.compute_capability)


def _stack(facts: NodeFacts) -> Stack:
    text = "" if isinstance(facts.rdma, Unknown) else facts.rdma.ofed
    if not text:
        return Stack.INBOX
    match = re.search(r"\d{1,9}\.\d{1,9}", text)  # MLNX_OFED_LINUX-4.9-..., OFED-internal-24.10-... (DOCA)
    legacy = match is not None and numbers(match[0]) <= numbers(versions.LEGACY_OFED)
    return Stack.OFED_LEGACY if legacy else Stack.OFED


def _cards(facts: NodeFacts) -> Cards:
    if isinstance(facts.rdma, Unknown):
        return Cards.HARD
    if facts.rdma.pci_cards or any(not device.soft for device in facts.rdma.devices):
        return Cards.HARD
    return Cards.SOFT if facts.rdma.devices else Cards.NONE


def oldest_nccl(facts: NodeFacts) -> str:
    """Return the oldest NCCL of the training container if it runs, else of the node."""
    if isinstance(facts.nccl, Unknown):
        return ""
    candidates = facts.nccl.node if facts.nccl.container is None else facts.nccl.container
    return min(candidates, key=numbers, default="")


def _evidence(facts: NodeFacts, gpus: tuple[Gpu, ...]) -> Evidence:
    kernel = running_kernel(facts)
    peers = None if isinstance(facts.peer_memory, Unknown) else facts.peer_memory
    dma_buf = None if isinstance(facts.dma_buf, Unknown) else facts.dma_buf
    stack = None if isinstance(facts.rdma, Unknown) else facts.rdma
    metal = not isinstance(facts.kind, Unknown) and facts.kind.kind is NodeKind.METAL
    pcie = facts.pci_routing if metal and not isinstance(facts.pci_routing, Unknown) else None
    return Evidence(
        serves=bool(gpus),
        geforce=any("GeForce" in gpu.name for gpu in gpus),
        stack_title=stack.ofed if stack else "",
        peer_api=_peer_api(facts),
        extended=peers.extended if peers and stack and stack.ofed else None,
        clients=peers.clients if peers else None,
        dma_buf_kernel=dma_buf.kernel if dma_buf else None,
        dma_buf_library=dma_buf.library if dma_buf else None,
        missing_options=dma_buf.missing_options if dma_buf else (),
        peermem_file="nvidia_peermem" in kernel.modules if kernel else None,
        peermem_stub=_stub(facts, kernel),
        loaded=frozenset(peers.loaded) if peers else None,
        bound=peers.bound if peers else frozenset(),
        peerdirect=peers.peerdirect if peers else None,
        peerdirect_written=peers is not None and peers.peerdirect_written,
        rebuildable=None if isinstance(facts.nvidia_modules, Unknown) else facts.nvidia_modules.dkms,
        headers=kernel.headers if kernel else None,
        zstd=kernel is not None and "nvidia" in kernel.modules and kernel.modules["nvidia"].path.endswith(".zst"),
        refused=_refused(facts),
        redirecting=(pcie.redirecting or ()) if pcie else (),
        translated=tuple(card for card, kind in pcie.iommu.items() if kind.startswith("DMA")) if pcie else (),
        nearest=_nearest(facts),
        gid_index=_gid_index(stack) if stack else None,
    )


def _peer_api(facts: NodeFacts) -> bool | None:
    """Return whether the running kernel has the API; before ib_core is loaded, whether the build files have it."""
    peers = facts.peer_memory
    if isinstance(peers, Unknown):
        return None
    if peers.provider or peers.bound:
        return True
    loaded = not isinstance(facts.modules, Unknown) and "ib_core" in facts.modules
    return False if loaded else bool(peers.symvers)


def _stub(facts: NodeFacts, kernel: InstalledKernel | None) -> bool | None:
    """Return whether the peer memory module is a stub; a loaded module that does not use the RDMA stack is one."""
    peers = facts.peer_memory
    if not isinstance(peers, Unknown) and "nvidia_peermem" in peers.loaded:
        return "nvidia_peermem" not in peers.bound
    return kernel.stub if kernel else None


def _refused(facts: NodeFacts) -> frozenset[str]:
    if isinstance(facts.signing, Unknown) or isinstance(facts.nvidia_modules, Unknown) or not facts.signing.required:
        return frozenset()
    return frozenset(module for module, signer in facts.nvidia_modules.signers.items() if not signer)


def _nearest(facts: NodeFacts) -> str:
    if isinstance(facts.topology, Unknown):
        return ""
    kinds = {kind for cards in card_links(facts.topology).values() for kind in cards.values()}
    return next((kind for kind in PCIE_CLASSES if kind in kinds), "")


def _gid_index(stack: RdmaStack) -> int | None:
    """Return the common GID index; None if ports differ, because no single value is right."""
    ports = [port for device in stack.devices for port in device.ports if port.active and port.link_layer == "Ethernet"]
    first = {next((gid.index for gid in port.gids if gid.routable_ipv4), None) for port in ports}
    return first.pop() if len(first) == 1 else None
