"""Thresholds of the checks. All are initial values that were not yet measured on a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from provision.batch.durations import elapsed


@dataclass(frozen=True)
class Threshold:
    """One number, with its unit and the meaning of exceeding it."""

    value: float
    unit: str
    meaning: str

    def __str__(self) -> str:
        return elapsed(self.value) if self.unit == "s" else f"{self.value:g} {self.unit}"


GIB = float(1 << 30)

FEWEST_SAMPLES = Threshold(10, "samples", "with fewer, nothing is reported")
LOW_UTILIZATION = Threshold(50, "%", "a GPU whose mean utilization is below it waits for something")
BUSY_UTILIZATION = Threshold(90, "%", "a GPU above it does not wait for input")
IDLE_UTILIZATION = Threshold(5, "%", "a GPU whose mean is below it does nothing")
IDLE_SECONDS = Threshold(600, "s", "idle for so long: offer to stop the job")
LOW_POWER = Threshold(50, "% of the limit", "busy by its utilization, but not its multiprocessors")
DIP_UTILIZATION = Threshold(10, "%", "a sample below it is a dip")
DIP_SHARE = Threshold(20, "% of samples", "so many dips, between samples of work, are a sawtooth")
WORK_UTILIZATION = Threshold(50, "%", "a sample above it is work")
CORE_FULL = Threshold(90, "% of a core", "a process above it has no time left")
ANTI_CORRELATION = Threshold(-0.5, "(correlation)", "workers work while the GPU waits, and vice versa")
CPU_PRESSURE = Threshold(20, "% of the time", "so long some task waited for a CPU")
IO_PRESSURE = Threshold(10, "% of the time", "so long some task waited for storage")
BLOCKED_SHARE = Threshold(20, "% of samples", "so often a process of the job was blocked in input or output")
NFS_MILLISECONDS = Threshold(2, "ms", "a call to an NFS server takes longer: far, or busy")
NFS_CALLS = Threshold(20, "calls/s", "fewer do not matter")
READ_SIZE = Threshold(64, "KiB", "the mean read is smaller")
READ_RATE = Threshold(500, "reads/s", "fewer do not matter")
LOW_MEMORY = Threshold(50, "% of GPU memory", "a larger batch is possible")
FULL_MEMORY = Threshold(95, "% of GPU memory", "the next bigger batch does not fit")
SHM_SIZE = Threshold(2, "GiB", "smaller than several data workers need")
SHM_USED = Threshold(90, "% of /dev/shm", "nearly full")
CHECKPOINT_SECONDS = Threshold(300, "s", "checkpoints at a shorter interval")
BURST_BYTES = Threshold(32, "MiB/s", "a sample that writes more is a burst")
EVENTS_RATE = Threshold(64, "KiB/s", "TensorBoard's files grow faster")
EVENTS_SECONDS = Threshold(600, "s", "after so long a job with a log folder should have written events")
LOG_RATE = Threshold(20, "lines/s and rank", "more lines than useful")
PCIE_SHARE = Threshold(70, "% of the link", "the link is the limit")
NETWORK_SHARE = Threshold(80, "% of the line rate", "the network is the limit")
SPREAD = Threshold(10, "points of utilization", "ranks that differ more")
THROTTLED_SHARE = Threshold(5, "% of samples", "clocks throttled so often")
