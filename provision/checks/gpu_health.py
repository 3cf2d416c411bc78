"""The health of GPUs according to the driver and the PCI bus; `gpu_xid.py` judges the kernel's log."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from provision.checks.base import check
from provision.checks.health_limits import CLOCK_EVENTS, ClockEvent
from provision.checks.pci import slot_of
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import Unknown
from provision.facts.gpu import Gpu
from provision.facts.nvlink import FabricManager, Links
from provision.facts.pci_links import PciLink
from provision.facts.system import NodeKind
from provision.model import Same
from provision.model.reason import reason

_SMI = ("nvidia-smi",)

BASEBOARD = re.compile(r"SXM|HBM3$|HBM3e|[BH]\d00$|H20$")
"""Products on a baseboard that wires every link; PCIe cards have links only with a bridge."""
_MANAGER = re.compile(r"nvidia-fabric-?manager(-\d+)?")


def _gpus(scene: Scene) -> tuple[Gpu, ...]:
    return known(scene.facts.gpus)


def _which(gpus: Sequence[Gpu], wrong: Callable[[Gpu], object]) -> list[int]:
    return [gpu.index for gpu in gpus if wrong(gpu)]


@check("gpu.state", after="gpu.driver")
def _state(scene: Scene) -> Verdict:
    gpus, simulated = _gpus(scene), scene.simulated(*_SMI)
    if not gpus:
        return skip("gpu.none")
    errors = {gpu.index: gpu.health.complaints for gpu in gpus if gpu.health.complaints}
    if errors:
        values = [reason("gpu.state.value", gpu=number, texts=texts) for number, texts in errors.items()]
        return fail("gpu.state.errors", values=values, gpus=errors, simulated=simulated)
    wanted = [gpu for gpu in gpus if gpu.health.recovery not in {"", "None"}]
    if wanted:
        reboot = any("reboot" in gpu.health.recovery.lower() for gpu in wanted)
        return fail(
            "gpu.state.reboot" if reboot else "gpu.state.reset",
            simulated=simulated,
            actions=[f"{gpu.health.recovery} (GPU {gpu.index})" for gpu in wanted],
            gpus=[gpu.index for gpu in wanted],
        )
    if any(gpu.health.recovery for gpu in gpus):
        return passed("gpu.state.ok", count=len(gpus), simulated=simulated)
    return passed("gpu.state.not_reported", count=len(gpus), simulated=simulated)


@check("gpu.ecc", after="gpu.driver")
def _ecc(scene: Scene) -> Verdict:
    gpus, simulated = _gpus(scene), scene.simulated(*_SMI)
    if not any(gpu.health.ecc is not None or gpu.health.uncorrected is not None for gpu in gpus):
        return skip("gpu.ecc.not_reported" if gpus else "gpu.none")
    worn = _which(gpus, lambda gpu: gpu.health.sram_threshold_exceeded)
    if worn:
        return fail("gpu.ecc.sram_worn", gpus=worn, simulated=simulated)
    bad = [gpu for gpu in gpus if gpu.health.uncorrected]
    if bad:
        shown = [f"{gpu.health.uncorrected} (GPU {gpu.index})" for gpu in bad]
        return fail("gpu.ecc.errors", errors=shown, gpus=[gpu.index for gpu in bad], simulated=simulated)
    off = _which(gpus, lambda gpu: gpu.health.ecc is False or gpu.health.ecc_pending is False)
    if off:
        return warn("gpu.ecc.disabled", gpus=off, simulated=simulated)
    ever = [f"{gpu.health.uncorrected_ever} (GPU {gpu.index})" for gpu in gpus if gpu.health.uncorrected_ever]
    return passed("gpu.ecc.ok", past=ever, simulated=simulated)


@check("gpu.row_remap", after="gpu.driver")
def _row_remap(scene: Scene) -> Verdict:
    gpus, simulated = _gpus(scene), scene.simulated(*_SMI)
    if not gpus:
        return skip("gpu.none")
    failed = _which(gpus, lambda gpu: gpu.health.rows_failure)
    if failed:
        return fail("gpu.row_remap.failed", gpus=failed, simulated=simulated)
    pending = _which(gpus, lambda gpu: gpu.health.rows_pending or gpu.health.pages_pending)
    if pending:
        return fail("gpu.row_remap.pending", gpus=pending, simulated=simulated)
    if all(gpu.health.rows_pending is None and gpu.health.pages_pending is None for gpu in gpus):
        return skip("gpu.row_remap.not_reported", simulated=simulated)
    replaced = [f"{gpu.health.rows_uncorrectable} (GPU {gpu.index})" for gpu in gpus if gpu.health.rows_uncorrectable]
    return passed("gpu.row_remap.ok", replaced=replaced, simulated=simulated)


@check("gpu.nvlink", after="gpu.driver")
def _nvlink(scene: Scene) -> Verdict:
    gpus, simulated = _gpus(scene), scene.simulated(*_SMI)
    links = known(scene.facts.nvlinks) if gpus else {}
    judged = [gpu for gpu in gpus if not gpu.health.mig]
    counts = {gpu.index: links.get(gpu.index, Links(0)) for gpu in judged}
    wired = [gpu.index for gpu in judged if BASEBOARD.search(gpu.name) and len(judged) > 1]
    most = max((link.active for link in counts.values()), default=0)
    if not most and not wired:
        return skip("gpu.nvlink.none" if gpus else "gpu.none", simulated=simulated)
    down = {
        number: link for number, link in counts.items()
        if link.active < most and (number in wired or (link.active and link.inactive))
    }  # fmt: skip
    if down:
        links_down = [
            reason("gpu.nvlink.links", gpu=number, active=link.active, links=most, down=link.inactive)
            for number, link in down.items()
        ]
        if virtual(scene):
            return warn("gpu.nvlink.down_virtual", gpus=links_down, simulated=simulated)
        return fail("gpu.nvlink.down", gpus=links_down, simulated=simulated)
    unused = {number: link for number, link in counts.items() if link.inactive and (link.active or number in wired)}
    if (unused or (wired and not most)) and not virtual(scene):
        missing = max((len(link.inactive) for link in unused.values()), default=0)
        if missing:
            return warn("gpu.nvlink.alike", down=missing, links=most + missing, simulated=simulated)
        return warn("gpu.nvlink.all_down", simulated=simulated)
    return passed("gpu.nvlink.ok", links=most, simulated=simulated)


def virtual(scene: Scene) -> bool:
    """Return whether a hypervisor or container decides what is visible of the GPUs; never for simulated ones."""
    kind = scene.facts.kind
    return not isinstance(kind, Unknown) and kind.kind is not NodeKind.METAL and not scene.simulated(*_SMI)


@check("gpu.fabric", after="gpu.driver")
def _fabric(scene: Scene) -> Verdict:
    gpus, simulated = _gpus(scene), scene.simulated(*_SMI)
    manager = scene.facts.fabric_manager
    switches = 0 if isinstance(manager, Unknown) else manager.switches
    joined = [gpu for gpu in gpus if gpu.health.fabric_state]
    if not gpus or (not joined and not switches):
        return skip("gpu.fabric.none" if gpus else "gpu.none")
    fault = _manager_fault(scene, manager) if isinstance(manager, FabricManager) and switches else None
    if fault:
        return fault
    joining = _which(joined, lambda gpu: gpu.health.fabric_state == "In Progress")
    broken = [gpu for gpu in joined if gpu.index not in joining and not _in_fabric(gpu)]
    if broken:
        states = [
            reason("gpu.fabric.state", gpu=gpu.index, state=gpu.health.fabric_state, status=gpu.health.fabric_status)
            for gpu in broken
        ]
        return fail("gpu.fabric.not_joined", gpus=states, simulated=simulated)
    if joining:
        return warn("gpu.fabric.joining", gpus=joining, simulated=simulated)
    if joined:
        return passed("gpu.fabric.ok", gpus=len(joined), simulated=simulated)
    return passed("gpu.fabric.manager_ok", switches=switches, simulated=simulated)


def _in_fabric(gpu: Gpu) -> bool:
    return gpu.health.fabric_state == "Completed" and gpu.health.fabric_status in {"", "Success"}


def _manager_fault(scene: Scene, manager: FabricManager) -> Verdict | None:
    """NVLink switches require a running fabric manager of exactly the driver's version."""
    if manager.unit != "active":
        return fail("gpu.fabric.manager_not_active", switches=manager.switches, state=manager.unit or "not installed")
    packages = {} if isinstance(scene.facts.packages, Unknown) else scene.facts.packages
    drivers = {gpu.driver for gpu in _gpus(scene)}
    for version in _managers(Same(packages)):
        if (bare := version.rpartition(":")[2].partition("-")[0]) not in drivers:
            return fail("gpu.fabric.manager_version", version=bare, drivers=sorted(drivers))
    return None


@lru_cache(maxsize=16)
def _managers(packages: Same[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the versions of fabric managers; nodes with the same packages share the result."""
    return tuple(version for name, version in packages.it.items() if _MANAGER.fullmatch(name))


@check("gpu.pcie_width", after="gpu.driver")
def _pcie_width(scene: Scene) -> Verdict:
    gpus, simulated = _gpus(scene), scene.simulated(*_SMI)
    if not gpus:
        return skip("gpu.none")
    seen = () if isinstance(scene.facts.pci_links, Unknown) else scene.facts.pci_links
    links = {slot_of(link.address): link for link in seen if link.gpu}
    widths = {gpu.index: _width(gpu, links.get(slot_of(gpu.bus_id))) for gpu in gpus}
    reported = {number: width for number, width in widths.items() if width is not None}
    if not reported:
        return skip("gpu.pcie_width.not_reported", simulated=simulated)
    narrow = {number: pair for number, pair in reported.items() if pair[0] < pair[1]}
    if not narrow:
        widths_now = sorted({now for now, _ in reported.values()})
        return passed("gpu.pcie_width.ok", lanes=widths_now, simulated=simulated)
    narrow_links = [
        reason("gpu.pcie_width.lanes", gpu=number, lanes=now, possible=most) for number, (now, most) in narrow.items()
    ]
    differs = len(narrow) < len(reported) or all(links.get(slot_of(gpu.bus_id)) for gpu in gpus if gpu.index in narrow)
    if differs and not virtual(scene):
        return fail("gpu.pcie_width.narrow", gpus=narrow_links, simulated=simulated)
    return warn("gpu.pcie_width.maybe_narrow", gpus=narrow_links, simulated=simulated)


def _width(gpu: Gpu, link: PciLink | None) -> tuple[int, int] | None:
    """Return the current lanes, and those that card and slot support; only sysfs knows the slot."""
    if link and link.width and link.expected_width:
        return link.width, link.expected_width
    now, most = gpu.health.pcie_width, gpu.health.pcie_width_max
    return (now, most) if now and most else None


@check("gpu.throttle", after="gpu.driver")
def _throttle(scene: Scene) -> Verdict:
    gpus, simulated = _gpus(scene), scene.simulated(*_SMI)
    reporting = [gpu for gpu in gpus if gpu.health.clock_events is not None]
    if not reporting:
        return skip("gpu.throttle.not_reported" if gpus else "gpu.none")
    limits = {gpu.index: _limits(gpu.health.clock_events or 0) for gpu in reporting}
    for fails, verdict in ((True, fail), (False, warn)):
        causes: dict[ClockEvent, list[int]] = defaultdict(list)
        for number, events in limits.items():
            for event in events:
                if event.fails is fails:
                    causes[event].append(number)
        if causes:
            return verdict(
                "gpu.throttle.slowed",
                simulated=simulated,
                causes=[reason("gpu.throttle.cause", cause=event.text, gpus=gpus_) for event, gpus_ in causes.items()],
                advice=dict.fromkeys(event.remedy for event in causes),
            )
    return passed("gpu.throttle.ok", simulated=simulated)


def _limits(bits: int) -> list[ClockEvent]:
    """Return what limits the clocks, without the general bit if another one names the cause."""
    events = [event for event in CLOCK_EVENTS if event.bit & bits]
    return [event for event in events if not event.general or not any(e.fails and not e.general for e in events)]
