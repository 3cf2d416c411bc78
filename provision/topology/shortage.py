"""The GPUs that a job may use, and the reason why a job does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from provision.topology.candidates import Candidate
from provision.topology.placement import Request

_MAX_SHOWN = 8


def offered(candidate: Candidate, request: Request) -> frozenset[int]:
    """Return the indices of the GPUs of a node that the job may use."""
    if candidate.mode is not None and candidate.mode is not request.mode:
        return frozenset()
    free = frozenset(gpu.index for gpu in candidate.machine.topology.gpus) - candidate.busy - candidate.faulty
    return free if request.takes_mig else free - candidate.mig


def shortage(candidates: Sequence[Candidate], request: Request) -> str:
    """Return why the job does not fit: missing workers, free GPUs per node, and the largest job that would fit."""
    free = {candidate.name: len(offered(candidate, request)) for candidate in candidates}
    limit = request.most_per_node
    worker_slots = [min(count // request.gpus, limit or count) for count in free.values()]
    most = _max_uniform_workers(worker_slots) if request.uniform else sum(worker_slots)
    missing = request.workers - most
    gang = "a job needs all its workers at once"
    if missing > 0:
        lack = f"insufficient GPUs for {missing} of {_count(request.workers, 'worker')}; {gang}"
    else:
        lack = f"no equal number of workers per node adds up to {request.workers}; {gang}"
    per_node = f", at most {_count(limit, 'worker')} on a node" if limit else ""
    parts = (lack, f"a worker uses {_count(request.gpus, 'GPU')} of one node{per_node}", f"free: {_free(free)}")
    largest = (
        f"the largest job that fits now has {_count(most, 'worker')}" if most else "no job of such workers fits now"
    )
    return "; ".join([*parts, largest, *_excluded(candidates, request)])


def _max_uniform_workers(worker_slots: Sequence[int]) -> int:
    """Return the workers of the largest job with the same number on every node."""
    sizes = range(1, max(worker_slots, default=0) + 1)
    return max((size * sum(count >= size for count in worker_slots) for size in sizes), default=0)


def _free(free: dict[str, int]) -> str:
    some = sorted((name for name, count in free.items() if count), key=lambda name: -free[name])
    if not some:
        return "nothing"
    shown = ", ".join(f"{name} {free[name]}" for name in some[:_MAX_SHOWN])
    others = sum(free[name] for name in some[_MAX_SHOWN:])
    return f"{shown} and {others} more on {_count(len(some) - _MAX_SHOWN, 'node')}" if others else shown


def _excluded(candidates: Sequence[Candidate], request: Request) -> Iterator[str]:
    """Yield the GPUs that are excluded from this job, with the reason."""
    other = [c for c in candidates if c.mode not in {None, request.mode}]
    if other:
        modes = ", ".join(f"{c.name} {c.mode}" for c in other[:_MAX_SHOWN])
        more = f" and {len(other) - _MAX_SHOWN} more" if len(other) > _MAX_SHOWN else ""
        yield f"excluded because their mode is not {request.mode}: {modes}{more}"
    broken = [c for c in candidates if c not in other and c.faulty]
    if broken:
        yield f"faulty: {', '.join(f'{c.name} {len(c.faulty)}' for c in broken[:_MAX_SHOWN])}"
    cut = [c for c in candidates if c not in other and c.mig and not request.takes_mig]
    if cut:
        shown = ", ".join(f"{c.name} {len(c.mig)}" for c in cut[:_MAX_SHOWN])
        yield f"in MIG mode, available only to single shared GPUs: {shown}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
