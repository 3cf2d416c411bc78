"""The choice of GPUs and nodes for a job, compared with an exhaustive search."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from provision.model.reason import reason
from provision.report.reasons import message
from provision.topology.candidates import Mode
from provision.topology.placement import Request
from provision.topology.select import place
from tests.support.reasons import params_of
from tests.unit.topology.boxes import BOXES, SMALL, Card
from tests.unit.topology.oracle import best_jobs, best_sets, cross_leaf_pairs, key

CLUSTERS = {
    "three quads": (["quad"] * 3, ["", "", ""]),
    "three on PCIe, two leaves": (["PCIe"] * 3, ["l1", "l2", "l2"]),
    "three with rails": (["rails"] * 3, ["", "", ""]),
    "three with uneven cards, two racks": (["uneven cards"] * 3, ["r1", "r2", "r2"]),
    "bridges, quad and PCIe, two leaves": (["bridges", "quad", "PCIe"], ["l1", "l1", "l2"]),
}


def on_one_node(kind, masks):
    """Compare every size of every mask."""
    box = BOXES[kind]
    for free in masks:
        for size in range(1, free.bit_count() + 1):
            placed = place([box.candidate("n", free)], Request(1, size))

            assert sorted(gpu for worker in placed.workers for gpu in worker.gpus) == [*best_sets(box, free, size)]


@pytest.mark.parametrize("kind", BOXES)
def test_the_choice_on_one_node_equals_an_exhaustive_search(kind):
    """By the whole key; here for some sets of free GPUs."""
    on_one_node(kind, [255, *Random(7).sample(range(1, 255), 3)])  # noqa: S311


@pytest.mark.long
@pytest.mark.parametrize("kind", BOXES)
def test_the_choice_on_one_node_equals_an_exhaustive_search_for_every_free_set(kind):
    on_one_node(kind, range(1, 256))


def on_three_nodes(cluster, masks, **request):
    """Compare every size of every combination of masks."""
    kinds, leaves = CLUSTERS[cluster]
    boxes = [SMALL[kind] for kind in kinds]
    for frees in masks:
        nodes = [
            box.candidate(f"n{number}", free, leaf=leaf)
            for number, (box, free, leaf) in enumerate(zip(boxes, frees, leaves, strict=True))
        ]
        step, wanted = request.get("step", 1), {key: value for key, value in request.items() if key != "step"}
        expected = best_jobs(boxes, frees, leaves, step=step, **wanted)
        for total in range(step, sum(map(int.bit_count, frees)) + 1, step):
            placed = place(nodes, Request(step, total // step, **wanted))
            given = {}
            for worker in placed.workers:
                given.setdefault(int(worker.node[1:]), []).extend(worker.gpus)

            chosen = [(node, tuple(sorted(gpus))) for node, gpus in given.items()]
            best = expected.get(total, [])
            if chosen != best:  # equal nodes with fewer pairs on different leaf switches
                jobs = [[(node, boxes[node], frees[node], gpus) for node, gpus in one] for one in (chosen, best)]
                keys = [key(job, leaves, pack=request.get("pack", False)) for job in jobs]
                assert keys[0][:-1] == keys[1][:-1], (frees, total)
                assert cross_leaf_pairs(jobs[0], leaves) < cross_leaf_pairs(jobs[1], leaves), (frees, total)


def some_masks(count, seed):
    return [tuple(Random(seed + number).choices(range(16), k=3)) for number in range(count)]  # noqa: S311


@pytest.mark.parametrize("request_", [{}, {"uniform": True}, {"pack": True}, {"step": 2}], ids=str)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_choice_on_three_nodes_equals_an_exhaustive_search(cluster, request_):
    """By the whole key, for every size; here for some combinations of free GPUs."""
    on_three_nodes(cluster, some_masks(2, len(cluster)), **request_)


@pytest.mark.long
@pytest.mark.parametrize("request_", [{}, {"uniform": True}, {"pack": True}, {"step": 2}], ids=str)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_choice_on_three_nodes_equals_an_exhaustive_search_for_all_free_sets(cluster, request_):
    on_three_nodes(cluster, product(range(16), repeat=3), **request_)


def gpus_of(placement):
    return [(worker.node, *worker.gpus) for worker in placement.workers]


@pytest.mark.row(17)
def test_four_workers_of_one_gpu_get_a_quad_of_one_node():
    """The documented case: of eight GPUs the four that are best linked, on one of two nodes."""
    nodes = [BOXES["DGX-1V"].candidate(name) for name in ("b", "a")]
    placed = place(nodes, Request(1, 4))

    assert gpus_of(placed) == [("a", 0), ("a", 1), ("a", 2), ("a", 3)]
    assert (placed.bandwidth, placed.key.nodes, placed.fits) == (800, 1, True)


def test_ranks_follow_the_ring():
    """Ranks next to each other have a lane between them; a worker's GPUs are listed in that order too."""
    free = sum(1 << gpu for gpu in (0, 1, 4, 5))
    ranks = place([BOXES["DGX-1V"].candidate("n", free)], Request(1, 4))
    (worker,) = place([BOXES["DGX-1V"].candidate("n", free)], Request(4, 1)).workers

    assert gpus_of(ranks) == [("n", 0), ("n", 1), ("n", 5), ("n", 4)]
    assert (worker.gpus, worker.order) == ((0, 1, 4, 5), (0, 1, 5, 4))


def test_workers_that_share_a_node_get_the_best_sets_of_it():
    """Four workers of two GPUs on a whole DGX-1V: each a pair with two lanes."""
    placed = place([BOXES["DGX-1V"].candidate("n")], Request(2, 4))

    assert {worker.gpus for worker in placed.workers} == {(0, 3), (1, 2), (4, 7), (5, 6)}


def test_the_tightest_fit_is_chosen():
    """A quad comes from the node that has only that left, not from one that is wholly free."""
    nodes = [BOXES["DGX-1V"].candidate("a"), BOXES["DGX-1V"].candidate("b", 0b1111)]

    assert place(nodes, Request(4, 1)).nodes == ("b",)


def test_a_completely_free_node_is_preserved():
    """Before the node with fewer free GPUs, which is a whole machine of one."""
    small = replace(SMALL["PCIe"], lanes=((0,),), pcie=((None,),), numa=(0,), cards=())
    nodes = [small.candidate("a"), SMALL["PCIe"].candidate("b", 0b0111)]

    assert place(nodes, Request(1, 1)).nodes == ("b",)
    assert place([*nodes, SMALL["PCIe"].candidate("c", 0b0011)], Request(1, 1)).nodes == ("c",)


@pytest.mark.row(3)
def test_insufficient_gpus_are_reported_and_nothing_is_placed():
    """With five free GPUs two workers of two GPUs fit; a job of three workers does not start."""
    nodes = [SMALL["quad"].candidate("a", 0b0111), SMALL["quad"].candidate("b", 0b0011)]
    placed = place(nodes, Request(2, 3))

    assert (placed.fits, placed.workers, placed.bandwidth) == (False, (), None)
    assert placed.reason.code == "placement.insufficient_gpus"
    assert (placed.reason.params["missing"], placed.reason.params["workers"]) == (1, 3)
    free = placed.reason.params["free"]
    assert [dict(one.params) for one in free] == [{"name": "a", "gpus": 3}, {"name": "b", "gpus": 2}]
    assert placed.reason.params["largest"] == reason("placement.largest_job", workers=2)
    assert message(placed.reason) == (
        "insufficient GPUs for 1 of 3 workers; a job needs all its workers at once; a worker uses 2 GPUs of one node; "
        "free: a 3, b 2; the largest job that fits now has 2 workers"
    )


def test_a_uniform_job_requires_equal_workers_per_node():
    """Three and two GPUs are five, and two on each are four."""
    nodes = [SMALL["quad"].candidate("a", 0b0111), SMALL["quad"].candidate("b", 0b0011)]

    assert [len(set(place(nodes, Request(1, 5)).nodes)), place(nodes, Request(1, 5, uniform=True)).fits] == [2, False]
    assert [worker.node for worker in place(nodes, Request(1, 4, uniform=True)).workers] == ["a", "a", "b", "b"]
    why = place(nodes, Request(1, 5, uniform=True)).reason
    assert why.params["largest"] == reason("placement.largest_job", workers=4)


@pytest.mark.row(5, 6)
def test_modes_keep_jobs_apart():
    """A node without a mode takes every job, one with a mode those of that mode alone."""
    modes = {"plain": None, "usual": Mode.DEFAULT, "wired": Mode.TOPOLOGY, "shared": Mode.SHARE}
    nodes = [SMALL["quad"].candidate(name, mode=mode) for name, mode in modes.items()]
    nodes_of = {mode: set(place(nodes, Request(4, 2, mode=mode)).nodes) for mode in Mode}

    assert nodes_of == {
        Mode.DEFAULT: {"plain", "usual"},
        Mode.TOPOLOGY: {"plain", "wired"},
        Mode.SHARE: {"plain", "shared"},
    }
    params = params_of(place(nodes, Request(4, 3, mode=Mode.TOPOLOGY)).reason, "placement.mode_differs")
    other = [(one.params["name"], one.params["mode"]) for one in params["nodes"]]
    assert (params["mode"], other) == ("topology", [("usual", "default"), ("shared", "share")])


def test_gpus_in_mig_mode_serve_single_gpus_that_are_shared():
    """NCCL cannot combine two instances, and a job that requests a GPU gets a whole one."""
    nodes = [SMALL["quad"].candidate("n", 0b0011, mig=frozenset({0, 1}))]
    shared = place(nodes, Request(1, 1, mode=Mode.SHARE))
    refused = [place(nodes, Request(1, 1)), place(nodes, Request(1, 2, mode=Mode.SHARE))]

    assert (gpus_of(shared), shared.workers[0].mig) == ([("n", 0)], (0,))
    assert [placed.fits for placed in refused] == [False, False]
    assert params_of(refused[0].reason, "placement.mig")["nodes"] == (
        reason("placement.gpus_of_node", name="n", gpus=2),
    )


def test_nodes_of_one_leaf_are_adjacent_and_hops_are_counted():
    """Four whole nodes: two leaves have three and one, or two and two; never three leaves."""
    leaves = {"n1": "b", "n2": "a", "n3": "c", "n4": "b", "n5": "a", "n10": "b"}
    nodes = [SMALL["quad"].candidate(name, leaf=leaf) for name, leaf in leaves.items()]

    three, four, six = (place(nodes, Request(4, workers)) for workers in (3, 4, 6))

    assert (three.nodes, three.key.cross_leaf_hops) == (("n1", "n4", "n10"), 0)
    assert (four.key.cross_leaf_hops, len(set(four.leaves))) == (2, 2)
    assert (six.nodes, six.key.cross_leaf_hops) == (("n2", "n5", "n1", "n4", "n10", "n3"), 3)


def test_leaves_of_a_rack_are_adjacent():
    """Between otherwise equal placements, a job on several leaf switches uses as few racks as possible."""
    places = {"a": ("l1", "r1"), "b": ("l2", "r2"), "c": ("l3", "r1"), "d": ("l3", "r2")}
    nodes = [SMALL["quad"].candidate(name, leaf=leaf, rack=rack) for name, (leaf, rack) in places.items()]

    assert place(nodes[:3], Request(4, 2)).nodes == ("a", "c")
    assert place(nodes, Request(4, 4)).nodes == ("a", "c", "d", "b")


def test_a_rack_replaces_a_missing_leaf():
    nodes = [SMALL["quad"].candidate(f"n{number}", rack=f"r{number % 2}") for number in range(4)]

    assert place(nodes, Request(4, 2)).nodes == ("n0", "n2")


def test_the_hosts_of_an_nvlink_domain_need_no_network():
    """A second host of the domain is as near as the first, and nearer than any other host."""
    boxes = {"a": "", "b": "nvl", "c": "", "d": "nvl"}
    nodes = [BOXES["HGX H100"].candidate(name, 0b1111, domain=domain) for name, domain in boxes.items()]
    four = BOXES["HGX H100"].candidate("e")

    placed = place(nodes, Request(4, 2))
    assert (placed.nodes, placed.bandwidth) == (("b", "d"), 3708)
    assert place([*nodes, four], Request(4, 2)).nodes == ("e",)
    assert place(nodes, Request(4, 3)).bandwidth == 4 * 480


def test_rails_that_not_all_nodes_reach_are_not_counted():
    """GPU 0 and 1 have the first rail, 2 and 3 the second."""
    box = SMALL["rails"]
    crossed = [box.candidate("a", 0b0011), box.candidate("b", 0b1100)]

    assert place(crossed, Request(2, 2)).bandwidth == 120 * 55 // 100
    assert place([*crossed, box.candidate("c", 0b0011)], Request(2, 2)).nodes == ("a", "c")
    assert place([box.candidate("a"), box.candidate("b")], Request(4, 2)).bandwidth == 240


def test_a_worker_without_a_card_of_the_rails_uses_those_of_the_node():
    """Only the first rail is reached by both nodes, and on one of them GPUs 2 and 3 work too."""
    box = SMALL["rails"]
    placed = place([box.candidate("a"), box.candidate("b", 0b0011)], Request(1, 6))
    nics = {worker.gpus: worker.nics for worker in placed.workers if worker.node == "a"}

    assert nics == {(gpu,): ("mlx5_0",) for gpu in range(4)}


def test_one_near_card_is_preferred_to_two_distant_ones():
    """The first two GPUs share a card that is PIX to one of them; the others have a PXB card each."""
    nodes = [SMALL["uneven cards"].candidate(name, free) for name, free in (("b", 12), ("c", 12), ("d", 3))]
    placed = place(nodes, Request(2, 2))

    assert (placed.nodes, placed.key.pix_nics, placed.key.near_nics) == (("b", "d"), 1, 3)


def test_infiniband_and_ethernet_are_not_combined():
    """Two nodes with the same kind of network are used, and cards of the other kind are not listed."""
    layers = {"a": "InfiniBand", "b": "Ethernet", "c": "InfiniBand"}
    boxes = {name: replace(SMALL["PCIe"], cards=both(layer)) for name, layer in layers.items()}
    placed = place([box.candidate(name, 0b0011) for name, box in boxes.items()], Request(2, 2))

    assert (placed.nodes, placed.bandwidth) == (("a", "c"), 120)
    assert [worker.nics for worker in placed.workers] == [("mlx5_0",), ("mlx5_0",)]


def both(layer):
    """The first card of the layer, and one more of a layer of its own."""
    near = SMALL["PCIe"].cards[0].near
    return (Card(near, 125, layer=layer), Card(near, 60, layer="Ethernet" if layer == "InfiniBand" else "InfiniBand"))


def test_the_runner_up_shows_the_deciding_criterion():
    """Two completely free nodes of two leaf switches are compared with a partially used one."""
    nodes = [SMALL["quad"].candidate(name, leaf=leaf) for name, leaf in (("a", "l1"), ("b", "l2"), ("c", "l2"))]
    placed = place(nodes, Request(4, 2), explain=True)

    assert (placed.nodes, placed.runner_up.nodes) == (("b", "c"), ("a", "b"))
    assert (placed.key.cross_leaf_hops, placed.runner_up.key.cross_leaf_hops) == (0, 2)
    assert place(nodes[:2], Request(4, 2), explain=True).runner_up is None


def test_packing_leaves_the_best_sets_to_others_at_equal_bandwidth():
    """Of 0, 1, 2, 4, 5 the pairs 0-4, 1-2 and 1-5 have two lanes; only 0-4 leaves another such pair free."""
    node = BOXES["DGX-1V"].candidate("n", sum(1 << gpu for gpu in (0, 1, 2, 4, 5)))

    assert gpus_of(place([node], Request(2, 1))) == [("n", 1, 2)]
    assert gpus_of(place([node], Request(2, 1, pack=True))) == [("n", 0, 4)]


def test_packing_prefers_fewer_nodes_to_more_bandwidth():
    """Four GPUs of two sockets carry less over PCIe than two of each of two nodes with a card for each pair."""
    nodes = [SMALL["PCIe"].candidate(name) for name in "ab"]
    fast, packed = (place(nodes, Request(2, 2, pack=pack)) for pack in (False, True))

    assert (fast.key.nodes, fast.bandwidth, packed.key.nodes, packed.bandwidth) == (2, 120, 1, 60)


@pytest.mark.parametrize("pack", [False, True])
def test_the_limit_of_workers_per_node_is_respected(pack):
    """Eight workers of a GPU, at most three on a node of four."""
    nodes = [SMALL["quad"].candidate(name) for name in "abc"]
    placed = place(nodes, Request(1, 8, pack=pack, most_per_node=3))

    assert sorted(Counter(worker.node for worker in placed.workers).values()) == [2, 3, 3]
    assert place(nodes, Request(1, 3, pack=pack, most_per_node=3)).key.nodes == 1
    assert place(nodes, Request(1, 7, pack=pack, most_per_node=2)).reason.params["max_per_node"] == 2


def in_use(kind, count=1000):
    """Nodes behind leaf switches of 32 ports, 30 of 100 GPUs being busy at random."""
    chance = Random(5)  # noqa: S311
    frees = [sum((chance.random() > 0.3) << gpu for gpu in range(8)) for _ in range(count)]
    return [BOXES[kind].candidate(f"n{n}", free, leaf=f"l{n // 32}") for n, free in enumerate(frees)]


LARGE = [Request(*size, uniform, pack) for size in ((1, 512), (1, 2048), (2, 1024), (4, 64), (8, 32))
         for uniform in (False, True) for pack in (False, True)]  # fmt: skip


def seconds_of_placement(nodes, request):
    """Processor time, for other tests run at the same time."""
    before = time.process_time()
    assert place(nodes, request).fits
    return time.process_time() - before


@pytest.mark.long
@pytest.mark.parametrize("request_", LARGE, ids=str)
@pytest.mark.parametrize("kind", BOXES)
def test_a_thousand_nodes_in_use_are_chosen_from_in_two_seconds(kind, request_):
    """Whatever is preferred, on a machine that is otherwise idle."""
    assert seconds_of_placement(in_use(kind), request_) < 2


@pytest.mark.long
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize(("gpus", "workers"), [(8, 1), (8, 64), (8, 512), (4, 64), (1, 512)])
@pytest.mark.parametrize("kind", ["DGX-1V", "HGX H100"])
def test_ten_thousand_nodes_in_use_are_chosen_from_in_two_seconds(kind, gpus, workers, *, pack):
    """Jobs of up to 4,096 GPUs, on a machine that is otherwise idle."""
    assert seconds_of_placement(in_use(kind, 10_000), Request(gpus, workers, pack=pack)) < 2


@pytest.mark.parametrize("pack", [False, True])
def test_twice_as_many_nodes_and_workers_take_at_most_six_times_as_long(pack):
    """The effort grows with nodes times workers, so that a thousand nodes are chosen from within seconds."""
    half, whole = (
        seconds_of_placement(in_use("DGX-1V", nodes), Request(1, 2 * nodes, pack=pack)) for nodes in (500, 1000)
    )

    assert whole < 6 * half


def test_the_same_question_has_the_same_answer():
    """Whatever the order in which the nodes are named."""
    nodes = [BOXES["DGX-1V"].candidate(f"n{n}", 255 - n, leaf=f"l{n % 3}") for n in range(9)]

    assert place(nodes, Request(2, 9)).workers == place(nodes[::-1], Request(2, 9)).workers
