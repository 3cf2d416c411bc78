"""What the end of a container, or of mpirun, says of who failed."""

import re
import signal

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
"""Of Open MPI 4 and 5; the last from either's MPI_Abort."""


def signal_of(code):
    """Return the signal that an exit code tells of, None where it is a program's own."""
    return code - SIGNALLED if code is not None and SIGNALLED < code <= SIGNALLED + 64 else None


def words_of(code, number=None):
    """Return an exit code or a signal in words."""
    if number is None:
        number = signal_of(code)
    if number is not None:
        try:
            return "killed by signal {} ({})".format(number, signal.Signals(number).name)
        except ValueError:
            return "killed by signal {}".format(number)
    return "exit code {}".format(code)


def of_state(state):
    """Return what docker's State of a container that has ended says: code, signal, reason."""
    code = state.get("ExitCode")
    code = code if isinstance(code, int) else None
    reason = "" if code == 0 else words_of(code)
    if state.get("OOMKilled"):
        reason = "out of memory: {}".format(reason)
    elif code and state.get("Error"):
        reason = "{}: {}".format(reason, str(state["Error"])[:400])
    return {"code": code, "signal": signal_of(code), "reason": reason}


def first_of_mpirun(text):
    """Return rank, code, signal and node (None where it is not said) of the rank that mpirun tells of first."""
    matches = [match for pattern in MPIRUN for match in [pattern.search(text)] if match]
    if not matches:
        return None
    found = min(matches, key=lambda match: match.start()).groupdict()
    number = found.get("signal")
    code = found.get("code")
    return {
        "rank": int(found["rank"]),
        "code": SIGNALLED + int(number) if number else int(code),
        "signal": int(number) if number else None,
        "node": (found.get("node") or "").rstrip(","),
    }


def seat_of_rank(seats, rank, node=""):
    """Return the worker in whose slots a rank is, ranks filling the host file slot by slot; None if unclear."""
    workers = sorted((seat for seat in seats if seat.get("role") == "worker"), key=lambda seat: seat.get("rank", 0))
    nodes = list(dict.fromkeys(seat.get("node") for seat in workers))
    slots = [
        seat
        for name in nodes
        for seat in workers
        if seat.get("node") == name
        for _ in range(len(seat.get("uuids") or ()) or 1)
    ]
    seat = slots[rank] if rank < len(slots) else None
    if node and (seat is None or seat.get("node") != node):
        seat = next((one for one in workers if one.get("node") == node), None)
    return seat


def job_end(status, reason, code=None, *, grace=None, cause=("", None)):
    """Return how a job ends; a failure has an exit code, if only 1.

    Args:
        status: SUCCEEDED, FAILED or STOPPED.
        reason: the message.
        code: the exit code.
        grace: seconds that its containers have to end; None for the job's own.
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


def stopped(request):
    """Return how a job ends by a request."""
    reason = str(request.get("reason") or "stopped")
    return job_end("STOPPED", reason, grace=request.get("grace"), cause=("job.stopped", {"text": reason}))


def node_error(node, cause):
    """Return how a job ends by an error of a node."""
    params = {"nodes": [node], "cause": cause}
    return job_end("FAILED", "node {}: {}".format(node, cause), cause=("job.node_error", params))


def node_silent(node, message, seconds=None, *, grace=None):
    """Return how a job ends because a node does not answer."""
    params = {"nodes": [node]} if seconds is None else {"nodes": [node], "seconds": round(seconds)}
    return job_end("FAILED", message, grace=grace, cause=("job.node_silent", params))


def node_isolated(node, cause, *, grace=None):
    """Return how a job ends because the other nodes cannot reach this one."""
    message = "node {} is cut off: {}".format(node, cause)
    return job_end("FAILED", message, grace=grace, cause=("job.node_isolated", {"nodes": [node], "cause": cause}))


def broken_off(name):
    """Return how a job ends if the job supervisor of a node never came: it may be started anew, with its secrets."""
    reason = "node {} does not answer: it was not heard of since the start".format(name)
    end = job_end("FAILED", reason, cause=("job.node_not_started", {"nodes": [name]}))
    return dict(end, broken_off=True)
