"""Rank files, and the placements that they are made of."""

from __future__ import annotations

import json

import pytest

from provision.errors import UsageError
from provision.launchers import HostEntry
from provision.launchers.placement_file import read_placement
from provision.launchers.rankfile import even_placement, ranges, render
from provision.model import NodePlacement, RankPlacement


def test_ranks_are_numbered_across_nodes():
    """CPUs are written as short as they can be."""
    nodes = [
        NodePlacement("gpu1", ranks=(RankPlacement(cpus=(0, 1, 2, 3)), RankPlacement(cpus=(9, 8, 4)))),
        NodePlacement("gpu2", ranks=(RankPlacement(cpus=(7,)),)),
    ]

    assert render(nodes) == "rank 0=gpu1 slot=0-3\nrank 1=gpu1 slot=4,8-9\nrank 2=gpu2 slot=7\n"


def test_a_rank_without_cpus_has_no_line():
    """A rank file that leaves one out would leave it unbound without a word."""
    with pytest.raises(UsageError, match="rank 0 of gpu1"):
        render([NodePlacement("gpu1", ranks=(RankPlacement(gpus=("0",)),))])
    with pytest.raises(UsageError):
        render(even_placement([HostEntry("gpu1", "", 2, "gpu", 0)]))


@pytest.mark.parametrize(
    ("cpus", "slots", "shares"),
    [(8, 2, ["0-3", "4-7"]), (7, 2, ["0-2", "3-6"]), (2, 3, ["0", "1", "0"]), (3, 3, ["0", "1", "2"])],
)
def test_without_a_placement_cpus_are_divided_evenly(cpus, slots, shares):
    """Every CPU is used once, unless there are fewer than ranks."""
    (node,) = even_placement([HostEntry("gpu1", "10.0.0.1", slots, "cpu", cpus)])

    assert [ranges(rank.cpus) for rank in node.ranks] == shares


def test_a_placement_has_a_rank_for_each_gpu_of_a_worker():
    """As `place --json` prints it; workers of one node are joined."""
    text = json.dumps(
        {
            "fits": True,
            "workers": [
                {"node": "gpu1", "gpus": [0, 3], "nics": ["mlx5_0"]},
                {"node": "gpu2", "gpus": ["GPU-12ab"]},
                {"node": "gpu1", "gpus": [5], "nics": []},
            ],
        }
    )

    assert read_placement(text) == [
        NodePlacement(
            "gpu1",
            ranks=(
                RankPlacement(("0",), ("mlx5_0",)),
                RankPlacement(("3",), ("mlx5_0",)),
                RankPlacement(("5",)),
            ),
        ),
        NodePlacement("gpu2", ranks=(RankPlacement(("GPU-12ab",)),)),
    ]


def test_a_worker_can_list_its_ranks():
    """With CPUs in both spellings, and cards of their own."""
    ranks = [
        {"gpus": [0, 1], "cpus": "0-2,8", "numa": 0, "gid_index": 3},
        {"gpus": [2], "cpus": [4, 5], "nics": ["mlx5_1:1"]},
    ]
    (node,) = read_placement(json.dumps({"workers": [{"node": "n", "nics": ["mlx5_0"], "ranks": ranks}]}))

    assert node.ranks == (
        RankPlacement(("0", "1"), ("mlx5_0",), (0, 1, 2, 8), 0, 3),
        RankPlacement(("2",), ("mlx5_1:1",), (4, 5)),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no JSON"),
        ("[]", "no workers"),
        ('{"workers": [], "reason": "not enough GPUs"}', "no workers: not enough GPUs"),
        ('{"workers": [{"gpus": [0]}]}', "worker 0 of the placement names no node"),
        ('{"workers": [{"node": "a", "gpus": [true]}]}', "has gpus that are no list"),
        ('{"workers": [{"node": "a", "gpus": ["0,1"]}]}', "has gpus that are no list"),
        ('{"workers": [{"node": "a", "nics": "mlx5_0"}]}', "has nics that are no list"),
        ('{"workers": [{"node": "a", "ranks": [1]}]}', "no list of objects"),
        ('{"workers": [{"node": "a", "ranks": [{"cpus": "0-x"}]}]}', "rank 0 of worker 0 of the placement has cpus"),
        ('{"workers": [{"node": "a", "ranks": [{"cpus": "0-99999"}]}]}', "has cpus that are none"),
        ('{"workers": [{"node": "a", "ranks": [{"cpus": 3}]}]}', "neither text nor a list"),
        ('{"workers": [{"node": "a", "ranks": [{"numa": "0"}]}]}', "has a numa that is no number"),
    ],
)
def test_an_invalid_placement_is_refused_with_its_location(text, said):
    """Exit 2, no traceback."""
    with pytest.raises(UsageError) as caught:
        read_placement(text)

    assert said in caught.value.message
    assert caught.value.remedy
