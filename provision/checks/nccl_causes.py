"""Why NCCL does without GPUDirect RDMA, or without RDMA at all, as far as its log says, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable

from provision.facts.nccl_evidence import NcclLog
from provision.facts.nccl_versions import distance_name, module_note

Explanation = tuple[str, str]
"""The reason, and what to do."""

TCP = ("Socket", "FastSocket")
"""Plugins that go over TCP: their devices are interfaces."""
_OFF = ("LOC", "0")
_SOFTWARE = ("rxe", "siw")
"""How the names of Soft-RoCE and Soft-iWARP devices begin."""
DMABUF_CALL = "ibv_reg_dmabuf_mr"
_LOCAL = re.compile(r"lo|docker\d+|virbr\d+|br-\w+|veth\w+")
"""Interfaces that lead to no other node."""

_TURN_ON = (
    "NCCL writes its log when the ranks have NCCL_DEBUG=INFO in their environment; with NCCL_DEBUG_FILE, into files "
    "of its own."
)
_SAY_MORE = (
    "Run once with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH on all ranks of at least two nodes, "
    "and read that log."
)
_NO_DEVICE = (
    "See what the node has (ls /sys/class/infiniband) and what the container was given (ls /dev/infiniband): it needs "
    "rdma_cm and the uverbs devices, memlock unlimited, and the card's user-space driver in the image (ibv_devinfo). "
    "NCCL_IB_HCA must not leave all cards out. With NCCL_NET=IB such a job fails instead of going over TCP."
)
_NO_MODULE = (
    "Load the module on the node (modprobe nvidia-peermem); it works only when MLNX_OFED or DOCA-OFED was installed "
    "before the driver was. Or use DMA-BUF, which needs no module: open kernel modules of the driver, kernel 5.12 or "
    "newer, NCCL 2.13 or newer."
)
_DMABUF = (
    "Use newer drivers of card and GPU (open kernel modules, kernel 5.12 or newer, rdma-core 34 or newer, in the "
    "image too), or set NCCL_DMABUF_ENABLE=0 and load nvidia-peermem."
)
_TOO_FAR = (
    "Use cards on the GPUs' own PCIe switches: nvidia-smi topo -m shows PIX or PXB for them. Where all are further "
    "away, NCCL_NET_GDR_LEVEL=PHB (or SYS) allows it; set it by name, never as a number, and measure both ways."
)
_UNSET_LEVEL = (
    "Take NCCL_NET_GDR_LEVEL out of the job's environment, /etc/nccl.conf and ~/.nccl.conf: by itself NCCL allows PXB."
)
_ENABLE = (
    "If the nodes have RDMA cards, take NCCL_IB_DISABLE out of the job's environment, /etc/nccl.conf and ~/.nccl.conf."
)
MEMLOCK = (
    "Give the job unlimited locked memory: --ulimit memlock=-1 for the container, and the same limit for the service "
    "or login that starts it (ulimit -l)."
)


def cause(log: NcclLog) -> Explanation | None:
    """Return why GPUDirect is not used and what to do, in NCCL's own order of questions; None when it does not say."""
    if switched_off(log):
        level = log.settings["NCCL_NET_GDR_LEVEL"]
        return f"NCCL_NET_GDR_LEVEL is set to {level}, which switches GPUDirect off.", _UNSET_LEVEL
    if DMABUF_CALL in log.failed_calls:
        return dmabuf(log)
    without = cards(log, enabled=False)
    if without and not (log.far and cards(log, enabled=True)):
        return _disabled(log, without)
    return _distance(log) if log.far else None


def switched_off(log: NcclLog) -> bool:
    """Return whether the job's own settings forbid GPUDirect."""
    return log.settings.get("NCCL_NET_GDR_LEVEL") in _OFF


def over_tcp(log: NcclLog) -> Explanation:
    """Return why no RDMA card is used at all, and what to do."""
    hosts = few(sorted(log.without_device - set(log.devices) - {""}))
    if log.settings.get("NCCL_IB_DISABLE") == "1":
        reason, remedy = "NCCL_IB_DISABLE=1 disables RDMA cards.", _ENABLE
    elif log.without_device - set(log.devices):
        plugin = f", although the plugin {next(iter(log.plugins))} is there" if log.plugins else ""
        reason, remedy = f"NCCL found no RDMA device{f' on {hosts}' if hosts else ''}{plugin}.", _NO_DEVICE
    elif log.settings.get("NCCL_NET") in TCP:
        reason, remedy = f"NCCL_NET={log.settings['NCCL_NET']} asks for it.", "Take NCCL_NET out of the environment."
    else:
        reason, remedy = "The log does not say why it took no RDMA card.", _SAY_MORE
    nowhere = [name for name in log.interfaces if _LOCAL.fullmatch(name)]
    if nowhere:
        wanted = log.settings.get("NCCL_SOCKET_IFNAME")
        reason += f" For TCP it would take {few(nowhere)}, which lead to no other node."
        remedy += " Name the data network's interface in NCCL_SOCKET_IFNAME" + (
            f" (it is {wanted})." if wanted else "."
        )
    return reason, remedy


def unknown(log: NcclLog) -> Explanation:
    """Return why the log does not show it, and how to get a log that does."""
    if not log.lines:
        return "Nothing here was written by NCCL.", _TURN_ON
    failed = memlock(log)
    if failed:
        return f"The log shows no network channel.{failed}", MEMLOCK
    possible = cards(log, enabled=True)
    if possible or log.near:
        of = f" for {possible}" if possible else ""
        return f"NCCL calls GPUDirect possible{of}, but the log shows no network channel that uses it.", _SAY_MORE
    if log.inside:
        transports = few(sorted(log.inside))
        return (
            f"All channels in the log stay inside a node ({transports}).",
            "Run over two nodes or more to see the network.",
        )
    warned = next(iter(log.warnings), "")
    if warned:
        return f"The log shows no channels. NCCL warns: {warned}.", f"See to the warning first. {_SAY_MORE}"
    return "The log shows no channels.", _SAY_MORE


def unexplained(log: NcclLog) -> str:
    """Return what to do about channels without GPUDirect where NCCL gives no reason."""
    level = log.settings.get("NCCL_NET_GDR_LEVEL")
    before = f"NCCL_NET_GDR_LEVEL={level} is set: try without it. " if level else ""
    return f"{before}{_SAY_MORE} On the nodes, see whether the module is loaded: lsmod | grep -e peermem -e nv_peer_mem"


def tcp_network(log: NcclLog) -> str | None:
    """Return the plugin that NCCL says it uses when that is TCP."""
    said = log.networks or log.initialized or [item.plugin for item in log.capabilities]
    return next((name for name in said if name in TCP), None)


def dmabuf(log: NcclLog) -> Explanation:
    """Return what to say of a registration by DMA-BUF that failed."""
    return f"NCCL could not register GPU memory by DMA-BUF: {log.failed_calls[DMABUF_CALL]}.", _DMABUF


def memlock(log: NcclLog) -> str:
    """Return a sentence when memory could not be registered for want of locked memory, else nothing."""
    calls = [name for name, error in log.failed_calls.items() if error.startswith("Cannot allocate memory")]
    return f" {calls[0]} failed with: Cannot allocate memory, which is the limit of locked memory." if calls else ""


def cards(log: NcclLog, *, enabled: bool) -> str:
    """Name the cards for which NCCL calls GPUDirect possible, or disabled."""
    of = [item for item in log.capabilities if item.enabled is enabled and item.plugin not in TCP]
    return few(dict.fromkeys(item.name or "a card" for item in of))


def few(names: Iterable[str]) -> str:
    """List some names; more than four only by their number."""
    listed, few = list(names), 4
    return ", ".join(listed[:few]) + (f" and {len(listed) - few} more" if len(listed) > few else "")


def _disabled(log: NcclLog, without: str) -> Explanation:
    """NCCL says of cards that GPUDirect is disabled; only the older versions say why."""
    of = [item for item in log.capabilities if not item.enabled and item.plugin not in TCP]
    text = f"NCCL says that GPUDirect is disabled for {without}"
    if all(item.name.startswith(_SOFTWARE) for item in of):
        return f"{text}: a device made in software cannot reach a GPU.", "Use RDMA cards, if the nodes have any."
    why = next((item.why for item in of if item.why), "it finds neither a peer-memory module nor DMA-BUF")
    return f"{text}: {why}.", f"{_NO_MODULE} {module_note(log.version)}".strip()


def _distance(log: NcclLog) -> Explanation:
    """The cards are further from the GPUs than NCCL allows."""
    distance, limit = min(log.far)
    names = [distance_name(log.version, number) or f"distance {number}" for number in (distance, limit)]
    level = log.settings.get("NCCL_NET_GDR_LEVEL")
    by = f" (NCCL_NET_GDR_LEVEL={level})" if level else ""
    text = f"GPUs and cards are too far apart: {names[0]}, where NCCL allows {names[1]}{by}."
    return text, f"{_UNSET_LEVEL} {_TOO_FAR}" if level else _TOO_FAR
