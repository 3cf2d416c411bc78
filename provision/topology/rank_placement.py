"""Placements of ranks: one rank per GPU, in the order of the rings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from provision.model import NodePlacement, RankPlacement
from provision.topology.placement import Placement, Places, Worker

_MAX_CPUS = 1 << 16


def node_placements(placement: Placement, places: Places) -> tuple[NodePlacement, ...]:
    """Return the nodes with their ranks, in rank order; the workers of a node are merged."""
    ranks_by_node: dict[str, list[RankPlacement]] = {}
    for worker in placement.workers:
        ranks_by_node.setdefault(worker.node, []).extend(rank_placements(worker, places))
    return tuple(NodePlacement(node, ranks=tuple(ranks)) for node, ranks in ranks_by_node.items())


def rank_placements(worker: Worker, places: Places) -> list[RankPlacement]:
    """Return the GPU, network cards, CPUs and NUMA node of each rank of a worker."""
    machines = (node.machine for node in places.candidates if node.name == worker.node)
    gpu_by_index = {gpu.index: gpu for machine in machines for gpu in machine.topology.gpus}
    return [
        RankPlacement(
            (str(index),),
            worker.nics,
            _cpus(gpu_by_index[index].cpus if index in gpu_by_index else ()),
            gpu_by_index[index].numa if index in gpu_by_index else None,
        )
        for index in worker.order
    ]


def _cpus(affinity: Sequence[str]) -> tuple[int, ...]:
    """Return the CPU numbers in ``("0-19", "40-59")``; none if the text is not a list of CPUs."""
    cpus: list[int] = []
    for part in affinity:
        ends = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip(), re.ASCII)
        if ends is None or int(ends[2] or ends[1]) >= _MAX_CPUS:
            return ()
        cpus += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    return tuple(cpus)
