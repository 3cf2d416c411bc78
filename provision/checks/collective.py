"""The all-reduce over all nodes, against the bandwidth that the topology predicts."""

from __future__ import annotations

from provision.checks.base import cluster_check
from provision.checks.wording import few_names
from provision.components.check import ClusterScene, Verdict, fail, passed, warn
from provision.model import Collective

__all__: list[str] = []

_SHOWN = 6
_SLOW = (
    "Find the slow node or link: rdma_stack.bandwidth of the nodes, gpu.topology, gpu.pcie_width and peer_memory.path. "
    "See what NCCL uses: provision run --env NCCL_DEBUG=INFO -- all_reduce_perf -b 1G -e 1G | provision nccl-log - "
    "If the prediction is too high for these machines, set cluster_collective_fraction."
)
_WRONG = "Drain the nodes and test their GPUs, memory and links one by one: provision verify --level full --limit NODE"


@cluster_check("cluster.collective", collective=True)
def _collective(scene: ClusterScene) -> Verdict:
    found = scene.collective
    if found is None:
        raise AssertionError("judged only where an all-reduce was measured")
    if found.bus_bandwidth is None:
        said = f"nothing was measured: {found.reason}"
        return fail(said, found.remedy or _SLOW, simulated=found.simulated)
    if found.wrong:
        said = f"{found.wrong} elements of the sums are wrong ({_what(found)})"
        return fail(said, _WRONG, simulated=found.simulated)
    fraction = found.fraction
    reason = f"{_what(found)}; {_compared(found)}"
    if fraction is not None and fraction < found.minimum:
        return fail(reason, _SLOW)
    if found.left_out:
        reason += f"; left out: {_left_out(found)}"
        return warn(reason, "Run it again when these nodes are idle and sound.", simulated=found.simulated)
    if found.memory == "gpu" and fraction is None:
        return warn(reason, "Run: provision place --gpus 1 --workers 2 --explain", simulated=found.simulated)
    return passed(reason, simulated=found.simulated)


def _what(found: Collective) -> str:
    where = "GPU memory" if found.memory == "gpu" else "host memory"
    size = f"{found.size_bytes >> 20} MiB"
    return (
        f"all-reduce of {size} over {found.ranks} ranks on {few_names(found.nodes)} ({found.program}, {where}): "
        f"{found.bus_bandwidth:.4g} GB/s bus bandwidth"
    )


def _compared(found: Collective) -> str:
    if found.simulated:
        return "the GPUs are SIMULATED, so that this is no measurement of them"
    if found.fraction is not None:
        return f"{found.fraction:.0%} of the predicted {found.predicted:.4g} GB/s; {found.minimum:.0%} is required"
    return f"there is no prediction ({found.not_predicted or 'the nodes have no GPU'})"


def _left_out(found: Collective) -> str:
    return "; ".join(f"{name} ({reason})" for name, reason in list(found.left_out.items())[:_SHOWN])
