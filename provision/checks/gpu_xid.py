"""Xids: what the driver wrote into the kernel's log, weighed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from provision.checks.base import check
from provision.checks.health_limits import XIDS, XidMeaning, XidWeight
from provision.checks.wording import few, slot_of, span
from provision.components.check import Scene, Verdict, fail, passed, skip, warn
from provision.facts import Unknown
from provision.facts.gpu import Gpu
from provision.facts.xid import Xid, XidLog

__all__: list[str] = []

_SMI = ("nvidia-smi",)
_NO_GPU = "the node has no GPU"
_SHOWN = 4
_UNKNOWN_XID = XidMeaning(XidWeight.WATCH, "not known here", "Look the number up in NVIDIA's Xid catalogue.")


@check("gpu.xid")
def _xid(scene: Scene) -> Verdict:
    on_bus = () if isinstance(scene.facts.gpu_pci, Unknown) else scene.facts.gpu_pci
    gpus = () if isinstance(scene.facts.gpus, Unknown) else scene.facts.gpus
    if not gpus and not on_bus and not isinstance(scene.facts.gpus, Unknown):
        return skip(_NO_GPU)
    if scene.container:
        return skip("a container sees its host's kernel log, if any")
    log = scene.facts.xids
    if isinstance(log, Unknown):
        return warn(log.reason, "Run dmesg on the node as root to see why.")
    simulated = scene.simulated(*_SMI)
    since = "since boot" if log.complete else f"in the last {span(log.uptime - log.since)}, further back no log reaches"
    judged = [(_meaning(xid, gpus), xid) for xid in log.xids if not xid.switch or _fatal(xid)]
    for weight, verdict in ((XidWeight.BROKEN, fail), (XidWeight.WATCH, warn)):
        found = [(meaning, xid) for meaning, xid in judged if meaning.weight is weight]
        if found:
            remedy = " ".join(dict.fromkeys(meaning.remedy for meaning, _ in found[:_SHOWN]))
            return verdict(f"{few([_tell(meaning, xid, log) for meaning, xid in found])} ({since})",
                           f"{remedy} A reboot starts this check anew.", simulated=simulated)  # fmt: skip
    if judged:
        told = few([_tell(meaning, xid, log) for meaning, xid in judged])
        return passed(f"no Xid that is the GPUs' fault {since}; {told}", simulated=simulated)
    return passed(f"no Xid {since}", simulated=simulated)


def _meaning(xid: Xid, gpus: Sequence[Gpu]) -> XidMeaning:
    """What is broken weighs less when the driver has said since that this GPU needs no recovery (any more)."""
    if xid.switch:
        return XidMeaning(XidWeight.BROKEN, "a fatal error of an NVLink switch", "Reboot the node.")
    meaning = XIDS.get(xid.number, _UNKNOWN_XID)
    if xid.number == 154:  # noqa: PLR2004 - its text ends with the action: "changed from 0x0 (None) to 0x2 (...)"
        action = re.search(r" to \w+ \((.+?)\)", xid.text)
        if action and action[1] == "None":
            return XidMeaning(XidWeight.JOB, "the driver needs no action any more")
        if action:
            meaning = XidMeaning(meaning.weight, f"{meaning.text}: {action[1]}", f"Do what it asks: {action[1]}.")
    if meaning.weight is XidWeight.BROKEN and any(_recovered(gpu, xid) for gpu in gpus):
        return XidMeaning(XidWeight.WATCH, f"{meaning.text}, and the driver asks for no recovery now", meaning.remedy)
    return meaning


def _recovered(gpu: Gpu, xid: Xid) -> bool:
    return gpu.health.recovery == "None" and slot_of(gpu.bus_id) == xid.pci


def _fatal(xid: Xid) -> bool:
    return bool(re.match(r"fatal", xid.text, re.IGNORECASE))


def _tell(meaning: XidMeaning, xid: Xid, log: XidLog) -> str:
    name = "SXid" if xid.switch else "Xid"
    last = "" if xid.seconds is None else f"{span(log.uptime - xid.seconds)} ago"
    if xid.count > 1:
        last = f"{xid.count} times, last {last}" if last else f"{xid.count} times"
    place = xid.address.removeprefix("PCI:")
    return f"{name} {xid.number} at {place}: {meaning.text}" + (f" ({last})" if last else "")
