"""The GPUs that a job may use, and the reason why a job does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from provision.model.reason import Reason, reason
from provision.topology.candidates import Candidate
from provision.topology.placement import Request

_MAX_NODES = 8
"""The most nodes that a reason names."""


def offered(candidate: Candidate, request: Request) -> frozenset[int]:
    """Return the indices of the GPUs of a node that the job may use."""
    if candidate.mode is not None and candidate.mode is not request.mode:
        return frozenset()
    free = frozenset(gpu.index for gpu in candidate.machine.topology.gpus) - candidate.busy - candidate.faulty
    return free if request.takes_mig else free - candidate.mig


def shortage(candidates: Sequence[Candidate], request: Request) -> Reason:
    """Return why the job does not fit: missing workers, free GPUs per node, and the largest job that would fit."""
    free = {candidate.name: len(offered(candidate, request)) for candidate in candidates}
    limit = request.most_per_node
    worker_slots = [min(count // request.gpus, limit or count) for count in free.values()]
    most = _max_uniform_workers(worker_slots) if request.uniform else sum(worker_slots)
    missing = request.workers - most
    some = sorted((name for name, count in free.items() if count), key=lambda name: -free[name])
    others = some[_MAX_NODES:]
    return reason(
        "placement.insufficient_gpus" if missing > 0 else "placement.no_uniform_distribution",
        missing=max(missing, 0),
        workers=request.workers,
        gpus=request.gpus,
        max_per_node=limit or None,
        free=_gpus_of_nodes(free, some) if some else reason("placement.none_free"),
        more=sum(free[name] for name in others) or None,
        more_nodes=len(others),
        largest=reason("placement.largest_job", workers=most) if most else reason("placement.no_such_job"),
        excluded=_excluded(candidates, request),
    )


def _max_uniform_workers(worker_slots: Sequence[int]) -> int:
    """Return the workers of the largest job with the same number on every node."""
    sizes = range(1, max(worker_slots, default=0) + 1)
    return max((size * sum(count >= size for count in worker_slots) for size in sizes), default=0)


def _gpus_of_nodes(counts: Mapping[str, int], names: Sequence[str]) -> tuple[Reason, ...]:
    return tuple(reason("placement.gpus_of_node", name=name, gpus=counts[name]) for name in names[:_MAX_NODES])


def _excluded(candidates: Sequence[Candidate], request: Request) -> Iterator[Reason]:
    """Yield the GPUs that are excluded from this job, with the reason."""
    other = [c for c in candidates if c.mode not in {None, request.mode}]
    if other:
        modes = [reason("placement.mode_of_node", name=c.name, mode=str(c.mode)) for c in other[:_MAX_NODES]]
        more = max(len(other) - _MAX_NODES, 0) or None
        yield reason("placement.mode_differs", mode=str(request.mode), nodes=modes, more=more)
    broken = {c.name: len(c.faulty) for c in candidates if c not in other and c.faulty}
    if broken:
        yield reason("placement.gpu_faulty", nodes=_gpus_of_nodes(broken, list(broken)))
    cut = {c.name: len(c.mig) for c in candidates if c not in other and c.mig and not request.takes_mig}
    if cut:
        yield reason("placement.mig", nodes=_gpus_of_nodes(cut, list(cut)))
