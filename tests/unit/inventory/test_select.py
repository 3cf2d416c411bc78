from pathlib import Path

import pytest

from provision.errors import UsageError
from provision.inventory import select
from provision.model import Cluster, Connection, Node

CLUSTER = Cluster(
    "c",
    Path("x"),
    tuple(
        Node(name, Connection(name), groups=("gpu_nodes", rack))
        for name, rack in (("gpu1", "rack1"), ("gpu2", "rack1"), ("gpu3", "rack2"), ("cpu1", "rack2"))
    ),
)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (None, ["gpu1", "gpu2", "gpu3", "cpu1"]),
        ("all", ["gpu1", "gpu2", "gpu3", "cpu1"]),
        ("gpu2,gpu1", ["gpu1", "gpu2"]),
        ("gpu*", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[1-2]", ["gpu1", "gpu2"]),
        ("rack2:!cpu1", ["gpu3"]),
        ("!gpu1", ["gpu2", "gpu3", "cpu1"]),
        ("gpu*:&rack2", ["gpu3"]),
        ("~(cpu|gpu3)", ["gpu3", "cpu1"]),
        ("gpu_nodes[0:1]", ["gpu1", "gpu2"]),
        ("gpu_nodes[-1]", ["cpu1"]),
    ],
)
def test_limit_accepts_ansible_patterns(pattern, names):
    """--limit takes names, groups, globs, regular expressions and exclusions, in the inventory's order."""
    assert [node.name for node in select(CLUSTER, pattern)] == names


@pytest.mark.parametrize(
    ("pattern", "says"), [("gpu9", "did you mean gpu"), ("gpu1,nope", "'nope'"), ("gpu1:!gpu1", "matches no node")]
)
def test_a_limit_without_matches_is_refused(pattern, says):
    """A word that matches no node is an error that names it, never an empty run."""
    with pytest.raises(UsageError, match=says):
        select(CLUSTER, pattern)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("gpu[1-63]", range(1, 64)),
        ("gpu[9-12]", range(9, 13)),
        ("gpu[1-3,8,60-64]", [1, 2, 3, 8, 60, 61, 62, 63, 64]),
        ("gpu[1-3,8]:!gpu2", [1, 3, 8]),
        ("gpu[1-9]", range(1, 10)),
        ("gpu[60-99]", range(60, 65)),
    ],
)
def test_limit_accepts_the_ranges_of_reports(pattern, names):
    """In a glob [1-63] would be the digits 1 to 6, and mean gpu1 to gpu6."""
    cluster = Cluster("c", Path("x"), tuple(Node(f"gpu{n}", Connection("h")) for n in range(1, 65)))

    assert [node.name for node in select(cluster, pattern)] == [f"gpu{number}" for number in names]
