"""Who is measured with whom, and when."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from provision.checks import rounds


def names(count):
    """Names of that many nodes."""
    return [f"gpu{number}" for number in range(1, count + 1)]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9, 64])
def test_each_pair_meets_once_and_a_node_is_in_one_pair_per_round(count):
    """A tournament has all pairs, in n-1 rounds for an even number of nodes and n for an odd one."""
    played = rounds.tournament(names(count))
    met = Counter(frozenset(pair) for round_ in played for pair in round_)

    assert met == Counter(frozenset(pair) for pair in itertools.combinations(names(count), 2))
    assert len(played) == (count if count % 2 else count - 1)
    assert all(max(Counter(itertools.chain(*round_)).values()) == 1 for round_ in played)


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_node_has_no_pairs(count):
    """Nothing is planned, and nothing fails."""
    assert rounds.plan(names(count)) == []


@pytest.mark.parametrize("count", [2, 3, 8])
def test_few_nodes_are_measured_in_both_directions(count):
    """Bandwidth has a direction; each node sends to each other one and receives from it."""
    sent = [pair for round_ in rounds.plan(names(count)) for pair in round_]

    assert sorted(sent) == sorted(itertools.permutations(names(count), 2))


@pytest.mark.parametrize("count", [9, 32, 64])
def test_every_node_of_a_sample_sends_and_receives(count):
    """A node that is slow in one direction only shows in about half of its pairs, and not in none."""
    sent = Counter(a for round_ in rounds.plan(names(count)) for a, _ in round_)

    assert all(abs(2 * sent[name] - (count - 1)) <= 2 for name in names(count))


@pytest.mark.parametrize("count", [65, 100, 257])
def test_above_the_limit_a_sample_is_measured(count):
    """The number of rounds no longer grows with the nodes, and each node meets other partners in each of them."""
    planned = rounds.plan(names(count))
    met = Counter(frozenset(pair) for round_ in planned for pair in round_)
    seen = Counter(name for round_ in planned for pair in round_ for name in pair)

    assert len(planned) == rounds.SAMPLE_ROUNDS
    assert set(met.values()) == {1}
    assert min(seen[name] for name in names(count)) >= rounds.SAMPLE_ROUNDS - 1  # one may rest when the number is odd


def test_nodes_of_slow_pairs_are_measured_again_with_good_nodes():
    """Each node of a bad pair meets two that were good with everybody, once sending and once receiving."""
    nodes = names(70)
    first = [pair for round_ in rounds.plan(nodes) for pair in round_]
    bad = {pair for pair in first if "gpu7" in pair}
    suspects = {name for pair in bad for name in pair}
    more = rounds.follow_up(nodes, first, bad)
    second = [pair for round_ in more for pair in round_]

    assert all(len(suspects & set(pair)) == 1 for pair in second)
    assert Counter(name for pair in second for name in pair if name in suspects) == dict.fromkeys(suspects, 2)
    assert {name for pair in second for name in pair[:1] if name in suspects} == suspects
    assert not {frozenset(pair) for pair in second} & {frozenset(pair) for pair in first}
    assert all(max(Counter(itertools.chain(*round_)).values()) == 1 for round_ in more)


def test_more_suspects_than_good_nodes_require_more_rounds():
    """Every node gets a second opinion even if the good nodes are few."""
    nodes = names(66)
    good = set(nodes[:4])
    first = [pair for round_ in rounds.plan(nodes) for pair in round_]
    bad = {pair for pair in first if not good & set(pair)}
    suspects = {name for pair in bad for name in pair}
    second = [pair for round_ in rounds.follow_up(nodes, first, bad) for pair in round_]

    assert suspects <= {name for pair in second for name in pair}
    assert all(len(good & set(pair)) == 1 for pair in second)


def test_no_follow_up_rounds_if_they_give_no_information():
    """Not when all is good, not when no node is, and not when all pairs were measured anyway."""
    nodes = names(70)
    first = [pair for round_ in rounds.plan(nodes) for pair in round_]

    assert rounds.follow_up(nodes, first, set()) == []
    assert rounds.follow_up(nodes, first, set(first)) == []
    assert rounds.follow_up(names(4), [("gpu1", "gpu2")], {("gpu1", "gpu2")}) == []
