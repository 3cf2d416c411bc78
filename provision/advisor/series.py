"""The samples of one node; None for values that could not be read."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from provision.documents.sampler import GpuRecord


@dataclass(frozen=True)
class ProcessSample:
    """One process at one moment; counters start with the process."""

    t: float
    """Seconds since the start of the window."""
    state: str = ""
    cpu_ticks: int | None = None
    """User and system time."""
    blkio: int | None = None
    """Ticks of waiting for block devices; zero if the kernel does not count them."""
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
    """The job's instance whose container it is in; None outside of containers."""
    samples: list[ProcessSample] = field(default_factory=list)
    threads: frozenset[str] | None = None
    """Names of its threads; None if they were not read."""
    runnable: list[int] = field(default_factory=list)
    """Number of runnable threads, in each sample that counted them."""
    cpus: str | None = None
    """The CPUs in its affinity mask, as ``0-3,8``."""
    age: float | None = None
    """Seconds since its start, at the end of the window."""

    def readings(self, name: str) -> list[tuple[float, float]]:
        """Return the time and value of each sample that has a counter."""
        return [(sample.t, float(value)) for sample in self.samples if (value := getattr(sample, name)) is not None]

    def rate(self, name: str) -> float | None:
        """Return the growth of a counter per second; None without two readings."""
        readings = self.readings(name)
        if not readings or readings[-1][0] <= readings[0][0]:
            return None
        return max(0.0, (readings[-1][1] - readings[0][1]) / (readings[-1][0] - readings[0][0]))

    def steps(self, name: str) -> list[tuple[float, float]]:
        """Return the growth of a counter per second between successive samples, with the end of each interval."""
        return [
            (b[0], max(0.0, (b[1] - a[1]) / (b[0] - a[0])))
            for a, b in itertools.pairwise(self.readings(name))
            if b[0] > a[0]
        ]


@dataclass(frozen=True)
class ContainerSample:
    """One container at one moment, without its processes."""

    log_lines: int | None = None
    """Lines added to its log since the start of the window."""
    throttled: int | None = None
    """How often it exhausted its CPU quota since it started."""
    shm_size: float | None = None
    """Bytes of its /dev/shm."""
    shm_used: float | None = None
    nfs: Mapping[str, tuple[float, float]] | None = None
    """Mount -> number and milliseconds of calls since it was mounted."""
    tfevents: Mapping[str, float] | None = None
    """TensorBoard's files -> bytes; None if no folder was watched."""
    checkpoints: Mapping[str, float] | None = None
    """Checkpoints -> time of last change."""


@dataclass(frozen=True)
class NodeSample:
    """The node at one moment; counters start at boot."""

    t: float
    cpu_some_us: float | None = None
    io_some_us: float | None = None
    io_full_us: float | None = None
    running: float | None = None
    """Runnable threads."""
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
    """The CPUs near it."""


@dataclass(frozen=True)
class GpuUser:
    """A process that used a GPU at the start of the window."""

    pid: int
    gpu: str
    comm: str = ""


@dataclass(frozen=True)
class Container:
    """One instance of the job on this node."""

    instance: str
    gpus: tuple[str, ...] = ()
    """UUIDs of its assigned GPUs."""
    has_log: bool = False
    speaks_for_all: bool = False
    """Whether its log contains the output of all ranks, as mpirun's does."""


@dataclass
class NodeSeries:
    """One node over the window."""

    node: str
    interval: float = 1.0
    cores: float | None = None
    ticks: float = 100.0
    """Per second."""
    speeds: Mapping[str, float] = field(default_factory=dict)
    """Interfaces, and RDMA ports as ``card/port`` -> Gbit/s."""
    delay_counted: bool | None = None
    devices: dict[str, Device] = field(default_factory=dict)
    gpus: dict[str, list[GpuRecord]] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)
    samples: list[NodeSample] = field(default_factory=list)
    containers: dict[str, Container] = field(default_factory=dict)
    mounts: dict[str, tuple[tuple[str, str, str], ...]] = field(default_factory=dict)
    """Instance -> place, type of the file system and source of each mount."""
    users: tuple[GpuUser, ...] | None = None
    """None if the query failed."""
    foreign: Mapping[str, str] = field(default_factory=dict)
    """GPUs outside the job -> a process on it without a known job."""
    nccl: tuple[str, ...] = ()
    """Lines about the network in the job's NCCL log (``NCCL_DEBUG=INFO``)."""
    transport: str | None = None
    """The transport according to the job's NCCL log, as named by ``nccl-log``; None if unknown."""
    notes: tuple[str, ...] = ()
    """Problems during sampling."""
    unread: int = 0
    """Number of invalid lines."""
    ended: str | None = None
    """``window`` or ``closed``; None if the sampler was interrupted."""

    @property
    def simulated(self) -> bool:
        """Whether the GPUs are simulated."""
        return any("SIMULATED" in note for note in self.notes)

    def given(self) -> dict[str, str]:
        """Return the GPUs assigned to the job, with the instance of each."""
        return {gpu: container.instance for container in self.containers.values() for gpu in container.gpus}

    def job_gpus(self) -> dict[str, list[GpuRecord]]:
        """Return the job's GPUs: those assigned to it, else those its processes use; all without data on the job."""
        requested = set(self.given()) or {user.gpu for user in self.users or () if self.instance_of(user.pid)}
        every = not requested and not self.containers
        return {uuid: samples for uuid, samples in self.gpus.items() if uuid in requested or every}

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
        """Return the share of time by which a counter of microseconds grew, in per cent."""
        readings = [(sample.t, float(value)) for sample in self.samples if (value := getattr(sample, name)) is not None]
        if not readings or readings[-1][0] <= readings[0][0]:
            return None
        return max(0.0, (readings[-1][1] - readings[0][1]) / (readings[-1][0] - readings[0][0]) / 1e4)

    def name(self, uuid: str) -> str:
        """Return the display name of a GPU."""
        index = self.devices[uuid].index if uuid in self.devices else None
        return f"{self.node} GPU {uuid if index is None else f'{index:g}'}"

    def cores_of(self, process: Process) -> float | None:
        """Return the mean number of cores that a process used."""
        rate = process.rate("cpu_ticks")
        return None if rate is None else rate / self.ticks


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values; None if there is none."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Return Pearson's correlation; None if one sequence does not vary."""
    try:
        return statistics.correlation(left, right)
    except statistics.StatisticsError:
        return None
