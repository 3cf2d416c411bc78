"""Why NCCL does without GPUDirect RDMA, or without RDMA at all, as far as its log says."""

from __future__ import annotations

import re

from provision.facts.nccl_evidence import NcclLog
from provision.facts.nccl_versions import distance_name, expects_one_place
from provision.model.reason import Reason, reason

TCP = ("Socket", "FastSocket")
"""Plugins that go over TCP: their devices are interfaces."""
_OFF = ("LOC", "0")
_SOFTWARE = ("rxe", "siw")
"""How the names of Soft-RoCE and Soft-iWARP devices begin."""
DMABUF_CALL = "ibv_reg_dmabuf_mr"
_NO_MEMORY = "Cannot allocate memory"
"""The system's text of ENOMEM, which NCCL writes without the number."""
_LOCAL = re.compile(r"lo|docker\d+|virbr\d+|br-\w+|veth\w+")
"""Interfaces that lead to no other node."""


def cause(log: NcclLog) -> Reason | None:
    """Return why GPUDirect is not used, in NCCL's own order of questions; None when it does not say."""
    if switched_off(log):
        return reason("nccl.gdr_level_off", level=log.settings["NCCL_NET_GDR_LEVEL"])
    if DMABUF_CALL in log.failed_calls:
        return dmabuf(log)
    without = cards(log, enabled=False)
    if without and not (log.far and cards(log, enabled=True)):
        return _disabled(log, without)
    return _distance(log) if log.far else None


def switched_off(log: NcclLog) -> bool:
    """Return whether the job's own settings forbid GPUDirect."""
    return log.settings.get("NCCL_NET_GDR_LEVEL") in _OFF


def over_tcp(log: NcclLog) -> list[Reason]:
    """Return why no RDMA card is used at all, and which interfaces lead to no other node."""
    without_device = log.without_device - set(log.devices)
    if log.settings.get("NCCL_IB_DISABLE") == "1":
        reasons = [reason("nccl.ib_disabled")]
    elif without_device:
        plugin = next(iter(log.plugins), None)
        reasons = [reason("nccl.no_device", hosts=sorted(without_device - {""}), plugin=plugin)]
    elif log.settings.get("NCCL_NET") in TCP:
        reasons = [reason("nccl.net_is_tcp", network=log.settings["NCCL_NET"])]
    else:
        reasons = [reason("nccl.tcp_unexplained")]
    nowhere = [name for name in log.interfaces if _LOCAL.fullmatch(name)]
    if nowhere:
        current = log.settings.get("NCCL_SOCKET_IFNAME")
        reasons.append(reason("nccl.local_interfaces", interfaces=nowhere, current=current))
    return reasons


def unknown(log: NcclLog) -> list[Reason]:
    """Return why the log does not show whether GPUDirect is used."""
    if not log.lines:
        return [reason("nccl.no_lines")]
    failed = memlock(log)
    if failed:
        return [reason("nccl.no_network_channel"), *failed]
    possible = cards(log, enabled=True)
    if possible or log.near:
        return [reason("nccl.possible", cards=possible)]
    if log.inside:
        return [reason("nccl.inside_a_node", transports=sorted(log.inside))]
    warned = next(iter(log.warnings), "")
    return [reason("nccl.warning", warning=warned) if warned else reason("nccl.no_channels")]


def tcp_network(log: NcclLog) -> str | None:
    """Return the plugin that NCCL says it uses when that is TCP."""
    said = log.networks or log.initialized or [item.plugin for item in log.capabilities]
    return next((name for name in said if name in TCP), None)


def dmabuf(log: NcclLog) -> Reason:
    """Return the reason for a failed registration by DMA-BUF."""
    return reason("nccl.dmabuf_failed", error=log.failed_calls[DMABUF_CALL])


def memlock(log: NcclLog) -> list[Reason]:
    """Return a reason if memory could not be registered because of the limit of locked memory, else none."""
    calls = [name for name, error in log.failed_calls.items() if error.startswith(_NO_MEMORY)]
    return [reason("nccl.memlock", call=calls[0])] if calls else []


def cards(log: NcclLog, *, enabled: bool) -> list[str]:
    """Name the cards for which NCCL calls GPUDirect possible, or disabled."""
    of = [item for item in log.capabilities if item.enabled is enabled and item.plugin not in TCP]
    return list(dict.fromkeys(item.name or "a card" for item in of))


def _disabled(log: NcclLog, without: list[str]) -> Reason:
    """NCCL says of cards that GPUDirect is disabled; only the older versions say why."""
    of = [item for item in log.capabilities if not item.enabled and item.plugin not in TCP]
    if all(item.name.startswith(_SOFTWARE) for item in of):
        return reason("nccl.software_device", cards=without)
    note = reason("nccl.module_in_one_place") if expects_one_place(log.version) else None
    why = next((item.why for item in of if item.why), None)
    if why is None:
        return reason("nccl.gdr_disabled", cards=without, note=note)
    return reason("nccl.gdr_disabled_with_cause", cards=without, cause=why, note=note)


def _distance(log: NcclLog) -> Reason:
    """The cards are further from the GPUs than NCCL allows."""
    distance, limit = (distance_name(log.version, number) or f"distance {number}" for number in min(log.far))
    level = log.settings.get("NCCL_NET_GDR_LEVEL")
    if level:
        return reason("nccl.too_far_for_level", distance=distance, limit=limit, level=level)
    return reason("nccl.too_far", distance=distance, limit=limit)
