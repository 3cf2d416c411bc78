"""The wording of the verdict on a log of NCCL: code -> message and remedy."""

from __future__ import annotations

from collections.abc import Mapping

from provision.model.reason import Wording

_SAY_MORE = (
    "Run once with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH on all ranks of at least two nodes, "
    "and read that log."
)
_UNEXPLAINED = (
    f"[NCCL_NET_GDR_LEVEL={{level}} is set: try without it. ]{_SAY_MORE} On the nodes, see whether the module is "
    "loaded: lsmod | grep -e peermem -e nv_peer_mem"
)
_NO_MODULE = (
    "Load the module on the node (modprobe nvidia-peermem); it works only when MLNX_OFED or DOCA-OFED was installed "
    "before the driver was. Or use DMA-BUF, which needs no module: open kernel modules of the driver, kernel 5.12 or "
    "newer, NCCL 2.13 or newer.[ {note}.]"
)
_UNSET_LEVEL = (
    "Take NCCL_NET_GDR_LEVEL out of the job's environment, /etc/nccl.conf and ~/.nccl.conf: by itself NCCL allows PXB."
)
_TOO_FAR = (
    "Use cards on the GPUs' own PCIe switches: nvidia-smi topo -m shows PIX or PXB for them. Where all are further "
    "away, NCCL_NET_GDR_LEVEL=PHB (or SYS) allows it; set it by name, never as a number, and measure both ways."
)
_DISABLED = "NCCL says that GPUDirect is disabled for {cards:names}"

NCCL_REASONS: Mapping[str, Wording] = {
    # Channels
    "nccl.channel_with_gdr": Wording("The network channel in the log carries /GDRDMA"),
    "nccl.channels_with_gdr": Wording("All {count} network channels in the log carry /GDRDMA"),
    "nccl.channel_without_gdr": Wording("The network channel lacks /GDRDMA"),
    "nccl.channels_without_gdr": Wording("All {count} network channels lack /GDRDMA"),
    "nccl.some_channels_without_gdr": Wording("{lacking} of {count} network channels lack /GDRDMA"),
    "nccl.possible_but_unused": Wording(
        "{channels}, although NCCL calls GPUDirect possible for {cards:names}", _UNEXPLAINED
    ),
    "nccl.unexplained": Wording("{channels}; the log does not say why", _UNEXPLAINED),
    "nccl.channels_over_tcp": Wording("All network channels go over TCP"),
    "nccl.network_is_tcp": Wording("NCCL chose TCP for the network"),
    "nccl.unknown_format": Wording(
        "The log describes network channels in a form that is not known here: {line}",
        "Read those lines yourself: /GDRDMA at the end means that GPUDirect RDMA is used.",
    ),
    # No network channels
    "nccl.no_lines": Wording(
        "Nothing here was written by NCCL",
        "NCCL writes its log when the ranks have NCCL_DEBUG=INFO in their environment; with NCCL_DEBUG_FILE, into "
        "files of its own.",
    ),
    "nccl.no_network_channel": Wording("The log shows no network channel"),
    "nccl.possible": Wording(
        "NCCL calls GPUDirect possible[ for {cards:names}], but the log shows no network channel that uses it",
        _SAY_MORE,
    ),
    "nccl.inside_a_node": Wording(
        "All channels in the log stay inside a node ({transports:names})",
        "Run over two nodes or more to see the network.",
    ),
    "nccl.warning": Wording(
        "The log shows no channels. NCCL warns: {warning}", f"See to the warning first. {_SAY_MORE}"
    ),
    "nccl.no_channels": Wording("The log shows no channels", _SAY_MORE),
    # Why there is no GPUDirect RDMA
    "nccl.gdr_level_off": Wording("NCCL_NET_GDR_LEVEL is set to {level}, which switches GPUDirect off", _UNSET_LEVEL),
    "nccl.dmabuf_failed": Wording(
        "NCCL could not register GPU memory by DMA-BUF: {error}",
        "Use newer drivers of card and GPU (open kernel modules, kernel 5.12 or newer, rdma-core 34 or newer, in the "
        "image too), or set NCCL_DMABUF_ENABLE=0 and load nvidia-peermem.",
    ),
    "nccl.software_device": Wording(
        f"{_DISABLED}: a device made in software cannot reach a GPU", "Use RDMA cards, if the nodes have any."
    ),
    "nccl.gdr_disabled": Wording(f"{_DISABLED}: it finds neither a peer-memory module nor DMA-BUF", _NO_MODULE),
    "nccl.gdr_disabled_with_cause": Wording(f"{_DISABLED}: {{cause}}", _NO_MODULE),
    "nccl.module_in_one_place": Wording(
        "This NCCL expects the module only in /sys/kernel/mm/memory_peers, which kernels since 6.4 do not have: use "
        "NCCL 2.23 or newer there"
    ),
    "nccl.too_far": Wording("GPUs and cards are too far apart: {distance}, where NCCL allows {limit}", _TOO_FAR),
    "nccl.too_far_for_level": Wording(
        "GPUs and cards are too far apart: {distance}, where NCCL allows {limit} (NCCL_NET_GDR_LEVEL={level})",
        f"{_UNSET_LEVEL} {_TOO_FAR}",
    ),
    "nccl.memlock": Wording(
        "{call} failed with: Cannot allocate memory, which is the limit of locked memory",
        "Give the job unlimited locked memory: --ulimit memlock=-1 for the container, and the same limit for the "
        "service or login that starts it (ulimit -l).",
    ),
    # Why there is no RDMA
    "nccl.ib_disabled": Wording(
        "NCCL_IB_DISABLE=1 disables RDMA cards",
        "If the nodes have RDMA cards, take NCCL_IB_DISABLE out of the job's environment, /etc/nccl.conf and "
        "~/.nccl.conf.",
    ),
    "nccl.no_device": Wording(
        "NCCL found no RDMA device[ on {hosts:names}][, although the plugin {plugin} is there]",
        "See what the node has (ls /sys/class/infiniband) and what the container was given (ls /dev/infiniband): it "
        "needs rdma_cm and the uverbs devices, memlock unlimited, and the card's user-space driver in the image "
        "(ibv_devinfo). NCCL_IB_HCA must not leave all cards out. With NCCL_NET=IB such a job fails instead of going "
        "over TCP.",
    ),
    "nccl.net_is_tcp": Wording("NCCL_NET={network} asks for it", "Take NCCL_NET out of the environment."),
    "nccl.tcp_unexplained": Wording("The log does not say why it took no RDMA card", _SAY_MORE),
    "nccl.local_interfaces": Wording(
        "For TCP it would take {interfaces:names}, which lead to no other node",
        "Name the data network's interface in NCCL_SOCKET_IFNAME[ (it is {current})].",
    ),
    "nccl.several_versions": Wording("The log holds several versions of NCCL: {versions:names}"),
}
