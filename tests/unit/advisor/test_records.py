"""Parsing of the sampler's output: no input raises."""

from __future__ import annotations

import json
import random

import pytest

from provision.advisor.advice import advise_from
from provision.advisor.records import read_series

RECORDS = [
    {"kind": "begin", "interval": 1, "seconds": 60, "cores": 8, "ticks": 100, "speeds": {"eth0": 25}, "delayacct": "1",
     "containers": [{"instance": "job-0", "gpus": ["GPU-1"], "log": True}]},
    {"kind": "apps", "known": True},
    {"kind": "app", "pid": 7, "gpu": "GPU-1", "memory": 100, "comm": "python3"},
    {"kind": "device", "uuid": "GPU-1", "index": 0, "name": "H100", "bus": "0", "numa": -1, "cpus": "0-3"},
    {"kind": "gpu", "t": 1, "uuid": "GPU-1", "utilization": 50, "memory_used": 1, "memory_total": 2, "clock_events": 4},
    {"kind": "process", "t": 1, "pid": 7, "comm": "python3", "age": 5, "instance": "job-0", "state": "R", "ppid": 1,
     "utime": 1, "stime": 2, "blkio": 0, "rchar": 1, "syscr": 1, "read_bytes": 0, "write_bytes": 0, "cpus": "0-3",
     "threads": ["python3"], "thread_count": 1, "runnable": 1},
    {"kind": "node", "t": 1, "cpu_some_us": 1, "io_some_us": 1, "running": 1, "net": {"eth0": [1, 2]}, "ib": {},
     "containers": {"job-0": {"log_lines": 1, "throttled": 0, "shm": [1, 0], "nfs": {"/data": [1, 2]},
                              "tfevents": {"/e": 1}, "checkpoints": {"/c": [1, 2]}, "watched": 1}}},
    {"kind": "mounts", "instance": "job-0", "mounts": [["/", "overlay", "overlay"]]},
    {"kind": "note", "text": "hello"},
    {"kind": "end", "t": 2, "samples": 1, "reason": "window"},
]  # fmt: skip
ODD = [
    None,
    True,
    -1,
    1e308,
    float("nan"),
    float("inf"),
    10**400,
    "",
    "x" * 1000,
    [],
    [[]],
    {},
    {"a": {"b": []}},
    "[N/A]",
]


def test_a_series_is_read_from_its_lines():
    series = read_series("gpu1", [b"", *[json.dumps(record).encode() + b"\n" for record in RECORDS]])

    assert (series.unread, series.ended, series.cores, series.delay_counted) == (0, "window", 8, True)
    assert series.devices["GPU-1"].numa is None
    assert series.gpus["GPU-1"][0].utilization == 50
    assert series.processes[7].samples[0].cpu_ticks == 3
    assert series.samples[0].net == {"eth0": (1, 2)}
    assert series.samples[0].containers["job-0"].tfevents == {"/e": 1}
    assert [process.pid for process in series.ranks()] == [7]


def test_invalid_lines_are_counted():
    lines = [
        "Welcome to gpu1",
        '{"kind": "gpu", "t": 1',
        '{"kind": "later"}',
        "[]",
        "7",
        '{"kind": []}',
        "[" * 100_000,
        b"\xff",
    ]

    series = read_series("gpu1", lines)

    assert series.unread == len(lines)
    assert series.ended is None


@pytest.mark.parametrize("number", range(len(RECORDS)))
def test_no_value_raises_in_reader_or_checks(number):
    """Each value of each record is replaced in turn, at every depth."""
    for key in RECORDS[number]:
        for odd in ODD:
            changed = [dict(record) for record in RECORDS]
            changed[number][key] = odd
            lines = [json.dumps(record) for record in [*changed, *changed]]
            assert advise_from([read_series("gpu1", lines)])


def test_random_damage_does_not_raise():
    text = "\n".join(json.dumps(record) for record in RECORDS).encode()
    for seed in range(60):
        chance = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
        damaged = bytearray(text)
        for _ in range(20):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        assert advise_from([read_series("gpu1", bytes(damaged).splitlines())])
