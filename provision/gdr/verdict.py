"""The verdict: the best path that lacks nothing, why it is that one, and what NCCL has to be told."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from provision.gdr import versions
from provision.gdr.base import Cards, Flavor, GdrPath, GdrVerdict, Situation, Stack, Unmet
from provision.gdr.compare import at_least
from provision.gdr.conditions import NO_REMEDY, PATHS, nv_peer_mem_version, seen_by_nccl, unbuilt, unmet

__all__ = ["verdict"]


@lru_cache(maxsize=64)
def verdict(situation: Situation) -> GdrVerdict:
    """Return the way that GPU memory takes to the network in this situation.

    DMA-BUF comes first: it needs no module that an upgrade can lose. Then nvidia-peermem, then nv_peer_mem. Nodes in
    the same situation share the answer.
    """
    found = unmet(situation)
    closed = {item.path for item in found if item.blocking}
    path = next((path for path in PATHS if path not in closed), GdrPath.NONE)
    if path is GdrPath.NONE:
        blocking = tuple(item for item in found if item.blocking)
        return GdrVerdict(path, _why_none(situation, blocking), blocking, _environment(situation, path))
    kept = tuple(item for item in found if item.path is path or item.blocking)
    return GdrVerdict(path, _why(situation, path, closed), kept, _environment(situation, path))


def _why(situation: Situation, path: GdrPath, closed: set[GdrPath]) -> tuple[str, ...]:
    reasons = [f"{path.spelling}: {_given(situation)}"]
    if path is GdrPath.DMA_BUF:
        core = f"rdma-core {versions.DMA_BUF_RDMA_CORE} or newer"
        reasons.append(f"nothing has to be loaded on the node; the image too must have {core}")
        if GdrPath.NVIDIA_PEERMEM not in closed:
            first = ", once it is built anew" if any(unbuilt(situation)) else ""
            reasons.append(f"nvidia-peermem would do as well{first}; older UCX, perftest and images still ask for it")
    if path is GdrPath.NVIDIA_PEERMEM:
        exports = situation.stack is Stack.INBOX
        first = "the kernel's headers have to be there" if exports else "OFED has to be installed"
        reasons.append(f"{first} before the driver, or the module is a stub")
        if situation.stack is Stack.OFED_LEGACY:
            reasons.append(f"OFED {versions.LEGACY_OFED} needs the module's option peerdirect_support=1")
    if path is GdrPath.NV_PEER_MEM:
        reasons.append(f"nv_peer_mem {nv_peer_mem_version(situation)} fits this RDMA stack")
    return (*reasons, *_taken_for_granted(situation, path))


def _given(situation: Situation) -> str:
    flavor = f" with {situation.flavor} modules" if situation.flavor else ""
    stack = (
        situation.evidence.stack_title
        or {
            Stack.INBOX: "the kernel's own RDMA stack",
            Stack.OFED: "OFED",
            Stack.OFED_LEGACY: f"OFED {versions.LEGACY_OFED}",
        }[situation.stack]
    )
    nccl = f", NCCL {situation.nccl}" if situation.nccl else ""
    return f"driver {situation.driver}{flavor}, kernel {situation.kernel}, {stack}{nccl}"


def _taken_for_granted(situation: Situation, path: GdrPath) -> list[str]:
    """What nobody said or saw, and what was taken for it."""
    said = []
    if not situation.nccl and path is GdrPath.DMA_BUF:
        said.append(f"NCCL's version is not known; it is taken to be {versions.DMA_BUF_NCCL} or newer")
    elif not situation.nccl and seen_by_nccl(situation, path) is None:
        said.append(
            f"NCCL's version is not known; it must be {versions.PEERMEM_ITSELF_SEEN_NCCL} or newer to see the module "
            f"on kernel {situation.kernel}"
        )
    if not situation.gpus:
        said.append("the GPUs' architecture is not known; they are taken to be what the driver drives")
    return said


def _why_none(situation: Situation, blocking: Sequence[Unmet]) -> tuple[str, ...]:
    """The first reason is of the path that lacks least, of those that could be opened at all."""
    if situation.cards is Cards.NONE:
        return ("there is no RDMA card",)
    if situation.cards is Cards.SOFT:
        return ("all RDMA devices are made in software, which copies through the host",)
    if not situation.driver:
        return ("no driver serves the GPUs",)
    first = {path: [item for item in blocking if item.path is path] for path in PATHS}
    shared = [item.precondition for item in first[GdrPath.DMA_BUF] if _everywhere(item, first)]
    if shared:
        return tuple(shared)
    superseded = at_least(situation.driver, versions.PEERMEM_DRIVER)
    worth_it = [path for path in PATHS if path is not GdrPath.NV_PEER_MEM or not superseded]
    hopeless = {path: any(item.remedy == NO_REMEDY for item in first[path]) for path in worth_it}
    nearest = sorted(worth_it, key=lambda path: (hopeless[path], len(first[path])))
    return tuple(f"{path.spelling} needs {first[path][0].precondition}" for path in nearest)


def _everywhere(item: Unmet, first: dict[GdrPath, list[Unmet]]) -> bool:
    return all(any(other.precondition == item.precondition for other in items) for items in first.values())


def _environment(situation: Situation, path: GdrPath) -> dict[str, str]:
    """Return only what has to differ from NCCL's defaults, or must not be left to chance."""
    if situation.cards is Cards.NONE:
        return {"NCCL_IB_DISABLE": "1"}
    found: dict[str, str] = {}
    if path is GdrPath.NONE:
        found["NCCL_NET_GDR_LEVEL"] = "LOC"
    elif path is GdrPath.DMA_BUF:
        found["NCCL_DMABUF_ENABLE"] = "1"
    elif situation.flavor is Flavor.OPEN:
        # The GPU's half of DMA-BUF is there and the network's is not: NCCL must not try it (NVIDIA/nccl#778).
        found["NCCL_DMABUF_ENABLE"] = "0"
    index = situation.evidence.gid_index
    if index is not None and situation.nccl and not at_least(situation.nccl, versions.GID_INDEX_BY_ITSELF_NCCL):
        found["NCCL_IB_GID_INDEX"] = str(index)
    return found
