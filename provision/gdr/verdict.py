"""The verdict: the best path without blocking problems, the reasons, and the environment for NCCL."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from provision.gdr import versions
from provision.gdr.base import Cards, Flavor, GdrPath, GdrVerdict, Situation, Stack, Unmet
from provision.gdr.compare import at_least
from provision.gdr.conditions import PATHS, nv_peer_mem_version, seen_by_nccl, unbuilt, unmet


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
        reasons, obstacle = _why_none(situation, blocking)
        return GdrVerdict(path, reasons, blocking, _environment(situation, path), obstacle)
    relevant = tuple(item for item in problems if item.path is path or item.blocking)
    return GdrVerdict(path, _why(situation, path, closed), relevant, _environment(situation, path))


def _why(situation: Situation, path: GdrPath, closed: set[GdrPath]) -> tuple[str, ...]:
    reasons = [f"{path.spelling}: {_basis(situation)}"]
    if path is GdrPath.DMA_BUF:
        core = f"rdma-core {versions.DMA_BUF_RDMA_CORE} or newer"
        reasons.append(f"no module is needed on the node; the image also needs {core}")
        if GdrPath.NVIDIA_PEERMEM not in closed:
            condition = " after a rebuild" if any(unbuilt(situation)) else ""
            reasons.append(f"nvidia-peermem would also work{condition}; older UCX, perftest and images still need it")
    if path is GdrPath.NVIDIA_PEERMEM:
        exports = situation.stack is Stack.INBOX
        first = "the kernel's headers must be installed" if exports else "OFED must be installed"
        reasons.append(f"{first} before the driver; otherwise the module is a stub")
        if situation.stack is Stack.OFED_LEGACY:
            reasons.append(f"OFED {versions.LEGACY_OFED} needs the module's option peerdirect_support=1")
    if path is GdrPath.NV_PEER_MEM:
        reasons.append(f"nv_peer_mem {nv_peer_mem_version(situation)} is the version for this RDMA stack")
    return (*reasons, *_assumptions(situation, path))


def _basis(situation: Situation) -> str:
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


def _assumptions(situation: Situation, path: GdrPath) -> list[str]:
    """Return the assumptions about unknown values."""
    assumptions = []
    if not situation.nccl and path is GdrPath.DMA_BUF:
        assumptions.append(f"NCCL's version is unknown; assumed: {versions.DMA_BUF_NCCL} or newer")
    elif not situation.nccl and seen_by_nccl(situation, path) is None:
        assumptions.append(
            f"NCCL's version is unknown; it must be {versions.PEERMEM_ITSELF_SEEN_NCCL} or newer to detect the module "
            f"on kernel {situation.kernel}"
        )
    if not situation.gpus:
        assumptions.append("the GPUs' architecture is unknown; assumed: supported by the driver")
    return assumptions


def _why_none(situation: Situation, blocking: Sequence[Unmet]) -> tuple[tuple[str, ...], Unmet | None]:
    """Return the reasons for no path, first of the path with the fewest problems among those that can be fixed.

    The second value is the precondition that the first reason names, if any.
    """
    if situation.cards is Cards.NONE:
        return ("there is no RDMA card",), None
    if situation.cards is Cards.SOFT:
        return ("there are only software RDMA devices, which copy through the host",), None
    if not situation.driver:
        return ("no driver serves the GPUs",), None
    first = {path: [item for item in blocking if item.path is path] for path in PATHS}
    shared = [item for item in first[GdrPath.DMA_BUF] if _everywhere(item, first)]
    if shared:
        return tuple(item.precondition for item in shared), shared[0]
    has_peermem = at_least(situation.driver, versions.PEERMEM_DRIVER)
    candidates = [path for path in PATHS if path is not GdrPath.NV_PEER_MEM or not has_peermem]
    needs_hardware = {path: any(item.needs_hardware for item in first[path]) for path in candidates}
    ordered = sorted(candidates, key=lambda path: (needs_hardware[path], len(first[path])))
    return tuple(f"{path.spelling} needs {first[path][0].precondition}" for path in ordered), first[ordered[0]][0]


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
