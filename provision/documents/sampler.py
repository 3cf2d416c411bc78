"""Records of the advisor's sampler, one line each, about a job on a node."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from provision.documents.text import PrintableLine

LINE_LIMIT = 1024 * 1024
"""Bytes of one record."""
_MAX_ITEMS = 4096
Number = Annotated[float, Meta(ge=-1e18, le=1e18)]
"""Larger than any counter of a node; sums and squares of such values stay finite."""
Whole = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Pair = tuple[Number, Number]
Pairs = Annotated[dict[PrintableLine, Pair], Meta(max_length=_MAX_ITEMS)]
Lines = Annotated[list[PrintableLine], Meta(max_length=_MAX_ITEMS)]
Uuid = Annotated[str, Meta(min_length=1, max_length=300, pattern=r"^[\x21-\x7e]+\Z")]


class WatchedContainer(Struct):
    """An instance of the job on the node."""

    instance: PrintableLine
    gpus: Annotated[list[Uuid], Meta(max_length=_MAX_ITEMS)] = field(default_factory=list)
    log: bool | None = None
    speaks_for_all: bool | None = None


class BeginRecord(Struct, tag_field="kind", tag="begin"):
    """The node and the job's containers on it."""

    interval: Number | None = None
    cores: Number | None = None
    ticks: Number | None = None
    speeds: Annotated[dict[PrintableLine, Number | None], Meta(max_length=_MAX_ITEMS)] | None = None
    delayacct: PrintableLine | None = None
    containers: Annotated[list[WatchedContainer], Meta(max_length=_MAX_ITEMS)] = field(default_factory=list)


class DeviceRecord(Struct, tag_field="kind", tag="device"):
    """A GPU."""

    uuid: Uuid
    index: Number | None = None
    name: PrintableLine | None = None
    numa: Number | None = None
    cpus: PrintableLine | None = None


class GpuRecord(Struct, tag_field="kind", tag="gpu"):
    """A GPU at one moment; None for values that could not be read."""

    uuid: Uuid
    t: Number
    """Seconds since the start of the window."""
    utilization: Number | None = None
    """Per cent of the last sample period in which at least one kernel ran."""
    memory_used: Number | None = None
    """MiB."""
    memory_total: Number | None = None
    power: Number | None = None
    """Watts."""
    power_limit: Number | None = None
    temperature: Number | None = None
    clock_events: Number | None = None
    """Bit mask of the reasons why the clocks are below their maximum."""
    pcie_gen: Number | None = None
    pcie_gen_max: Number | None = None
    pcie_width: Number | None = None
    pcie_width_max: Number | None = None
    pcie_rx: Number | None = None
    """MB/s to the GPU; the sampler does not read it, `nvidia-smi dmon -s t` does."""
    pcie_tx: Number | None = None


class AppsRecord(Struct, tag_field="kind", tag="apps"):
    """States that the processes of the GPUs are known; an `AppRecord` follows for each."""


class AppRecord(Struct, tag_field="kind", tag="app"):
    """A process that uses a GPU."""

    pid: Whole
    gpu: Uuid
    comm: PrintableLine | None = None


class ProcessRecord(Struct, tag_field="kind", tag="process"):
    """A process at one moment."""

    pid: Whole
    t: Number
    comm: PrintableLine | None = None
    ppid: Whole | None = None
    instance: PrintableLine | None = None
    age: Number | None = None
    state: PrintableLine | None = None
    utime: Whole | None = None
    stime: Whole | None = None
    blkio: Whole | None = None
    rchar: Whole | None = None
    syscr: Whole | None = None
    read_bytes: Whole | None = None
    write_bytes: Whole | None = None
    threads: Lines | None = None
    runnable: Whole | None = None
    cpus: PrintableLine | None = None


class ContainerRecord(Struct):
    """A container at one moment."""

    log_lines: Whole | None = None
    throttled: Whole | None = None
    shm: Annotated[list[Number | None], Meta(max_length=_MAX_ITEMS)] | None = None
    nfs: Pairs | None = None
    tfevents: Annotated[dict[PrintableLine, Number | None], Meta(max_length=_MAX_ITEMS)] | None = None
    checkpoints: Annotated[dict[PrintableLine, list[Number | None]], Meta(max_length=_MAX_ITEMS)] | None = None
    watched: Number | None = None
    complete: bool | None = None


class NodeRecord(Struct, tag_field="kind", tag="node"):
    """The node at one moment."""

    t: Number
    cpu_some_us: Number | None = None
    io_some_us: Number | None = None
    io_full_us: Number | None = None
    running: Number | None = None
    net: Pairs | None = None
    ib: Pairs | None = None
    containers: Annotated[dict[PrintableLine, ContainerRecord], Meta(max_length=_MAX_ITEMS)] | None = None


class MountsRecord(Struct, tag_field="kind", tag="mounts"):
    """The mounts in a container: path, type of file system, source."""

    instance: PrintableLine
    mounts: Annotated[list[tuple[PrintableLine, PrintableLine, PrintableLine]], Meta(max_length=_MAX_ITEMS)] = field(
        default_factory=list
    )


class NcclRecord(Struct, tag_field="kind", tag="nccl"):
    """Lines of the job's log in which NCCL reports its network."""

    lines: Lines


class NoteRecord(Struct, tag_field="kind", tag="note"):
    """Data that could not be sampled."""

    text: PrintableLine


class EndRecord(Struct, tag_field="kind", tag="end"):
    """The last record."""

    reason: PrintableLine | None = None


Record = (
    BeginRecord
    | DeviceRecord
    | GpuRecord
    | AppsRecord
    | AppRecord
    | ProcessRecord
    | NodeRecord
    | MountsRecord
    | NcclRecord
    | NoteRecord
    | EndRecord
)
"""Any of them, distinguished by the field ``kind``."""
