"""The wording of the verdict on GPUDirect RDMA: code -> message and remedy.

`provision/report/reasons.py` describes the templates. The message of a precondition names what the path needs, so that
it completes "DMA-BUF needs ...".
"""

from __future__ import annotations

from collections.abc import Mapping

from provision.model.reason import Wording

_INSTALL_CARD = "Install one; without it, jobs run over TCP."
_REPLACE_SOFT = "Install one to use GPUDirect RDMA."
_INSTALL_DRIVER = "Install the NVIDIA driver, or check dmesg for its error."
_OFED = "Install DOCA-OFED, then rebuild the NVIDIA driver's modules (the RDMA stack must be installed first)."
_PEER_INTERFACE = "an RDMA stack with ib_register_peer_memory_client"
_REBUILD = (
    "Rebuild the driver's modules with the installed RDMA stack: "
    "dkms install --force nvidia/VERSION -k KERNEL, or reinstall the driver"
)
_OTHER_GPUS = "Use other GPUs."

REASONS: Mapping[str, Wording] = {
    # Reasons of a verdict
    "gdr.path": Wording(
        "{path}: driver {driver}[ with {modules} modules], kernel {kernel}, {stack}[, NCCL {nccl}]",
    ),
    "gdr.inbox_stack": Wording("the kernel's own RDMA stack"),
    "gdr.dma_buf_image": Wording(
        "no module is needed on the node; the image also needs rdma-core {rdma_core} or newer"
    ),
    "gdr.peermem_usable": Wording(
        "nvidia-peermem would also work; older UCX, perftest and images still need it",
    ),
    "gdr.peermem_usable_after_rebuild": Wording(
        "nvidia-peermem would also work after a rebuild; older UCX, perftest and images still need it",
    ),
    "gdr.headers_before_driver": Wording(
        "the kernel's headers must be installed before the driver; otherwise the module is a stub"
    ),
    "gdr.ofed_before_driver": Wording("OFED must be installed before the driver; otherwise the module is a stub"),
    "gdr.peerdirect_needed": Wording("OFED {ofed} needs the module's option peerdirect_support=1"),
    "gdr.nv_peer_mem_version": Wording("nv_peer_mem {version} is the version for this RDMA stack"),
    "gdr.nccl_assumed": Wording("NCCL's version is unknown; assumed: {oldest} or newer"),
    "gdr.nccl_unknown": Wording(
        "NCCL's version is unknown; it must be {oldest} or newer to detect the module on kernel {kernel}"
    ),
    "gdr.gpu_unknown": Wording("the GPUs' architecture is unknown; assumed: supported by the driver"),
    "gdr.path_needs": Wording("{path} needs {precondition}", "{precondition:remedy}"),
    "gdr.no_gpu": Wording("the node has no GPU"),
    "gdr.no_card": Wording("there is no RDMA card", _INSTALL_CARD),
    "gdr.only_soft_devices": Wording(
        "there are only software RDMA devices, which copy through the host", _REPLACE_SOFT
    ),
    "gdr.no_driver": Wording("no driver serves the GPUs", _INSTALL_DRIVER),
    "gdr.fact_unavailable": Wording("{cause}", "Run that command manually on the node to see where it fails."),
    "gdr.unreachable": Wording("unreachable: {cause}"),
    "gdr.probe_failed": Wording("{cause}", "[{advice}]"),
    # Preconditions of all paths
    "gdr.card_missing": Wording("an InfiniBand or RoCE card", _INSTALL_CARD),
    "gdr.card_is_soft": Wording("an InfiniBand or RoCE card; Soft-RoCE copies through the host", _REPLACE_SOFT),
    "gdr.module_unsigned": Wording(
        "a signature on the module {module}, which Secure Boot requires",
        "Sign it with a key that is enrolled in the firmware (mokutil --import), or disable Secure Boot.",
    ),
    "gdr.driver_missing": Wording("an NVIDIA driver that serves the GPUs", _INSTALL_DRIVER),
    "gdr.driver_without_open_modules": Wording(
        "driver {oldest} or newer, the first with open modules (this is {driver})",
        "Install a newer driver, or the proprietary modules.",
    ),
    "gdr.driver_too_old": Wording(
        "driver {oldest} or newer: driver {driver} cannot drive {gpu} GPUs", "Install driver {oldest} or newer."
    ),
    "gdr.driver_too_new": Wording(
        "driver branch {newest} or older: driver {driver} cannot drive {gpu} GPUs",
        "Install a driver of branch {newest}, the last one for {gpu}.",
    ),
    "gdr.gpu_needs_proprietary_modules": Wording(
        "proprietary kernel modules: the open ones cannot drive {gpu} GPUs",
        "Install the proprietary modules of driver {driver}.",
    ),
    "gdr.gpu_needs_open_modules": Wording(
        "open kernel modules: the proprietary ones cannot drive {gpu} GPUs",
        "Install the open modules of driver {driver}.",
    ),
    # Preconditions of DMA-BUF
    "gdr.gpu_without_dma_buf": Wording("Turing GPUs or newer (these are {gpus})", _OTHER_GPUS),
    "gdr.geforce": Wording("a data center or professional GPU: GeForce does not export DMA-BUF", _OTHER_GPUS),
    "gdr.open_modules_missing": Wording(
        "open kernel modules[ of driver {oldest} or newer] (these are {modules})",
        "Install the driver's open kernel modules[ of driver {oldest} or newer].",
    ),
    "gdr.ofed_without_dma_buf": Wording(
        "an RDMA stack newer than OFED {ofed}", "Install DOCA-OFED, or use the kernel's own."
    ),
    "gdr.stack_without_dma_buf": Wording(
        "an RDMA stack that registers a DMA-BUF; kernel {kernel} has no ib_umem_dmabuf_get",
        "Boot kernel {oldest} or newer, or install a current DOCA-OFED.",
    ),
    "gdr.kernel_without_dma_buf": Wording("kernel {oldest} or newer (this is {kernel})", "Boot a newer kernel."),
    "gdr.kernel_options_missing": Wording(
        "a kernel with {options:and}", "Boot a kernel that was built with these options."
    ),
    "gdr.rdma_core_without_dma_buf": Wording(
        "rdma-core {oldest} or newer: libibverbs has no ibv_reg_dmabuf_mr",
        "Install rdma-core {oldest} or newer, on the node and in the image.",
    ),
    "gdr.nccl_without_dma_buf": Wording(
        "NCCL {oldest} or newer (this is {nccl})", "Use an image with NCCL {oldest} or newer."
    ),
    # Preconditions of the peer memory modules
    "gdr.driver_without_peermem": Wording("driver {oldest} or newer (this is {driver})", "Install a newer driver."),
    "gdr.driver_has_peermem": Wording(
        "a driver older than {first} (this is {driver}); newer ones have nvidia-peermem",
        "Use nvidia-peermem, which replaces it.",
    ),
    "gdr.inbox_without_peer_interface": Wording(f"{_PEER_INTERFACE}; the kernel's own has none", _OFED),
    "gdr.kernel_without_peer_interface": Wording(f"{_PEER_INTERFACE}; this kernel has none", _OFED),
    "gdr.mlnx_ofed_missing": Wording(f"{_PEER_INTERFACE}; the kernel's own has none", "Install MLNX_OFED."),
    "gdr.other_stack_loaded": Wording(
        "ib_register_peer_memory_client: {stack} is installed, but another ib_core is loaded",
        "Make sure that modinfo -n ib_core is under extra/ or updates/, then: systemctl restart openibd (where systemd "
        "has no such unit: /etc/init.d/openibd restart). If that does not help, reinstall OFED for this kernel.",
    ),
    "gdr.peermem_missing": Wording("the module nvidia-peermem for kernel {kernel}", "{fix}."),
    "gdr.peermem_is_stub": Wording(
        "an nvidia-peermem that was built with the RDMA stack; this one is a stub without function",
        "{fix}. If it is loaded, unload it and load it again.",
    ),
    "gdr.rebuild": Wording(_REBUILD),
    "gdr.rebuild_with_headers": Wording(f"Install the headers of kernel {{kernel}}. {_REBUILD}"),
    "gdr.reinstall": Wording(
        "Reinstall the driver with the installed RDMA stack, preferably with DKMS, which rebuilds its modules for new "
        "kernels: DKMS has no sources of this driver"
    ),
    "gdr.nccl_misses_peermem": Wording(
        "NCCL {oldest} or newer: NCCL {nccl} expects the module only under /sys/kernel/mm/memory_peers, which kernel "
        "{kernel} does not have",
        "Use an image with NCCL {oldest} or newer.",
    ),
    "gdr.nccl_misses_module": Wording(
        "a module that NCCL detects: kernel {kernel} does not show it at the path that NCCL checks",
        "Boot a kernel older than {first_kernel}, or use nvidia-peermem with NCCL {oldest} or newer.",
    ),
    "gdr.kernel_too_new": Wording(
        "a kernel older than {first} (this is {kernel})",
        "Install driver {driver} or newer, which has nvidia-peermem.",
    ),
    "gdr.headers_missing": Wording(
        "headers of kernel {kernel}, to build the module", "Install the headers of exactly that kernel."
    ),
    # Remaining steps
    "gdr.nv_peer_mem_loaded": Wording(
        "nv_peer_mem unloaded: only one of the two modules can be loaded",
        "Stop and disable it: /etc/init.d/nv_peer_mem stop; rmmod nv_peer_mem; remove its package.",
    ),
    "gdr.peermem_loaded": Wording(
        "nvidia_peermem unloaded: only one of the two modules can be loaded",
        "Unload it: rmmod nvidia_peermem",
    ),
    "gdr.peermem_not_loaded": Wording("nvidia_peermem loaded", "Load it, now and at boot: modprobe nvidia_peermem"),
    "gdr.nv_peer_mem_not_loaded": Wording(
        "nv_peer_mem built and loaded",
        "Build nv_peer_mem {version} with DKMS, and load it now and at boot.",
    ),
    "gdr.driver_modules_zstd": Wording(
        "driver modules that its build can read (xz, not zstd)", "Decompress nvidia.ko.zst for the build."
    ),
    "gdr.peerdirect_not_set": Wording(
        "peerdirect_support=1, which OFED {ofed} needs",
        "Write 'options nvidia-peermem peerdirect_support=1' to /etc/modprobe.d/nvidia-peermem.conf and reload it.",
    ),
    "gdr.peerdirect_not_loaded": Wording(
        "nvidia_peermem reloaded: it runs without peerdirect_support=1, which OFED {ofed} needs and modprobe.d now "
        "sets",
        "When no job runs on the node: modprobe -r nvidia_peermem && modprobe nvidia_peermem",
    ),
    "gdr.acs_enabled": Wording(
        "no PCIe bridge that redirects traffic between devices (ACS is on at {bridges:names})",
        "Disable ACS in the BIOS, or at each boot: setpci -s BRIDGE ECAP_ACS+0x6.w=0000",
    ),
    "gdr.iommu_translates": Wording(
        "an IOMMU that is off or in passthrough mode (it translates for {devices:names})",
        "Add iommu=pt to the kernel command line, and reboot.",
    ),
    "gdr.card_far": Wording(
        "a card within {farthest} of a GPU: the closest is {nearest}, and NCCL uses host memory",
        "Put card and GPU under one PCIe switch; or set NCCL_NET_GDR_LEVEL=SYS if it measures faster.",
    ),
}
