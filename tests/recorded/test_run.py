"""``run --preset taco``: the command lines of the guide that this preset is named after, word for word."""

from __future__ import annotations

import re
import shlex

from tests.recorded.data import document
from tests.unit.cli.test_run_reference import CASES

ORDER_OF_THE_GUIDE = ("one rank", "one node", "LightCC", "plain Horovod", "LightCC, GDR")


def test_the_preset_matches_the_guide(dry_run):
    """All five lines, each with its own program."""
    texts = re.findall(r"/usr/local/openmpi/bin/mpirun [^\n]+", document("taco-bare-metal.txt"))
    lines = [shlex.split(line) for line in texts]

    assert len(lines) == len(CASES)
    for name, line in zip(ORDER_OF_THE_GUIDE, lines, strict=True):
        program = line[line.index("python3") :]
        assert dry_run(*CASES[name][0], "--", *program)[1] == line
