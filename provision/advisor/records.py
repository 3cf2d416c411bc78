"""Parse the sampler's output. No input raises an error: invalid lines are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from provision.advisor.series import (
    Container,
    ContainerSample,
    Device,
    GpuUser,
    NodeSample,
    NodeSeries,
    Process,
    ProcessSample,
)
from provision.documents import decode
from provision.documents.sampler import (
    LINE_LIMIT,
    AppRecord,
    AppsRecord,
    BeginRecord,
    ContainerRecord,
    DeviceRecord,
    EndRecord,
    GpuRecord,
    MountsRecord,
    NcclRecord,
    NodeRecord,
    NoteRecord,
    ProcessRecord,
    Record,
)
from provision.errors import InvalidDocument

_MOST_NOTES = 20
_MOST_ITEMS = 4096
"""Limit for each kind, so that no node can exhaust memory."""
_MOST_LETTERS = 300
_OF_PROCESS = ("blkio", "rchar", "syscr", "read_bytes", "write_bytes")


def read_series(node: str, lines: Iterable[str | bytes], *, transport: str | None = None) -> NodeSeries:
    """Parse the sampler's lines of one node.

    Args:
        node: Its inventory name.
        lines: The sampler's output, with or without line ends.
        transport: The transport according to NCCL's log of the job, if there is one.
    """
    series = NodeSeries(node, transport=transport)
    for line in lines:
        if not line.strip():
            continue
        try:
            record: Any = decode(line, Record, node=node, what="record of the sampler", limit=LINE_LIMIT)  # type: ignore[arg-type] # a union
        except InvalidDocument:
            series.unread += 1
        else:
            series.unread += not _READERS[type(record)](series, record)
    return series


def _text(value: str | None) -> str:
    return str(value or "")[:_MOST_LETTERS]


def _begin(series: NodeSeries, record: BeginRecord) -> bool:
    series.interval = record.interval or 1.0
    series.cores = record.cores
    series.ticks = record.ticks or 100.0
    series.speeds = {str(name): value for name, value in (record.speeds or {}).items() if value}
    series.delay_counted = {"1": True, "0": False}.get(record.delayacct or "")
    for item in record.containers:
        if name := _text(item.instance):
            series.containers[name] = Container(name, tuple(item.gpus), item.log is True, item.speaks_for_all is True)
    return True


def _device(series: NodeSeries, record: DeviceRecord) -> bool:
    if len(series.devices) >= _MOST_ITEMS:
        return False
    numa = record.numa if record.numa is not None and record.numa >= 0 else None
    series.devices[record.uuid] = Device(
        record.uuid, record.index, _text(record.name), numa, _text(record.cpus) or None
    )
    return True


def _gpu(series: NodeSeries, record: GpuRecord) -> bool:
    if record.uuid not in series.gpus and len(series.gpus) >= _MOST_ITEMS:
        return False
    series.gpus.setdefault(record.uuid, []).append(record)
    return True


def _app(series: NodeSeries, record: AppRecord) -> bool:
    if len(series.users or ()) >= _MOST_ITEMS:
        return False
    series.users = (*(series.users or ()), GpuUser(record.pid, record.gpu, _text(record.comm)))
    return True


def _apps(series: NodeSeries, _record: AppsRecord) -> bool:
    series.users = series.users or ()
    return True


def _process(series: NodeSeries, record: ProcessRecord) -> bool:
    if record.pid not in series.processes and len(series.processes) >= _MOST_ITEMS:
        return False
    process = series.processes.setdefault(record.pid, Process(record.pid))
    process.comm = _text(record.comm) or process.comm
    process.ppid = record.ppid or process.ppid
    process.instance = _text(record.instance) or process.instance
    process.age = record.age
    ticks = None if record.utime is None or record.stime is None else record.utime + record.stime
    own = {name: getattr(record, name) for name in _OF_PROCESS}
    process.samples.append(ProcessSample(record.t, _text(record.state)[:1], ticks, **own))
    if record.threads is not None:
        if len(process.threads or ()) < _MOST_ITEMS:
            process.threads = (process.threads or frozenset()) | {_text(name) for name in record.threads}
        process.runnable.append(record.runnable or 0)
    process.cpus = _text(record.cpus) or process.cpus
    return True


def _node(series: NodeSeries, record: NodeRecord) -> bool:
    series.samples.append(
        NodeSample(
            record.t,
            record.cpu_some_us,
            record.io_some_us,
            record.io_full_us,
            record.running,
            _pairs(record.net or {}),
            _pairs(record.ib or {}),
            {str(name): _container(item) for name, item in (record.containers or {}).items()},
        )
    )
    return True


def _pairs(pairs: dict[Any, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    return {str(name): pair for name, pair in pairs.items()}


def _container(item: ContainerRecord) -> ContainerSample:
    shm = (item.shm or [])[:2]
    watched = bool(item.watched)
    events = item.tfevents or {}
    complete = watched and (bool(events) or item.complete is not False)
    checkpoints = {name: next(iter(pair), None) for name, pair in (item.checkpoints or {}).items()}
    return ContainerSample(
        item.log_lines,
        item.throttled,
        shm[0] if shm else None,
        shm[1] if shm[1:] else None,
        nfs=_pairs(item.nfs) if item.nfs is not None else None,
        tfevents={str(name): size for name, size in events.items() if size is not None} if complete else None,
        checkpoints={str(name): time for name, time in checkpoints.items() if time is not None} if watched else None,
    )


def _mounts(series: NodeSeries, record: MountsRecord) -> bool:
    rows = ((_text(place), _text(kind), _text(source)) for place, kind, source in record.mounts)
    instance = _text(record.instance)
    if len(series.mounts) < _MOST_ITEMS:
        series.mounts[instance] = tuple(rows)
    return bool(instance)


def _nccl(series: NodeSeries, record: NcclRecord) -> bool:
    lines = tuple(filter(None, map(_text, record.lines)))
    series.nccl = (*series.nccl, *lines)[:_MOST_ITEMS]
    return bool(lines)


def _note(series: NodeSeries, record: NoteRecord) -> bool:
    text = _text(record.text)
    if text and len(series.notes) < _MOST_NOTES and text not in series.notes:
        series.notes = (*series.notes, text)
    return bool(text)


def _end(series: NodeSeries, record: EndRecord) -> bool:
    series.ended = _text(record.reason) or "window"
    return True


_READERS: dict[type, Callable[[NodeSeries, Any], bool]] = {
    BeginRecord: _begin,
    DeviceRecord: _device,
    GpuRecord: _gpu,
    AppsRecord: _apps,
    AppRecord: _app,
    ProcessRecord: _process,
    NodeRecord: _node,
    MountsRecord: _mounts,
    NcclRecord: _nccl,
    NoteRecord: _note,
    EndRecord: _end,
}
