"""Open MPI's host file."""

from __future__ import annotations

from provision.hostfiles import HostEntry
from provision.hostfiles.openmpi import render


def test_a_line_for_each_node_with_its_slots():
    """Names are inventory names, in the order given."""
    entries = [HostEntry("demo-2", "10.77.0.2", 8, "gpu"), HostEntry("demo-1", "10.77.0.1", 2, "cpu")]

    assert render(entries) == "demo-2 slots=8\ndemo-1 slots=2\n"
