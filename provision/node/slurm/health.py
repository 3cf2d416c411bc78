"""Health checks that slurmd starts regularly: drain the node when one fails, and resume it when all passed twice.

The reason of a drain is ``provision: health: CODE``. A node that something else drained is never resumed, and its
reason is never changed. Each check has a time limit, and all together end within a minute, as Slurm demands.

Each run also removes the marks of jobs whose epilog did not run.
"""

import json
import os
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from provision.node.docker import DOCKER_SOCKET, engine
from provision.node.files import program, write_json
from provision.node.probe.slurm import STATE
from provision.node.slurm.compute import remove_old_marks

PREFIX = "provision: health: "
RECORD = os.environ.get("PROVISION_SLURM_HEALTH") or "/var/lib/provision/slurm/health.json"
DEVICES = os.environ.get("PROVISION_SLURM_DEVICES") or "/dev"
PASSES = 2
"""How many runs without a problem resume a node."""
TOOL_SECONDS, ENGINE_SECONDS, SCONTROL_SECONDS = 20, 5, 10
FREE_BYTES = 1 << 30
"""Less free space than this stops jobs."""
FOLDERS = ("/", "/var/lib/docker", "/var/lib/provision")
DRAINED = ("drain", "drng")
PROGRAMS = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def main() -> int:
    """Run the checks and act; return 0 in any case, because slurmd only logs the status."""
    recorded = read(STATE)
    name = recorded.get("node")
    if isinstance(name, str) and name:
        act(name, next(problems(recorded), ""))
    remove_old_marks()
    return 0


def problems(recorded: Dict[str, Any]) -> Iterator[str]:
    """Yield the code of each problem of the node, the cheapest checks first."""
    minors = [gpu["minor"] for gpu in (recorded.get("entry") or {}).get("gpus") or ()]
    if not all(os.path.exists("{}/nvidia{}".format(DEVICES, minor)) for minor in minors):
        yield "gpu_device_missing"
    yield from disk_problems()
    yield from engine_problems()
    if minors:
        yield from gpu_problems(len(minors))


def disk_problems() -> Iterator[str]:
    """Yield what is wrong with the file systems of jobs."""
    for folder in filter(os.path.isdir, FOLDERS):
        try:
            status = os.statvfs(folder)
        except OSError:
            yield "disk_unreadable"
            continue
        if status.f_flag & os.ST_RDONLY:
            yield "disk_read_only"
        elif status.f_bavail * status.f_frsize < FREE_BYTES:
            yield "disk_full"


def engine_problems() -> Iterator[str]:
    """Yield whether the Docker engine does not answer; a node without its socket has no Docker."""
    if os.path.exists(DOCKER_SOCKET):
        try:
            status, _ = engine("GET", "/_ping", ENGINE_SECONDS)
        except OSError:
            status = 0
        if status != 200:
            yield "docker_not_answering"


def gpu_problems(count: int) -> Iterator[str]:
    """Yield what the GPU tool reports."""
    fields = "index,ecc.errors.uncorrected.volatile.total"
    code, out, _ = run(["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader,nounits"], TOOL_SECONDS)
    if code == 124:
        yield "gpu_tool_hangs"
        return
    rows = [[word.strip() for word in line.split(",")] for line in out.splitlines() if line[:1].isdigit()]
    if code != 0 or len(rows) < count:
        yield "gpu_missing"
    if any(len(row) > 1 and row[1].isdigit() and int(row[1]) > 0 for row in rows):
        yield "gpu_memory_errors"


def act(name: str, problem: str) -> None:
    """Drain the node, or resume it when it was drained for its health and has passed twice."""
    state, reason = node_state(name)
    if not state:
        return  # slurmctld does not answer; the next run tries again
    is_drained = state.startswith(DRAINED)
    is_ours = reason.startswith(PREFIX)
    if problem:
        remember(0)
        if not is_drained or (is_ours and reason != PREFIX + problem):
            scontrol("update", "NodeName=" + name, "State=DRAIN", "Reason=" + PREFIX + problem)
    elif is_drained and is_ours:
        passes = passed_before() + 1
        remember(passes)
        if passes >= PASSES:
            scontrol("update", "NodeName=" + name, "State=RESUME")
            remember(0)


def node_state(name: str) -> Tuple[str, str]:
    """Return state and reason of the node, empty if slurmctld does not answer."""
    code, out, _ = run(["sinfo", "--noheader", "--Node", "--nodes", name, "--format", "%T|%E"], SCONTROL_SECONDS)
    lines: List[str] = out.splitlines()
    if code != 0 or not lines:
        return "", ""
    state, _, reason = lines[0].partition("|")
    return state.strip().lower(), reason.strip()


def passed_before() -> int:
    """Return how many runs passed in a row while the node was drained."""
    passes = read(RECORD).get("passes")
    return passes if isinstance(passes, int) else 0


def remember(passes: int) -> None:
    """Record how many runs passed."""
    try:
        os.makedirs(os.path.dirname(RECORD), mode=0o700, exist_ok=True)
        write_json(RECORD, {"passes": passes})
    except OSError:
        pass


def read(path: str) -> Dict[str, Any]:
    """Return a JSON object, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as stream:
            document = json.load(stream)
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def scontrol(*words: str) -> None:
    """Change a node."""
    run(["scontrol", *words], SCONTROL_SECONDS)


def run(command: Sequence[str], seconds: float) -> Tuple[int, str, str]:
    """Return what a program returns; slurmd may have started the checks without the folders of programs in its PATH."""
    return program(command, seconds, {"PATH": PROGRAMS})
