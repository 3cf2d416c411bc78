"""What the sampler saw on one node over its window; None is what it could not see."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = [
    "Container",
    "ContainerSample",
    "Device",
    "GpuSample",
    "GpuUser",
    "NodeSample",
    "NodeSeries",
    "Process",
    "ProcessSample",
    "correlation",
    "mean",
]


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment."""

    t: float
    """Seconds since the begin."""
    utilization: float | None = None
    """Per cent of the last moments in which at least one kernel ran."""
    memory_used: float | None = None
    """MiB."""
    memory_total: float | None = None
    power: float | None = None
    """Watts."""
    power_limit: float | None = None
    temperature: float | None = None
    clock_events: int | None = None
    """The bits for which the clocks are below what they could be."""
    pcie_gen: float | None = None
    pcie_gen_max: float | None = None
    pcie_width: float | None = None
    pcie_width_max: float | None = None
    pcie_rx: float | None = None
    """MB/s to the GPU; the sampler does not ask for it, `nvidia-smi dmon -s t` tells it."""
    pcie_tx: float | None = None


@dataclass(frozen=True)
class ProcessSample:
    """One process at one moment; counters run since it began."""

    t: float
    state: str = ""
    cpu_ticks: int | None = None
    """User and system time."""
    blkio: int | None = None
    """Ticks for which it waited for block devices; zero where the kernel does not count them."""
    rchar: int | None = None
    syscr: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None


@dataclass
class Process:
    """One process over the window."""

    pid: int
    comm: str = ""
    ppid: int = 0
    instance: str | None = None
    """The job's instance whose container it is in; None for what is outside of all."""
    samples: list[ProcessSample] = field(default_factory=list)
    threads: frozenset[str] | None = None
    """Names of its threads; None where they were not looked at."""
    runnable: list[int] = field(default_factory=list)
    """Threads that wanted a CPU, at the moments when they were counted."""
    cpus: str | None = None
    """The CPUs that it may use, as ``0-3,8``."""
    age: float | None = None
    """Seconds since it began, at the end of the window."""

    def told(self, name: str) -> list[tuple[float, float]]:
        """Return when a counter was known, and what it was."""
        return [(sample.t, float(value)) for sample in self.samples if (value := getattr(sample, name)) is not None]

    def rate(self, name: str) -> float | None:
        """Return how fast a counter grew, per second; None where it is not known at two moments."""
        told = self.told(name)
        if not told or told[-1][0] <= told[0][0]:
            return None
        return max(0.0, (told[-1][1] - told[0][1]) / (told[-1][0] - told[0][0]))

    def steps(self, name: str) -> list[tuple[float, float]]:
        """Return how fast a counter grew between each two samples: (end of the time, per second)."""
        return [
            (b[0], max(0.0, (b[1] - a[1]) / (b[0] - a[0])))
            for a, b in itertools.pairwise(self.told(name))
            if b[0] > a[0]
        ]


@dataclass(frozen=True)
class ContainerSample:
    """What was seen of one container beside its processes."""

    log_lines: int | None = None
    """Lines that its log grew by since the begin."""
    throttled: int | None = None
    """How often its CPU quota was used up, since it began."""
    shm_size: float | None = None
    """Bytes of its /dev/shm."""
    shm_used: float | None = None
    nfs: Mapping[str, tuple[float, float]] | None = None
    """Mount -> calls and milliseconds since it was mounted."""
    tfevents: Mapping[str, float] | None = None
    """TensorBoard's files -> bytes; None where no folder was watched."""
    checkpoints: Mapping[str, float] | None = None
    """Checkpoints -> time of their last change."""


@dataclass(frozen=True)
class NodeSample:
    """The node at one moment; counters run since boot."""

    t: float
    cpu_some_us: float | None = None
    io_some_us: float | None = None
    io_full_us: float | None = None
    running: float | None = None
    """Threads that want a CPU."""
    net: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Interface -> bytes received, sent."""
    ib: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    containers: Mapping[str, ContainerSample] = field(default_factory=dict)


@dataclass(frozen=True)
class Device:
    """One GPU of the node."""

    uuid: str
    index: float | None = None
    name: str = ""
    numa: float | None = None
    cpus: str | None = None
    """The CPUs that are near it."""


@dataclass(frozen=True)
class GpuUser:
    """A process that used a GPU at the begin."""

    pid: int
    gpu: str
    comm: str = ""


@dataclass(frozen=True)
class Container:
    """One instance of the job on this node."""

    instance: str
    gpus: tuple[str, ...] = ()
    """UUIDs of what it was given."""
    has_log: bool = False
    speaks_for_all: bool = False
    """Whether its log has what all ranks print, as mpirun's has."""


@dataclass
class NodeSeries:
    """One node over the window."""

    node: str
    interval: float = 1.0
    cores: float | None = None
    ticks: float = 100.0
    """Of a second."""
    speeds: Mapping[str, float] = field(default_factory=dict)
    """Interfaces, and RDMA ports as ``card/port`` -> Gbit/s."""
    delay_counted: bool | None = None
    devices: dict[str, Device] = field(default_factory=dict)
    gpus: dict[str, list[GpuSample]] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)
    samples: list[NodeSample] = field(default_factory=list)
    containers: dict[str, Container] = field(default_factory=dict)
    mounts: dict[str, tuple[tuple[str, str, str], ...]] = field(default_factory=dict)
    """Instance -> place, type of the file system and source of each mount."""
    users: tuple[GpuUser, ...] | None = None
    """None where it could not be asked."""
    foreign: Mapping[str, str] = field(default_factory=dict)
    """GPUs that the job was not given -> a process on it that no job explains."""
    nccl: tuple[str, ...] = ()
    """Lines of the job's log in which NCCL tells of its network (``NCCL_DEBUG=INFO``)."""
    transport: str | None = None
    """What NCCL's log of the job proves, as ``nccl-log`` names it; None where that is not known."""
    notes: tuple[str, ...] = ()
    """What went wrong while sampling."""
    unread: int = 0
    """Lines that could not be read."""
    ended: str | None = None
    """``window`` or ``closed``; None where the sampler was cut short."""

    @property
    def simulated(self) -> bool:
        """Whether the GPUs are a stand-in's."""
        return any("SIMULATED" in note for note in self.notes)

    def given(self) -> dict[str, str]:
        """Return the GPUs that the job was given, and the instance that has each."""
        return {gpu: container.instance for container in self.containers.values() for gpu in container.gpus}

    def job_gpus(self) -> dict[str, list[GpuSample]]:
        """Return the job's GPUs: those it was given, else those its processes use; all where nothing is known of it."""
        wanted = set(self.given()) or {user.gpu for user in self.users or () if self.instance_of(user.pid)}
        every = not wanted and not self.containers
        return {uuid: samples for uuid, samples in self.gpus.items() if uuid in wanted or every}

    def instance_of(self, pid: int) -> str | None:
        """Return the instance that a process belongs to."""
        return self.processes[pid].instance if pid in self.processes else None

    def ranks(self) -> list[Process]:
        """Return the job's processes that use a GPU."""
        pids = dict.fromkeys(user.pid for user in self.users or () if self.instance_of(user.pid))
        return [self.processes[pid] for pid in pids]

    def children(self, pid: int) -> list[Process]:
        """Return the processes that a process started."""
        return [process for process in self.processes.values() if process.ppid == pid]

    def job_processes(self) -> list[Process]:
        """Return all processes of the job's containers."""
        return [process for process in self.processes.values() if process.instance]

    def share_of_time(self, name: str) -> float | None:
        """Return how much of the time a counter of microseconds grew by, in per cent."""
        told = [(one.t, float(value)) for one in self.samples if (value := getattr(one, name)) is not None]
        if not told or told[-1][0] <= told[0][0]:
            return None
        return max(0.0, (told[-1][1] - told[0][1]) / (told[-1][0] - told[0][0]) / 1e4)

    def name(self, uuid: str) -> str:
        """Name a GPU for people."""
        index = self.devices[uuid].index if uuid in self.devices else None
        return f"{self.node} GPU {uuid if index is None else f'{index:g}'}"

    def cores_of(self, process: Process) -> float | None:
        """Return how many cores a process kept busy."""
        rate = process.rate("cpu_ticks")
        return None if rate is None else rate / self.ticks


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of what is known; None where nothing is."""
    told = [value for value in values if value is not None]
    return sum(told) / len(told) if told else None


def correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Return Pearson's correlation; None where one of both does not vary."""
    if len(left) != len(right) or len(left) < 2:  # noqa: PLR2004 - two make a difference
        return None
    a, b = sum(left) / len(left), sum(right) / len(right)
    over = sum((x - a) * (y - b) for x, y in zip(left, right, strict=True))
    below = sum((x - a) ** 2 for x in left) * sum((y - b) ** 2 for y in right)
    return over / below**0.5 if below > 1e-12 else None  # noqa: PLR2004 - rounding
