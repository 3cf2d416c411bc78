"""Read what the sampler printed. Whatever a node sends, nothing is raised: what is odd is counted and left out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from provision.advisor.series import (
    Container,
    ContainerSample,
    Device,
    GpuSample,
    GpuUser,
    NodeSample,
    NodeSeries,
    Process,
    ProcessSample,
)
from provision.documents import decode
from provision.errors import InvalidDocument

__all__ = ["read_series"]

Record = Mapping[str, Any]
_MOST_NOTES = 20
_BIGGEST = 1e18
"""No counter of a node comes that far; sums and squares of what is smaller stay numbers."""
_MOST_ITEMS = 4096
"""Of one kind, so that no node fills our memory."""
_LONGEST = 1024 * 1024
"""Bytes of one line."""


def read_series(node: str, lines: Iterable[str | bytes], *, transport: str | None = None) -> NodeSeries:
    """Read the sampler's lines of one node.

    Args:
        node: its inventory name.
        lines: what the sampler printed, with or without ends of lines.
        transport: what NCCL's log of the job proves, where there is one.
    """
    series = NodeSeries(node, transport=transport)
    for line in lines:
        text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
        if not text.strip():
            continue
        try:
            record = decode(text, dict, node=node, what="record of the sampler", limit=_LONGEST)
        except InvalidDocument:
            record = {}
        kind = record.get("kind")
        reader = _READERS.get(kind) if isinstance(kind, str) else None
        if reader is None or not reader(series, record):
            series.unread += 1
    return series


def _number(value: Any) -> float | None:
    """Return a number that can be reckoned with; JSON knows NaN, and booleans are integers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) and abs(value) < _BIGGEST else None
    except OverflowError:
        return None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _text(value: Any) -> str:
    return value[:300] if isinstance(value, str) else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return dict(list(value.items())[:_MOST_ITEMS]) if isinstance(value, dict) else {}


def _items(value: Any) -> list[Any]:
    return value[:_MOST_ITEMS] if isinstance(value, list) else []


def _pairs(value: Any) -> dict[str, tuple[float, float]]:
    """Read name -> two numbers."""
    found = {}
    for name, numbers in _mapping(value).items():
        told = [_number(item) for item in _items(numbers)[:2]]
        if len(told) == 2 and told[0] is not None and told[1] is not None:  # noqa: PLR2004 - a pair
            found[name] = (told[0], told[1])
    return found


def _begin(series: NodeSeries, record: Record) -> bool:
    series.interval = _number(record.get("interval")) or 1.0
    series.cores = _number(record.get("cores"))
    series.ticks = _number(record.get("ticks")) or 100.0
    speeds = {name: _number(value) for name, value in _mapping(record.get("speeds")).items()}
    series.speeds = {name: value for name, value in speeds.items() if value}
    counted = {"1": True, "0": False}
    series.delay_counted = counted.get(_text(record.get("delayacct")))
    for item in _items(record.get("containers")):
        if isinstance(item, dict) and _text(item.get("instance")):
            name = _text(item["instance"])
            gpus = tuple(gpu for gpu in map(_text, _items(item.get("gpus"))) if gpu)
            series.containers[name] = Container(name, gpus, item.get("log") is True, item.get("speaks_for_all") is True)
    return True


def _device(series: NodeSeries, record: Record) -> bool:
    uuid = _text(record.get("uuid"))
    if not uuid or len(series.devices) >= _MOST_ITEMS:
        return False
    numa = _number(record.get("numa"))
    series.devices[uuid] = Device(
        uuid,
        _number(record.get("index")),
        _text(record.get("name")),
        numa if numa is not None and numa >= 0 else None,
        _text(record.get("cpus")) or None,
    )
    return True


def _gpu(series: NodeSeries, record: Record) -> bool:
    uuid, t = _text(record.get("uuid")), _number(record.get("t"))
    if not uuid or t is None or (uuid not in series.gpus and len(series.gpus) >= _MOST_ITEMS):
        return False
    names = [entry.name for entry in dataclasses.fields(GpuSample) if entry.name not in {"t", "clock_events"}]
    values = {name: _number(record.get(name)) for name in names}
    series.gpus.setdefault(uuid, []).append(GpuSample(t, clock_events=_whole(record.get("clock_events")), **values))
    return True


def _app(series: NodeSeries, record: Record) -> bool:
    pid, gpu = _whole(record.get("pid")), _text(record.get("gpu"))
    if pid is None or not gpu or len(series.users or ()) >= _MOST_ITEMS:
        return False
    series.users = (*(series.users or ()), GpuUser(pid, gpu, _text(record.get("comm"))))
    return True


def _apps(series: NodeSeries, _record: Record) -> bool:
    series.users = series.users or ()
    return True


def _process(series: NodeSeries, record: Record) -> bool:
    pid, t = _whole(record.get("pid")), _number(record.get("t"))
    if pid is None or t is None or (pid not in series.processes and len(series.processes) >= _MOST_ITEMS):
        return False
    process = series.processes.setdefault(pid, Process(pid))
    process.comm = _text(record.get("comm")) or process.comm
    process.ppid = _whole(record.get("ppid")) or process.ppid
    process.instance = _text(record.get("instance")) or process.instance
    process.age = _number(record.get("age"))
    times = [_whole(record.get(name)) for name in ("utime", "stime")]
    own = ("blkio", "rchar", "syscr", "read_bytes", "write_bytes")
    process.samples.append(
        ProcessSample(
            t,
            _text(record.get("state"))[:1],
            None if None in times else sum(time or 0 for time in times),
            **{name: _whole(record.get(name)) for name in own},
        )
    )
    if isinstance(record.get("threads"), list):
        process.threads = (process.threads or frozenset()) | {_text(name) for name in _items(record["threads"])}
        process.runnable.append(_whole(record.get("runnable")) or 0)
    process.cpus = _text(record.get("cpus")) or process.cpus
    return True


def _node(series: NodeSeries, record: Record) -> bool:
    t = _number(record.get("t"))
    if t is None:
        return False
    series.samples.append(
        NodeSample(
            t,
            _number(record.get("cpu_some_us")),
            _number(record.get("io_some_us")),
            _number(record.get("io_full_us")),
            _number(record.get("running")),
            _pairs(record.get("net")),
            _pairs(record.get("ib")),
            {
                name: _container(item)
                for name, item in _mapping(record.get("containers")).items()
                if isinstance(item, dict)
            },
        )
    )
    return True


def _container(item: Record) -> ContainerSample:
    shm = [_number(value) for value in _items(item.get("shm"))[:2]]
    watched = bool(_number(item.get("watched")))
    events = {name: _number(size) for name, size in _mapping(item.get("tfevents")).items()}
    seen = watched and (bool(events) or item.get("complete") is not False)
    checkpoints = {
        name: _number(next(iter(_items(pair)), None)) for name, pair in _mapping(item.get("checkpoints")).items()
    }
    return ContainerSample(
        _whole(item.get("log_lines")),
        _whole(item.get("throttled")),
        shm[0] if shm else None,
        shm[1] if shm[1:] else None,
        nfs=_pairs(item["nfs"]) if isinstance(item.get("nfs"), dict) else None,
        tfevents={name: size for name, size in events.items() if size is not None} if seen else None,
        checkpoints={name: time for name, time in checkpoints.items() if time is not None} if watched else None,
    )


def _mounts(series: NodeSeries, record: Record) -> bool:
    instance = _text(record.get("instance"))
    rows = [tuple(map(_text, row[:3])) for row in _items(record.get("mounts")) if isinstance(row, list)]
    series.mounts[instance] = tuple((row[0], row[1], row[2]) for row in rows if len(row) == 3)  # noqa: PLR2004
    return bool(instance)


def _nccl(series: NodeSeries, record: Record) -> bool:
    lines = tuple(filter(None, map(_text, _items(record.get("lines")))))
    series.nccl = (*series.nccl, *lines)[:_MOST_ITEMS]
    return bool(lines)


def _note(series: NodeSeries, record: Record) -> bool:
    text = _text(record.get("text"))
    if text and len(series.notes) < _MOST_NOTES and text not in series.notes:
        series.notes = (*series.notes, text)
    return bool(text)


def _end(series: NodeSeries, record: Record) -> bool:
    series.ended = _text(record.get("reason")) or "window"
    return True


_READERS: Mapping[str, Callable[[NodeSeries, Record], bool]] = {
    "begin": _begin,
    "device": _device,
    "gpu": _gpu,
    "apps": _apps,
    "app": _app,
    "process": _process,
    "node": _node,
    "mounts": _mounts,
    "nccl": _nccl,
    "note": _note,
    "end": _end,
}
