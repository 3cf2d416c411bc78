"""What a log of NCCL proves: the network that was used, and whether GPUDirect RDMA was.

Only the lines of the channels prove use. Lines that say "enabled" for a card say what would be possible, and real logs
show both ways of being wrong; they serve as the reason, and as proof of the negative alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.checks.nccl_causes import (
    DMABUF_CALL,
    TCP,
    cards,
    cause,
    dmabuf,
    memlock,
    over_tcp,
    switched_off,
    tcp_network,
    unknown,
)
from provision.facts.nccl_evidence import NcclLog
from provision.model.reason import Reason, reason

Judgement = tuple[bool | None, list[Reason]]
"""GPUDirect in use or not, and the reasons."""


@dataclass(frozen=True)
class NcclVerdict:
    """What was used, and why."""

    version: str | None
    """NCCL's own, e.g. ``2.27.5``."""
    cuda: str | None
    """The CUDA version that it was built for, if the log has it."""
    transport: str | None
    """``IB``, ``RoCE``, ``Socket``, ``P2P``, ``SHM``, else the plugin's own name; several are joined by ``+``."""
    gdr: bool | None
    """True when every network channel used GPUDirect RDMA; None if the log does not show it."""
    hcas: tuple[str, ...]
    """Names of cards without port: those that channels used, else those that the log lists."""
    hcas_used: bool
    """Whether `hcas` are those that channels used."""
    reasons: tuple[Reason, ...]
    """The first one is about the channels, if the log shows network channels."""


def judge_nccl_log(log: NcclLog) -> NcclVerdict:
    """Judge what the log proves; what it does not prove is None, and the reasons say so."""
    hcas, hcas_used = _hcas(log)
    gdr, reasons = _gdr(log)
    if len(log.versions) > 1:
        reasons.append(reason("nccl.several_versions", versions=log.versions))
    cuda = next(iter(log.versions.values()), None) or None
    return NcclVerdict(log.version, cuda, _transport(log), gdr, hcas, hcas_used, tuple(reasons))


def _transport(log: NcclLog) -> str | None:
    """A network that carried channels; else TCP where NCCL fell back to it; else how channels inside the node went.

    TCP stands before the latter because a log often shows one node, and the fall-back is what its reader must see.
    """
    carried = [plugin for plugin, _ in log.channels]
    networks = [plugin for plugin in carried if not plugin.startswith("COLLNET/")] or carried
    if not networks and tcp_network(log):
        return tcp_network(log)
    inside = [way for way in ("P2P", "SHM") if way in log.inside]
    if not networks and inside:
        return inside[0]
    said = networks or log.networks or log.initialized or [item.plugin for item in log.capabilities]
    names = dict.fromkeys(_name(log, plugin) for plugin in said)
    if not names and log.devices:
        names = dict.fromkeys(_layers(log))
    return "+".join(names) or None


def _name(log: NcclLog, plugin: str) -> str:
    """Name a network by the link layer of its cards; a plugin whose cards are not known keeps its own name."""
    plugin = plugin.removeprefix("COLLNET/")
    layers = [] if plugin in TCP else _layers(log)
    if layers:
        return "+".join(layers)
    return "IB" if re.fullmatch(r"IB(ext(_v\d+)?)?", plugin) else plugin


def _layers(log: NcclLog) -> list[str]:
    """Return the link layers of the cards that channels used, else of all that are listed."""
    used = _hcas(log)[0]
    cards = [card for table in log.devices.values() for card in table.values()]
    return sorted({card.layer for card in cards if card.layer and set(card.names) & set(used)})


def _hcas(log: NcclLog) -> tuple[tuple[str, ...], bool]:
    """Return the names of the cards, in NCCL's order, and whether they are those that channels used."""
    used = sorted((device, host) for host, plugin, device in log.used if plugin not in TCP)
    if log.used and not used:
        return (), True
    listed: dict[int, dict[tuple[str, ...], None]] = {}
    for table in log.devices.values():
        for number, card in table.items():
            listed.setdefault(number, {})[card.names] = None
    names: list[str] = []
    for number, host in used:
        own = log.devices.get(host, {}).get(number)
        others = list(
            listed.get(number, ())
        )  # a host that lists no cards itself has them as all others do, if they agree
        names += own.names if own else others[0] if len(others) == 1 else ()
    if names:
        return tuple(dict.fromkeys(names)), True
    return tuple(dict.fromkeys(name for number in sorted(listed) for of in listed[number] for name in of)), False


def _gdr(log: NcclLog) -> Judgement:
    """Judge by the channels; without them by what excludes GPUDirect; otherwise it is unknown."""
    direct = sum(count for (_, gdr), count in log.channels.items() if gdr)
    total = sum(log.channels.values())
    if total > direct:
        return _not_direct(log, total - direct, total)
    if DMABUF_CALL in log.failed_calls:
        return False, [dmabuf(log)]
    if log.unreadable:
        return None, [reason("nccl.unknown_format", line=log.unreadable)]
    if total:
        of = reason("nccl.channels_with_gdr", count=total) if total > 1 else reason("nccl.channel_with_gdr")
        return True, [of, *memlock(log)]
    return _excluded(log) or (None, unknown(log))


def _not_direct(log: NcclLog, lacking: int, total: int) -> Judgement:
    """Some or all channels went without GPUDirect."""
    if all(plugin in TCP for plugin, _ in log.channels):
        return False, [reason("nccl.channels_over_tcp"), *over_tcp(log)]
    channels = _without_gdr(lacking, total)
    known = cause(log)
    if known:
        return False, [channels, known]
    possible, level = cards(log, enabled=True), log.settings.get("NCCL_NET_GDR_LEVEL")
    if possible:
        return False, [reason("nccl.possible_but_unused", channels=channels, cards=possible, level=level)]
    return False, [reason("nccl.unexplained", channels=channels, level=level)]


def _without_gdr(lacking: int, total: int) -> Reason:
    if total == 1:
        return reason("nccl.channel_without_gdr")
    if lacking == total:
        return reason("nccl.channels_without_gdr", count=total)
    return reason("nccl.some_channels_without_gdr", lacking=lacking, count=total)


def _excluded(log: NcclLog) -> Judgement | None:
    """Judge a log without network channels by what excludes GPUDirect; None if nothing does."""
    lacking = log.without_device - set(log.devices)
    if tcp_network(log):
        return False, [reason("nccl.network_is_tcp"), *over_tcp(log)]
    if lacking or log.settings.get("NCCL_IB_DISABLE") == "1":
        return False, over_tcp(log)
    known = cause(log)
    possible = log.near or (not log.far and any(item.enabled for item in log.capabilities))
    return (False, [known]) if known and (switched_off(log) or not possible) else None
