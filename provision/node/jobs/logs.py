"""The request logs: lines of an instance's output, until it has ended where that is asked for."""

import os
import time

from provision.node.files import Refused, read_json, stamp
from provision.node.jobs.records import (
    FILE,
    OVER,
    PREFIX_LENGTH,
    STAMP_LENGTH,
    attempt_folder,
    attempts_of,
    check_job_id,
    existing_job_folder,
    instances_of,
    job_name,
)
from provision.node.jobs.supervisors import supervised

FOLLOW_MILLISECONDS = 50


def logs(request):
    """Write an instance's lines to standard output; with ``follow`` until it has ended and everything is out."""
    name = job_name(request)
    existing_job_folder(name)
    check_job_id(request, name)
    attempts = attempts_of(name)
    attempt = request.get("attempt") or (attempts[-1] if attempts else 0)
    folder = attempt_folder(name, attempt)
    instance = str(request.get("instance"))
    record = read_json(os.path.join(folder, instance + ".json")) if FILE.match(instance) else {}
    if attempt not in attempts or not record:
        there = ", ".join(instances_of(folder)) or "none"
        message = "attempt {} of {} has no instance {} on this node".format(attempt, name, instance)
        raise Refused(message, "its instances here: {}".format(there))
    output = Output(request)
    path = log_path(folder, record)
    if request.get("follow"):
        output.follow(folder, instance, (name, attempt))
    else:
        output.begin(path)


def log_path(folder, record):
    """Return the file with an instance's output; instances of one container share it."""
    log = str(record.get("log") or record["instance"])
    return os.path.join(folder, (log if FILE.match(log) else record["instance"]) + ".log")


class Output:
    """Writes lines of a log as they were asked for."""

    def __init__(self, request):
        tail = request.get("tail", -1)
        self.tail = -1 if tail is None else int(tail)
        self.since = stamp(float(request["since"])) if request.get("since") else ""
        self.timestamps = bool(request.get("timestamps"))
        self.position = 0
        self.rest = b""

    def begin(self, path):
        """Write what is there."""
        try:
            stream = open(path, "rb")
        except OSError:
            return
        with stream:
            if self.tail >= 0:
                self.write(self._last(stream))
            else:
                self.copy(stream)
            self.position = stream.tell()

    def copy(self, stream):
        """Write from where the file stands to its end; return whether there was anything."""
        found = False
        while True:
            piece = stream.read(1 << 18)
            if not piece:
                return found
            found = True
            lines = (self.rest + piece).split(b"\n")
            self.rest = lines.pop()
            self.write(lines)

    def _last(self, stream):
        """Return the last lines, and stand behind them."""
        if self.since:
            import collections

            last = collections.deque(maxlen=self.tail)
            for line in stream:
                if not line.endswith(b"\n"):
                    self.rest = line
                elif self._fits(line):
                    last.append(line[:-1])
            return list(last)
        end = at = stream.seek(0, os.SEEK_END)
        data = b""
        while at and data.count(b"\n") <= self.tail:
            step = min(at, 1 << 16)
            at -= step
            stream.seek(at)
            data = stream.read(step) + data
        stream.seek(end)
        lines = data.split(b"\n")
        self.rest = lines.pop()
        return lines[-self.tail :] if self.tail else []

    def _fits(self, line):
        return not self.since or line[:STAMP_LENGTH].decode(errors="replace") >= self.since

    def write(self, lines):
        """Write lines of the log as they are wanted."""
        fitting = [line for line in lines if self._fits(line)] if self.since else lines
        if self.timestamps:
            data = b"".join(line[: STAMP_LENGTH + 1] + line[PREFIX_LENGTH:] + b"\n" for line in fitting)
        else:
            data = b"".join(line[PREFIX_LENGTH:] + b"\n" for line in fitting)
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]

    def follow(self, folder, instance, attempt):
        """Write what is there and what comes; whoever asked may go away at any time."""
        import select

        reader = select.poll()
        reader.register(1, 0)
        path, first, checked = "", True, time.monotonic()
        while True:
            record = read_json(os.path.join(folder, instance + ".json"))
            over = record.get("status") in OVER or os.path.exists(os.path.join(folder, "result.json"))
            if time.monotonic() - checked > 5 and not over:
                checked = time.monotonic()
                over = not os.path.isdir(folder) or self._unwatched(folder, attempt)
            path = log_path(folder, record) if record else path
            moved = self._more(path, first)
            first = first and not os.path.exists(path)
            if over and not moved:
                return
            if reader.poll(0 if moved else FOLLOW_MILLISECONDS) and not moved:
                return

    @staticmethod
    def _unwatched(folder, attempt):
        return os.path.exists(os.path.join(folder, "keeper.json")) and not supervised([attempt])

    def _more(self, path, first):
        if first:
            self.begin(path)
            return self.position > 0
        try:
            if os.stat(path).st_size == self.position:
                return False
            with open(path, "rb") as stream:
                stream.seek(self.position)
                self.copy(stream)
                moved = stream.tell() != self.position
                self.position = stream.tell()
                return moved
        except OSError:
            return False
