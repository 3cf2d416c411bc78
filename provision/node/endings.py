"""What the end of a container, or of mpirun, says of who failed. A part of keeper.py."""

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


def job_end(status, reason, code=None, *, grace=None):
    """Return how a job ends; a failure has an exit code, if only 1."""
    code = 1 if status == "FAILED" and not code else code
    return {
        "status": status,
        "reason": reason,
        "exit_code": code,
        "first_failure": "",
        "first_rank": None,
        "grace": grace,
    }


def broken_off(name):
    """Return how a job ends of which a node's keeper never came: it may be started anew, with its secrets."""
    reason = "node {} does not answer: it was not heard of since the start".format(name)
    return dict(job_end("FAILED", reason), broken_off=True)
