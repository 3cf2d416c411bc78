"""Open files: the limit is raised while many nodes are worked on, and where it cannot be, fewer are, and it is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import provision
from provision.connectors.room import room_for

CODE = """
import resource, sys, threading
from provision.connectors.room import room_for
soft, hard = (int(word) for word in sys.argv[1:3])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
with room_for(1000, 4) as fit:
    print(fit, resource.getrlimit(resource.RLIMIT_NOFILE)[0] > soft, threading.stack_size() > 0)
print(resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard), threading.stack_size())
"""


def _with_limits(soft: int, hard: int) -> subprocess.CompletedProcess[str]:
    folder = Path(provision.__file__).parents[1]
    argv = [sys.executable, "-c", CODE, str(soft), str(hard)]
    return subprocess.run(argv, capture_output=True, text=True, check=True, cwd=folder)


def test_the_soft_limit_is_raised_and_restored():
    """The usual limit of 1024 files does not hold a thousand nodes up."""
    done = _with_limits(1024, 8192)

    assert done.stdout.splitlines() == ["1000 True True", "True 0"]
    assert done.stderr == ""


def test_a_low_hard_limit_reduces_the_number_of_parallel_nodes():
    """They fit into it, and the operator learns why it takes longer."""
    done = _with_limits(512, 1024)
    fit = int(done.stdout.split()[0])

    assert 200 < fit < 250
    assert (
        done.stderr
        == f"note: {fit} of 1000 nodes in parallel, because the controller allows 1024 open files (ulimit -n)\n"
    )
    assert done.stdout.splitlines()[1] == "True 0"


def test_the_thread_switch_interval_is_longer_with_many_nodes():
    """Most actions for a node need one connection; with few nodes, and afterwards, the limits are unchanged."""
    usual = sys.getswitchinterval()
    with room_for(1000, 1):
        many = sys.getswitchinterval()
    with room_for(4, 1):
        few = sys.getswitchinterval()

    assert many > usual
    assert few == sys.getswitchinterval() == usual
