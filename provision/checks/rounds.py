"""The order of measurements: rounds in which no node is in two pairs.

Up to SAMPLE_ABOVE nodes every pair is measured: a round-robin tournament of n-1 rounds (n if n is odd; one node rests
in each). Bandwidth has a direction, so few nodes are measured in both directions; with more nodes, every node sends in
about half of its pairs and receives in the others.

Beyond that, every node is measured in SAMPLE_ROUNDS rounds, spread over the tournament so that partners are near and
far. Then each node of a bad pair is measured with nodes that were good with all partners. A node that is bad with them
too is at fault. Otherwise the path between the two nodes of the bad pair is slow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

Pair = tuple[str, str]
"""Sender and receiver."""
Round = tuple[Pair, ...]

BOTH_DIRECTIONS_UP_TO = 8
"""Nodes; two of them would otherwise be measured in one direction only."""
SAMPLE_ABOVE = 64
SAMPLE_ROUNDS = 8
"""A node that is slow with one partner in four is missed in one sample of ten; one that is slow with all never."""
_SECOND_OPINIONS = 2


def tournament(names: Sequence[str]) -> list[Round]:
    """Return rounds in which each two of `names` meet once; n-1 of them, n when n is odd."""
    ring: list[str | None] = list(names)
    if len(ring) % 2:
        ring.append(None)
    rounds: list[Round] = []
    for number in range(len(ring) - 1):
        pairs = [(ring[i], ring[-1 - i]) for i in range(len(ring) // 2)]
        if number % 2:
            pairs[0] = (pairs[0][1], pairs[0][0])  # the fixed one would always send
        rounds.append(tuple((a, b) for a, b in pairs if a is not None and b is not None))
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return [round_ for round_ in rounds if round_]


def plan(names: Sequence[str]) -> list[Round]:
    """Return the first rounds: the tournament, in both directions for few nodes, as a sample for many."""
    rounds = tournament(names)
    if len(names) > SAMPLE_ABOVE:
        step = len(rounds) / SAMPLE_ROUNDS
        return [rounds[int(number * step)] for number in range(SAMPLE_ROUNDS)]
    if len(names) <= BOTH_DIRECTIONS_UP_TO:
        return rounds + [tuple((b, a) for a, b in round_) for round_ in rounds]
    return rounds


def follow_up(names: Sequence[str], measured: Iterable[Pair], bad: Collection[Pair]) -> list[Round]:
    """Return the rounds that distinguish bad nodes from bad paths, after a sample.

    Every node of a bad pair meets two nodes that it has not met and that were in no bad pair, once as sender
    and once as receiver. None if nothing is bad, no node is good, or all pairs were measured.
    """
    if len(names) <= SAMPLE_ABOVE or not bad:
        return []
    met = {frozenset(pair) for pair in measured}
    suspects = [name for name in names if any(name in pair for pair in bad)]
    good = [name for name in names if name not in suspects and any(name in pair for pair in met)]
    rounds: list[Round] = []
    for turn in range(_SECOND_OPINIONS if good else 0):
        waiting = list(suspects)
        while waiting:
            pairs, waiting = _matched(waiting, good[turn:] + good[:turn], met)
            if not pairs:
                break
            met |= {frozenset(pair) for pair in pairs}
            rounds.append(tuple((b, a) for a, b in pairs) if turn % 2 else tuple(pairs))
    return rounds


def _matched(waiting: list[str], good: Sequence[str], met: set[frozenset[str]]) -> tuple[list[Pair], list[str]]:
    """Give each waiting node a free good partner in this round; return the pairs and the nodes still waiting."""
    free = list(good)
    pairs: list[Pair] = []
    left: list[str] = []
    for name in waiting:
        partner = next((other for other in free if frozenset((name, other)) not in met), None)
        if partner is None:
            left.append(name)
        else:
            free.remove(partner)
            pairs.append((name, partner))
    return pairs, left
