"""Starting batch jobs for as long as this machine runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from provision.errors import ProvisionError

if TYPE_CHECKING:
    import threading

    from provision.jobs.engines.base import JobEngine

BUSY_SECONDS, IDLE_SECONDS = 15.0, 30.0
"""From the beginning of one try to that of the next where nothing is heard: while a job waits, and else."""
SHORTEST_SECONDS = 1.0
"""Between two tries, whatever is heard."""
START_SECONDS = 20.0
"""So long a try waits for the starts of its jobs; slower ones continue beside the next tries."""


def serve(
    engine: JobEngine,
    stop: threading.Event,
    *,
    say: Callable[[str], None],
    started: Callable[[str], None],
    warn: Callable[[str], None],
    every: float = 0.0,
) -> None:
    """Run scheduling passes until `stop` is set; starts that have begun are finished first.

    Between two passes the nodes report free GPUs, ended jobs and new jobs.

    Args:
        engine: runs the jobs.
        stop: ends this function.
        say: receives lines of progress.
        started: receives the name of each started job.
        warn: receives the reason of a failed pass; repetitions are reported once.
        every: fixed seconds between two passes; 0: as soon as something happens, after `BUSY_SECONDS` while a job is
            pending, and after `IDLE_SECONDS` otherwise.
    """
    last = ""
    with engine.maintenance() as maintenance:
        while not stop.is_set():
            begun, trouble, waiting = time.monotonic(), "", False
            try:
                result = maintenance.run(say, time_limit=START_SECONDS)
                for name in result.started:
                    started(name)
                waiting = bool(result.waiting)
            except ProvisionError as error:
                trouble = str(error)
            if trouble and trouble != last:
                warn(trouble)
            last = trouble
            pause = every or (BUSY_SECONDS if waiting else IDLE_SECONDS)
            left = max(pause - (time.monotonic() - begun), SHORTEST_SECONDS)
            if every or trouble:
                stop.wait(left)
            elif maintenance.wait(left, stop):
                stop.wait(SHORTEST_SECONDS)
