"""Where a job goes: nodes and GPUs, all of them or none."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote

from provision.batch.ranks import Place
from provision.errors import NeverFits
from provision.jobs.cluster_snapshot import Known
from provision.jobs.engines.direct.node_probe import NodeLook
from provision.launchers import launcher_of
from provision.model import Node
from provision.model.cluster import NO_JOBS
from provision.model.job import JobSpec
from provision.report.node_names import in_short
from provision.topology.candidates import Candidate, Mode
from provision.topology.placement import Request, Worker
from provision.topology.select import place

__all__ = ["Placed", "allowed", "place_job"]


@dataclass(frozen=True)
class Placed:
    """The places of a job's workers in rank order; without any, why there is no room."""

    places: tuple[Place, ...] = ()
    reason: str = ""
    warnings: tuple[str, ...] = field(default=())


def allowed(spec: JobSpec, nodes: Iterable[Node], excluded: Sequence[str] = ()) -> tuple[list[Node], dict[str, str]]:
    """Return the nodes that a job may go to by what it asks for itself, and why the others are none.

    Raises:
        NeverFits: it asks for nodes that are not in the inventory, or no node is as it asks.
    """
    nodes = list(nodes)
    unknown = sorted({*spec.nodes, *spec.exclude} - {node.name for node in nodes})
    if unknown:
        raise NeverFits(f"there is no node {unknown[0]}", remedy="`provision node list` has the names")
    good: list[Node] = []
    why: dict[str, str] = {}
    for node in nodes:
        labels = {**node.variables.get("cluster_labels", {})} if _labelled(node) else {}
        differing = [f"{key}={value}" for key, value in spec.selector.items() if str(labels.get(key)) != value]
        if not node.takes_jobs:
            why[node.name] = NO_JOBS
        elif spec.nodes and node.name not in spec.nodes:
            why[node.name] = "not among --nodes"
        elif node.name in spec.exclude:
            why[node.name] = "excluded by --exclude"
        elif differing:
            why[node.name] = f"has no label {differing[0]}"
        elif node.name in excluded:
            why[node.name] = "an attempt of this job failed there"
        else:
            good.append(node)
    if not good and not set(why) & set(excluded):
        told = [f"{name}: {text}" for name, text in why.items()]
        raise NeverFits(
            "no node is as the job asks: " + "; ".join(told[:4]) + (f"; and {len(told) - 4} more" if told[4:] else ""),
            remedy="`provision node list` has names and labels; see --nodes, --exclude and --selector",
        )
    return good, why


def _labelled(node: Node) -> bool:
    return isinstance(node.variables.get("cluster_labels"), Mapping)


def place_job(spec: JobSpec, known: Known, looks: Mapping[str, NodeLook], names: Sequence[str]) -> Placed:
    """Choose the places of all workers now, among the nodes `names`; none when they do not all fit.

    Without gang the places of as many as fit, at least one, and a warning that says which are left out.

    Raises:
        NeverFits: they (without gang: one of them) would not fit on idle nodes either.
    """
    if spec.gang or spec.workers == 1:
        return _place_all(spec, known, looks, names)
    whole = _place_all(spec, known, looks, names, sure=False)
    for count in range(_room(spec, known, looks, names), 0, -1):
        if whole.places:
            break
        some = _place_all(replace(spec, workers=count), known, looks, names, sure=False)
        if some.places:
            left = f"it starts with {count} of {spec.workers} workers, without those that found no room: {whole.reason}"
            return replace(some, warnings=(*some.warnings, left))
    return whole if whole.places else _place_all(replace(spec, workers=1), known, looks, names)


def _room(spec: JobSpec, known: Known, looks: Mapping[str, NodeLook], names: Sequence[str]) -> int:
    """Return how many workers there may be room for, at most: fewer than asked for."""
    if not spec.gpus:
        most = spec.max_per_node
        return min(spec.workers - 1, most * len(names)) if most else spec.workers - 1
    found = [known.candidates[name] for name in names if name in known.candidates and name in looks]
    free = [len(one.machine.topology.gpus) - len(looks[one.name].taken()) for one in found]
    return min(spec.workers - 1, sum(max(count, 0) // spec.gpus for count in free))


def _place_all(
    spec: JobSpec, known: Known, looks: Mapping[str, NodeLook], names: Sequence[str], *, sure: bool = True
) -> Placed:
    """Place all workers or none; with `sure` what would never fit is an error."""
    out = {**known.gpus_out, **known.left_out} if spec.gpus else known.left_out
    usable = [name for name in names if name in looks and name not in out]
    closed = {name: why for name in usable if (why := _closed(spec, looks[name]))}
    ready = [name for name in usable if name not in closed]
    if not spec.gpus:
        if sure and spec.max_per_node and spec.workers > spec.max_per_node * len(names):
            raise NeverFits(
                f"{spec.workers} workers do not fit on {len(names)} nodes with {spec.max_per_node} on each",
                remedy="ask for fewer workers, or let more of them share a node",
            )
        reason = "" if ready else _nobody(known, closed, names) + _setup_hint(looks, names)
        return Placed(reason=reason) if reason else _without_gpus(spec, known, looks, ready)
    return _with_gpus(spec, known, looks, names, ready, closed, sure=sure)


def _closed(spec: JobSpec, look: NodeLook) -> str:
    """Return why a node that answers has no place for a job, with GPUs or without."""
    drained = "" if spec.allow_drained else look.drained
    return look.closed or _not_shared(spec, look) or drained


def _not_shared(spec: JobSpec, look: NodeLook) -> str:
    """Return why a node has no place beside the jobs that are on it, by their wish or by this job's."""
    for name, alone in look.alive().items():
        if alone and name != spec.name:
            return f"{name} has the node for itself (--exclusive)"
        if spec.exclusive and name != spec.name:
            return f"{name} is on it, and --exclusive wants it empty"
    return ""


def _nobody(known: Known, closed: Mapping[str, str], names: Sequence[str]) -> str:
    told: dict[str, list[str]] = {}
    for name in names:
        told.setdefault(known.left_out.get(name) or closed.get(name) or "did not answer", []).append(name)
    reasons = [f"{in_short(group)}: {why}" for why, group in told.items()]
    return "no node takes jobs now: " + "; ".join(reasons[:4]) if reasons else "no node may take it"


def _setup_hint(looks: Mapping[str, NodeLook], names: Sequence[str]) -> str:
    """Return what sets up the nodes on which no container of a job can be made; empty where there are none."""
    closed = [name for name in names if name in looks and looks[name].closed]
    limit = "" if len(closed) == len(looks) else f" --limit {quote(in_short(closed).replace(', ', ','))}"
    return f". To set up {in_short(closed)}, run: provision apply{limit}" if closed else ""


def _without_gpus(spec: JobSpec, known: Known, looks: Mapping[str, NodeLook], ready: Sequence[str]) -> Placed:
    """Fill a node up to its processors and go on to the next, or a worker on each in turn; nothing is leased."""
    most = spec.max_per_node
    if most and spec.workers > most * len(ready):
        return Placed(reason=f"{spec.workers} workers do not fit on {len(ready)} nodes with {most} on each")
    load = {name: _instances(looks[name]) for name in ready}
    mine, left = dict.fromkeys(ready, 0), spec.workers
    for name in () if spec.spread else ready:
        room = max(known.cpus.get(name, 1) - load[name], 0)
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
    places = [Place(name, known.addresses.get(name, "")) for name in ready for _ in range(mine[name])]
    return Placed(tuple(places))


def _instances(look: NodeLook) -> int:
    return sum(len(job.instances) for job in look.jobs if not job.result)


def _with_gpus(
    spec: JobSpec,
    known: Known,
    looks: Mapping[str, NodeLook],
    names: Sequence[str],
    ready: Sequence[str],
    closed: Mapping[str, str],
    *,
    sure: bool,
) -> Placed:
    mode = Mode.TOPOLOGY if spec.gputopology else Mode.DEFAULT
    chosen = [name for name in ready if name in known.candidates and known.candidates[name].mode in {mode, None}]
    now = [_as_it_is(known.candidates[name], looks[name], spec) for name in chosen]
    workers = _choose(spec, now, mode)
    if isinstance(workers, str):
        if sure:
            _refuse_impossible(spec, known, looks, names, mode)
        out = {**known.gpus_out, **known.left_out, **closed}
        held = [f"{name}: {why}" for name, why in out.items() if name in names]
        return Placed(reason=workers + (f" ({'; '.join(held[:3])})" if held else "") + _setup_hint(looks, names))
    return Placed(tuple(_place(worker, known, looks[worker.node]) for worker in workers))


def _as_it_is(candidate: Candidate, look: NodeLook, spec: JobSpec) -> Candidate:
    """Return a node with what is taken on it by leases and by others."""
    every = frozenset(gpu.index for gpu in candidate.machine.topology.gpus)
    busy = frozenset(look.taken()) | (every if look.trouble else frozenset())
    if spec.gpu_ids:
        busy |= every - frozenset(spec.gpu_ids)
    if spec.exclusive and look.taken():
        busy = every
    return replace(candidate, busy=busy)


def _choose(spec: JobSpec, candidates: Sequence[Candidate], mode: Mode) -> Sequence[Worker] | str:
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
    found = place(candidates, request)
    return found.workers if found.fits else found.reason


def _spread(spec: JobSpec, candidates: Sequence[Candidate], mode: Mode) -> Sequence[Worker] | str:
    """Share the workers out over the nodes, the freest first, no more than allowed on each."""
    free = {one.name: len(one.machine.topology.gpus) - len(one.busy | one.faulty) for one in candidates}
    rooms = {name: min(count // spec.gpus, spec.max_per_node or count) for name, count in free.items()}
    if sum(rooms.values()) < spec.workers:
        return f"{spec.workers} workers of {spec.gpus} GPUs were asked for, and there is room for {sum(rooms.values())}"
    mine = dict.fromkeys(rooms, 0)
    for _ in range(spec.workers):
        chosen = min((n for n in rooms if mine[n] < rooms[n]), key=lambda n: (mine[n], -free[n], n))
        mine[chosen] += 1
    workers: list[Worker] = []
    for one in candidates:
        if mine[one.name]:
            found = place([one], Request(spec.gpus, mine[one.name], mode=mode))
            if not found.fits:
                return f"{one.name}: {found.reason}"
            workers += found.workers
    return workers


def _refuse_impossible(
    spec: JobSpec, known: Known, looks: Mapping[str, NodeLook], names: Sequence[str], mode: Mode
) -> None:
    """Say at once what would never fit, be all nodes idle; nodes that were not reached may have what is missing."""
    some = [name for name in names if not _gpuless(name, known, looks)]
    if any(name not in known.candidates for name in some):
        return
    if not some:
        raise NeverFits("no node that the job may go to has a GPU", remedy="leave --gpus out, or add nodes")
    idle = [replace(known.candidates[name], busy=frozenset(), faulty=frozenset()) for name in some]
    of_mode = [one for one in idle if one.mode in {mode, None}]
    if not of_mode:
        label = f"gpu.schedule={mode}"
        raise NeverFits(
            f"no node has the label {label}, and a job {'with' if spec.gputopology else 'without'} --gputopology "
            "goes to no other",
            remedy=f"`provision node label NODE {label} --overwrite` gives a node to such jobs",
        )
    narrowed = [
        replace(one, busy=frozenset(g.index for g in one.machine.topology.gpus) - frozenset(spec.gpu_ids))
        if spec.gpu_ids
        else one
        for one in of_mode
    ]
    found = _choose(spec, narrowed, mode)
    if isinstance(found, str):
        raise NeverFits(
            f"it does not fit on the nodes even when they are idle: {found}",
            remedy="ask for fewer GPUs or workers, or add nodes",
        )


def _gpuless(name: str, known: Known, looks: Mapping[str, NodeLook]) -> bool:
    """Whether a node was reached and has no GPU, rather than some that cannot be seen now."""
    look = looks.get(name)
    out = (known.candidates, known.left_out, known.gpus_out)
    seen = name in known.cpus and not any(name in some for some in out)
    return seen and look is not None and not look.gpus and not look.trouble


def _place(worker: Worker, known: Known, look: NodeLook) -> Place:
    uuids = look.uuids()
    order = worker.order or worker.gpus
    return Place(
        worker.node,
        known.addresses.get(worker.node, ""),
        gpus=tuple(order),
        uuids=tuple(uuids[index] for index in order if index in uuids),
        nics=worker.nics,
    )
