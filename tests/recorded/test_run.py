"""``run --preset taco``: the command lines of the guide that this preset is named after, word for word."""

from __future__ import annotations

import re
import shlex

from tests.recorded.data import document
from tests.unit.cli.test_run_reference import CASES
from tests.unit.inventory.test_taco_profile import STEPS

ORDER_OF_THE_GUIDE = ("one rank", "one node", "LightCC", "plain Horovod", "LightCC, GDR")


def test_the_preset_matches_the_guide(dry_run):
    """All five lines, each with its own program."""
    texts = re.findall(r"/usr/local/openmpi/bin/mpirun [^\n]+", document("taco-bare-metal.txt"))
    lines = [shlex.split(line) for line in texts]

    assert len(lines) == len(CASES)
    for name, line in zip(ORDER_OF_THE_GUIDE, lines, strict=True):
        program = line[line.index("python3") :]
        assert dry_run(*CASES[name][0], "--", *program)[1] == line


def test_the_steps_on_the_page_are_those_of_the_guide():
    """Each command of the page's table of steps is in the guide."""
    text = document("taco-bare-metal.txt")
    commands = [step for step in STEPS if step.startswith(("git ", "insmod ", "get-", "docker ", "--", "NCCL_"))]

    assert len(commands) >= 10
    assert [step for step in commands if step not in text] == []
