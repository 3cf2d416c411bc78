"""A reference implementation of the placement: an exhaustive search with all criteria by definition."""

from __future__ import annotations

from functools import cache
from itertools import combinations, permutations, product

from provision.topology.rings import ring_count

CLASSES = ("PIX", "PXB", "PHB", "NODE", "SYS")
PERCENT = {"PIX": 100, "PXB": 95, "PHB": 75, "NODE": 65, "SYS": 50}
INFINITE = 1 << 24


def bits(mask):
    return tuple(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)


def subsets(mask):
    return (some for some in range(mask + 1) if not some & ~mask)


@cache
def rings(lanes):
    """The largest number of directed rings that fit, by trying every ring first: for few GPUs alone."""
    best = 0
    for order in permutations(range(1, len(lanes))):
        ring = (0, *order)
        arcs = list(zip(ring, (*ring[1:], 0), strict=True))
        if all(lanes[a][b] for a, b in arcs):
            left = [list(row) for row in lanes]
            for a, b in arcs:
                left[a][b] -= 1
            best = max(best, 1 + rings(tuple(map(tuple, left))))
    return best


@cache
def inside(box, gpus):
    if len(gpus) < 2:
        return INFINITE
    pairs = list(combinations(gpus, 2))
    if box.switched:
        nvlink = min(box.lanes[a][b] for a, b in pairs)
    elif len(gpus) == 2:
        nvlink = box.lanes[gpus[0]][gpus[1]]
    else:
        lanes = tuple(tuple(box.lanes[a][b] for b in gpus) for a in gpus)
        nvlink = rings(lanes) if len(gpus) < 5 else ring_count(lanes)
    known = [box.pcie[a][b] for a, b in pairs if box.pcie[a][b]]
    pcie = box.slot * PERCENT[max(known, key=CLASSES.index)] // 100 if known else 0
    return max(nvlink * box.lane, pcie)


@cache
def near_cards(box, gpus):
    return [card for card in box.cards if any(card.near[gpu] in ("PIX", "PXB") for gpu in gpus)]


def outside(box, gpus, rails):
    """`rails` are those that every node of the job reaches, None where the fabric has none."""
    near = [card for card in near_cards(box, gpus) if rails is None or card.rail in rails]
    if near:
        return sum(min(card.rate, box.slot) for card in near)
    return max((min(card.rate, box.slot) for card in box.cards), default=min(125, box.slot)) * 55 // 100


@cache
def own_cards(box, gpus, classes):
    """Return how many GPUs can have a card each, by exhaustive search."""
    if not gpus:
        return 0

    def most(rest, taken):
        if not rest:
            return 0
        without = most(rest[1:], taken)
        return max(
            [without]
            + [
                1 + most(rest[1:], taken | {number})
                for number, card in enumerate(box.cards)
                if number not in taken and card.near[rest[0]] in classes
            ]
        )

    return most(gpus, frozenset())


def numa_nodes(box, gpus):
    return 1 if box.numa is None else len({box.numa[gpu] for gpu in gpus})


@cache
def left(box, gpus, size):
    """Bandwidth of the best sets of `size` that these GPUs can be cut into, and their NUMA nodes, below zero."""
    best = (0, 0)
    if len(gpus) >= size:
        best = left(box, gpus[1:], size)
        for others in combinations(gpus[1:], size - 1):
            taken = (gpus[0], *others)
            rate, nodes = left(box, tuple(gpu for gpu in gpus if gpu not in taken), size)
            best = max(best, (rate + inside(box, taken), nodes - numa_nodes(box, taken)))
    return best


@cache
def pairs(box, gpus):
    """NVLink and PCIe of all pairs, summed."""
    return sum(
        box.lanes[a][b] * box.lane + (box.slot * PERCENT[box.pcie[a][b]] // 100 if box.pcie[a][b] else 0)
        for a, b in combinations(gpus, 2)
    )


@cache
def node_sums(box, free, gpus):
    """Return the sums over nodes: NUMA nodes, and the value lost to other jobs."""
    before, after = (left(box, some, len(gpus)) for some in (bits(free), tuple(set(bits(free)) - set(gpus))))
    lost = (before[0] - after[0], before[1] - after[1], int(len(bits(free)) == box.count), len(bits(free)))
    return numa_nodes(box, gpus), lost, pairs(box, gpus)


def key(job, leaves, *, pack=False):
    """Return the key of a job: a list of (number of the node, its box, its free GPUs, the GPUs it gives)."""
    several = len(job) > 1
    rate = min(inside(box, gpus) for _, box, _, gpus in job)
    pix = near = 0
    if several:
        reached = [{card.rail for card in near_cards(box, gpus)} for _, box, _, gpus in job]
        named = any(card.rail for _, box, _, _ in job for card in box.cards)
        rails = set.intersection(*reached) if named else None
        rate = min(rate, *(outside(box, gpus, rails) for _, box, _, gpus in job))
        pix = sum(own_cards(box, gpus, ("PIX",)) for _, box, _, gpus in job)
        near = sum(own_cards(box, gpus, ("PIX", "PXB")) for _, box, _, gpus in job)
    counts = [len(gpus) for *_, gpus in job]
    way = [leaves[number] for number, *_ in job]
    hops = sum(here != there for here, there in zip(way, way[1:] + way[:1], strict=True))
    sums = [node_sums(box, free, gpus) for _, box, free, gpus in job]
    lost = tuple(map(sum, zip(*(one[1] for one in sums), strict=True)))
    on_nodes = (max(counts) - min(counts), -pix, -near, sum(one[0] for one in sums))
    last = (-sum(one[2] for one in sums), [(number, gpus) for number, _, _, gpus in job])
    if pack:
        return (len(job), -rate, hops, *lost, *on_nodes, *last)
    return (-rate, len(job), hops, *on_nodes, *lost, *last)


def cross_leaf_pairs(job, leaves):
    """Return the number of ordered pairs of GPUs on different leaf switches, by counting them."""
    on = [leaves[number] for number, _, _, gpus in job for _ in gpus]
    return sum(here != there for here, there in product(on, on))


def best_sets(box, free, size):
    """The best set of one node."""
    return min(combinations(bits(free), size), key=lambda gpus: key([(0, box, free, gpus)], [""]))


def best_jobs(boxes, frees, leaves, *, step=1, uniform=False, pack=False):
    """By number of GPUs the best job on these nodes, whose order is the rank order; where there is one."""
    best = {}
    for masks in product(*map(subsets, frees)):
        counts = [mask.bit_count() for mask in masks if mask]
        if not counts or any(count % step for count in counts) or (uniform and len(set(counts)) > 1):
            continue
        used = zip(range(len(boxes)), boxes, frees, map(bits, masks), strict=True)
        job = [entry for entry in used if entry[3]]
        worth = key(job, leaves, pack=pack)
        if sum(counts) not in best or worth < best[sum(counts)]:
            best[sum(counts)] = worth
    return {total: worth[-1] for total, worth in best.items()}
