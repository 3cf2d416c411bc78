"""What a reset would do, for a person."""

from __future__ import annotations

from provision.model import Failure, NodeReset, ResetResult
from provision.report.reset_report import as_plan, as_text

LONG = "remove the 40 packages " + ", ".join(f"package-number-{number}" for number in range(40))
NODES = [
    NodeReset(f"gpu{number}", ResetResult.PLANNED, (LONG, "restore /etc/hosts"), ("leave x: " + "y " * 60,))
    for number in range(1, 9)
]


def test_the_plan_fits_eighty_columns_and_groups_equal_nodes():
    """Eight nodes with the same steps take as much room as one."""
    failure = Failure(None, "connect", "no route to host " * 8, "", "look at the cable " * 8)
    text = as_plan([*NODES, NodeReset("bad", ResetResult.UNREACHABLE, error=failure)])

    assert max(map(len, text.splitlines())) <= 80
    assert text.count("package-number-39") == 1
    assert text.startswith("gpu[1-8]: 2 steps")
    assert "bad: unreachable" in text


def test_remains_are_listed_in_the_result():
    """The result lists what remains on the node."""
    text = as_text([NodeReset("gpu1", ResetResult.RESET, ("a", "b"), ("leave the group docker: members",))])

    assert "gpu1: reset, 2 steps" in text
    assert "remains: leave the group docker: members" in text
