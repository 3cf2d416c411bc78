"""Documents of many nodes are parsed in many threads."""

import subprocess
import sys

PROGRAM = """
import sys, threading
from typing import Annotated, Optional
import msgspec
from provision.documents import convert, decode
sys.setswitchinterval(1e-6)
for n in range(150):
    fields = [(f"f{i}", Annotated[str, msgspec.Meta(max_length=9)], "") for i in range(30)]
    inner = msgspec.defstruct(f"Inner{n}", fields)
    kind = msgspec.defstruct(f"Outer{n}", [(f"g{i}", Optional[inner], None) for i in range(20)])
    gate = threading.Barrier(8)
    def work(number):
        gate.wait()
        if number % 2:
            decode('{"g1": {"f1": "x"}}', kind, node="gpu1", what="answer")
        else:
            convert({"g1": {"f1": "x"}}, kind, node="gpu1", what="answer")
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
"""


def test_threads_that_parse_a_type_for_the_first_time_do_not_crash() -> None:
    """msgspec crashes the process where two threads analyse a type at once, so one thread does it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
