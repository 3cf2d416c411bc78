"""Starts an instance as a process of its node, keeps its output and tells how it ended: the first program of its unit.

Its argument is the folder of the unit, see node_units.py. It outlives the keeper, so that a keeper that is started anew
misses nothing. As with a container, the end of the instance's first process is the end of all that it has started.
"""

import errno
import os
import select
import signal
import sys
import time

from provision.node import endings, output
from provision.node import files as node_files
from provision.node.jobs import units as node_units
from provision.node.unit import mounts as unit_mounts

REST_SECONDS = 2  # what was written before the end is read for so long, where somebody elsewhere still could write
LETTERS = ("o", "e")
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGXFSZ)


class Streams:
    """What the instance writes, and the file that it goes to."""

    def __init__(self, path):
        self.log = output.Log(path, print)
        self.log.open()
        self.lines = output.Lines()
        self.open = {}
        self.poll = select.poll()

    def add(self, handle, letter):
        """Read from a pipe from now on."""
        os.set_blocking(handle, False)
        self.open[handle] = letter.encode()
        self.poll.register(handle, select.POLLIN)

    def wait(self, seconds):
        """Keep what comes, for so long at most."""
        for handle, _ in self.poll.poll(max(int(seconds * 1000), 0)):
            if handle in self.open:
                self.read(handle)
            else:
                os.read(handle, 4096)

    def read(self, handle):
        """Keep what is there; a pipe that nobody can write to any more is closed."""
        try:
            data = os.read(handle, 1 << 16)
        except BlockingIOError:
            return
        if data:
            when = node_files.stamp(time.time()).encode()
            self.log.write(self.lines.add(self.open[handle], when, data))
            return
        self.poll.unregister(handle)
        os.close(handle)
        del self.open[handle]

    def close(self):
        """Keep what is still to be read."""
        deadline = time.monotonic() + REST_SECONDS
        while self.open and time.monotonic() < deadline:
            self.wait(deadline - time.monotonic())
        self.log.write(self.lines.end())
        self.log.close()


def start(place, told, streams):
    """Start the program; return its pid, and why it could not be started, empty where it was."""
    (out, out_end), (err, err_end), (said, said_end) = os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        become(place, told, out_end, err_end, said_end)
    for handle in (out_end, err_end, said_end):
        os.close(handle)
    for handle, letter in zip((out, err), LETTERS):
        streams.add(handle, letter)
    with os.fdopen(said, "rb") as stream:
        return pid, stream.read().decode(errors="replace")


def become(place, told, out, err, said):
    """Become the program; what keeps it from that goes to `said`. Never returns."""
    try:
        os.setsid()
        for number in IGNORED:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        forgive()
        if told["binds"] or told["private"]:
            unit_mounts.enter(place, told)
        take_account(told["uid"], told["gid"], told["groups"])
        enter(told["folder"])
        run(told["command"], told["env"])
    except (OSError, node_files.Refused) as problem:
        os.write(said, str(problem).encode())
    except BaseException as problem:  # noqa: BLE001 - told as the failure; no second shim may go on
        os.write(said, repr(problem).encode())
    os._exit(127)


def forgive():
    """Be no less likely to be killed for memory than others, unlike the shim."""
    try:
        with open("/proc/self/oom_score_adj", "w") as stream:
            stream.write("0")
    except OSError:
        pass


def take_account(uid, gid, groups):
    """Be an account from now on; one that is not root's gains nothing by a setuid program, whose files it may mount."""
    if uid:
        unit_mounts.give_up_privileges()
    os.setgroups(groups)
    os.setgid(gid)
    os.setuid(uid)


def enter(folder):
    """Work in a folder."""
    try:
        os.chdir(folder)
    except OSError as problem:
        raise OSError("the working folder {}: {}".format(folder, problem.strerror)) from None


def run(command, environment):
    """Become a program, which is found by the PATH of its environment. Unlike os.execvpe it imports nothing."""
    variables = {os.fsencode(name): value.encode("utf-8", "surrogateescape") for name, value in environment.items()}
    words = [word.encode("utf-8", "surrogateescape") for word in command]
    folders = [b""] if b"/" in words[0] else variables.get(b"PATH", os.defpath.encode()).split(b":")
    why = "there is no such program on the node"
    for folder in folders:
        try:
            os.execve(os.path.join(folder, words[0]), words, variables)
        except OSError as problem:
            if problem.errno not in (errno.ENOENT, errno.ENOTDIR):
                why = problem.strerror
    raise OSError("{}: {}".format(command[0], why))


def ended(status):
    """Return how a process ended, by what the kernel says of it."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    code = 128 + number if number else os.WEXITSTATUS(status)
    return {"code": code, "signal": number, "reason": "" if code == 0 else endings.words_of(code, number)}


def memory_kills(unit):
    """Return how often the kernel killed something of the unit for its memory, where it counts that."""
    path = next((line for line in node_files.read_text("/proc/self/cgroup").splitlines() if unit in line), "")
    told = node_files.read_text("/sys/fs/cgroup" + path.rpartition("::")[2] + "/memory.events")
    counts = dict(line.split() for line in told.splitlines() if len(line.split()) == 2)
    return int(counts.get("oom_kill", 0)) if "::" in path else 0


def serve(place):
    """Run one instance to its end; return its exit code."""
    lock = os.open(os.path.join(place, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not node_files.locked_within(lock, 2):
        return 0
    told = node_files.read_json(os.path.join(place, "told"))
    node_files.remove(os.path.join(place, "told"))
    if not told:
        return 0
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    streams = Streams(told["log"])
    streams.poll.register(wake, select.POLLIN)
    pid, trouble = start(place, told, streams)
    if not trouble:
        known = {name: told[name] for name in ("uid", "gid", "groups", "folder")}
        write(place, "run", dict(known, pid=pid, shim=os.getpid(), started=time.time()))
    end = wait(pid, streams)
    if trouble:
        end.update(trouble=trouble, reason=trouble)
    unit = os.path.basename(place)
    node_units.kill_all(unit, {os.getpid()})
    streams.close()
    if end["signal"] == signal.SIGKILL and memory_kills(unit):
        end["reason"] = "out of memory: {}".format(end["reason"])
    write(place, "end", end)
    return end["code"]


def wait(pid, streams):
    """Keep the output until the first process has ended; return how and when that was."""
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return dict(ended(status), time=time.time())
        streams.wait(60)


def write(place, item, document):
    """Write down what is known; without it the instance would be taken for lost."""
    for _ in range(60):
        try:
            return node_files.write_json(os.path.join(place, item), document)
        except OSError as problem:
            print("{}: {}".format(item, problem), file=sys.stderr, flush=True)
            time.sleep(1)
    return None


def main():
    """Start the instance whose folder is the first argument; return the exit status."""
    try:
        return serve(sys.argv[1])
    except (OSError, ValueError) as problem:
        sys.exit("provision: {}".format(problem))
