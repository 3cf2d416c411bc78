"""Keeps the output of a job's containers, and loses or doubles no line of it."""

import calendar
import collections
import os
import threading
import time

from provision.node import docker as node_docker
from provision.node import files as node_files
from provision.node.jobs.records import PREFIX_LENGTH, STAMP_LENGTH

LINE_LIMIT = 1 << 16
READ_LIMIT = 1 << 25  # so much of a log is looked at to go on with it
LOG_LIMIT = 2 << 30  # what comes after so much of one container's output is not kept
FLOOR = ".since"  # beside a log: docker's time of the earliest line of which more may come
HEAD = 8  # of docker's frames: the stream, three zeros, the length
LETTERS = {1: b"o", 2: b"e"}
MARGIN_SECONDS = 5  # so far before the last line that we have, docker is asked again
PATIENCE_SECONDS = 0.3


class Lines:
    """Puts lines together from the messages of docker's log: a long line comes as several of one time."""

    def __init__(self):
        self.open = {}

    def add(self, letter, when, data):
        """Take a message; return the lines of our log that are whole now, without their ends."""
        began, text = self.open.pop(letter, (when, b""))
        text += data
        found = []
        while text:
            line, newline, rest = text.partition(b"\n")
            while len(line) > LINE_LIMIT:
                found.append(began + b" " + letter + b" " + line[:LINE_LIMIT])
                line = line[LINE_LIMIT:]
            if not newline:
                self.open[letter] = (began, line)
                break
            found.append(began + b" " + letter + b" " + line)
            text, began = rest, when
        return found

    def end(self):
        """Return the last lines that had no end."""
        found = [began + b" " + letter + b" " + line for letter, (began, line) in sorted(self.open.items()) if line]
        self.open = {}
        return found


class Known:
    """What a log has of the last seconds: docker is asked for them again, and what is there is left out.

    Args:
        path: the log.
        floor: docker's time of the earliest line that may not be in it yet; empty where that is of the last seconds.
    """

    def __init__(self, path, floor=""):
        self.since, self.oldest, self.floor = "", b"", floor.encode()
        self.counts = collections.Counter()
        try:
            with open(path, "r+b") as stream:
                self._take(stream, floor)
        except OSError:
            pass

    def _take(self, stream, floor):
        """Cut off a last line that was not written whole, and count those of the last seconds, from the end on."""
        end = at = stream.seek(0, os.SEEK_END)
        rest, bound, first, last = b"", b"", True, ""
        while at and end - at < READ_LIMIT:
            step = min(at, 1 << 18)
            at -= step
            stream.seek(at)
            data = stream.read(step) + rest
            if first:
                keep = data.rfind(b"\n") + 1
                if not keep and at:
                    rest = data
                    continue
                stream.truncate(at + keep)
                data, first = data[:keep], False
            rest, _, data = data.partition(b"\n") if at else (b"", b"", data)
            lines = [line[:PREFIX_LENGTH] for line in data.split(b"\n") if line]
            if lines and not last:
                last = max(lines)[:STAMP_LENGTH].decode(errors="replace")
                self.since = min(filter(None, (stamp_before(last, MARGIN_SECONDS), floor)), default="")
                if seconds_of(last) > time.time() + MARGIN_SECONDS:
                    self.since = ""  # the clock was put back: what came since may have any time
                bound = self.since.encode()
            self.counts.update(line for line in lines if line[:STAMP_LENGTH] >= bound)
            if lines and bound and max(lines)[:STAMP_LENGTH] < stamp_before(self.since, MARGIN_SECONDS).encode():
                return
            rest += b"\n" if at else b""
        if at and bound:
            self.oldest = min(self.counts, default=b"")[:STAMP_LENGTH]

    def has(self, line):
        """Return whether a line is there already, once for each time that it is."""
        key = line[:PREFIX_LENGTH]
        if self.counts and self.counts[key] > 0:
            self.counts[key] -= 1
            return True
        return key[:STAMP_LENGTH] < self.oldest and key[:STAMP_LENGTH] != self.floor


def stamp_before(stamp, seconds):
    """Return a stamp of so many seconds before."""
    try:
        whole = calendar.timegm(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return ""
    return node_files.stamp(whole - seconds)[:19] + stamp[19:]


def seconds_of(stamp):
    """Return a time of docker's, such as 2026-01-31T12:00:00.123456789Z, in seconds since the epoch; 0 for none."""
    try:
        whole = calendar.timegm(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S"))
        part = "".join(character for character in stamp[20:29] if character.isdigit())
        return max(whole + float("0." + (part or "0")), 0.0)
    except (ValueError, TypeError):
        return 0.0


class Log:
    """The file with one instance's output; a disk that is full is waited for, and said once."""

    def __init__(self, path, trouble):
        self.path, self.trouble, self.said = path, trouble, False
        self.handle = -1

    def open(self):
        """Open it; what is there stays."""
        while self.handle < 0:
            try:
                self.handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            except OSError as problem:
                self._complain(problem)

    def close(self):
        """Close it."""
        os.close(self.handle)
        self.handle = -1

    def _complain(self, problem):
        if not self.said:
            self.said = True
            self.trouble("its output cannot be kept now: {}".format(problem.strerror))
        time.sleep(1)

    def write(self, lines):
        """Add lines, as long as the file may be."""
        size = os.fstat(self.handle).st_size
        if not lines or size > LOG_LIMIT:
            return
        data = b"".join(line + b"\n" for line in lines)
        if size + len(data) > LOG_LIMIT:
            data += (
                lines[-1][:STAMP_LENGTH]
                + b" e [provision] the output is cut here: it is longer than this file may be\n"
            )
        data = memoryview(data)
        while data:
            try:
                data = data[os.write(self.handle, data) :]
            except OSError as problem:
                self._complain(problem)


class Pump(threading.Thread):
    """Follows one container's output until it has ended and everything is in the log."""

    def __init__(self, container, path, done, trouble):
        super().__init__(daemon=True)
        self.container, self.path, self.done, self.trouble = container, path, done, trouble
        self.log = Log(path, trouble)
        self.lines = Lines()
        self.last = self.stepped = self.floor = b""
        self.said = False

    def run(self):
        """Ask docker until it has told everything."""
        self.log.open()
        try:
            while not self._told():
                time.sleep(PATIENCE_SECONDS)
        finally:
            self.log.write(self.lines.end())
            self.log.close()
            self.done()

    def _told(self):
        """Follow once; return whether that was the end: the container had ended before, and docker told all."""
        try:
            found = node_docker.engine_json("/containers/{}/json".format(self.container))
            if found is None:
                return True
            over = found["State"]["Status"] in ("exited", "dead")
            return self._follow(follow=not over) and over
        except (OSError, KeyError, TypeError):
            return False

    def _follow(self, *, follow):
        known = Known(self.path, node_files.read_text(self.path + FLOOR))
        path = "/containers/{}/logs?stdout=1&stderr=1&timestamps=1&follow={}".format(self.container, int(follow))
        if known.since:
            path += "&since={}.{}000".format(int(seconds_of(known.since)), known.since[20:26])
        status, stream = node_docker.engine_stream("GET", path, None)
        with stream.connection as connection:
            if status != 200:
                return self._refused(status, stream)
            self.lines = Lines()
            data = stream.rest
            while True:
                data = self._take(data, known)
                piece = connection.recv(1 << 18)
                if not piece:
                    return not data
                data += piece

    def _refused(self, status, stream):
        if status != 404 and not self.said:
            self.said = True
            self.trouble("its output cannot be read: {}".format(node_docker.engine_words(stream.rest)))
        return True

    def _take(self, data, known):
        """Write the lines of all whole frames; return what is left of the bytes."""
        at, found = 0, []
        while len(data) - at >= HEAD:
            size = int.from_bytes(data[at + 4 : at + HEAD], "big")
            if len(data) - at - HEAD < size:
                break
            message = data[at + HEAD : at + HEAD + size]
            letter = LETTERS.get(data[at], b"o")
            when, _, text = message.partition(b" ")
            when = when[: STAMP_LENGTH - 1].ljust(STAMP_LENGTH - 1, b"0") + b"Z"
            found += self.lines.add(letter, when, text)
            self._keep_floor(when)
            at += HEAD + size
        self.log.write([line for line in found if not known.has(line)])
        return data[at:]

    def _keep_floor(self, when):
        """Write down from when on docker has to be asked again, where that is not of the last seconds.

        A line that is open for long, as of a progress bar, has its first time; a clock can be put back.
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


def last_lines(path, count=20, limit=1 << 16):
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
