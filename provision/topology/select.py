"""Chooses nodes and GPUs for all workers of a job, or none.

Three kinds of scopes are compared: a single node; the nodes of one NVLink domain, which need no network; any nodes,
connected by one network. `Search` finds the best placement of each scope, and `Key` compares them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, pairwise

from provision.model.reason import reason
from provision.topology.candidates import Candidate, Machine
from provision.topology.cards import Network, members
from provision.topology.leaf_pairs import Used, cross_leaf_pairs
from provision.topology.offers import FreeNode, Pick, Sum
from provision.topology.placement import Key, Placement, Request, Worker
from provision.topology.score import SetScores
from provision.topology.search import BALANCED, PACKED, Known, Search, Window
from provision.topology.shortage import offered, shortage

_MAX_COMBINED_RAILS = 8
"""Up to this number of rails, all combinations are tried."""
_MAX_VARIED = 8
"""The number of nodes of the best placement that are varied, one at a time, to find the runner-up."""

Barred = Mapping[str, frozenset[int]]


def place(candidates: Sequence[Candidate], request: Request, *, explain: bool = False) -> Placement:
    """Choose nodes and GPUs for a job.

    Args:
        candidates: all nodes, with distinct names.
        request: the job.
        explain: also find the next best placement, which differs on one of the first eight nodes of the best.

    Returns:
        The placement; if not all workers can be placed at once, it has none, and the reason says what is missing.
    """
    chooser = _Chooser(candidates, request)
    best = chooser.best({})
    if best is None:
        return Placement(request, shortage(candidates, request))
    placement = chooser.placement(best)
    return replace(placement, runner_up=chooser.runner_up(best)) if explain else placement


@dataclass(frozen=True)
class _Scope:
    """Nodes of which any may be used, and how the bandwidth of a job is computed there."""

    nodes: Sequence[FreeNode]
    several: bool = True
    network: Network | None = None
    """The network between several nodes; None is NVLink."""

    def rate(self, scores: SetScores, mask: int) -> int:
        if not self.several:
            return scores.inside(mask)
        if self.network is None:
            return scores.in_domain(mask)
        return min(scores.inside(mask), scores.cards.outside(mask, self.network))

    def own_nics(self, scores: SetScores, mask: int) -> tuple[int, int]:
        return scores.cards.own(mask, self.network or Network()) if self.several else (0, 0)


@dataclass(frozen=True)
class _Choice:
    """The best placement of a scope."""

    scope: _Scope
    used: Used
    key: Key


class _Chooser:
    """The nodes in rank order: by rack, leaf switch and name."""

    def __init__(self, candidates: Sequence[Candidate], request: Request) -> None:
        self._request = request
        self._nodes: list[FreeNode] = []
        self._domains: dict[str, list[FreeNode]] = {}
        self._mig = {one.name: one.mig for one in candidates}
        for one in _in_rank_order(candidates):
            known = _scores(one.machine)
            free = known.mask(offered(one, request))
            if free:
                self._nodes.append(FreeNode(one.name, known, free, _leaf(one)))
                self._domains.setdefault(one.domain, []).append(self._nodes[-1])
        self._place = {node.name: number for number, node in enumerate(self._nodes)}
        kinds = Counter((node.scores, node.free) for node in self._nodes)
        self._kinds = sorted(kinds.items(), key=lambda kind: -kind[0][1].bit_count())
        self._known: dict[tuple[bool, Network | None], Known] = {}

    def best(self, barred: Barred) -> _Choice | None:
        """Return the best placement without the excluded sets; None if the job does not fit."""
        best: _Choice | None = None
        for scope in self._scopes(barred):
            if best is not None and self._hopeless(scope, best.key):
                continue
            windows = self._windows(scope)
            search = Search(
                scope.nodes,
                self._request.total,
                self._request.gpus,
                windows,
                rate=scope.rate,
                own_nics=scope.own_nics,
                known=self._known.setdefault((scope.several, scope.network), {}),
            )
            used = search.best(PACKED if self._request.pack else BALANCED)
            if used is not None:
                choice = _Choice(scope, used, _key(scope, used))
                best = choice if best is None or self._order(choice) < self._order(best) else best
        return best

    def _order(self, choice: _Choice) -> tuple[tuple[int, ...], int, list[tuple[int, tuple[int, ...]]]]:
        """Return the sort key of a choice; of equal ones, pairs across leaves count, the first nodes and first GPUs."""
        positions = [(self._place[node.name], members(pick.mask)) for node, pick in choice.used]
        return choice.key.order(pack=self._request.pack), cross_leaf_pairs(choice.used), positions

    # Scopes

    def _scopes(self, barred: Barred) -> Iterator[_Scope]:
        def without(nodes: Sequence[FreeNode]) -> list[FreeNode]:
            return [replace(node, barred=barred[node.name]) if node.name in barred else node for node in nodes]

        nodes, limit = without(self._nodes), self._request.most_per_node
        if not limit or limit >= self._request.workers:
            yield _Scope([node for node in nodes if node.free.bit_count() >= self._request.total], several=False)
        if len(nodes) < 2 or self._request.workers < 2:  # noqa: PLR2004
            return
        for domain, inside in self._domains.items():
            if domain and len(inside) > 1:
                yield _Scope(without(inside))
        for network in _networks(self._nodes):
            yield _Scope(nodes, network=network)

    def _windows(self, scope: _Scope) -> list[Window]:
        total, step = self._request.total, self._request.gpus
        if not scope.several:
            return [(total, total)]
        most = min(total, max(node.free.bit_count() for node in scope.nodes))
        if self._request.most_per_node:
            most = min(most, self._request.most_per_node * step)
        if not self._request.uniform:
            return [(step, most)]
        return [(size, size) for size in range(step, most + 1, step) if total % size == 0]

    def _hopeless(self, scope: _Scope, best: Key) -> bool:
        """Return whether several nodes, or a combination of rails, cannot be better than `best`."""
        if self._request.pack and best.nodes == 1:
            return True
        network = scope.network
        if network is None or not network.rails:
            return False
        step, missing, nodes, most = self._request.gpus, self._request.total, 0, 0
        for (scores, free), count in self._kinds:
            rate, gives = scores.cards.outside(free, network), free.bit_count() // step * step
            most = max(most, rate)
            if rate and gives and missing > 0:
                used = min(count, -(-missing // gives))
                missing, nodes = missing - used * gives, nodes + used
        if missing > 0:
            return True
        if self._request.pack:
            return (nodes, -most) > (best.nodes, -best.bandwidth)
        return (-most, nodes) > (-best.bandwidth, best.nodes)

    # Results

    def runner_up(self, best: _Choice) -> Placement | None:
        """Return the best placement in which one node of the best has another set or none.

        Of equal nodes the last one is varied, so that the first ones stay.
        """
        distinct = {(node.scores, node.free, node.leaf, pick.mask): node.name for node, pick in best.used[:_MAX_VARIED]}
        variants = [self.best({name: frozenset({mask})}) for (*_, mask), name in distinct.items()]
        others = [choice for choice in variants if choice is not None]
        return self.placement(min(others, key=self._order)) if others else None

    def placement(self, choice: _Choice) -> Placement:
        """Return the placement of a choice as nodes, GPUs and network cards."""
        nodes = tuple(node.name for node, _ in choice.used)
        leaves = tuple(node.leaf for node, _ in choice.used)
        workers = tuple(worker for node, pick in choice.used for worker in self._workers(choice.scope, node, pick))
        several = len(workers) if len(workers) > 1 else None
        where = (
            reason("placement.on_node", workers=several, name=nodes[0])
            if len(nodes) == 1
            else reason("placement.on_nodes", workers=several, count=len(nodes))
        )
        return Placement(self._request, where, workers, choice.key, leaves, nodes)

    def _workers(self, scope: _Scope, node: FreeNode, pick: Pick) -> Iterator[Worker]:
        scores, machine, network = node.scores, node.scores.machine, scope.network or Network()
        for part in scores.partition(pick.mask, self._request.gpus):
            ring = scores.indices(scores.ring(part))
            near = scores.cards.near(part, network) or scores.cards.near(pick.mask, network)
            nics = tuple(machine.topology.nics[nic].name for nic in near)
            yield Worker(node.name, tuple(sorted(ring)), ring, nics, tuple(sorted(self._mig[node.name] & set(ring))))


@lru_cache(maxsize=1024)
def _scores(machine: Machine) -> SetScores:
    """Return cached scores; equal machines share them across placements."""
    return SetScores(machine)


def _key(scope: _Scope, used: Used) -> Key:
    """Return the key of a placement; on one node, the network does not count."""
    several = len(used) > 1
    rates = [scope.rate(node.scores, pick.mask) if several else node.scores.inside(pick.mask) for node, pick in used]
    sums = [sum(pick.sums[which] for _, pick in used) for which in Sum]
    counts = [pick.mask.bit_count() for _, pick in used]
    leaves = [node.leaf for node, _ in used]
    return Key(
        bandwidth=min(rates),
        nodes=len(used),
        cross_leaf_hops=sum(a != b for a, b in pairwise([*leaves, leaves[0]])),
        spread=max(counts) - min(counts),
        pix_nics=-sums[Sum.PIX_NICS] if several else 0,
        near_nics=-sums[Sum.NEAR_NICS] if several else 0,
        numa_nodes=sums[Sum.NUMA],
        lost=sums[Sum.LOST],
        numa_left=sums[Sum.NUMA_LEFT],
        nodes_broken=sums[Sum.BROKEN],
        free=sums[Sum.FREE],
        weights=-sums[Sum.WEIGHTS],
    )


def _in_rank_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Sort the nodes; a leaf switch whose nodes are in several racks belongs to the first of them."""
    racks: dict[str, list[tuple[int, str]]] = {}
    for one in candidates:
        rack = _natural(one.rack)
        racks[_leaf(one)] = min(rack, racks.get(_leaf(one), rack))

    def order(one: Candidate) -> tuple[list[tuple[int, str]], ...]:
        return (racks[_leaf(one)], *map(_natural, (_leaf(one), one.rack, one.name)))

    return sorted(candidates, key=order)


def _leaf(candidate: Candidate) -> str:
    """Return the leaf switch, or the rack if the inventory names no switch."""
    return candidate.leaf or candidate.rack


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders gpu2 before gpu10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def _networks(nodes: Sequence[FreeNode]) -> Iterator[Network]:
    """Yield the networks that can connect the nodes: a link layer, and a combination of rails if there are any.

    More rails come first because they are usually faster.
    """
    ports = {port for scores in {node.scores for node in nodes} for port in scores.machine.ports if port.rate}
    for layer in sorted({port.layer for port in ports if port.layer}) or [""]:
        rails = {port.rail for port in ports if port.rail and port.layer in {"", layer}}
        if not rails:
            yield Network(layer)
            continue
        yield from (Network(layer, chosen) for chosen in _combinations(rails, nodes, layer))


def _combinations(rails: set[str], nodes: Sequence[FreeNode], layer: str) -> list[frozenset[str]]:
    """Return the combinations of rails to try: all, or, if there are many rails, those that pairs of nodes share."""
    if len(rails) <= _MAX_COMBINED_RAILS:
        rail_sets = {frozenset(some) for size in range(len(rails) + 1) for some in combinations(sorted(rails), size)}
    else:
        kinds = {(node.scores, node.free) for node in nodes}
        reach = {
            frozenset(s.machine.ports[nic].rail for nic in s.cards.near(free, Network(layer))) - {""}
            for s, free in kinds
        }
        rail_sets = {a & b for a in reach for b in reach} | {frozenset()}
    return sorted(rail_sets, key=lambda some: (-len(some), sorted(some)))
