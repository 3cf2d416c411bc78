"""Placement of a job: nodes and GPUs for all workers or none."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from provision.batch.ranks import Place
from provision.errors import NeverFits, ProvisionError
from provision.jobs.cluster_snapshot import ClusterSnapshot
from provision.jobs.engines.common.node_probe import NodeProbe
from provision.launchers import launcher_of
from provision.model import Node
from provision.model.cluster import NO_JOBS
from provision.model.job import JobSpec
from provision.model.reason import NO_REASON, Reason, reason
from provision.report.reasons import error_of
from provision.topology.candidates import Candidate, Mode
from provision.topology.placement import Request, Worker
from provision.topology.select import place

_MAX_HOLDERS = 6
"""The most users of GPUs that a reason names."""


@dataclass(frozen=True)
class PlacementResult:
    """The places of the workers in rank order; without places, the reason."""

    places: tuple[Place, ...] = ()
    reason: Reason = NO_REASON
    """`job.insufficient_resources`, with the nodes that cannot be used now."""
    warnings: tuple[Reason, ...] = ()


def allowed(spec: JobSpec, nodes: Iterable[Node], excluded: Sequence[str] = ()) -> tuple[list[Node], dict[str, Reason]]:
    """Return the nodes that match the options of a job, and why the others do not.

    Raises:
        NeverFits: a named node is not in the inventory, or no node matches.
    """
    nodes = list(nodes)
    unknown = sorted({*spec.nodes, *spec.exclude} - {node.name for node in nodes})
    if unknown:
        raise error_of(NeverFits, reason("placement.unknown_node", nodes=unknown))
    good: list[Node] = []
    why: dict[str, Reason] = {}
    for node in nodes:
        labels = {**node.variables.get("cluster_labels", {})} if _labelled(node) else {}
        differing = [(key, value) for key, value in spec.selector.items() if str(labels.get(key)) != value]
        if not node.takes_jobs:
            why[node.name] = NO_JOBS
        elif spec.nodes and node.name not in spec.nodes:
            why[node.name] = reason("placement.not_named")
        elif node.name in spec.exclude:
            why[node.name] = reason("placement.excluded")
        elif differing:
            why[node.name] = reason("placement.label_missing", label=differing[0][0], value=differing[0][1])
        elif node.name in excluded:
            why[node.name] = reason("placement.attempt_failed")
        else:
            good.append(node)
    if not good and not set(why) & set(excluded):
        raise error_of(NeverFits, reason("placement.no_node_matches", nodes=_by_cause(why)))
    return good, why


def no_placement(
    cause: Reason,
    why: Mapping[str, Reason],
    to_set_up: Sequence[str] = (),
    nodes: int = 0,
    holders: Sequence[Reason] = (),
) -> Reason:
    """Return why a job cannot be placed now.

    Args:
        cause: what is missing.
        why: node -> why it is not used.
        to_set_up: nodes on which no container can be created.
        nodes: the number of nodes that answered; if all are to be set up, the remedy does not name them.
        holders: jobs and foreign processes that use GPUs which the job may use.
    """
    return reason(
        "job.insufficient_resources",
        cause=cause,
        nodes=_by_cause(why),
        to_set_up=to_set_up,
        limit=to_set_up if len(to_set_up) != nodes else (),
        holders=holders[:_MAX_HOLDERS],
        more_holders=max(len(holders) - _MAX_HOLDERS, 0) or None,
    )


def _by_cause(why: Mapping[str, Reason]) -> tuple[Reason, ...]:
    """Return one reason for all nodes with the same cause."""
    names_by_cause: dict[Reason, list[str]] = {}
    for name, cause in why.items():
        names_by_cause.setdefault(cause, []).append(name)
    return tuple(reason("placement.nodes", names=names, cause=cause) for cause, names in names_by_cause.items())


def _labelled(node: Node) -> bool:
    return isinstance(node.variables.get("cluster_labels"), Mapping)


def place_job(
    spec: JobSpec, snapshot: ClusterSnapshot, probes: Mapping[str, NodeProbe], names: Sequence[str]
) -> PlacementResult:
    """Choose the places of all workers now, among the nodes `names`; none if they do not all fit.

    Without gang scheduling, choose places for as many workers as fit, at least one, and warn about the others.

    Raises:
        NeverFits: they (without gang scheduling: one of them) would not fit on idle nodes either.
    """
    if spec.gang or spec.workers == 1:
        return _place_all(spec, snapshot, probes, names)
    complete = _place_all(spec, snapshot, probes, names, sure=False)
    for count in range(_most_workers(spec, snapshot, probes, names), 0, -1):
        if complete.places:
            break
        some = _place_all(replace(spec, workers=count), snapshot, probes, names, sure=False)
        if some.places:
            cause = complete.reason
            warning = reason("placement.partial", count=count, workers=spec.workers, cause=cause)
            return replace(some, warnings=(*some.warnings, warning))
    return complete if complete.places else _place_all(replace(spec, workers=1), snapshot, probes, names)


def _most_workers(
    spec: JobSpec, snapshot: ClusterSnapshot, probes: Mapping[str, NodeProbe], names: Sequence[str]
) -> int:
    """Return an upper bound of the workers that fit: fewer than requested."""
    if not spec.gpus:
        most = spec.max_per_node
        return min(spec.workers - 1, most * len(names)) if most else spec.workers - 1
    candidates = [snapshot.candidates[name] for name in names if name in snapshot.candidates and name in probes]
    free = [len(one.machine.topology.gpus) - len(probes[one.name].unavailable()) for one in candidates]
    return min(spec.workers - 1, sum(max(count, 0) // spec.gpus for count in free))


def _place_all(
    spec: JobSpec,
    snapshot: ClusterSnapshot,
    probes: Mapping[str, NodeProbe],
    names: Sequence[str],
    *,
    sure: bool = True,
) -> PlacementResult:
    """Place all workers or none; with `sure`, a job that can never start is an error."""
    out = {**snapshot.gpus_out, **snapshot.left_out} if spec.gpus else snapshot.left_out
    usable = [name for name in names if name in probes and name not in out]
    problems = {name: why for name in usable if (why := _node_problem(spec, probes[name]))}
    ready = [name for name in usable if name not in problems]
    if not spec.gpus:
        if sure and spec.max_per_node and spec.workers > spec.max_per_node * len(names):
            raise error_of(NeverFits, _too_few_nodes(spec, names))
        if not ready:
            unused = {
                name: snapshot.left_out.get(name) or problems.get(name) or reason("placement.node_silent")
                for name in names
            }
            cause = reason("placement.no_node_ready" if names else "placement.no_node_left")
            return PlacementResult(reason=no_placement(cause, unused, _to_set_up(probes, names), len(probes)))
        return _without_gpus(spec, snapshot, probes, ready)
    return _with_gpus(spec, snapshot, probes, names, ready, problems, sure=sure)


def _node_problem(spec: JobSpec, probe: NodeProbe) -> Reason | None:
    """Return why a node that answers cannot run the job, with GPUs or without."""
    drained = None if spec.allow_drained else probe.drained
    return probe.container_problem or _not_shared(spec, probe) or drained


def _not_shared(spec: JobSpec, probe: NodeProbe) -> Reason | None:
    """Return why a node cannot run the job beside its other jobs, because one of them is exclusive."""
    for name, alone in probe.live_jobs().items():
        if alone and name != spec.name:
            return reason("placement.node_exclusive", job=name)
        if spec.exclusive and name != spec.name:
            return reason("placement.node_not_idle", job=name)
    return None


def _to_set_up(probes: Mapping[str, NodeProbe], names: Sequence[str]) -> list[str]:
    """Return the nodes on which no container can be created."""
    return [name for name in names if name in probes and probes[name].container_problem]


def _too_few_nodes(spec: JobSpec, names: Sequence[str]) -> Reason:
    return reason("placement.workers_per_node", workers=spec.workers, nodes=len(names), max_per_node=spec.max_per_node)


def _without_gpus(
    spec: JobSpec, snapshot: ClusterSnapshot, probes: Mapping[str, NodeProbe], ready: Sequence[str]
) -> PlacementResult:
    """Fill each node up to its CPUs, or place a worker on each node in turn; lease nothing."""
    most = spec.max_per_node
    if most and spec.workers > most * len(ready):
        return PlacementResult(reason=no_placement(_too_few_nodes(spec, ready), {}))
    load = {name: _instances(probes[name]) for name in ready}
    mine, left = dict.fromkeys(ready, 0), spec.workers
    for name in () if spec.spread else ready:
        room = max(snapshot.cpus.get(name, 1) - load[name], 0)
        mine[name] = min(left, room, most or room)
        left -= mine[name]
    turns = [(mine[name], load[name] if spec.spread else 0, at, name) for at, name in enumerate(ready)]
    heapq.heapify(turns)
    while left:
        count, busy, at, name = heapq.heappop(turns)
        if not most or count < most:
            mine[name] = count + 1
            heapq.heappush(turns, (count + 1, busy, at, name))
            left -= 1
    places = [Place(name, snapshot.addresses.get(name, "")) for name in ready for _ in range(mine[name])]
    return PlacementResult(tuple(places))


def _instances(probe: NodeProbe) -> int:
    return sum(len(job.instances) for job in probe.jobs if not job.result)


def _with_gpus(
    spec: JobSpec,
    snapshot: ClusterSnapshot,
    probes: Mapping[str, NodeProbe],
    names: Sequence[str],
    ready: Sequence[str],
    problems: Mapping[str, Reason],
    *,
    sure: bool,
) -> PlacementResult:
    mode = mode_of(spec)
    chosen = [name for name in ready if name in snapshot.candidates and snapshot.candidates[name].mode in {mode, None}]
    now = [_with_busy_gpus(snapshot.candidates[name], probes[name], spec) for name in chosen]
    workers = _choose(spec, now, mode)
    if isinstance(workers, Reason):
        if sure:
            _refuse_impossible(spec, snapshot, probes, names, mode)
        out = {**snapshot.gpus_out, **snapshot.left_out, **problems}
        unused = {name: why for name, why in out.items() if name in names}
        holders = _holders([probes[name] for name in chosen])
        return PlacementResult(
            reason=no_placement(workers, unused, _to_set_up(probes, names), len(probes), holders=holders)
        )
    return PlacementResult(tuple(_place(worker, snapshot, probes[worker.node]) for worker in workers))


def _holders(probes: Iterable[NodeProbe]) -> list[Reason]:
    """Return the users of GPUs, those with the most GPUs first."""
    gpus = Counter(holder for probe in probes for holder in probe.unavailable().values())
    return [reason("placement.gpus_of_holder", holder=holder, gpus=count) for holder, count in gpus.most_common()]


def mode_of(spec: JobSpec) -> Mode:
    """Return the mode of the nodes whose GPUs a job may use."""
    return Mode.TOPOLOGY if spec.gputopology else Mode.DEFAULT


def no_node_of_mode(spec: JobSpec) -> ProvisionError:
    """Return the error of a job for whose mode there is no node."""
    code = "placement.no_topology_node" if spec.gputopology else "placement.no_default_node"
    return error_of(NeverFits, reason(code))


def _with_busy_gpus(candidate: Candidate, probe: NodeProbe, spec: JobSpec) -> Candidate:
    """Return a candidate with the GPUs that are in use."""
    every = frozenset(gpu.index for gpu in candidate.machine.topology.gpus)
    busy = frozenset(probe.unavailable()) | (every if probe.gpu_problem else frozenset())
    if spec.gpu_ids:
        busy |= every - frozenset(spec.gpu_ids)
    if spec.exclusive and probe.unavailable():
        busy = every
    return replace(candidate, busy=busy)


def _choose(spec: JobSpec, candidates: Sequence[Candidate], mode: Mode) -> Sequence[Worker] | Reason:
    """Return the workers, or why they do not fit."""
    if spec.spread:
        return _spread(spec, candidates, mode)
    request = Request(
        spec.gpus,
        spec.workers,
        uniform=launcher_of(spec.launcher).equal_slots,
        pack=not spec.gputopology,
        most_per_node=spec.max_per_node,
        mode=mode,
    )
    placement = place(candidates, request)
    return placement.workers if placement.fits else placement.reason


def _spread(spec: JobSpec, candidates: Sequence[Candidate], mode: Mode) -> Sequence[Worker] | Reason:
    """Distribute the workers over the nodes, those with the most free GPUs first, within --max-per-node."""
    free = {one.name: len(one.machine.topology.gpus) - len(one.busy | one.faulty) for one in candidates}
    rooms = {name: min(count // spec.gpus, spec.max_per_node or count) for name, count in free.items()}
    if sum(rooms.values()) < spec.workers:
        return reason("placement.spread", workers=spec.workers, gpus=spec.gpus, fit=sum(rooms.values()))
    mine = dict.fromkeys(rooms, 0)
    for _ in range(spec.workers):
        chosen = min((n for n in rooms if mine[n] < rooms[n]), key=lambda n: (mine[n], -free[n], n))
        mine[chosen] += 1
    workers: list[Worker] = []
    for one in candidates:
        if mine[one.name]:
            placement = place([one], Request(spec.gpus, mine[one.name], mode=mode))
            if not placement.fits:
                return reason("placement.nodes", names=[one.name], cause=placement.reason)
            workers += placement.workers
    return workers


def _refuse_impossible(
    spec: JobSpec, snapshot: ClusterSnapshot, probes: Mapping[str, NodeProbe], names: Sequence[str], mode: Mode
) -> None:
    """Refuse a job that would not fit on idle nodes; unreachable nodes may have the missing resources."""
    some = [name for name in names if not _has_no_gpus(name, snapshot, probes)]
    if any(name not in snapshot.candidates for name in some):
        return
    if not some:
        raise error_of(NeverFits, reason("placement.no_gpus"))
    idle = [replace(snapshot.candidates[name], busy=frozenset(), faulty=frozenset()) for name in some]
    of_mode = [one for one in idle if one.mode in {mode, None}]
    if not of_mode:
        raise no_node_of_mode(spec)
    narrowed = [
        replace(one, busy=frozenset(g.index for g in one.machine.topology.gpus) - frozenset(spec.gpu_ids))
        if spec.gpu_ids
        else one
        for one in of_mode
    ]
    workers = _choose(spec, narrowed, mode)
    if isinstance(workers, Reason):
        raise error_of(NeverFits, reason("placement.exceeds_cluster", cause=workers))


def _has_no_gpus(name: str, snapshot: ClusterSnapshot, probes: Mapping[str, NodeProbe]) -> bool:
    """Return whether a reachable node has no GPUs, as opposed to GPUs that cannot be listed now."""
    probe = probes.get(name)
    out = (snapshot.candidates, snapshot.left_out, snapshot.gpus_out)
    seen = name in snapshot.cpus and not any(name in some for some in out)
    return seen and probe is not None and not probe.gpus and not probe.gpu_problem


def _place(worker: Worker, snapshot: ClusterSnapshot, probe: NodeProbe) -> Place:
    uuids = probe.uuids()
    order = worker.order or worker.gpus
    return Place(
        worker.node,
        snapshot.addresses.get(worker.node, ""),
        gpus=tuple(order),
        uuids=tuple(uuids[index] for index in order if index in uuids),
        nics=worker.nics,
    )
