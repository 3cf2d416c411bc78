"""Many things at once, and leaving while one of them hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
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


def test_an_item_that_takes_much_longer_than_the_others_is_given_up():
    """Until the first answer, no node is late."""
    over = threading.Event()
    results = threads.outcomes(lambda number: over.wait(5) if number else "here", [1, 0], limit=2, patience=0.1)
    over.set()

    assert isinstance(results[0], TimeoutError)
    assert results[1] == "here"
    assert threads.outcomes(lambda _: over.wait(5) and time.sleep(0.3), [1, 2], limit=2, patience=0.01) == [None] * 2


def test_earlier_durations_count_for_the_time_limit_of_an_item():
    """Of nodes that are asked one after the other; and who waits for one alone can go on without it."""
    over = threading.Event()
    (late,) = threads.outcomes(lambda _: over.wait(5), [1], limit=1, patience=0.1, answered=0.1)

    assert isinstance(late, TimeoutError)
    assert threads.within(0.05, lambda: over.wait(5)) is None
    over.set()
    assert threads.within(5, lambda: "here") == "here"
    with pytest.raises(ZeroDivisionError):
        threads.within(5, lambda: 1 // 0)


def test_results_are_in_order_and_include_errors():
    """More items than threads; one that fails loses none of the others."""
    results = threads.outcomes(lambda number: 6 // number, [3, 0, 2, 1], limit=2)

    assert [results[0], *results[2:]] == [2, 3, 6]
    assert isinstance(results[1], ZeroDivisionError)
    assert threads.outcomes(str, [], limit=2) == []


class Clock:
    """A clock that goes on when somebody sleeps, for some longer than they wanted."""

    def __init__(self, *late: float) -> None:
        self.time, self.late, self.naps = 0.0, list(late), 0

    def sleep(self, seconds: float) -> None:
        self.naps += 1
        self.time += seconds + (self.late.pop(0) if self.late else 0.0)

    def now(self) -> float:
        return self.time


def test_new_items_wait_while_the_machine_is_overloaded():
    """Late wake-ups hold the next one back until there is one in time; without them it begins at once."""
    idle, busy = Clock(), Clock(0.01, 0.01, 0.0)
    threads.ThreadRateLimiter(idle.sleep, idle.now).wait(20)
    threads.ThreadRateLimiter(busy.sleep, busy.now).wait(20)

    assert (idle.naps, busy.naps) == (1, 3)


def test_a_few_items_start_immediately_and_many_are_rate_limited():
    """Eight nodes are not held up by anything; the hundredth begins, with three more, when all is quiet for longer."""
    busy, behind, idle = Clock(*[0.02] * 100), Clock(0.0, 0.0, 0.01), Clock()
    threads.ThreadRateLimiter(busy.sleep, busy.now).wait(7)
    threads.ThreadRateLimiter(behind.sleep, behind.now).wait(100)
    pace = threads.ThreadRateLimiter(idle.sleep, idle.now)
    for begun in range(100, 108):
        pace.wait(begun)

    assert (busy.naps, behind.naps, idle.naps) == (0, 6, 6)


def test_a_permanently_busy_machine_does_not_stop_the_work():
    """Others may keep it so for ever: each begins after a while."""
    some, many = Clock(*[0.02] * 100), Clock(*[0.02] * 100)
    threads.ThreadRateLimiter(some.sleep, some.now).wait(20)
    threads.ThreadRateLimiter(many.sleep, many.now).wait(100)

    assert some.time < 0.1
    assert many.time < 0.6


def test_hanging_items_do_not_delay_the_others():
    """As many as may run at once begin, whatever the first ones do."""
    over, begun = threading.Event(), threading.Barrier(41)

    def work(number: int) -> int:
        begun.wait(20)
        over.wait(20)
        return number

    main = threading.Thread(
        target=lambda: results.extend(threads.outcomes(work, range(40), limit=64, pace=threads.ThreadRateLimiter()))
    )
    results: list[object] = []
    main.start()
    begun.wait(20)
    over.set()
    main.join(20)

    assert results == list(range(40))


def test_threads_are_started_only_on_demand(monkeypatch):
    """A thousand quick nodes are no thousand threads: the first have done it all before the last could begin."""
    started: list[threading.Thread] = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (started.append(thread), start(thread)))

    assert threads.outcomes(str, range(1000), limit=1000, pace=threads.ThreadRateLimiter()) == [
        str(n) for n in range(1000)
    ]
    assert len(started) < 500


def test_a_limited_number_of_threads_does_all_the_work(monkeypatch):
    """Where the system gives no more threads, those that there are take the rest."""
    start, count = threading.Thread.start, iter(range(10))

    def few(thread: threading.Thread) -> None:
        if next(count) >= 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)

    assert threads.outcomes(str, [1, 2, 3, 4], limit=4) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("code", [HANGING + EACH, HANGING + LAB])
def test_ctrl_c_does_not_wait_for_a_hanging_item(code):
    """Neither in the middle nor at the end of the interpreter."""
    environment = os.environ | {"PYTHONPATH": str(Path(threads.__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        try:
            assert process.stdout.readline() == b"begun\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=10)
        finally:
            process.kill()

    assert b"KeyboardInterrupt" in errors


def test_the_callback_of_the_caller_runs_during_the_work():
    """It is called once, in the caller's thread, and nothing that has begun waits for it to end."""
    done, called = threading.Event(), []

    def meanwhile() -> None:
        called.append(threading.current_thread())
        assert done.wait(10)

    assert threads.outcomes(lambda _: done.set(), range(40), limit=40, meanwhile=meanwhile) == [None] * 40
    assert called == [threading.current_thread()]
