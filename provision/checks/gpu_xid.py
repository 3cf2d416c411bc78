"""Xids: errors of GPUs and NVLink switches in the kernel's log."""

from __future__ import annotations

import re
from collections.abc import Sequence

from provision.checks.base import check
from provision.checks.health_limits import XIDS, XidMeaning, XidWeight
from provision.checks.pci import slot_of
from provision.components.check import Scene, Verdict, fail, passed, skip, warn
from provision.facts import Unknown
from provision.facts.gpu import Gpu
from provision.facts.xid import Xid, XidLog
from provision.model.reason import Reason, reason

_SMI = ("nvidia-smi",)

_SHOWN = 4
_UNKNOWN_XID = XidMeaning(XidWeight.WATCH, "not known here", "Look the number up in NVIDIA's Xid catalogue.")


@check("gpu.xid")
def _xid(scene: Scene) -> Verdict:
    on_bus = () if isinstance(scene.facts.gpu_pci, Unknown) else scene.facts.gpu_pci
    gpus = () if isinstance(scene.facts.gpus, Unknown) else scene.facts.gpus
    if not gpus and not on_bus and not isinstance(scene.facts.gpus, Unknown):
        return skip("gpu.none")
    if scene.container:
        return skip("gpu.xid.container")
    log = scene.facts.xids
    if isinstance(log, Unknown):
        return warn("gpu.xid.unreadable", cause=log.reason)
    simulated = scene.simulated(*_SMI)
    since = (
        reason("gpu.xid.since_boot") if log.complete else reason("gpu.xid.since_log", seconds=log.uptime - log.since)
    )
    judged = [(_meaning(xid, gpus), xid) for xid in log.xids if not xid.switch or _fatal(xid)]
    for weight, verdict in ((XidWeight.BROKEN, fail), (XidWeight.WATCH, warn)):
        errors = [(meaning, xid) for meaning, xid in judged if meaning.weight is weight]
        if errors:
            return verdict(
                "gpu.xid.errors",
                simulated=simulated,
                errors=[_error(meaning, xid, log) for meaning, xid in errors],
                since=since,
                advice=dict.fromkeys(meaning.remedy for meaning, _ in errors[:_SHOWN]),
            )
    if judged:
        notes = [_error(meaning, xid, log) for meaning, xid in judged]
        return passed("gpu.xid.harmless", since=since, errors=notes, simulated=simulated)
    return passed("gpu.xid.ok", since=since, simulated=simulated)


def _meaning(xid: Xid, gpus: Sequence[Gpu]) -> XidMeaning:
    """An error counts less if the driver reports that the GPU needs no recovery (any more)."""
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


def _error(meaning: XidMeaning, xid: Xid, log: XidLog) -> Reason:
    return reason(
        "gpu.xid.many" if xid.count > 1 else "gpu.xid.one",
        kind="SXid" if xid.switch else "Xid",
        number=xid.number,
        address=xid.address.removeprefix("PCI:"),
        meaning=meaning.text,
        count=xid.count,
        seconds=None if xid.seconds is None else log.uptime - xid.seconds,
    )
