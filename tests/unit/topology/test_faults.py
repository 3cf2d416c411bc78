"""What a matrix shows that is a fault, and what only looks like one."""

from __future__ import annotations

import pytest

from provision.model import Topology, TopologyGpu, TopologyNic
from provision.report.reasons import message
from provision.topology.faults import find_faults, switched_lanes
from provision.topology.matrix import parse
from tests.support.matrices import LAYOUTS
from tests.support.reasons import shown


def gpus(*rows: str, nics: int = 0) -> Topology:
    """A topology whose last rows are cards."""
    links = tuple(tuple(row.split()) for row in rows)
    count = len(links) - nics
    return Topology(
        tuple(TopologyGpu(index) for index in range(count)), tuple(TopologyNic(f"n{i}") for i in range(nics)), links
    )


def switched(count: int, lanes: int, off: tuple[int, ...] = ()) -> Topology:
    """GPUs on NVLink switches, some of which have fallen off."""

    def cell(a: int, b: int) -> str:
        return "X" if a == b else "SYS" if {a, b} & set(off) else f"NV{lanes}"

    return gpus(*(" ".join(cell(a, b) for b in range(count)) for a in range(count)))


@pytest.mark.parametrize("name", LAYOUTS)
def test_healthy_machines_have_no_faults(name):
    """Bridges, cube meshes, a container's share of GPUs, storage cards: all of them healthy."""
    assert find_faults(parse(LAYOUTS[name])) == ()


FAULTY = [
    (switched(8, 18, (5,)), (5,), True, "topology.no_nvlink: GPU5 7 18"),
    (switched(8, 12, (0, 3)), (0, 3), True, "topology.no_nvlink: GPU0 GPU3 6 12"),
    (switched(4, 4, (2,)), (2,), False, "topology.no_nvlink_or_bridge: GPU2 3 4"),
    (gpus("X NV18 NV18 NV17", "NV18 X NV18 NV17", "NV18 NV18 X NV17", "NV17 NV17 NV17 X"), (3,), True,
     "topology.fewer_lanes: topology.lanes_of_gpu 17 18 GPU3"),
    (gpus("X SYS NV18 NV18", "SYS X NV18 NV18", "NV18 NV18 X NV18", "NV18 NV18 NV18 X"), (0, 1), True,
     "topology.no_nvlink_between: topology.pair GPU0 GPU1 18"),
    (gpus("X NV2 PIX", "NV1 X SYS", "PIX SYS X", nics=1), (0, 1), True,
     "topology.not_symmetric: topology.link_directions GPU0 GPU1 NV2 NV1"),
    (gpus("X SYS PIX", "SYS X SYS", "NODE SYS X", nics=1), (0,), True,
     "topology.not_symmetric: topology.link_directions GPU0 n0 PIX NODE"),
    (gpus("X PIX PIX", "PIX X SYS", "PIX SYS X", nics=1), (), False,
     "topology.contradiction: topology.three_links GPU0 GPU1 n0 PIX SYS PIX"),
]  # fmt: skip


@pytest.mark.parametrize(("topology", "hurt", "certain", "said"), FAULTY, ids=[said for *_, said in FAULTY])
def test_a_fault_lists_the_affected_gpus(topology, hurt, certain, said):
    """A lost NVLink, a matrix that is not symmetric, paths that cannot both be."""
    faults = find_faults(topology)

    assert [(fault.gpus, fault.certain, shown(fault.reason)) for fault in faults] == [(hurt, certain, said)]


SOUND = [
    gpus("X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X"),
    gpus("X NV4 NODE", "NV4 X NODE", "NODE NODE X"),
    gpus("X"),
    gpus("X PIX", "PIX X", nics=1),
    gpus(*(" ".join("X" if a == b else "NV6" if a // 4 == b // 4 else "SYS" for b in range(8)) for a in range(8))),
    Topology(()),
]


@pytest.mark.parametrize("topology", SOUND, ids=["bridges", "one bridge", "one GPU", "a card", "two fours", "nothing"])
def test_bridges_between_some_gpus_are_no_fault(topology):
    """Cards with bridges are no baseboard with lost links."""
    assert find_faults(topology) == ()


@pytest.mark.parametrize(
    ("name", "lanes"),
    [
        ("cards by number", 18),
        ("column for the NUMA node", 12),
        ("no affinity", 8),
        ("cards by device name", 0),
        ("range of NUMA nodes", 0),
        ("one bridge", 0),
        ("pair", 0),
    ],
)
def test_switches_are_recognised_by_more_lanes_than_a_gpu_has(name, lanes):
    """A row that shows more lanes than any GPU has counts those to the switches once for each peer."""
    assert switched_lanes(parse(LAYOUTS[name])) == lanes


def test_many_faults_of_one_kind_are_abbreviated():
    """A warning stays short even if every pair is asymmetric."""
    rows = [" ".join("X" if a == b else "PIX" if a < b else "PHB" for b in range(8)) for a in range(8)]
    (text,) = [message(one.reason) for one in find_faults(gpus(*rows)) if one.reason.code == "topology.not_symmetric"]

    assert "and 24 more" in text
    assert len(text) < 300
