"""Current utilisation and memory use of GPUs, and their processes."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from provision.documents import printable_line

_GPUS = "index,uuid,name,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw,power.limit"
_APPS = "gpu_uuid,pid,process_name,used_memory"
SCRIPT = f"""
command -v nvidia-smi >/dev/null || exit 0
timeout 20 nvidia-smi --query-gpu={_GPUS} --format=csv,noheader,nounits || exit
echo '== processes'
apps=$(timeout 20 nvidia-smi --query-compute-apps={_APPS} --format=csv,noheader,nounits) || exit 0
printf '%s\\n' "$apps"
echo '== users'
pids=$(printf '%s\\n' "$apps" | cut -d, -f2 | tr -dc '0-9\\n' | paste -sd, -)
[ -z "$pids" ] || ps -o pid=,user= -p "$pids"
exit 0
"""
"""A shell script for a node; it prints nothing if nvidia-smi is missing."""


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU."""

    pid: int
    name: str
    user: str = ""
    memory_mib: int | None = None


@dataclass(frozen=True)
class GpuUsage:
    """One GPU now; None for values that the driver does not report."""

    index: int
    uuid: str
    name: str
    busy_percent: int | None = None
    """The share of the last second in which a kernel ran, not the share of the GPU that it used."""
    used_mib: int | None = None
    total_mib: int | None = None
    celsius: int | None = None
    watts: float | None = None
    limit_watts: float | None = None
    processes: tuple[GpuProcess, ...] = ()


def gpu_usage(text: str) -> tuple[GpuUsage, ...]:
    """Parse the output of `SCRIPT`; invalid lines are ignored."""
    gpus, _, rest = text.partition("== processes\n")
    apps, _, users = rest.partition("== users\n")
    users_of = (printable_line(line).split(None, 1) for line in users.splitlines())
    names = {words[0]: words[1] for words in users_of if len(words) > 1}
    return tuple(_gpus(gpus, _processes(apps, names)))


def _gpus(text: str, processes: Mapping[str, list[GpuProcess]]) -> Iterator[GpuUsage]:
    for cells in _rows(text, _GPUS):
        index = _whole(cells["index"])
        if index is None:
            continue
        yield GpuUsage(
            index,
            cells["uuid"],
            cells["name"],
            _whole(cells["utilization.gpu"]),
            _whole(cells["memory.used"]),
            _whole(cells["memory.total"]),
            _whole(cells["temperature.gpu"]),
            _number(cells["power.draw"]),
            _number(cells["power.limit"]),
            tuple(processes.get(cells["uuid"], ())),
        )


def _processes(text: str, users: Mapping[str, str]) -> dict[str, list[GpuProcess]]:
    processes: dict[str, list[GpuProcess]] = {}
    for cells in _rows(text, _APPS):
        pid = _whole(cells["pid"])
        if pid is not None:
            program = cells["process_name"].rpartition("/")[2]
            process = GpuProcess(pid, program, users.get(str(pid), "").strip(), _whole(cells["used_memory"]))
            processes.setdefault(cells["gpu_uuid"], []).append(process)
    return processes


def _rows(text: str, columns: str) -> Iterator[dict[str, str]]:
    titles = columns.split(",")
    lines = (printable_line(line) for line in text.splitlines())
    for row in csv.reader(lines, skipinitialspace=True):
        if len(row) == len(titles):
            yield dict(zip(titles, (cell.strip() for cell in row), strict=True))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _whole(text: str) -> int | None:
    number = _number(text)
    return int(number) if number is not None and number == number and abs(number) < 1e12 else None  # noqa: PLR0124, PLR2004
