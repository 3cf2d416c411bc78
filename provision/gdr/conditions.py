"""The preconditions of each path. Each function yields the unmet ones with their remedies."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from provision.gdr import versions
from provision.gdr.base import Cards, Flavor, GdrPath, Situation, Stack, Unmet
from provision.gdr.compare import at_least, numbers

Problems = Iterator[tuple[str, str]]

_OFED = "Install DOCA-OFED, then rebuild the NVIDIA driver's modules (the RDMA stack must be installed first)."
_REBUILD = (
    "Rebuild the driver's modules with the installed RDMA stack: "
    "dkms install --force nvidia/VERSION -k KERNEL, or reinstall the driver."
)
_REINSTALL = (
    "Reinstall the driver with the installed RDMA stack, preferably with DKMS, which rebuilds its modules for new "
    "kernels: DKMS has no sources of this driver."
)
_RESTART = (
    "Make sure that modinfo -n ib_core is under extra/ or updates/, then: systemctl restart openibd (where systemd has "
    "no such unit: /etc/init.d/openibd restart). If that does not help, reinstall OFED for this kernel."
)
NO_REMEDY = "Use other GPUs."
_SIGN = "Sign it with a key that is enrolled in the firmware (mokutil --import), or disable Secure Boot."


def unmet(situation: Situation) -> tuple[Unmet, ...]:
    """Return all unmet preconditions, path by path, best path first."""
    common = tuple(_common(situation))
    return tuple(
        Unmet(path, precondition, remedy, blocking, remedy is NO_REMEDY)
        for path, (requirements, steps) in PATHS.items()
        for problems, blocking in (((*common, *requirements(situation)), True), (tuple(steps(situation)), False))
        for precondition, remedy in problems
    )


def _common(situation: Situation) -> Problems:
    """Yield the unmet preconditions of all paths: a card, and a driver that supports these GPUs."""
    if situation.cards is Cards.NONE:
        yield "an InfiniBand or RoCE card", "Install one; without it, jobs run over TCP."
    if situation.cards is Cards.SOFT:
        yield "an InfiniBand or RoCE card; Soft-RoCE copies through the host", "Install one to use GPUDirect RDMA."
    if not situation.driver:
        if "nvidia" in situation.evidence.refused:
            yield "a signature on the module nvidia, which Secure Boot requires", _SIGN
        yield "an NVIDIA driver that serves the GPUs", "Install the NVIDIA driver, or check dmesg for its error."
        return
    if situation.flavor is Flavor.OPEN and not at_least(situation.driver, versions.OPEN_MODULES_DRIVER):
        yield (
            f"driver {versions.OPEN_MODULES_DRIVER} or newer, the first with open modules (this is {situation.driver})",
            "Install a newer driver, or the proprietary modules.",
        )
    if not situation.evidence.serves:
        for name in situation.gpus:
            yield from _driver_support(situation, versions.ARCHITECTURES[name])


def _driver_support(situation: Situation, gpu: versions.Architecture) -> Problems:
    driver = situation.driver
    if not at_least(driver, gpu.oldest_driver):
        yield (
            f"driver {gpu.oldest_driver} or newer: driver {driver} cannot drive {gpu.title} GPUs",
            f"Install driver {gpu.oldest_driver} or newer.",
        )
    if gpu.newest_branch and numbers(driver)[:1] > numbers(gpu.newest_branch):
        yield (
            f"driver branch {gpu.newest_branch} or older: driver {driver} cannot drive {gpu.title} GPUs",
            f"Install a driver of branch {gpu.newest_branch}, the last one for {gpu.title}.",
        )
    if situation.flavor is Flavor.OPEN and not gpu.open_modules:
        yield (
            f"proprietary kernel modules: the open ones cannot drive {gpu.title} GPUs",
            f"Install the proprietary modules of driver {driver}.",
        )
    if situation.flavor is Flavor.PROPRIETARY and not gpu.proprietary_modules:
        yield (
            f"open kernel modules: the proprietary ones cannot drive {gpu.title} GPUs",
            f"Install the open modules of driver {driver}.",
        )


def _dma_buf(situation: Situation) -> Problems:
    """Yield what DMA-BUF needs: an open driver that exports GPU memory, and an RDMA stack that registers it."""
    yield from _exports(situation)
    yield from _registers(situation)
    if situation.nccl and not at_least(situation.nccl, versions.DMA_BUF_NCCL):
        yield (
            f"NCCL {versions.DMA_BUF_NCCL} or newer (this is {situation.nccl})",
            f"Use an image with NCCL {versions.DMA_BUF_NCCL} or newer.",
        )


def _exports(situation: Situation) -> Problems:
    old = [gpu.title for name in situation.gpus if not (gpu := versions.ARCHITECTURES[name]).open_modules]
    if old:
        yield f"Turing GPUs or newer (these are {', '.join(old)})", NO_REMEDY
    elif situation.flavor is not Flavor.OPEN:
        newer = "" if at_least(situation.driver or "0", versions.OPEN_MODULES_DRIVER) else (
            f" of driver {versions.OPEN_MODULES_DRIVER} or newer"
        )  # fmt: skip
        yield (
            f"open kernel modules{newer} (these are {situation.flavor or 'unknown'})",
            f"Install the driver's open kernel modules{newer}.",
        )
    if situation.evidence.geforce:
        yield "a data center or professional GPU: GeForce does not export DMA-BUF", NO_REMEDY


def _registers(situation: Situation) -> Problems:
    evidence, kernel = situation.evidence, situation.kernel
    if situation.stack is Stack.OFED_LEGACY:
        yield f"an RDMA stack newer than OFED {versions.LEGACY_OFED}", "Install DOCA-OFED, or use the kernel's own."
    elif evidence.dma_buf_kernel is False:
        yield (
            f"an RDMA stack that registers a DMA-BUF; kernel {kernel} has no ib_umem_dmabuf_get",
            f"Boot kernel {versions.DMA_BUF_KERNEL} or newer, or install a current DOCA-OFED.",
        )
    elif evidence.dma_buf_kernel is None and not at_least(kernel, versions.DMA_BUF_KERNEL):
        yield f"kernel {versions.DMA_BUF_KERNEL} or newer (this is {kernel})", "Boot a newer kernel."
    if evidence.missing_options:
        yield (
            f"a kernel with {' and '.join(evidence.missing_options)}",
            "Boot a kernel that was built with these options.",
        )
    if evidence.dma_buf_library is False:
        yield (
            f"rdma-core {versions.DMA_BUF_RDMA_CORE} or newer: libibverbs has no ibv_reg_dmabuf_mr",
            f"Install rdma-core {versions.DMA_BUF_RDMA_CORE} or newer, on the node and in the image.",
        )


def _nvidia_peermem(situation: Situation) -> Problems:
    """Yield what nvidia-peermem needs: an RDMA stack with the peer memory interface."""
    if situation.driver and not at_least(situation.driver, versions.PEERMEM_DRIVER):
        yield f"driver {versions.PEERMEM_DRIVER} or newer (this is {situation.driver})", "Install a newer driver."
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
    remedy = _REINSTALL if evidence.rebuildable is False else _REBUILD
    if evidence.headers is False and evidence.rebuildable is not False:
        remedy = f"Install the headers of kernel {situation.kernel}. {remedy}"
    if evidence.peermem_file is False:
        yield f"the module nvidia-peermem for kernel {situation.kernel}", remedy
    elif evidence.peermem_stub:
        yield (
            "an nvidia-peermem that was built with the RDMA stack; this one is a stub without function",
            f"{remedy} If it is loaded, unload it and load it again.",
        )


def _peer_api(situation: Situation) -> Problems:
    if situation.evidence.peer_api is None:
        if situation.stack is Stack.INBOX:
            yield "an RDMA stack with ib_register_peer_memory_client; the kernel's own has none", _OFED
    elif not situation.evidence.peer_api:
        if situation.stack is Stack.INBOX:
            yield "an RDMA stack with ib_register_peer_memory_client; this kernel has none", _OFED
        else:
            stack = situation.evidence.stack_title or "an OFED"
            yield f"ib_register_peer_memory_client: {stack} is installed, but another ib_core is loaded", _RESTART


def _signed(situation: Situation, module: str) -> Problems:
    if module in situation.evidence.refused and module not in situation.evidence.bound:
        yield f"a signature on the module {module}, which Secure Boot requires", _SIGN


def _visible(situation: Situation, path: GdrPath) -> Problems:
    if seen_by_nccl(situation, path) is not False:
        return
    newer = f"NCCL {versions.PEERMEM_ITSELF_SEEN_NCCL} or newer"
    if path is GdrPath.NVIDIA_PEERMEM and not at_least(situation.nccl, versions.PEERMEM_ITSELF_SEEN_NCCL):
        where = f"/sys/kernel/mm/memory_peers, which kernel {situation.kernel} does not have"
        yield f"{newer}: NCCL {situation.nccl} expects the module only under {where}", f"Use an image with {newer}."
    else:
        yield (
            f"a module that NCCL detects: kernel {situation.kernel} does not show it at the path that NCCL checks",
            f"Boot a kernel older than {versions.NO_PEERS_FOLDER_KERNEL}, or use nvidia-peermem with {newer}.",
        )


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
        older = f"a driver older than {versions.PEERMEM_DRIVER} (this is {situation.driver})"
        yield f"{older}; newer ones have nvidia-peermem", "Use nvidia-peermem, which replaces it."
        return
    if situation.stack is Stack.INBOX and not evidence.peer_api:
        yield "an RDMA stack with ib_register_peer_memory_client; the kernel's own has none", "Install MLNX_OFED."
    else:
        yield from _peer_api(situation)
    if at_least(situation.kernel, versions.NV_PEER_MEM_NO_KERNEL):
        yield (
            f"a kernel older than {versions.NV_PEER_MEM_NO_KERNEL} (this is {situation.kernel})",
            f"Install driver {versions.PEERMEM_DRIVER} or newer, which has nvidia-peermem.",
        )
    if evidence.headers is False and "nv_peer_mem" not in evidence.bound:
        yield (
            f"headers of kernel {situation.kernel}, to build the module",
            "Install the headers of exactly that kernel.",
        )
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
        yield (
            "nv_peer_mem unloaded: only one of the two modules can be loaded",
            "Stop and disable it: /etc/init.d/nv_peer_mem stop; rmmod nv_peer_mem; remove its package.",
        )
    if situation.stack is Stack.OFED_LEGACY and evidence.peerdirect is False:
        yield _peerdirect_step(situation)
    if evidence.loaded is not None and "nvidia_peermem" not in evidence.loaded:
        yield "nvidia_peermem loaded", "Load it, now and at boot: modprobe nvidia_peermem"
    yield from pcie(situation)


def _peerdirect_step(situation: Situation) -> tuple[str, str]:
    evidence, option = situation.evidence, f"peerdirect_support=1, which OFED {versions.LEGACY_OFED} needs"
    if evidence.peerdirect_written and "nvidia_peermem" in (evidence.loaded or ()):
        return (
            f"nvidia_peermem reloaded: it runs without {option} and modprobe.d now sets",
            "When no job runs on the node: modprobe -r nvidia_peermem && modprobe nvidia_peermem",
        )
    return (
        option,
        "Write 'options nvidia-peermem peerdirect_support=1' to /etc/modprobe.d/nvidia-peermem.conf and reload it.",
    )


def _nv_peer_mem_steps(situation: Situation) -> Problems:
    evidence = situation.evidence
    yield from _signed(situation, "nv_peer_mem")
    if evidence.loaded is not None and "nv_peer_mem" not in evidence.loaded:
        yield (
            "nv_peer_mem built and loaded",
            f"Build nv_peer_mem {nv_peer_mem_version(situation)} with DKMS, and load it now and at boot.",
        )
        if evidence.zstd:
            yield "driver modules that its build can read (xz, not zstd)", "Decompress nvidia.ko.zst for the build."
    if evidence.loaded is not None and "nvidia_peermem" in evidence.loaded:
        yield "nvidia_peermem unloaded: only one of the two modules can be loaded", "rmmod nvidia_peermem"
    yield from pcie(situation)


def pcie(situation: Situation) -> Problems:
    """Yield PCIe settings that make transfers hang or slow."""
    evidence = situation.evidence
    if evidence.redirecting:
        shown = ", ".join(evidence.redirecting[:3]) + (" ..." if len(evidence.redirecting) > 3 else "")  # noqa: PLR2004
        yield (
            f"no PCIe bridge that redirects traffic between devices (ACS is on at {shown})",
            "Disable ACS in the BIOS, or at each boot: setpci -s BRIDGE ECAP_ACS+0x6.w=0000",
        )
    if evidence.translated:
        yield (
            f"an IOMMU that is off or in passthrough mode (it translates for {', '.join(evidence.translated[:3])})",
            "Add iommu=pt to the kernel command line, and reboot.",
        )
    if evidence.nearest and evidence.nearest not in versions.NEAR and "grace-hopper" not in situation.gpus:
        near = versions.NEAR[-1]
        yield (
            f"a card within {near} of a GPU: the closest is {evidence.nearest}, and NCCL uses host memory",
            "Put card and GPU under one PCIe switch; or set NCCL_NET_GDR_LEVEL=SYS if it measures faster.",
        )


PATHS: dict[GdrPath, tuple[Callable[[Situation], Problems], Callable[[Situation], Problems]]] = {
    GdrPath.DMA_BUF: (_dma_buf, _dma_buf_steps),
    GdrPath.NVIDIA_PEERMEM: (_nvidia_peermem, _peermem_steps),
    GdrPath.NV_PEER_MEM: (_nv_peer_mem, _nv_peer_mem_steps),
}
"""Path -> its blocking preconditions and its remaining steps; best path first."""
