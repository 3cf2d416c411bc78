"""Every launcher's host file, letter by letter, and what is refused."""

from __future__ import annotations

import dataclasses
import re

import pytest

from provision.errors import UsageError
from provision.hostfiles import LAUNCHERS, HostEntry, fitted

TWO = (
    HostEntry("gpu2", "10.77.0.2", 8, "gpu", 64, 29501),
    HostEntry("gpu1", "10.77.0.1", 8, "gpu", 64),
)
UNEQUAL = (TWO[0], dataclasses.replace(TWO[1], slots=4))
SLOTS = "gpu2 slots=8\ngpu1 slots=4\n"


@pytest.mark.parametrize(
    ("launcher", "text"),
    [
        ("openmpi", SLOTS),
        ("openmpi5", SLOTS),
        ("deepspeed", SLOTS),
        ("mpich", "gpu2:8\ngpu1:4\n"),
        ("intelmpi", "gpu2:8\ngpu1:4\n"),
        ("torchrun", "gpu2 0 8 10.77.0.2 29501\ngpu1 1 4 10.77.0.2 29501\n"),
        ("slurm", "gpu2\n" * 8 + "gpu1\n" * 4),
    ],
)
def test_each_launcher_reads_its_own_dialect(launcher, text):
    """The order is that of the entries; names are the inventory's."""
    assert LAUNCHERS[launcher](UNEQUAL) == text


def test_every_launcher_is_covered_and_writes_nothing_for_nobody():
    """A file without hosts is empty, so that nobody takes a heading for a host."""
    known = "openmpi openmpi5 mpich intelmpi deepspeed torchrun horovod slurm"

    assert list(LAUNCHERS) == known.split()
    assert {render(()) for render in LAUNCHERS.values()} == {""}


def test_deepspeed_gets_nothing_but_lines_that_it_reads():
    """Its pattern is strict, and it ends at the first line that does not fit."""
    lines = LAUNCHERS["deepspeed"](TWO).splitlines()

    assert all(re.fullmatch(r"(\S+)\s+slots=(\d+)", line) for line in lines)


def test_horovod_takes_hosts_with_equal_slots_alone():
    """It starts as many ranks on each; the table shows which differ."""
    assert LAUNCHERS["horovod"](TWO) == "gpu2 slots=8\ngpu1 slots=8\n"
    with pytest.raises(UsageError) as caught:
        LAUNCHERS["horovod"](UNEQUAL)

    assert "different numbers of slots" in caught.value.message
    assert "gpu1      4  gpu" in caught.value.output


@pytest.mark.parametrize(("ranks", "slots"), [(None, [8, 8]), (16, [8, 8]), (12, [8, 4]), (8, [8]), (1, [1])])
def test_slots_are_as_many_as_there_are_ranks(ranks, slots):
    """The first nodes are filled; one that gets no rank is not in the file."""
    assert [entry.slots for entry in fitted(TWO, ranks)] == slots


@pytest.mark.parametrize("ranks", [17, 0, -1])
def test_what_does_not_fit_is_refused_with_the_table(ranks):
    """Exit 2, how many there are, and where."""
    with pytest.raises(UsageError, match=f"{ranks} ranks were asked for, but the nodes have 16 slots") as caught:
        fitted(TWO, ranks)

    assert caught.value.output.splitlines()[-1].split() == ["total", "16"]
