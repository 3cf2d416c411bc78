"""The links between GPUs, as a whole: gpu_health.py counts each GPU's own."""

from __future__ import annotations

from provision.checks.base import check
from provision.checks.gpu_health import BASEBOARD, virtual
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import Unknown
from provision.facts.gpu import Gpu
from provision.facts.topology import NOT_REQUESTED
from provision.topology.faults import Fault, find_faults
from provision.topology.summary import summary


@check("gpu.topology", after="gpu.nvlink")
def _topology(scene: Scene) -> Verdict:
    gpus, topology, simulated = known(scene.facts.gpus), scene.facts.topology, scene.simulated("nvidia-smi")
    if not gpus:
        return skip("gpu.none")
    if topology == NOT_REQUESTED:
        return skip("gpu.topology.not_requested")
    if isinstance(topology, Unknown):
        return warn("gpu.topology.unreadable", cause=topology.reason, simulated=simulated)
    partitioned = {gpu.index for gpu in gpus if gpu.health.mig}  # they have no NVLink
    faults = [fault for fault in find_faults(topology) if not fault.gpus or not set(fault.gpus) <= partitioned]
    if not faults:
        return passed("gpu.topology.ok", summary=summary(topology), simulated=simulated)
    reasons = [fault.reason for fault in faults]
    affected = sorted({index for fault in faults for index in fault.gpus})
    avoid = affected if len(affected) < len(gpus) else ()
    if virtual(scene):
        return warn("gpu.topology.faults_virtual", faults=reasons, gpus=avoid, simulated=simulated)
    judge = fail if any(_certain(fault, gpus) for fault in faults) else warn
    return judge("gpu.topology.faults", faults=reasons, gpus=avoid, simulated=simulated)


def _certain(fault: Fault, gpus: tuple[Gpu, ...]) -> bool:
    """A bridge explains differences between cards, but not on a baseboard, which wires all GPUs alike."""
    names = [gpu.name for gpu in gpus if gpu.index in fault.gpus]
    return fault.certain or (bool(names) and all(BASEBOARD.search(name) for name in names))
