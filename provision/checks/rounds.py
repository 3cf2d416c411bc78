"""Who is measured with whom, and when: rounds in which no node is in two pairs.

Up to SAMPLE_ABOVE nodes every pair is measured: the round-robin tournament that sets one player still and turns the
others, so that n nodes need n-1 rounds (n when n is odd: one node rests in each). Bandwidth has a direction, so few
nodes are measured both ways; among more, every node sends in about half of its pairs and receives in the others.

Beyond that the number of rounds would grow with the nodes. Then every node is measured in SAMPLE_ROUNDS rounds, spread
over the tournament so that partners are near and far, and what is slow is halved: each node of a bad pair is
measured with nodes that were good with everybody. Who is bad with those too is bad itself; who is good with them is
cleared, and the way between the two of the bad pair is what is slow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

__all__ = ["BOTH_WAYS_UP_TO", "SAMPLE_ABOVE", "SAMPLE_ROUNDS", "Round", "follow_up", "plan", "tournament"]

Pair = tuple[str, str]
"""Who sends, and who receives."""
Round = tuple[Pair, ...]

BOTH_WAYS_UP_TO = 8
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
            pairs[0] = (pairs[0][1], pairs[0][0])  # the one that stands still would always send
        rounds.append(tuple((a, b) for a, b in pairs if a is not None and b is not None))
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return [round_ for round_ in rounds if round_]


def plan(names: Sequence[str]) -> list[Round]:
    """Return the rounds that are measured first: all of the tournament, both ways for few nodes, a sample for many."""
    rounds = tournament(names)
    if len(names) > SAMPLE_ABOVE:
        step = len(rounds) / SAMPLE_ROUNDS
        return [rounds[int(number * step)] for number in range(SAMPLE_ROUNDS)]
    if len(names) <= BOTH_WAYS_UP_TO:
        return rounds + [tuple((b, a) for a, b in round_) for round_ in rounds]
    return rounds


def follow_up(names: Sequence[str], measured: Iterable[Pair], bad: Collection[Pair]) -> list[Round]:
    """Return the rounds that tell bad nodes from bad ways, after a sample.

    Every node of a bad pair meets two nodes that it has not met and that were in no bad pair, once as sender
    and once as receiver. None when nothing is bad, when nobody is good, or when all pairs were measured anyway.
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
    """Give each one that waits a good partner that is free in this round; return the pairs and who still waits."""
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
