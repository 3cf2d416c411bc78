"""The links between GPUs, as a whole: gpu_health.py counts each GPU's own."""

from __future__ import annotations

from provision.checks.base import check
from provision.checks.gpu_health import BASEBOARD, virtual
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import Unknown
from provision.facts.gpu import Gpu
from provision.topology.faults import Fault, find_faults
from provision.topology.summary import summary

__all__: list[str] = []

_LOOK = "Compare nvidia-smi topo -m with nvidia-smi nvlink --status"
_REMEDY = f"{_LOOK}, look at dmesg for NVLink and PCIe errors and at the fabric manager, then reset all GPUs."


@check("gpu.topology", after="gpu.nvlink")
def _topology(scene: Scene) -> Verdict:
    gpus, found, simulated = known(scene.facts.gpus), scene.facts.topology, scene.simulated("nvidia-smi")
    if not gpus:
        return skip("the node has no GPU")
    if isinstance(found, Unknown):
        if found.reason.startswith("not asked for"):
            return skip(found.reason)
        return warn(
            f"how the GPUs are linked is not known: {found.reason}",
            "Run nvidia-smi topo -m on the node to see what it prints.",
            simulated=simulated,
        )
    partitioned = {gpu.index for gpu in gpus if gpu.health.mig}  # they have no NVLink, and need none
    faults = [fault for fault in find_faults(found) if not fault.gpus or not set(fault.gpus) <= partitioned]
    if not faults:
        return passed(summary(found), simulated=simulated)
    text = "; ".join(fault.text for fault in faults)
    hurt = sorted({index for fault in faults for index in fault.gpus})
    spare = f" Until then give jobs no GPU {', '.join(map(str, hurt))}." if hurt and len(hurt) < len(gpus) else ""
    if virtual(scene):
        return warn(f"{text} (a virtual machine may have been given it so)", _REMEDY + spare, simulated=simulated)
    judge = fail if any(_certain(fault, gpus) for fault in faults) else warn
    return judge(text, _REMEDY + spare, simulated=simulated)


def _certain(fault: Fault, gpus: tuple[Gpu, ...]) -> bool:
    """A baseboard wires all GPUs alike, so that what may be a bridge's doing among cards is none there."""
    names = [gpu.name for gpu in gpus if gpu.index in fault.gpus]
    return fault.certain or (bool(names) and all(BASEBOARD.search(name) for name in names))
