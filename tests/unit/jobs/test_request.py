import pytest

from provision.errors import LaunchError
from provision.jobs.request import networks_of, new_job_id, rank_count, used_entries
from provision.launchers import HostEntry

ENTRIES = (HostEntry("gpu1", "10.0.0.1", 8, "gpu"), HostEntry("n2", "10.0.0.2", 2, "cpu"))


def test_without_a_number_every_slot_gets_a_rank():
    """The default is all slots."""
    assert rank_count(ENTRIES, None) == 10
    assert rank_count(ENTRIES, 3) == 3


def test_more_ranks_than_slots_are_refused_with_the_table():
    """Exit code 125, with the slots of every node."""
    with pytest.raises(LaunchError, match="11 ranks were asked for, but the nodes have 10 slots") as caught:
        rank_count(ENTRIES, 11)

    assert caught.value.exit_code == 125
    assert [line.split() for line in caught.value.output.splitlines()] == [
        ["node", "slots", "of"],
        ["gpu1", "8", "gpu"],
        ["n2", "2", "cpu"],
        ["total", "10"],
    ]


@pytest.mark.parametrize("wanted", [0, -1])
def test_a_job_without_ranks_is_refused(wanted):
    """It is a mistake, not a success."""
    with pytest.raises(LaunchError):
        rank_count(ENTRIES, wanted)


def test_a_cluster_without_slots_is_reported():
    """Without a usable node, a job must not end as an empty one."""
    with pytest.raises(LaunchError, match="no node can take ranks"):
        rank_count((), None)


def test_nodes_without_ranks_are_not_used():
    """Slots are filled in order, so that a small job needs only the first nodes."""
    assert [entry.name for entry in used_entries(ENTRIES, 8)] == ["gpu1"]
    assert [entry.name for entry in used_entries(ENTRIES, 9)] == ["gpu1", "n2"]


def test_each_job_has_a_mark_of_its_own():
    """Jobs never share the mark by which processes are ended."""
    assert len({new_job_id() for _ in range(100)}) == 100


def test_networks_without_nodes_are_omitted():
    """MPI gets only networks with a data address."""
    assert networks_of(ENTRIES, ["10.0.0.0/24", "192.168.0.0/16"]) == ("10.0.0.0/24",)
    assert networks_of(ENTRIES, ["192.168.0.0/16"]) == ("192.168.0.0/16",)
