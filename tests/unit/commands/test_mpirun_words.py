"""An mpirun line that somebody typed: read for judging, and never changed."""

from __future__ import annotations

import shlex

import pytest

from provision.commands.mpirun_words import is_launcher, parse_line
from provision.launchers import argv_of

PASTED = (
    "mpirun -np 16 -H gpu1:8,gpu2:8 --allow-run-as-root -bind-to none -x NCCL_DEBUG=INFO -x PATH -mca pml ob1 "
    "-mca btl ^openib python3 train.py -x 3 --mca not ours"
)
LINES = (
    PASTED,
    "/opt/bin/mpiexec --hostfile h -n 4 --prtemca prte_if_include bond0 --map-by ppr:8:node --output tag ./a.out",
    "mpirun -x A= -x B==c --tag-output --foo prog",
    "mpirun -np x prog",
    "mpirun --np=4 --host=a:2,b:2 -x=A=1 --x B=2 --mca=btl tcp,self --map-by=slot --foo=1 -H=a prog --np=8",
    "mpirun --np=",
    "mpirun --mca=btl",
    "mpirun",
    "mpirun -np",
    "mpirun --mca btl",
    "mpirun -x",
    "mpirun --",
    "mpirun -- prog -v",
)


@pytest.mark.parametrize("text", LINES)
def test_every_word_is_returned_unchanged(text):
    """Also of lines that are cut short: mpirun itself will say what it thinks of them."""
    words = shlex.split(text)
    line = parse_line(words)

    assert argv_of(line.program, line.settings, line.command) == words


def test_the_program_follows_the_flags():
    """What looks like a flag behind the program is the program's."""
    line = parse_line(shlex.split(PASTED))

    assert line.command[:2] == ("python3", "train.py")
    assert (line.ranks, line.hosts, line.names_hosts) == (16, (("gpu1", 8), ("gpu2", 8)), True)
    assert line.variables == {"NCCL_DEBUG": "INFO", "PATH": None}
    assert [(p.flag, p.name, p.value) for p in line.parameters] == [
        ("--mca", "pml", "ob1"),
        ("--mca", "btl", "^openib"),
    ]


def test_values_behind_an_equals_sign_are_read():
    """Open MPI 5 takes them so, with one dash and with two, except behind -H and -c."""
    words = "mpirun -np=4 --host=a:2,b:2 -x=A=1=2 --x B --mca=btl tcp,self --map-by=slot:oversubscribe --wdir=/d prog"
    line = parse_line(words.split())

    assert (line.ranks, line.hosts, line.oversubscribes) == (4, (("a", 2), ("b", 2)), True)
    assert line.variables == {"A": "1=2", "B": None}
    assert [(p.flag, p.name, p.value) for p in line.parameters] == [("--mca", "btl", "tcp,self")]
    assert line.command == ("prog",)
    assert line.has("wdir")
    assert line.unknown == ()
    assert line.joined[:2] == ("-np=4", "--host=a:2,b:2")
    assert parse_line(["mpirun", "-H=a", "--allow-run-as-root=1", "-c=2", "prog"]).unknown == (
        "-H=a",
        "--allow-run-as-root=1",
        "-c=2",
    )


def test_each_occurrence_of_a_host_adds_one_slot():
    """Open MPI counts so."""
    assert parse_line(["mpirun", "-host", "a,b,a:2,a", "x"]).hosts == (("a", 4), ("b", 1))
    assert parse_line(["mpirun", "-H", "a", "--host", "b:2,a:2", "x"]).hosts == (("a", 3), ("b", 2))


@pytest.mark.parametrize(
    ("flags", "counts", "oversubscribes"),
    [
        ("-np 4", True, False),
        ("-npernode 8", True, False),
        ("--map-by ppr:8:node", True, False),
        ("--map-by slot:OVERSUBSCRIBE", False, True),
        ("--oversubscribe", False, True),
        ("--nooversubscribe", False, False),
        ("--bind-to none", False, False),
    ],
)
def test_options_for_ranks_and_oversubscription_are_detected(flags, counts, oversubscribes):
    """Nothing is added to a line that says it."""
    line = parse_line(["mpirun", *flags.split(), "x"])

    assert (line.counts_ranks, line.oversubscribes) == (counts, oversubscribes)


def test_an_unknown_flag_is_reported():
    """Where it ends is a guess."""
    assert parse_line(["mpirun", "--foo", "prog"]).unknown == ("--foo",)


@pytest.mark.parametrize(
    ("word", "is_one"), [("mpirun", True), ("/x/orterun", True), ("mpirun.py", False), ("", False)]
)
def test_a_launcher_is_recognised_by_the_name_of_its_program(word, is_one):
    """By the program's name."""
    assert is_launcher([word]) is is_one
    assert not is_launcher([])


def test_numbers_out_of_range_are_ignored():
    """Whatever is typed, nothing is raised."""
    line = parse_line(["mpirun", "-np", "9" * 5000, "-H", f"a:{'9' * 5000},b:0", "prog"])

    assert line.ranks is None
    assert line.hosts == (("a", 1), ("b", 0))
