"""Choice of nodes and exact GPUs for jobs with --gputopology, which Slurm allocates by a type of each GPU.

The planner is that of `provision place`. One request for GPUs holds for all nodes of a job in Slurm, so a choice has
the same GPUs, by minor number, on each of its nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from provision.batch.slurm.states import SlurmJob, SlurmNodeState, gpu_types, used_minors
from provision.jobs.engines.common.placement import mode_of
from provision.model.job import JobSpec
from provision.model.reason import Reason
from provision.topology.candidates import Candidate
from provision.topology.placement import Placement, Request
from provision.topology.select import place
from provision.topology.shortage import offered

_MOST_SETS = 8
"""The number of sets of GPUs that are tried on all nodes."""

Minors = Mapping[str, frozenset[int]]
"""Node in Slurm -> minor numbers of GPUs."""


@dataclass(frozen=True)
class PlanNode:
    """A node that a job may get."""

    slurm: str
    """Its name in Slurm."""
    candidate: Candidate
    minors: Mapping[int, int]
    """Index of nvidia-smi -> minor number, for the GPUs that have a type of their own in Slurm."""


@dataclass(frozen=True)
class Choice:
    """Nodes of a job, and its GPUs on each of them."""

    nodes: tuple[str, ...]
    """Names in Slurm."""
    minors: tuple[int, ...]
    """The same on each node."""
    workers: int
    """On each node."""
    is_free: bool
    """Whether all of them are free now, so that the job can start."""

    def matches(self, job: SlurmJob) -> bool:
        """Return whether a job in Slurm waits for the same nodes and GPUs; exclusive jobs name no GPUs."""
        same_gpus = not job.required_minors or job.required_minors == set(self.minors)
        return same_gpus and sorted(self.nodes) == sorted(job.required_nodes)


def taken_gpus(
    states: Mapping[str, SlurmNodeState], jobs: Iterable[SlurmJob]
) -> tuple[dict[str, frozenset[int]], set[int]]:
    """Return the GPUs of each node that are used or about to be, and the jobs whose chosen GPUs are not free.

    A waiting job whose chosen GPUs are free starts soon, so they are taken.
    """
    taken = {name: used_minors(state.gres_used) for name, state in states.items()}
    stale: set[int] = set()
    for job in sorted(jobs, key=lambda one: one.number):
        if not job.required_nodes or not job.awaits_nodes:
            continue
        if all(_is_free(job, states.get(name), taken.get(name, frozenset())) for name in job.required_nodes):
            for name in job.required_nodes:
                taken[name] |= job.required_minors or gpu_types(states[name].gres)
        else:
            stale.add(job.number)
    return taken, stale


def _is_free(job: SlurmJob, state: SlurmNodeState | None, taken: frozenset[int]) -> bool:
    if state is None or state.problem.code:
        return False
    return not (taken & job.required_minors if job.required_minors else taken)


def choose(spec: JobSpec, nodes: Sequence[PlanNode], taken: Minors, down: Collection[str]) -> Choice | Reason:
    """Return the best GPUs that are free now, else those for which the job waits, or why it can never start.

    Args:
        spec: the job.
        nodes: the nodes that it may get.
        taken: GPUs that it cannot get now.
        down: nodes in Slurm that take no jobs now.
    """
    up = [node for node in nodes if node.slurm not in down]
    counts = (spec.workers,) if spec.gang else range(spec.workers, 0, -1)
    for usable, busy, is_free in ((up, taken, True), (up, {}, False), (nodes, {}, False)):
        for workers in counts:
            choice = _choice(replace(spec, workers=workers), usable, busy)
            if choice is not None:
                return replace(choice, is_free=is_free)
    return _plan(spec, nodes, {}, None).reason


def _choice(spec: JobSpec, nodes: Sequence[PlanNode], taken: Minors) -> Choice | None:
    """Return the best choice without GPUs that are taken; None if there is none.

    The planner may choose other GPUs on each node. Then it chooses again among those of one node, on all nodes.
    """
    first = _plan(spec, nodes, taken, None)
    sets = list(dict.fromkeys(_sets(first, nodes).values()))
    options = [first] if len(sets) == 1 else []
    if len(sets) > 1:
        tried = (_narrowed(spec, nodes, taken, some) for some in (None, *sets[:_MOST_SETS]))
        options = [option for option in tried if option is not None]
    if not options:
        return None
    best = min(options, key=lambda option: option.key.order(pack=False) if option.key is not None else ())
    by_name = {node.candidate.name: node.slurm for node in nodes}
    minors = tuple(sorted(next(iter(_sets(best, nodes).values()))))
    return Choice(tuple(by_name[name] for name in best.nodes), minors, spec.workers // len(best.nodes), is_free=True)


def _narrowed(spec: JobSpec, nodes: Sequence[PlanNode], taken: Minors, only: frozenset[int] | None) -> Placement | None:
    """Return a placement with the same GPUs on each node, among the GPUs `only`; None if the planner has none.

    While they differ, the choice is narrowed to the GPUs that are free on all nodes of the placement.
    """
    while True:
        placement = _plan(spec, nodes, taken, only)
        if not placement.fits:
            return None
        if len(set(_sets(placement, nodes).values())) == 1:
            return placement
        free = [_free(spec, node, taken, only) for node in nodes if node.candidate.name in placement.nodes]
        common = frozenset.intersection(*free)
        if common == only:
            return None
        only = common


def _plan(spec: JobSpec, nodes: Sequence[PlanNode], taken: Minors, only: frozenset[int] | None) -> Placement:
    candidates = [_candidate(spec, node, taken, only) for node in nodes]
    placement = None
    for request in _requests(spec):
        placement = place(candidates, request)
        if placement.fits:
            break
    assert placement is not None  # noqa: S101 # nosec B101 # there is a request for each job
    return placement


def _requests(spec: JobSpec) -> Iterator[Request]:
    """Yield the requests of a job for the planner; with --spread, those for few workers on each node first."""
    counts = range(1, (spec.max_per_node or spec.workers) + 1) if spec.spread else ()
    for limit in [count for count in counts if spec.workers % count == 0] or [spec.max_per_node]:
        yield Request(spec.gpus, spec.workers, uniform=True, most_per_node=limit, mode=mode_of(spec))


def _candidate(spec: JobSpec, node: PlanNode, taken: Minors, only: frozenset[int] | None) -> Candidate:
    """Return a node without the GPUs that the job cannot get."""
    busy, every = taken.get(node.slurm, frozenset()), {gpu.index for gpu in node.candidate.machine.topology.gpus}
    if spec.exclusive and busy:
        return replace(node.candidate, busy=frozenset(every))
    usable = {index for index, minor in node.minors.items() if minor not in busy and (only is None or minor in only)}
    return replace(node.candidate, busy=frozenset(every - usable))


def _free(spec: JobSpec, node: PlanNode, taken: Minors, only: frozenset[int] | None) -> frozenset[int]:
    request = next(_requests(spec))
    return frozenset(node.minors[index] for index in offered(_candidate(spec, node, taken, only), request))


def _sets(placement: Placement, nodes: Sequence[PlanNode]) -> dict[str, frozenset[int]]:
    """Return node -> minor numbers of its GPUs in a placement."""
    minors = {node.candidate.name: node.minors for node in nodes}
    sets: dict[str, frozenset[int]] = {}
    for worker in placement.workers:
        own = frozenset(minors[worker.node][index] for index in worker.gpus)
        sets[worker.node] = sets.get(worker.node, frozenset()) | own
    return sets
