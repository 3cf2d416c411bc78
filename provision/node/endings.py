"""How instances and jobs end: exit codes, signals, the messages of mpirun, and the records of ends."""

import re
import signal
from typing import Iterable, List, Optional, Tuple

from provision.node.files import Record

SIGNALLED = 128
MPIRUN = (
    re.compile(
        r"Process name:\s+\[(?:\[\d+,\d+\]|[^\]\s]+@\d+),(?P<rank>\d{1,9})\]\s+Exit code:\s+(?P<code>-?\d{1,9})"
    ),
    re.compile(
        r"process\s+rank\s+(?P<rank>\d{1,9})\s+with\s+PID\s+\d+\s+on\s+node\s+(?P<node>\S+)\s+exited\s+on\s+signal\s+(?P<signal>\d{1,9})"
    ),
    re.compile(
        r"MPI_ABORT was invoked on rank (?P<rank>\d{1,9}) in.{0,400}?[Ee]rrorcode:?\s+(?P<code>-?\d{1,9})", re.DOTALL
    ),
)
"""Messages of Open MPI 4 and 5; the last pattern is for MPI_Abort of both."""

NO_CAUSE: Tuple[str, Optional[Record]] = ("", None)


def signal_of(code: Optional[int]) -> Optional[int]:
    """Return the signal that an exit code stands for, None if it stands for none."""
    return code - SIGNALLED if code is not None and SIGNALLED < code <= SIGNALLED + 64 else None


def words_of(code: Optional[int], number: Optional[int] = None) -> str:
    """Return an exit code or a signal as text."""
    if number is None:
        number = signal_of(code)
    if number is not None:
        try:
            return "killed by signal {} ({})".format(number, signal.Signals(number).name)
        except ValueError:
            return "killed by signal {}".format(number)
    return "exit code {}".format(code)


def of_state(state: Record) -> Record:
    """Return exit code, signal and reason of an ended container from its `State` in Docker."""
    code = state.get("ExitCode")
    code = code if isinstance(code, int) else None
    reason = "" if code == 0 else words_of(code)
    if state.get("OOMKilled"):
        reason = "out of memory: {}".format(reason)
    elif code and state.get("Error"):
        reason = "{}: {}".format(reason, str(state["Error"])[:400])
    return {"code": code, "signal": signal_of(code), "reason": reason}


def first_of_mpirun(text: str) -> Optional[Record]:
    """Return rank, exit code, signal and node of the first failed rank in the output of mpirun, None without one.

    The signal is None and the node is empty if mpirun does not print them.
    """
    matches = [match for pattern in MPIRUN for match in [pattern.search(text)] if match]
    if not matches:
        return None
    groups = min(matches, key=lambda match: match.start()).groupdict()
    number = int(groups["signal"]) if groups.get("signal") else None
    return {
        "rank": int(groups["rank"]),
        "code": int(groups["code"]) if number is None else SIGNALLED + number,
        "signal": number,
        "node": (groups.get("node") or "").rstrip(","),
    }


def assignment_of_rank(assignments: Iterable[Record], rank: int, node: str = "") -> Optional[Record]:
    """Return the assignment of the worker whose slots contain a rank, None if it is unknown.

    Ranks fill the host file slot by slot.
    """
    workers = [assignment for assignment in assignments if assignment.get("role") == "worker"]
    workers.sort(key=lambda worker: int(worker.get("rank", 0)))
    nodes = list(dict.fromkeys(worker.get("node") for worker in workers))
    slots: List[Record] = [
        worker
        for name in nodes
        for worker in workers
        if worker.get("node") == name
        for _ in range(len(worker.get("uuids") or ()) or 1)
    ]
    assignment = slots[rank] if rank < len(slots) else None
    if node and (assignment is None or assignment.get("node") != node):
        return next((worker for worker in workers if worker.get("node") == node), None)
    return assignment


def job_end(
    status: str,
    reason: str,
    code: Optional[int] = None,
    *,
    grace: Optional[float] = None,
    cause: Tuple[str, Optional[Record]] = NO_CAUSE,
) -> Record:
    """Return the end of a job; the exit code of a failure is never 0.

    Args:
        status: SUCCEEDED, FAILED or STOPPED.
        reason: the message.
        code: the exit code.
        grace: seconds that its containers have to end; None for the grace time of the job.
        cause: code and parameters of the reason; `provision/batch/reasons.py` lists them.
    """
    code = 1 if status == "FAILED" and not code else code
    return {
        "status": status,
        "reason": reason,
        "code": cause[0],
        "params": cause[1] or {},
        "exit_code": code,
        "first_failure": "",
        "first_rank": None,
        "grace": grace,
    }


def stopped(request: Record) -> Record:
    """Return the end of a job by a request to stop it."""
    reason = str(request.get("reason") or "stopped")
    return job_end("STOPPED", reason, grace=request.get("grace"), cause=("job.stopped", {"text": reason}))


def node_error(node: str, cause: str) -> Record:
    """Return the end of a job by an error of a node."""
    params = {"nodes": [node], "cause": cause}
    return job_end("FAILED", "node {}: {}".format(node, cause), cause=("job.node_error", params))


def node_silent(node: str, message: str, seconds: Optional[float] = None, *, grace: Optional[float] = None) -> Record:
    """Return the end of a job because a node does not answer."""
    params: Record = {"nodes": [node]} if seconds is None else {"nodes": [node], "seconds": round(seconds)}
    return job_end("FAILED", message, grace=grace, cause=("job.node_silent", params))


def node_isolated(node: str, cause: str, *, grace: Optional[float] = None) -> Record:
    """Return the end of a job because the other nodes cannot reach this one."""
    message = "node {} is cut off: {}".format(node, cause)
    return job_end("FAILED", message, grace=grace, cause=("job.node_isolated", {"nodes": [node], "cause": cause}))


def broken_off(name: str) -> Record:
    """Return the end of a job whose supervisor on a node never started: it keeps its secrets for another start."""
    reason = "node {} does not answer: it was not heard of since the start".format(name)
    end = job_end("FAILED", reason, cause=("job.node_not_started", {"nodes": [name]}))
    return dict(end, broken_off=True)
