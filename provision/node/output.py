"""Writes the output of a job's containers to log files, every line exactly once."""

import calendar
import collections
import os
import threading
import time
from typing import BinaryIO, Callable, Dict, List, Tuple

from provision.node import docker as node_docker
from provision.node import files as node_files
from provision.node.jobs.records import PREFIX_LENGTH, STAMP_LENGTH

LINE_LIMIT = 1 << 16
READ_LIMIT = 1 << 25  # the most of a log that is read to continue it
LOG_LIMIT = 2 << 30  # the most output of one container that is written
FLOOR = ".since"  # the suffix of a file with Docker's time of the earliest line that may continue
HEAD = 8  # of Docker's frames: the stream, three zeros, the length
LETTERS = {1: b"o", 2: b"e"}
MARGIN_SECONDS = 5  # the output so long before the last line of a log is requested again
PATIENCE_SECONDS = 0.3


class Lines:
    """Joins the messages of Docker's log to lines: a long line comes as several messages with one time."""

    def __init__(self) -> None:
        self.open: Dict[bytes, Tuple[bytes, bytes]] = {}
        """Stream -> time and text of its unfinished line."""

    def add(self, letter: bytes, when: bytes, data: bytes) -> List[bytes]:
        """Add a message; return the lines of the log that it completes, without newlines."""
        began, text = self.open.pop(letter, (when, b""))
        text += data
        lines = []
        while text:
            line, newline, rest = text.partition(b"\n")
            while len(line) > LINE_LIMIT:
                lines.append(began + b" " + letter + b" " + line[:LINE_LIMIT])
                line = line[LINE_LIMIT:]
            if not newline:
                self.open[letter] = (began, line)
                break
            lines.append(began + b" " + letter + b" " + line)
            text, began = rest, when
        return lines

    def end(self) -> List[bytes]:
        """Return the unfinished lines."""
        lines = [began + b" " + letter + b" " + line for letter, (began, line) in sorted(self.open.items()) if line]
        self.open = {}
        return lines


class Known:
    """The lines of the last seconds in a log: Docker is asked for this time again, and known lines are skipped.

    `floor` is Docker's time of the earliest line that may be missing; empty if it is within the last seconds.
    """

    def __init__(self, path: str, floor: str = "") -> None:
        self.since, self.oldest, self.floor = "", b"", floor.encode()
        self.counts: "collections.Counter[bytes]" = collections.Counter()
        try:
            with open(path, "r+b") as stream:
                self._take(stream, floor)
        except OSError:
            pass

    def _take(self, stream: BinaryIO, floor: str) -> None:
        """Remove an incomplete last line, and count the lines of the last seconds, backwards from the end."""
        end = at = stream.seek(0, os.SEEK_END)
        rest, bound, is_last, last = b"", b"", True, ""
        while at and end - at < READ_LIMIT:
            step = min(at, 1 << 18)
            at -= step
            stream.seek(at)
            data = stream.read(step) + rest
            if is_last:
                complete = data.rfind(b"\n") + 1
                if not complete and at:
                    rest = data
                    continue
                stream.truncate(at + complete)
                data, is_last = data[:complete], False
            rest, _, data = data.partition(b"\n") if at else (b"", b"", data)
            lines = [line[:PREFIX_LENGTH] for line in data.split(b"\n") if line]
            if lines and not last:
                last = max(lines)[:STAMP_LENGTH].decode(errors="replace")
                self.since = min(filter(None, (stamp_before(last, MARGIN_SECONDS), floor)), default="")
                if seconds_of(last) > time.time() + MARGIN_SECONDS:
                    self.since = ""  # the clock was set back, so that later lines may have any time
                bound = self.since.encode()
            self.counts.update(line for line in lines if line[:STAMP_LENGTH] >= bound)
            if lines and bound and max(lines)[:STAMP_LENGTH] < stamp_before(self.since, MARGIN_SECONDS).encode():
                return
            rest += b"\n" if at else b""
        if at and bound:
            self.oldest = min(self.counts, default=b"")[:STAMP_LENGTH]

    def has(self, line: bytes) -> bool:
        """Return whether a line is in the log, once for each time that it is there."""
        key = line[:PREFIX_LENGTH]
        if self.counts and self.counts[key] > 0:
            self.counts[key] -= 1
            return True
        return key[:STAMP_LENGTH] < self.oldest and key[:STAMP_LENGTH] != self.floor


def stamp_before(stamp: str, seconds: int) -> str:
    """Return a time so many seconds earlier, empty for an invalid time."""
    try:
        whole = calendar.timegm(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return ""
    return node_files.stamp(whole - seconds)[:19] + stamp[19:]


def seconds_of(stamp: str) -> float:
    """Return a time such as 2026-01-31T12:00:00.123456789Z in seconds since the epoch, 0 for an invalid time."""
    try:
        whole = calendar.timegm(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S"))
        part = "".join(character for character in stamp[20:29] if character.isdigit())
        return max(whole + float("0." + (part or "0")), 0.0)
    except (ValueError, TypeError):
        return 0.0


class Log:
    """The file with one instance's output; it waits for free space on a full disk, and reports that once."""

    def __init__(self, path: str, warn: Callable[[str], None]) -> None:
        self.path, self.warn, self.has_warned = path, warn, False
        self.handle = -1

    def open(self) -> None:
        """Open the file, and preserve its contents."""
        while self.handle < 0:
            try:
                self.handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            except OSError as problem:
                self._wait(problem)

    def close(self) -> None:
        """Close the file."""
        os.close(self.handle)
        self.handle = -1

    def _wait(self, problem: OSError) -> None:
        if not self.has_warned:
            self.has_warned = True
            self.warn("its output cannot be written now: {}".format(problem.strerror))
        time.sleep(1)

    def write(self, lines: List[bytes]) -> None:
        """Append lines, up to the limit of the file's size."""
        size = os.fstat(self.handle).st_size
        if not lines or size > LOG_LIMIT:
            return
        data = b"".join(line + b"\n" for line in lines)
        if size + len(data) > LOG_LIMIT:
            data += (
                lines[-1][:STAMP_LENGTH]
                + b" e [provision] the output is cut here: it is longer than this file may be\n"
            )
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.handle, view) :]
            except OSError as problem:
                self._wait(problem)


class Pump(threading.Thread):
    """Copies the output of one container to its log until the container has ended."""

    def __init__(self, container: str, path: str, done: Callable[[], None], warn: Callable[[str], None]) -> None:
        super().__init__(daemon=True)
        self.container, self.path, self.done, self.warn = container, path, done, warn
        self.log = Log(path, warn)
        self.lines = Lines()
        self.last = self.stepped = self.floor = b""
        self.has_warned = False

    def run(self) -> None:
        """Read Docker's log until it is complete."""
        self.log.open()
        try:
            while not self._copy():
                time.sleep(PATIENCE_SECONDS)
        finally:
            self.log.write(self.lines.end())
            self.log.close()
            self.done()

    def _copy(self) -> bool:
        """Read Docker's log once; return whether it is complete and the container had ended before."""
        try:
            inspected = node_docker.inspect_container(self.container)
            if inspected is None:
                return True
            has_ended = inspected["State"]["Status"] in ("exited", "dead")
            return self._follow(follow=not has_ended) and has_ended
        except (OSError, KeyError, TypeError):
            return False

    def _follow(self, *, follow: bool) -> bool:
        known = Known(self.path, node_files.read_text(self.path + FLOOR))
        path = "/containers/{}/logs?stdout=1&stderr=1&timestamps=1&follow={}".format(self.container, int(follow))
        if known.since:
            path += "&since={}.{}000".format(int(seconds_of(known.since)), known.since[20:26])
        status, stream = node_docker.engine_stream("GET", path, None)
        with stream.connection as connection:
            if status != 200:
                if status != 404 and not self.has_warned:
                    self.has_warned = True
                    self.warn("its output cannot be read: {}".format(node_docker.engine_words(stream.rest)))
                return True
            self.lines = Lines()
            data = stream.rest
            while True:
                data = self._take(data, known)
                piece = connection.recv(1 << 18)
                if not piece:
                    return not data
                data += piece

    def _take(self, data: bytes, known: Known) -> bytes:
        """Write the lines of all complete frames; return the remaining bytes."""
        at = 0
        lines: List[bytes] = []
        while len(data) - at >= HEAD:
            size = int.from_bytes(data[at + 4 : at + HEAD], "big")
            if len(data) - at - HEAD < size:
                break
            message = data[at + HEAD : at + HEAD + size]
            letter = LETTERS.get(data[at], b"o")
            when, _, text = message.partition(b" ")
            when = when[: STAMP_LENGTH - 1].ljust(STAMP_LENGTH - 1, b"0") + b"Z"
            lines += self.lines.add(letter, when, text)
            self._write_floor(when)
            at += HEAD + size
        self.log.write([line for line in lines if not known.has(line)])
        return data[at:]

    def _write_floor(self, when: bytes) -> None:
        """Record the time from which Docker has to be asked again if it is before the last seconds.

        An unfinished line, for example of a progress bar, has the time of its beginning; a clock can be set back.
        """
        if when < self.last and seconds_of(self.last.decode()) - seconds_of(when.decode()) > 1:
            self.stepped = min(filter(None, (self.stepped, when)))
        self.last = when
        early = [began for began, _ in self.lines.open.values() if began[:19] != when[:19]]
        floor = min([*early, self.stepped] if self.stepped else early, default=b"")
        if floor and floor != self.floor:
            try:
                node_files.write_file(self.path + FLOOR, floor)
                self.floor = floor
            except OSError:
                pass


def last_lines(path: str, count: int = 20, limit: int = 1 << 16) -> List[str]:
    """Return the last lines of a log, without their times."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(stream.seek(0, os.SEEK_END) - limit, 0))
            lines = stream.read().split(b"\n")
    except OSError:
        return []
    return [line[PREFIX_LENGTH:][:2000].decode(errors="replace") for line in lines if len(line) >= PREFIX_LENGTH][
        -count:
    ]
