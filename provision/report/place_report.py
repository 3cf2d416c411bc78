"""A placement as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from provision.launchers.rankfile import ranges
from provision.model import RankPlacement
from provision.report import layout
from provision.report.node_names import in_short
from provision.report.reasons import message
from provision.topology.placement import Key, Placement, Places, Worker
from provision.topology.rank_placement import rank_placements
from provision.topology.score import UNLIMITED

if TYPE_CHECKING:
    from provision.report.json_documents.launches import Placement as PlacementDocument
    from provision.report.json_documents.launches import Rank
    from provision.report.json_documents.launches import Worker as WorkerDocument

_LONGEST_NAME = 32
_CRITERIA = (
    ("bandwidth", "bandwidth_gb_s", "bus bandwidth, GB/s"),
    ("nodes", "nodes", "nodes"),
    ("cross_leaf_hops", "cross_leaf_hops", "hops between leaf switches"),
    ("spread", "spread", "most less fewest GPUs of a node"),
    ("pix_nics", "gpus_with_pix_nic", "GPUs with a card of their own, PIX"),
    ("pix_nics", "gpus_with_pix_nic", "GPUs with a card of their own, PIX"),
    ("numa_nodes", "numa_nodes", "NUMA nodes"),
    ("lost", "bandwidth_lost_gb_s", "lost to further such jobs, GB/s"),
    ("numa_left", "numa_nodes_left", "NUMA nodes of the best remaining sets"),
    ("nodes_broken", "free_nodes_broken", "completely free nodes used"),
    ("free", "free_gpus", "free GPUs of the nodes before"),
    ("weights", "pairs_gb_s", "all pairs of GPUs, GB/s"),
)
"""Attribute of the key, name in JSON, and label, in the order of the default preference."""
_PACKED = (
    *("nodes", "bandwidth", "cross_leaf_hops", "lost", "numa_left", "nodes_broken", "free"),
    *("spread", "pix_nics", "near_nics", "numa_nodes", "weights"),
)
"""The attributes in the order of ``--prefer pack``."""
_RATES = ("bandwidth", "lost", "weights")
_LAST = "names of the nodes, numbers of the GPUs"


def as_document(placement: Placement, places: Places, *, explain: bool = False) -> PlacementDocument:
    """Return the document of ``place --json``; keys are an interface and only ever added."""
    document: PlacementDocument = {
        "fits": placement.fits,
        "reason": message(placement.reason),
        "code": placement.reason.code,
        "params": placement.reason.as_document()["params"],
        "workers": [_worker(worker, places) for worker in placement.workers],
        "bus_bandwidth_gb_s": _rate(placement.bandwidth),
        "score": _score(placement.key),
        "nodes": [{"name": name, "leaf": leaf} for name, leaf in zip(placement.nodes, placement.leaves, strict=True)],
        "left_out": [
            {"node": name, "reason": message(why, name), **why.as_document()} for name, why in places.left_out
        ],
        "simulated": list(places.simulated),
        "warnings": list(places.warnings),
    }
    if explain:
        other = placement.runner_up
        document["runner_up"] = (
            None
            if other is None
            else {
                "workers": [_worker(worker, places) for worker in other.workers],
                "score": _score(other.key),
                "decided_by": _decided(placement, other),
            }
        )
    return document


def _worker(worker: Worker, places: Places) -> WorkerDocument:
    return {
        "node": worker.node,
        "gpus": list(worker.gpus),
        "nics": list(worker.nics),
        "order": list(worker.order),
        "mig": list(worker.mig),
        "mig_instances": {str(gpu): list(_instances(worker, gpu, places)) for gpu in worker.mig},
        "ranks": [_rank(rank) for rank in rank_placements(worker, places)],
    }


def _instances(worker: Worker, gpu: int, places: Places) -> tuple[str, ...]:
    """Return the UUIDs of a GPU's MIG instances; empty if unknown."""
    return next((one.instances.get(gpu, ()) for one in places.candidates if one.name == worker.node), ())


def _rank(rank: RankPlacement) -> Rank:
    return {"gpus": [int(gpu) for gpu in rank.gpus], "cpus": ranges(rank.cpus), "numa": rank.numa}


def _score(key: Key | None) -> dict[str, float | None]:
    return {} if key is None else {name: _value(key, attribute) for attribute, name, _ in _CRITERIA}


def _value(key: Key, attribute: str) -> float | None:
    value = getattr(key, attribute)
    return _rate(value) if attribute in _RATES else value


def _rate(tenths: int | None) -> float | None:
    """Return the rate in GB/s; None if it is unlimited, as for a single GPU."""
    return None if tenths is None or abs(tenths) >= UNLIMITED else tenths / 10


def _in_order(placement: Placement) -> list[tuple[str, str]]:
    """Return attribute and label of the criteria, the most important first."""
    rows = [(attribute, words) for attribute, _, words in _CRITERIA]
    if not placement.request.pack:
        return rows
    return sorted(rows, key=lambda row: _PACKED.index(row[0]))


def _decided(best: Placement, other: Placement) -> str:
    """Return the label of the first criterion in which two placements differ."""
    if best.key is None or other.key is None:
        return _LAST
    a, b = best.key, other.key
    return next((words for which, words in _in_order(best) if getattr(a, which) != getattr(b, which)), _LAST)


def as_text(placement: Placement, places: Places, *, explain: bool = False) -> str:
    """Return a placement as text, at most 80 columns wide."""
    request = placement.request
    requested = f"{_count(request.workers, 'worker')} of {_count(request.gpus, 'GPU')}"
    lines = layout.wrapped(f"{requested}: {'' if placement.fits else 'not placed: '}{message(placement.reason)}", "  ")
    if placement.key is not None:
        lines += ["", *_workers(placement), ""]
        lines.append(_expected(placement))
        lines += _explained(placement, placement.key) if explain else []
    for worker in placement.workers:
        for gpu in worker.mig:
            uuids = "".join(f" {uuid}" for uuid in _instances(worker, gpu, places))
            lines += layout.wrapped(
                f"GPU {gpu} of {worker.node} is in MIG mode; give the job the UUID of an instance instead"
                + (f":{uuids}" if uuids else ""),
                "  ",
            )
    for warning in places.warnings:
        lines += layout.wrapped(f"warning: {warning}", "  ")
    if places.simulated:
        lines += layout.wrapped(
            f"SIMULATED on {in_short(places.simulated)}: components of the lab, no proof of real hardware.", "  "
        )
    return "\n".join(lines)


def as_line(placement: Placement) -> str:
    """Return the placement of a job in one line."""
    few = 8
    gpus: dict[str, list[int]] = {}
    for worker in placement.workers:
        gpus.setdefault(worker.node, []).extend(worker.order)
    parts = [f"{node} GPUs {','.join(map(str, indices))}" for node, indices in gpus.items()]
    more = f"; and {len(parts) - few} nodes more" if len(parts) > few else ""
    return f"placed on {'; '.join(parts[:few])}{more}; {_expected(placement)}"


def _expected(placement: Placement) -> str:
    """Return the expected bus bandwidth."""
    rate = _rate(placement.bandwidth)
    if rate is None:
        return "one GPU needs no ring"
    return f"expected bus bandwidth: {rate} GB/s" if rate else "expected bus bandwidth: unknown without network cards"


def _workers(placement: Placement) -> list[str]:
    """Return a table; a worker's GPUs are in the order of their ring."""
    rows = []
    for number, worker in enumerate(placement.workers):
        gpus, nics = ",".join(map(str, worker.order)), ", ".join(worker.nics)
        rows.append((str(number), layout.shortened_name(worker.node, _LONGEST_NAME), gpus, nics or "none near"))
    return layout.table(("worker", "node", "GPUs", "network cards"), rows)


def _explained(placement: Placement, key: Key) -> Iterator[str]:
    """Yield the criteria of the placement and the runner-up, and the leaf switches in rank order."""
    other = placement.runner_up
    yield ""
    width = max(len(words) for _, _, words in _CRITERIA)
    yield f"{'CRITERION, MOST IMPORTANT FIRST':<{width}}  {'THIS ONE':>12}  {'THE NEXT BEST':>13}"
    for attribute, words in _in_order(placement):
        next_best = _shown(other.key, attribute) if other is not None and other.key is not None else "-"
        yield f"{words:<{width}}  {_shown(key, attribute):>12}  {next_best:>13}"
    yield ""
    if other is None:
        yield "There is no alternative placement."
    else:
        yield from layout.wrapped(f"next best: {_where(other)}", "  ")
        yield from layout.wrapped(f"decided by: {_decided(placement, other)}", "  ")
    if any(placement.leaves):
        runs = [(leaf, len(list(run))) for leaf, run in groupby(placement.leaves)]
        switches = ", ".join(f"{leaf or 'unknown'} ({_count(nodes, 'node')})" for leaf, nodes in runs)
        yield from layout.wrapped(
            f"leaf switches in rank order: {switches}; {_count(key.cross_leaf_hops, 'hop')} between them", "  "
        )


def _shown(key: Key, attribute: str) -> str:
    value = _value(key, attribute)
    return "-" if value is None else str(value)


def _where(placement: Placement) -> str:
    few = 4
    groups = groupby(placement.workers, key=lambda worker: worker.node)
    parts = [f"{node} GPUs {','.join(str(gpu) for worker in run for gpu in worker.gpus)}" for node, run in groups]
    return "; ".join(parts[:few]) + (f"; and {len(parts) - few} nodes more" if len(parts) > few else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
