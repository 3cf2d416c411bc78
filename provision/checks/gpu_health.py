"""The health of GPUs, from what the driver and the PCI bus say; gpu_xid.py reads the kernel's log."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from provision.checks.base import check
from provision.checks.health_limits import CLOCK_EVENTS, RESET, ClockEvent
from provision.checks.wording import few, slot_of
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import Unknown
from provision.facts.gpu import Gpu
from provision.facts.nvlink import FabricManager, Links
from provision.facts.pci_links import PciLink
from provision.facts.system import NodeKind
from provision.model import Same

__all__ = ["BASEBOARD", "virtual"]

_SMI = ("nvidia-smi",)
_NO_GPU = "the node has no GPU"
BASEBOARD = re.compile(r"SXM|HBM3$|HBM3e|[BH]\d00$|H20$")
"""Products on a baseboard that wires every link; PCIe cards have links only where somebody put a bridge."""
_MANAGER = re.compile(r"nvidia-fabric-?manager(-\d+)?")
_MEMORY_REPLACE = "Have the GPU replaced: it has no spare memory left to heal with."


def _gpus(scene: Scene) -> tuple[Gpu, ...]:
    return known(scene.facts.gpus)


def _named(numbers: Iterable[int]) -> str:
    shown = [str(number) for number in numbers]
    return f"GPU {', '.join(shown)}" if shown else ""


def _which(gpus: Sequence[Gpu], wrong: Callable[[Gpu], object]) -> list[int]:
    return [gpu.index for gpu in gpus if wrong(gpu)]


def _reset(numbers: Sequence[int]) -> str:
    return RESET.format(gpu=",".join(str(number) for number in numbers))


@check("gpu.state", after="gpu.driver")
def _state(scene: Scene) -> Verdict:
    gpus, simulated = _gpus(scene), scene.simulated(*_SMI)
    if not gpus:
        return skip(_NO_GPU)
    complaining = [f"GPU {gpu.index}: {', '.join(gpu.health.complaints)}" for gpu in gpus if gpu.health.complaints]
    if complaining:
        numbers = _which(gpus, lambda gpu: gpu.health.complaints)
        return fail(
            f"in place of values the driver says {'; '.join(complaining)}", _reset(numbers), simulated=simulated
        )
    wanted = [gpu for gpu in gpus if gpu.health.recovery not in {"", "None"}]
    if wanted:
        shown = ", ".join(f"{gpu.health.recovery} (GPU {gpu.index})" for gpu in wanted)
        reboot = any("reboot" in gpu.health.recovery.lower() for gpu in wanted)
        remedy = "End the jobs, then reboot the node." if reboot else _reset([gpu.index for gpu in wanted])
        return fail(f"the driver asks for a recovery: {shown}", remedy, simulated=simulated)
    told = sum(bool(gpu.health.recovery) for gpu in gpus)
    word = "and ask for no recovery" if told else "(this driver does not say whether it wants a recovery)"
    return passed(f"{len(gpus)} GPUs answer {word}", simulated=simulated)


@check("gpu.ecc", after="gpu.driver")
def _ecc(scene: Scene) -> Verdict:
    gpus, simulated = _gpus(scene), scene.simulated(*_SMI)
    if not any(gpu.health.ecc is not None or gpu.health.uncorrected is not None for gpu in gpus):
        return skip("no GPU here has ECC or tells of it" if gpus else _NO_GPU)
    worn = _which(gpus, lambda gpu: gpu.health.sram_threshold_exceeded)
    if worn:
        return fail(
            f"too many uncorrected errors in on-chip memory: {_named(worn)}", _MEMORY_REPLACE, simulated=simulated
        )
    bad = [gpu for gpu in gpus if gpu.health.uncorrected]
    if bad:
        shown = ", ".join(f"{gpu.health.uncorrected} (GPU {gpu.index})" for gpu in bad)
        remedy = f"{_reset([gpu.index for gpu in bad])} If they come back, run dcgmi diag -r 3."
        return fail(f"uncorrected memory errors since the last reset: {shown}", remedy, simulated=simulated)
    off = _which(gpus, lambda gpu: gpu.health.ecc is False or gpu.health.ecc_pending is False)
    if off:
        return warn(
            f"ECC is switched off, or will be at the next reset: {_named(off)}",
            "Switch it on (nvidia-smi -e 1) and reboot, unless it is off on purpose.",
            simulated=simulated,
        )
    ever = [f"{gpu.health.uncorrected_ever} (GPU {gpu.index})" for gpu in gpus if gpu.health.uncorrected_ever]
    past = f"; in their lives: {', '.join(ever)}" if ever else ""
    return passed(f"no uncorrected memory error since the last reset{past}", simulated=simulated)


@check("gpu.row_remap", after="gpu.driver")
def _row_remap(scene: Scene) -> Verdict:
    gpus, simulated = _gpus(scene), scene.simulated(*_SMI)
    if not gpus:
        return skip(_NO_GPU)
    failed = _which(gpus, lambda gpu: gpu.health.rows_failure)
    if failed:
        return fail(f"a bad memory row could not be replaced: {_named(failed)}", _MEMORY_REPLACE, simulated=simulated)
    pending = _which(gpus, lambda gpu: gpu.health.rows_pending or gpu.health.pages_pending)
    if pending:
        return fail(
            f"a bad piece of memory waits for a reset to be replaced, and is in use until then: {_named(pending)}",
            _reset(pending),
            simulated=simulated,
        )
    if all(gpu.health.rows_pending is None and gpu.health.pages_pending is None for gpu in gpus):
        return skip("no GPU here tells of replaced memory (product, driver, MIG or virtual GPU)", simulated=simulated)
    replaced = [f"{gpu.health.rows_uncorrectable} (GPU {gpu.index})" for gpu in gpus if gpu.health.rows_uncorrectable]
    past = f"; replaced after uncorrected errors: {', '.join(replaced)}" if replaced else ""
    return passed(f"no memory waits to be replaced{past}", simulated=simulated)


@check("gpu.nvlink", after="gpu.driver")
def _nvlink(scene: Scene) -> Verdict:
    gpus, simulated = _gpus(scene), scene.simulated(*_SMI)
    links = known(scene.facts.nvlinks)
    judged = [gpu for gpu in gpus if not gpu.health.mig]
    counts = {gpu.index: links.get(gpu.index, Links(0)) for gpu in judged}
    wired = [gpu.index for gpu in judged if BASEBOARD.search(gpu.name) and len(judged) > 1]
    most = max((link.active for link in counts.values()), default=0)
    if not most and not wired:
        return skip("no GPU here has an NVLink in use" if gpus else _NO_GPU, simulated=simulated)
    remedy = "Look at dmesg for NVLink errors (Xid 74, 144-150) and at the fabric manager, then reset all GPUs."
    down = {
        number: link for number, link in counts.items()
        if link.active < most and (number in wired or (link.active and link.inactive))
    }  # fmt: skip
    if down:
        text = "NVLinks are down: " + "; ".join(_links(number, link, most) for number, link in down.items())
        if virtual(scene):
            return warn(f"{text} (a virtual machine may have been given it so)", remedy, simulated=simulated)
        return fail(text, remedy, simulated=simulated)
    unused = {number: link for number, link in counts.items() if link.inactive and (link.active or number in wired)}
    if (unused or (wired and not most)) and not virtual(scene):
        missing = max((len(link.inactive) for link in unused.values()), default=0)
        told = f"{missing} of {most + missing} NVLinks of every GPU are down" if missing else "no GPU has an NVLink up"
        return warn(told, f"{remedy} If the baseboard wires no more, nothing is wrong.", simulated=simulated)
    return passed(f"up to {most} NVLinks a GPU, none of them down", simulated=simulated)


def _links(number: int, link: Links, most: int) -> str:
    listed = f" (down: {', '.join(str(n) for n in link.inactive)})" if link.inactive else ""
    return f"GPU {number} has {link.active} of {most}{listed}"


def virtual(scene: Scene) -> bool:
    """Return whether a hypervisor, or a container, decides what the node sees of its GPUs; never so for stand-ins."""
    kind = scene.facts.kind
    return not isinstance(kind, Unknown) and kind.kind is not NodeKind.METAL and not scene.simulated(*_SMI)


@check("gpu.fabric", after="gpu.driver")
def _fabric(scene: Scene) -> Verdict:
    gpus, simulated = _gpus(scene), scene.simulated(*_SMI)
    manager = scene.facts.fabric_manager
    switches = 0 if isinstance(manager, Unknown) else manager.switches
    joined = [gpu for gpu in gpus if gpu.health.fabric_state]
    if not gpus or (not joined and not switches):
        return skip("the GPUs here join no NVLink fabric" if gpus else _NO_GPU)
    fault = _manager_fault(scene, manager) if isinstance(manager, FabricManager) and switches else None
    if fault:
        return fault
    remedy = "See why: journalctl -u nvidia-fabricmanager -n 50 (on B200 and later also nvlsm and ib_umad)."
    joining = _which(joined, lambda gpu: gpu.health.fabric_state == "In Progress")
    broken = [gpu for gpu in joined if gpu.index not in joining and not _in_fabric(gpu)]
    if broken:
        states = {gpu.index: f"{gpu.health.fabric_state} {gpu.health.fabric_status}".strip() for gpu in broken}
        shown = few([f"GPU {number} says {state}" for number, state in states.items()])
        return fail(f"GPUs have not joined the NVLink fabric: {shown}", remedy, simulated=simulated)
    if joining:
        text = f"GPUs are joining the NVLink fabric: {_named(joining)}"
        return warn(text, f"Wait a few minutes and verify again; else: {remedy}", simulated=simulated)
    if joined:
        return passed(f"{len(joined)} GPUs have joined the NVLink fabric", simulated=simulated)
    return passed(f"nvidia-fabricmanager serves {switches} NVLink switches", simulated=simulated)


def _in_fabric(gpu: Gpu) -> bool:
    return gpu.health.fabric_state == "Completed" and gpu.health.fabric_status in {"", "Success"}


def _manager_fault(scene: Scene, manager: FabricManager) -> Verdict | None:
    """A switch works only with a fabric manager that runs and is of the driver's very version."""
    if manager.unit != "active":
        return fail(
            f"{manager.switches} NVLink switches, but nvidia-fabricmanager is {manager.unit or 'not there'}: "
            "CUDA programs end with error 802",
            "Install the fabric manager of the driver's very version, and start it: "
            "systemctl enable --now nvidia-fabricmanager",
        )
    packages = {} if isinstance(scene.facts.packages, Unknown) else scene.facts.packages
    drivers = {gpu.driver for gpu in _gpus(scene)}
    for version in _managers(Same(packages)):
        if (bare := version.rpartition(":")[2].partition("-")[0]) not in drivers:
            return fail(
                f"the fabric manager is {bare}, the driver {', '.join(sorted(drivers))}",
                "Install the fabric manager of the driver's very version, and restart it.",
            )
    return None


@lru_cache(maxsize=16)
def _managers(packages: Same[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the versions of fabric managers; nodes with the same packages share the answer."""
    return tuple(version for name, version in packages.it.items() if _MANAGER.fullmatch(name))


@check("gpu.pcie_width", after="gpu.driver")
def _pcie_width(scene: Scene) -> Verdict:
    gpus, simulated = _gpus(scene), scene.simulated(*_SMI)
    if not gpus:
        return skip(_NO_GPU)
    seen = () if isinstance(scene.facts.pci_links, Unknown) else scene.facts.pci_links
    links = {slot_of(link.address): link for link in seen if link.gpu}
    widths = {gpu.index: _width(gpu, links.get(slot_of(gpu.bus_id))) for gpu in gpus}
    told = {number: width for number, width in widths.items() if width is not None}
    if not told:
        return skip("nobody tells how wide the GPUs' PCIe links are", simulated=simulated)
    narrow = {number: pair for number, pair in told.items() if pair[0] < pair[1]}
    if not narrow:
        shown = "/".join(f"x{width}" for width in sorted({now for now, _ in told.values()}))
        return passed(f"PCIe links are as wide as they can be: {shown}", simulated=simulated)
    text = few([f"GPU {number} has {now} of {most} lanes" for number, (now, most) in narrow.items()])
    alone = len(narrow) < len(told) or all(links.get(slot_of(gpu.bus_id)) for gpu in gpus if gpu.index in narrow)
    remedy = "Reseat the GPU or its riser, and look at dmesg for PCIe errors (AER)."
    if alone and not virtual(scene):
        return fail(f"PCIe links are narrower than they can be: {text}", remedy, simulated=simulated)
    return warn(
        f"PCIe links are narrower than the GPUs can: {text}",
        f"If their slots have no more lanes, or the hypervisor gives no more, nothing is wrong. Else: {remedy}",
        simulated=simulated,
    )


def _width(gpu: Gpu, link: PciLink | None) -> tuple[int, int] | None:
    """Lanes now, and lanes that card and slot can both do; sysfs knows the slot, the driver knows the card alone."""
    if link and link.width and link.expected_width:
        return link.width, link.expected_width
    now, most = gpu.health.pcie_width, gpu.health.pcie_width_max
    return (now, most) if now and most else None


@check("gpu.throttle", after="gpu.driver")
def _throttle(scene: Scene) -> Verdict:
    gpus, simulated = _gpus(scene), scene.simulated(*_SMI)
    told = [gpu for gpu in gpus if gpu.health.clock_events is not None]
    if not told:
        return skip("no GPU here tells what holds its clocks down" if gpus else _NO_GPU)
    held = {gpu.index: _held(gpu.health.clock_events or 0) for gpu in told}
    for fails, verdict in ((True, fail), (False, warn)):
        found: dict[ClockEvent, list[int]] = defaultdict(list)
        for number, events in held.items():
            for event in events:
                if event.fails is fails:
                    found[event].append(number)
        if found:
            shown = "; ".join(f"{event.text} ({_named(numbers)})" for event, numbers in found.items())
            remedy = " ".join(dict.fromkeys(event.remedy for event in found))
            return verdict(f"clocks are held down: {shown}", remedy, simulated=simulated)
    return passed("nothing but idleness, power caps or settings holds the clocks down", simulated=simulated)


def _held(bits: int) -> list[ClockEvent]:
    """What holds the clocks down; the general bit says nothing beside those that name the cause."""
    events = [event for event in CLOCK_EVENTS if event.bit & bits]
    return [event for event in events if not event.general or not any(e.fails and not e.general for e in events)]
