"""The request logs: the output of an instance, and with `follow` new output until it has ended."""

import os
import time
from typing import BinaryIO, List

from provision.node.files import Record, Refused, read_json, stamp
from provision.node.jobs.records import (
    FILE,
    OVER,
    PREFIX_LENGTH,
    STAMP_LENGTH,
    Attempt,
    attempt_folder,
    attempts_of,
    check_job_id,
    existing_job_folder,
    instances_of,
    job_name,
)
from provision.node.jobs.supervisors import supervised

FOLLOW_MILLISECONDS = 50


def logs(request: Record) -> None:
    """Write an instance's output to standard output."""
    name = job_name(request)
    existing_job_folder(name)
    check_job_id(request, name)
    attempts = attempts_of(name)
    attempt = request.get("attempt") or (attempts[-1] if attempts else 0)
    folder = attempt_folder(name, attempt)
    instance = str(request.get("instance"))
    record = read_json(os.path.join(folder, instance + ".json")) if FILE.match(instance) else {}
    if attempt not in attempts or not record:
        known = ", ".join(instances_of(folder)) or "none"
        message = "attempt {} of {} has no instance {} on this node".format(attempt, name, instance)
        raise Refused(message, "Choose an instance of this node: {}".format(known))
    output = Output(request)
    if request.get("follow"):
        output.follow(folder, instance, (name, attempt))
    else:
        output.begin(log_path(folder, record))


def log_path(folder: str, record: Record) -> str:
    """Return the file with an instance's output; instances of one container share it."""
    log = str(record.get("log") or record["instance"])
    return os.path.join(folder, (log if FILE.match(log) else record["instance"]) + ".log")


class Output:
    """Writes lines of a log in the requested form."""

    def __init__(self, request: Record) -> None:
        tail = request.get("tail", -1)
        self.tail = -1 if tail is None else int(tail)
        self.since = stamp(float(request["since"])) if request.get("since") else ""
        self.timestamps = bool(request.get("timestamps"))
        self.position = 0
        self.rest = b""

    def begin(self, path: str) -> None:
        """Write the existing lines."""
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

    def copy(self, stream: BinaryIO) -> None:
        """Write the lines from the position of a file to its end."""
        while True:
            piece = stream.read(1 << 18)
            if not piece:
                return
            lines = (self.rest + piece).split(b"\n")
            self.rest = lines.pop()
            self.write(lines)

    def _last(self, stream: BinaryIO) -> List[bytes]:
        """Return the last lines, and read up to the end."""
        if self.since:
            import collections

            last = collections.deque(maxlen=self.tail)  # type: collections.deque[bytes]
            for line in stream:
                if not line.endswith(b"\n"):
                    self.rest = line
                elif self._is_recent(line):
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

    def _is_recent(self, line: bytes) -> bool:
        return not self.since or line[:STAMP_LENGTH].decode(errors="replace") >= self.since

    def write(self, lines: List[bytes]) -> None:
        """Write lines of the log."""
        recent = [line for line in lines if self._is_recent(line)] if self.since else lines
        if self.timestamps:
            data = b"".join(line[: STAMP_LENGTH + 1] + line[PREFIX_LENGTH:] + b"\n" for line in recent)
        else:
            data = b"".join(line[PREFIX_LENGTH:] + b"\n" for line in recent)
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]

    def follow(self, folder: str, instance: str, attempt: Attempt) -> None:
        """Write the existing and new lines until the instance has ended or standard output is closed."""
        import select

        reader = select.poll()
        reader.register(1, 0)
        path, is_first, checked = "", True, time.monotonic()
        while True:
            record = read_json(os.path.join(folder, instance + ".json"))
            has_ended = record.get("status") in OVER or os.path.exists(os.path.join(folder, "result.json"))
            if time.monotonic() - checked > 5 and not has_ended:
                checked = time.monotonic()
                has_ended = not os.path.isdir(folder) or self._is_unsupervised(folder, attempt)
            path = log_path(folder, record) if record else path
            has_written = self._write_more(path, is_first=is_first)
            is_first = is_first and not os.path.exists(path)
            if not has_written and (has_ended or reader.poll(FOLLOW_MILLISECONDS)):
                return

    @staticmethod
    def _is_unsupervised(folder: str, attempt: Attempt) -> bool:
        return os.path.exists(os.path.join(folder, "keeper.json")) and not supervised([attempt])

    def _write_more(self, path: str, *, is_first: bool) -> bool:
        if is_first:
            self.begin(path)
            return self.position > 0
        try:
            if os.stat(path).st_size == self.position:
                return False
            with open(path, "rb") as stream:
                stream.seek(self.position)
                self.copy(stream)
                has_written = stream.tell() != self.position
                self.position = stream.tell()
                return has_written
        except OSError:
            return False
