"""Pairs of GPUs on different leaf switches, whose traffic in an all-to-all crosses the spine.

The pairs are no sum over the nodes, so the search does not minimise them: of its placement, nodes are exchanged for
equal ones afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from provision.topology.offers import FreeNode, Pick

Used = list[tuple[FreeNode, Pick]]
_Offered = Mapping[int, Sequence[FreeNode]]
"""The nodes of a leaf switch by kind."""
_Needed = Mapping[tuple[int, int], tuple[Pick, int]]
"""By kind of nodes and mask: the set, and how many nodes have to give it."""


def cross_leaf_pairs(used: Used) -> int:
    """Return the number of ordered pairs of GPUs on different leaf switches."""
    counts: Counter[str] = Counter()
    for node, pick in used:
        counts[node.leaf] += pick.mask.bit_count()
    return counts.total() ** 2 - sum(count**2 for count in counts.values())


def exchange(nodes: Sequence[FreeNode], used: Used) -> Used:
    """Return a placement with equal nodes and fewer pairs on different leaf switches, else the same placement.

    The leaf switches that can give most are filled first; the last one is the smallest that can give the rest. With
    nodes of one kind no placement on as few leaf switches has fewer pairs.

    Args:
        nodes: all nodes that the job may use, in rank order.
        used: the nodes of the placement, and the set of each.
    """
    most_leaves = len({node.leaf for node, _ in used})
    if most_leaves == 1:
        return used
    numbers: dict[object, int] = {}
    for node, _ in used:
        numbers.setdefault((node.scores, node.free, node.barred), len(numbers))
    needed: dict[tuple[int, int], tuple[Pick, int]] = {}
    for node, pick in used:
        kind = numbers[node.scores, node.free, node.barred], pick.mask
        needed[kind] = pick, needed.get(kind, (pick, 0))[1] + 1
    offered: dict[str, dict[int, list[FreeNode]]] = {}
    for node in nodes:
        number = numbers.get((node.scores, node.free, node.barred))
        if number is not None:
            offered.setdefault(node.leaf, {}).setdefault(number, []).append(node)
    exchanged = _filled(offered, dict(sorted(needed.items(), key=lambda one: -one[0][1].bit_count())), most_leaves)
    if len(exchanged) < len(used) or cross_leaf_pairs(exchanged) >= cross_leaf_pairs(used):
        return used
    place = {node.name: at for at, node in enumerate(nodes)}
    return sorted(exchanged, key=lambda one: place[one[0].name])


def _filled(offered: dict[str, dict[int, list[FreeNode]]], needed: _Needed, most_leaves: int) -> Used:
    """Return nodes of at most so many leaf switches; fewer than needed if these do not suffice."""
    filled: Used = []
    for _ in range(most_leaves):
        counts = {leaf: _counts(own, needed) for leaf, own in offered.items()}
        total = sum(mask.bit_count() * count for (_, mask), (_, count) in needed.items())
        ranks = {leaf: _rank(counts[leaf], total, own) for leaf, own in offered.items()}
        leaf = min(ranks, key=lambda one: ranks[one], default=None)
        if leaf is None or not total:
            break
        own = offered.pop(leaf)
        left = {number: iter(nodes) for number, nodes in own.items()}
        for kind, count in counts[leaf].items():
            filled += [(next(left[kind[0]]), needed[kind][0]) for _ in range(count)]
        needed = {kind: (pick, count - counts[leaf].get(kind, 0)) for kind, (pick, count) in needed.items()}
    return filled


def _counts(offered: _Offered, needed: _Needed) -> dict[tuple[int, int], int]:
    """Return how many nodes of each kind a leaf switch gives, the largest sets first."""
    left = {number: len(nodes) for number, nodes in offered.items()}
    counts = {}
    for (number, mask), (_, count) in needed.items():
        if given := min(left.get(number, 0), count):
            counts[number, mask] = given
            left[number] -= given
    return counts


def _rank(counts: Mapping[tuple[int, int], int], total: int, offered: _Offered) -> tuple[bool, int]:
    """Return the sort key of a leaf switch: the smallest that gives the total, else the one that gives most."""
    given = sum(mask.bit_count() * count for (_, mask), count in counts.items())
    return (False, sum(map(len, offered.values()))) if given == total else (True, -given)
