"""Many things at once, and leaving while one of them hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from provision import threads

HANGING = """
import threading
from pathlib import Path
from provision.connectors import each
from provision.testing import make_node

def hang(connector):
    if connector.name == "b":
        print("begun", flush=True)
        threading.Event().wait()

nodes = [make_node("a", local=True), make_node("b", local=True)]
"""
EACH = "each(nodes, hang)"
LAB = "from provision.lab import vm; vm._in_parallel(hang, nodes)"


def test_outcomes_are_in_order_and_errors_are_among_them():
    """More items than threads; one that fails loses none of the others."""
    found = threads.outcomes(lambda number: 6 // number, [3, 0, 2, 1], limit=2)

    assert [found[0], *found[2:]] == [2, 3, 6]
    assert isinstance(found[1], ZeroDivisionError)
    assert threads.outcomes(str, [], limit=2) == []


@pytest.mark.parametrize("code", [HANGING + EACH, HANGING + LAB])
def test_ctrl_c_does_not_wait_for_a_node_that_hangs(code):
    """Neither in the middle nor at the end of the interpreter."""
    environment = os.environ | {"PYTHONPATH": str(Path(threads.__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        try:
            assert process.stdout.readline() == b"begun\n"
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=10)
        finally:
            process.kill()

    assert b"KeyboardInterrupt" in told
