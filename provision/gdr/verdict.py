"""The verdict: the best path without blocking problems, the reasons, and the environment for NCCL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from provision.gdr import versions
from provision.gdr.base import Cards, Flavor, GdrPath, GdrVerdict, Situation, Stack, Unmet
from provision.gdr.compare import at_least
from provision.gdr.conditions import PATHS, nv_peer_mem_version, seen_by_nccl, stack_name, unbuilt, unmet
from provision.model.reason import Reason, reason


@lru_cache(maxsize=64)
def verdict(situation: Situation) -> GdrVerdict:
    """Return the path from GPU memory to the network in this situation.

    DMA-BUF comes first, because it needs no module that an upgrade can lose; then nvidia-peermem, then nv_peer_mem. The
    cache serves nodes in the same situation.
    """
    problems = unmet(situation)
    closed = {item.path for item in problems if item.blocking}
    path = next((path for path in PATHS if path not in closed), GdrPath.NONE)
    if path is GdrPath.NONE:
        blocking = tuple(item for item in problems if item.blocking)
        return GdrVerdict(path, _why_none(situation, blocking), blocking, _environment(situation, path))
    relevant = tuple(item for item in problems if item.path is path or item.blocking)
    return GdrVerdict(path, _why(situation, path, closed), relevant, _environment(situation, path))


def _why(situation: Situation, path: GdrPath, closed: set[GdrPath]) -> tuple[Reason, ...]:
    reasons = [_basis(situation, path)]
    if path is GdrPath.DMA_BUF:
        reasons.append(reason("gdr.dma_buf_image", rdma_core=versions.DMA_BUF_RDMA_CORE))
        if GdrPath.NVIDIA_PEERMEM not in closed:
            is_built = not any(unbuilt(situation))
            reasons.append(reason("gdr.peermem_usable" if is_built else "gdr.peermem_usable_after_rebuild"))
    if path is GdrPath.NVIDIA_PEERMEM:
        exports = situation.stack is Stack.INBOX
        reasons.append(reason("gdr.headers_before_driver" if exports else "gdr.ofed_before_driver"))
        if situation.stack is Stack.OFED_LEGACY:
            reasons.append(reason("gdr.peerdirect_needed", ofed=versions.LEGACY_OFED))
    if path is GdrPath.NV_PEER_MEM:
        reasons.append(reason("gdr.nv_peer_mem_version", version=nv_peer_mem_version(situation)))
    return (*reasons, *_assumptions(situation, path))


def _basis(situation: Situation, path: GdrPath) -> Reason:
    return reason(
        "gdr.path",
        path=path.spelling,
        driver=situation.driver,
        modules=situation.flavor,
        kernel=situation.kernel,
        stack=stack_name(situation),
        nccl=situation.nccl,
    )


def _assumptions(situation: Situation, path: GdrPath) -> Iterator[Reason]:
    """Yield the assumptions about unknown values."""
    if not situation.nccl and path is GdrPath.DMA_BUF:
        yield reason("gdr.nccl_assumed", oldest=versions.DMA_BUF_NCCL)
    elif not situation.nccl and seen_by_nccl(situation, path) is None:
        yield reason("gdr.nccl_unknown", oldest=versions.PEERMEM_ITSELF_SEEN_NCCL, kernel=situation.kernel)
    if not situation.gpus:
        yield reason("gdr.gpu_unknown")


def _why_none(situation: Situation, blocking: Sequence[Unmet]) -> tuple[Reason, ...]:
    """Return the reasons for no path, first of the path with the fewest problems among those that can be fixed."""
    if situation.cards is Cards.NONE:
        return (reason("gdr.no_card"),)
    if situation.cards is Cards.SOFT:
        return (reason("gdr.only_soft_devices"),)
    if not situation.driver:
        return (reason("gdr.no_driver"),)
    first = {path: [item for item in blocking if item.path is path] for path in PATHS}
    shared = [item for item in first[GdrPath.DMA_BUF] if _everywhere(item, first)]
    if shared:
        return tuple(item.precondition for item in shared)
    has_peermem = at_least(situation.driver, versions.PEERMEM_DRIVER)
    candidates = [path for path in PATHS if path is not GdrPath.NV_PEER_MEM or not has_peermem]
    needs_hardware = {path: any(item.needs_hardware for item in first[path]) for path in candidates}
    ordered = sorted(candidates, key=lambda path: (needs_hardware[path], len(first[path])))
    return tuple(
        reason("gdr.path_needs", path=path.spelling, precondition=first[path][0].precondition) for path in ordered
    )


def _everywhere(item: Unmet, first: dict[GdrPath, list[Unmet]]) -> bool:
    return all(any(other.precondition == item.precondition for other in items) for items in first.values())


def _environment(situation: Situation, path: GdrPath) -> dict[str, str]:
    """Return the variables that must differ from NCCL's defaults or must be explicit."""
    if situation.cards is Cards.NONE:
        return {"NCCL_IB_DISABLE": "1"}
    variables: dict[str, str] = {}
    if path is GdrPath.NONE:
        variables["NCCL_NET_GDR_LEVEL"] = "LOC"
    elif path is GdrPath.DMA_BUF:
        variables["NCCL_DMABUF_ENABLE"] = "1"
    elif situation.flavor is Flavor.OPEN:
        # The GPU's half of DMA-BUF exists, but the network's does not: NCCL must not try it (NVIDIA/nccl#778).
        variables["NCCL_DMABUF_ENABLE"] = "0"
    index = situation.evidence.gid_index
    if index is not None and situation.nccl and not at_least(situation.nccl, versions.GID_INDEX_BY_ITSELF_NCCL):
        variables["NCCL_IB_GID_INDEX"] = str(index)
    return variables
