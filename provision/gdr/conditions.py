"""The preconditions of each path. Each function yields the unmet ones as reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from provision.gdr import versions
from provision.gdr.base import Cards, Flavor, GdrPath, Situation, Stack, Unmet
from provision.gdr.compare import at_least, numbers
from provision.model.reason import Reason, Value, reason

Problems = Iterator[Reason]

_NEEDS_HARDWARE = frozenset({"gdr.gpu_without_dma_buf", "gdr.geforce"})
"""Preconditions that only other hardware meets."""


def unmet(situation: Situation) -> tuple[Unmet, ...]:
    """Return all unmet preconditions, path by path, best path first."""
    common = tuple(_common(situation))
    return tuple(
        Unmet(path, precondition, blocking, precondition.code in _NEEDS_HARDWARE)
        for path, (requirements, steps) in PATHS.items()
        for problems, blocking in (((*common, *requirements(situation)), True), (tuple(steps(situation)), False))
        for precondition in problems
    )


def _common(situation: Situation) -> Problems:
    """Yield the unmet preconditions of all paths: a card, and a driver that supports these GPUs."""
    if situation.cards is Cards.NONE:
        yield reason("gdr.card_missing")
    if situation.cards is Cards.SOFT:
        yield reason("gdr.card_is_soft")
    if not situation.driver:
        if "nvidia" in situation.evidence.refused:
            yield reason("gdr.module_unsigned", module="nvidia")
        yield reason("gdr.driver_missing")
        return
    if situation.flavor is Flavor.OPEN and not at_least(situation.driver, versions.OPEN_MODULES_DRIVER):
        yield reason("gdr.driver_without_open_modules", driver=situation.driver, oldest=versions.OPEN_MODULES_DRIVER)
    if not situation.evidence.serves:
        for name in situation.gpus:
            yield from _driver_support(situation, versions.ARCHITECTURES[name])


def _driver_support(situation: Situation, gpu: versions.Architecture) -> Problems:
    driver = situation.driver
    if not at_least(driver, gpu.oldest_driver):
        yield reason("gdr.driver_too_old", gpu=gpu.title, driver=driver, oldest=gpu.oldest_driver)
    if gpu.newest_branch and numbers(driver)[:1] > numbers(gpu.newest_branch):
        yield reason("gdr.driver_too_new", gpu=gpu.title, driver=driver, newest=gpu.newest_branch)
    if situation.flavor is Flavor.OPEN and not gpu.open_modules:
        yield reason("gdr.gpu_needs_proprietary_modules", gpu=gpu.title, driver=driver)
    if situation.flavor is Flavor.PROPRIETARY and not gpu.proprietary_modules:
        yield reason("gdr.gpu_needs_open_modules", gpu=gpu.title, driver=driver)


def _dma_buf(situation: Situation) -> Problems:
    """Yield what DMA-BUF needs: an open driver that exports GPU memory, and an RDMA stack that registers it."""
    yield from _exports(situation)
    yield from _registers(situation)
    if situation.nccl and not at_least(situation.nccl, versions.DMA_BUF_NCCL):
        yield reason("gdr.nccl_without_dma_buf", nccl=situation.nccl, oldest=versions.DMA_BUF_NCCL)


def _exports(situation: Situation) -> Problems:
    old = [gpu.title for name in situation.gpus if not (gpu := versions.ARCHITECTURES[name]).open_modules]
    if old:
        yield reason("gdr.gpu_without_dma_buf", gpus=old)
    elif situation.flavor is not Flavor.OPEN:
        has_open = at_least(situation.driver or "0", versions.OPEN_MODULES_DRIVER)
        yield reason(
            "gdr.open_modules_missing",
            modules=situation.flavor or "unknown",
            oldest=None if has_open else versions.OPEN_MODULES_DRIVER,
        )
    if situation.evidence.geforce:
        yield reason("gdr.geforce")


def _registers(situation: Situation) -> Problems:
    evidence, kernel = situation.evidence, situation.kernel
    if situation.stack is Stack.OFED_LEGACY:
        yield reason("gdr.ofed_without_dma_buf", ofed=versions.LEGACY_OFED)
    elif evidence.dma_buf_kernel is False:
        yield reason("gdr.stack_without_dma_buf", kernel=kernel, oldest=versions.DMA_BUF_KERNEL)
    elif evidence.dma_buf_kernel is None and not at_least(kernel, versions.DMA_BUF_KERNEL):
        yield reason("gdr.kernel_without_dma_buf", kernel=kernel, oldest=versions.DMA_BUF_KERNEL)
    if evidence.missing_options:
        yield reason("gdr.kernel_options_missing", options=evidence.missing_options)
    if evidence.dma_buf_library is False:
        yield reason("gdr.rdma_core_without_dma_buf", oldest=versions.DMA_BUF_RDMA_CORE)


def _nvidia_peermem(situation: Situation) -> Problems:
    """Yield what nvidia-peermem needs: an RDMA stack with the peer memory interface."""
    if situation.driver and not at_least(situation.driver, versions.PEERMEM_DRIVER):
        yield reason("gdr.driver_without_peermem", driver=situation.driver, oldest=versions.PEERMEM_DRIVER)
        return
    yield from _peer_api(situation)
    if not _can_build(situation):
        yield from unbuilt(situation)
    yield from _visible(situation, GdrPath.NVIDIA_PEERMEM)


def _can_build(situation: Situation) -> bool:
    """Return whether the driver's sources exist, and an RDMA stack to build them against."""
    return situation.evidence.rebuildable is not False and not any(_peer_api(situation))


def unbuilt(situation: Situation) -> Problems:
    """Yield what a rebuild of the driver's modules would fix."""
    evidence = situation.evidence
    if "nvidia_peermem" in evidence.bound:
        return
    if evidence.peermem_file is False:
        yield reason("gdr.peermem_missing", kernel=situation.kernel, fix=_build(situation))
    elif evidence.peermem_stub:
        yield reason("gdr.peermem_is_stub", fix=_build(situation))


def _build(situation: Situation) -> Reason:
    """Return how to build the driver's modules."""
    if situation.evidence.rebuildable is False:
        return reason("gdr.reinstall")
    if situation.evidence.headers is False:
        return reason("gdr.rebuild_with_headers", kernel=situation.kernel)
    return reason("gdr.rebuild")


def _peer_api(situation: Situation) -> Problems:
    if situation.evidence.peer_api is None:
        if situation.stack is Stack.INBOX:
            yield reason("gdr.inbox_without_peer_interface")
    elif not situation.evidence.peer_api:
        if situation.stack is Stack.INBOX:
            yield reason("gdr.kernel_without_peer_interface")
        else:
            yield reason("gdr.other_stack_loaded", stack=stack_name(situation))


def stack_name(situation: Situation) -> Value:
    """Return the name of the RDMA stack, with its version if that is known."""
    names: dict[Stack, Value] = {
        Stack.INBOX: reason("gdr.inbox_stack"),
        Stack.OFED: "OFED",
        Stack.OFED_LEGACY: f"OFED {versions.LEGACY_OFED}",
    }
    return situation.evidence.stack_title or names[situation.stack]


def _signed(situation: Situation, module: str) -> Problems:
    if module in situation.evidence.refused and module not in situation.evidence.bound:
        yield reason("gdr.module_unsigned", module=module)


def _visible(situation: Situation, path: GdrPath) -> Problems:
    if seen_by_nccl(situation, path) is not False:
        return
    kernel, nccl, oldest = situation.kernel, situation.nccl, versions.PEERMEM_ITSELF_SEEN_NCCL
    if path is GdrPath.NVIDIA_PEERMEM and not at_least(nccl, oldest):
        yield reason("gdr.nccl_misses_peermem", nccl=nccl, oldest=oldest, kernel=kernel)
    else:
        first = versions.NO_PEERS_FOLDER_KERNEL
        yield reason("gdr.nccl_misses_module", kernel=kernel, first_kernel=first, oldest=oldest)


def seen_by_nccl(situation: Situation, path: GdrPath) -> bool | None:
    """Return whether NCCL detects the module of `path`; None if that depends on an unknown version."""
    evidence = situation.evidence
    folder = situation.stack is not Stack.INBOX and not at_least(situation.kernel, versions.NO_PEERS_FOLDER_KERNEL)
    bound = path.value in evidence.bound and evidence.clients is not None
    if not situation.nccl:
        return True if folder and not bound else None
    if bound:
        files = next((files for first, files in versions.NCCL_MODULE_FILES if at_least(situation.nccl, first)), ())
        return bool(evidence.clients and evidence.clients.intersection(files))
    itself = path is GdrPath.NVIDIA_PEERMEM and at_least(situation.nccl, versions.PEERMEM_ITSELF_SEEN_NCCL)
    return folder or itself


def _nv_peer_mem(situation: Situation) -> Problems:
    """Yield what nv_peer_mem needs, the module for drivers without nvidia-peermem."""
    evidence = situation.evidence
    if at_least(situation.driver or "0", versions.PEERMEM_DRIVER) and "nv_peer_mem" not in evidence.bound:
        yield reason("gdr.driver_has_peermem", driver=situation.driver, first=versions.PEERMEM_DRIVER)
        return
    if situation.stack is Stack.INBOX and not evidence.peer_api:
        yield reason("gdr.mlnx_ofed_missing")
    else:
        yield from _peer_api(situation)
    if at_least(situation.kernel, versions.NV_PEER_MEM_NO_KERNEL):
        yield reason(
            "gdr.kernel_too_new",
            kernel=situation.kernel,
            first=versions.NV_PEER_MEM_NO_KERNEL,
            driver=versions.PEERMEM_DRIVER,
        )
    if evidence.headers is False and "nv_peer_mem" not in evidence.bound:
        yield reason("gdr.headers_missing", kernel=situation.kernel)
    yield from _visible(situation, GdrPath.NV_PEER_MEM)


def nv_peer_mem_version(situation: Situation) -> str:
    """Return the nv_peer_mem version for the RDMA stack, from its headers if they were probed, else its version."""
    extended = situation.evidence.extended
    if extended is None:
        extended = situation.stack is Stack.OFED
    return versions.NV_PEER_MEM_EXTENDED if extended else versions.NV_PEER_MEM_LEGACY


def _dma_buf_steps(situation: Situation) -> Problems:
    yield from pcie(situation)


def _peermem_steps(situation: Situation) -> Problems:
    evidence = situation.evidence
    if _can_build(situation):
        yield from unbuilt(situation)
    yield from _signed(situation, "nvidia_peermem")
    if evidence.loaded is not None and "nv_peer_mem" in evidence.loaded:
        yield reason("gdr.nv_peer_mem_loaded")
    if situation.stack is Stack.OFED_LEGACY and evidence.peerdirect is False:
        yield _peerdirect_step(situation)
    if evidence.loaded is not None and "nvidia_peermem" not in evidence.loaded:
        yield reason("gdr.peermem_not_loaded")
    yield from pcie(situation)


def _peerdirect_step(situation: Situation) -> Reason:
    evidence = situation.evidence
    if evidence.peerdirect_written and "nvidia_peermem" in (evidence.loaded or ()):
        return reason("gdr.peerdirect_not_loaded", ofed=versions.LEGACY_OFED)
    return reason("gdr.peerdirect_not_set", ofed=versions.LEGACY_OFED)


def _nv_peer_mem_steps(situation: Situation) -> Problems:
    evidence = situation.evidence
    yield from _signed(situation, "nv_peer_mem")
    if evidence.loaded is not None and "nv_peer_mem" not in evidence.loaded:
        yield reason("gdr.nv_peer_mem_not_loaded", version=nv_peer_mem_version(situation))
        if evidence.zstd:
            yield reason("gdr.driver_modules_zstd")
    if evidence.loaded is not None and "nvidia_peermem" in evidence.loaded:
        yield reason("gdr.peermem_loaded")
    yield from pcie(situation)


def pcie(situation: Situation) -> Problems:
    """Yield PCIe settings that make transfers hang or slow."""
    evidence = situation.evidence
    if evidence.redirecting:
        yield reason("gdr.acs_enabled", bridges=evidence.redirecting)
    if evidence.translated:
        yield reason("gdr.iommu_translates", devices=evidence.translated)
    if evidence.nearest and evidence.nearest not in versions.NEAR and "grace-hopper" not in situation.gpus:
        yield reason("gdr.card_far", nearest=evidence.nearest, farthest=versions.NEAR[-1])


PATHS: dict[GdrPath, tuple[Callable[[Situation], Problems], Callable[[Situation], Problems]]] = {
    GdrPath.DMA_BUF: (_dma_buf, _dma_buf_steps),
    GdrPath.NVIDIA_PEERMEM: (_nvidia_peermem, _peermem_steps),
    GdrPath.NV_PEER_MEM: (_nv_peer_mem, _nv_peer_mem_steps),
}
"""Path -> its blocking preconditions and its remaining steps; best path first."""
