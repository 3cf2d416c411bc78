"""What a set of GPUs is worth, by the figures that are known and by the definition."""

from __future__ import annotations

from itertools import combinations

import pytest

from provision.model import Topology, TopologyGpu, TopologyNic
from provision.topology.candidates import Machine, Port
from provision.topology.cards import Network
from provision.topology.products import lanes, nic_rate, pcie_rate
from provision.topology.rings import best_ring, ring_count
from provision.topology.score import UNLIMITED, SetScores
from tests.unit.topology.boxes import BOXES, SMALL
from tests.unit.topology.oracle import inside, near_cards, outside, own_cards, rings


def mask(*gpus):
    return sum(1 << gpu for gpu in gpus)


V100, P100, H100 = "DGX-1V", "DGX-1P", "HGX H100"


@pytest.mark.parametrize(
    ("kind", "gpus", "tenths"),
    [
        (V100, range(8), 1200),
        (V100, (0, 1, 2, 3), 800),
        (V100, (0, 3), 400),
        (V100, (0, 1), 200),
        (V100, (0, 1, 4, 5), 400),
        (V100, (0, 3, 4), 60),
        (P100, range(8), 720),
        (P100, (0, 1, 2, 3), 360),
        (H100, range(8), 3708),
        (H100, (2, 5), 3708),
        (H100, (4,), UNLIMITED),
        ("eight on PCIe", (0, 1), 120),
        ("eight on PCIe", (0, 2), 90),
        ("eight on PCIe", (0, 4), 60),
    ],
)
def test_the_bandwidth_inside_a_set_is_that_of_its_rings(kind, gpus, tenths):
    """Quads and the whole mesh have rings of NVLink, a star has none, switches serve every set alike."""
    assert SetScores(BOXES[kind].machine()).inside(mask(*gpus)) == tenths


@pytest.mark.parametrize("kind", [*BOXES, *SMALL])
def test_scores_of_up_to_four_gpus_equal_an_exhaustive_search(kind):
    box = {**BOXES, **SMALL}[kind]
    scores = SetScores(box.machine())

    for size in range(1, 5):
        for gpus in combinations(range(box.count), size):
            assert scores.inside(mask(*gpus)) == inside(box, gpus), gpus


def test_ring_counts_of_five_gpus_equal_an_exhaustive_search():
    lanes_of = BOXES[V100].lanes
    for gpus in list(combinations(range(8), 5))[::7]:
        part = tuple(tuple(lanes_of[a][b] for b in gpus) for a in gpus)

        assert ring_count(part) == rings(part)


def test_a_dead_lane_costs_rings():
    """Without the link 0-3 of two lanes, six rings no longer leave GPU 0."""
    lanes_of = [list(row) for row in BOXES[V100].lanes]
    lanes_of[0][3] = lanes_of[3][0] = 0

    assert ring_count(tuple(map(tuple, lanes_of))) == 4


def test_the_best_ring_uses_the_lanes():
    assert best_ring((0, 1, 4, 5), BOXES[V100].lanes) == (0, 1, 5, 4)
    assert best_ring((0, 2, 4), ((0,) * 5,) * 5) == (0, 2, 4)


@pytest.mark.parametrize("kind", [*BOXES, *SMALL])
def test_cards_count_that_share_a_switch_with_a_gpu_of_the_set(kind):
    """Two GPUs below one card share it; without such a card the best one is reached through the host's memory."""
    box = {**BOXES, **SMALL}[kind]
    scores = SetScores(box.machine())
    for size in (1, 2, 3, box.count):
        for gpus in combinations(range(box.count), size):
            here = mask(*gpus)

            assert scores.cards.outside(here, Network()) == outside(box, gpus, None)
            assert len(scores.cards.near(here, Network())) == len(near_cards(box, gpus))
            assert scores.cards.own(here, Network()) == tuple(
                own_cards(box, gpus, classes) for classes in (("PIX",), ("PIX", "PXB"))
            )


def two_gpus(link="SYS", ports=(), classes=(), **more):
    """A machine of two GPUs with cards, whose classes to both GPUs are given."""
    names = tuple(TopologyNic(f"mlx5_{number}") for number in range(len(ports)))
    first, second = ("X", link, *(a for a, _ in classes)), (link, "X", *(b for _, b in classes))
    below = tuple((a, b, *("X" if x == y else "SYS" for y in names)) for x, (a, b) in zip(names, classes, strict=True))
    gpus = (TopologyGpu(0, 0), TopologyGpu(1, 1))
    return SetScores(Machine(Topology(gpus, names, (first, second, *below)), ports=tuple(ports), **more))


def test_the_link_between_sockets_can_be_slower_than_half_a_slot():
    """Gen 5 slots behind processors that pass little to each other."""
    assert two_gpus(pcie=480, inter_cpu=220).inside(3) == 220
    assert two_gpus(pcie=480).inside(3) == 240
    assert two_gpus("NODE", pcie=480, inter_cpu=220).inside(3) == 312


def test_staging_crosses_the_sockets_too():
    """55 percent remain of the lowest rate of the card, its slot and the link between the processors."""
    far = two_gpus(ports=[Port(250)], classes=[("NODE", "SYS")], pcie=240, inter_cpu=100)

    assert (far.cards.outside(1, Network()), far.cards.outside(2, Network())) == (240 * 55 // 100, 100 * 55 // 100)


def test_a_card_that_is_down_or_of_the_other_layer_is_not_counted():
    """InfiniBand and Ethernet do not mix in one job."""
    ports = [Port(125, "InfiniBand"), Port(125, "Ethernet"), Port(0, "Ethernet")]
    scores = two_gpus(ports=ports, classes=[("PIX", "SYS")] * 3)

    assert [scores.cards.outside(1, Network(layer)) for layer in ("InfiniBand", "Ethernet", "")] == [120, 120, 240]


def test_only_requested_rails_count_and_all_have_to_be_reached():
    scores = two_gpus(ports=[Port(100, rail="a"), Port(100, rail="b")], classes=[("PIX", "SYS"), ("SYS", "PIX")])
    rails = [frozenset("a"), frozenset("ab"), frozenset()]

    assert [scores.cards.outside(1, Network(rails=some)) for some in rails] == [100, 0, 55]
    assert [scores.cards.outside(3, Network(rails=some)) for some in rails] == [100, 200, 55]


def test_with_few_visible_gpus_the_product_reveals_switches():
    """Three A800 show 16 lanes a row, no more than a GPU may have; eight are theirs in total."""
    links = (("X", "NV8", "NV8"), ("NV8", "X", "NV8"), ("NV8", "NV8", "X"))
    topology = Topology(tuple(map(TopologyGpu, range(3))), (), links)

    assert SetScores(Machine(topology, lanes=8)).inside(7) == 8 * 200


def test_a_gpu_off_the_switches_leaves_a_set_to_pcie():
    rows = [["X" if a == b else "NODE" if 3 in (a, b) else "NV18" for b in range(4)] for a in range(4)]
    topology = Topology(tuple(map(TopologyGpu, range(4))), (), tuple(map(tuple, rows)))
    scores = SetScores(Machine(topology, lane=206))

    assert (scores.inside(7), scores.inside(15)) == (18 * 206, 78)


def test_a_pcie_class_hidden_by_nvlink_follows_from_the_cards():
    """Two GPUs that are PIX to one card are PIX to each other; otherwise their NUMA nodes decide."""
    near = two_gpus("NV2", ports=[Port(125)], classes=[("PIX", "PIX")])
    apart = two_gpus("NV2")

    assert near.weights(3) == 400 + 120
    assert apart.weights(3) == 400 + 60


def test_measurements_replace_product_rates():
    """Rings of NVLink scale with the slowest lane measured; of PCIe the slowest pair counts."""
    box = SMALL["quad"]
    measured = [[0] * 4 for _ in range(4)]
    for a, b in combinations(range(4), 2):
        measured[a][b] = measured[b][a] = box.lanes[a][b] * 240
    measured[0][3] = measured[3][0] = 2 * 230
    machine = Machine(box.machine().topology, p2p=tuple(map(tuple, measured)))

    assert SetScores(machine).inside(mask(0, 3)) == 460
    assert SetScores(machine).inside(15) == 4 * 230
    assert two_gpus(p2p=((0, 83), (83, 0))).inside(3) == 83


@pytest.mark.parametrize(
    ("product", "capability", "rate", "count"),
    [
        ("V100", "", 200, 6),
        ("Tesla V100-SXM2-32GB", "7.0", 200, 6),
        ("NVIDIA A100-SXM4-80GB", "8.0", 200, 12),
        ("NVIDIA A800-SXM4-80GB", "", 200, 8),
        ("NVIDIA RTX A6000", "8.6", 120, 4),
        ("NVIDIA H100 80GB HBM3", "", 206, 18),
        ("NVIDIA H20", "", 206, 18),
        ("NVIDIA B200", "", 401, 18),
        ("Unheard-of", "9.0", 206, None),
        ("Unheard-of", "8.9", 200, None),
    ],
)
def test_lanes_are_those_of_the_product_else_of_its_generation(product, capability, rate, count):
    known = lanes(product, capability)

    assert known is not None
    assert (known.rate, known.count) == (rate, count)


def test_rates_of_slots_and_cards():
    assert lanes("RTX5090") is None
    assert [pcie_rate(generation) for generation in (3, 4, 5)] == [120, 240, 480]
    assert (pcie_rate(4, 8), pcie_rate(9)) == (120, None)
    assert [nic_rate(gbit) for gbit in (100, 200, 400)] == [125, 250, 500]
