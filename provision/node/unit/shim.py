"""The first program of a unit: starts an instance as a process of its node, and records its output and its end.

Its argument is the folder of the unit, see `provision.node.jobs.units`. It outlives the job supervisor, so a restarted
supervisor misses nothing. As in a container, the end of the first process ends all processes of the instance.
"""

import errno
import os
import select
import signal
import sys
import time
from typing import Any, Dict, List, NoReturn, Tuple

from provision.node import endings, output
from provision.node import files as node_files
from provision.node.jobs import units as node_units
from provision.node.unit import launch as unit_launch
from provision.node.unit import mounts as unit_mounts
from provision.node.unit.launch import Launch

REST_SECONDS = 2  # time limit for output that was written before the end, while another process could still write
LETTERS = ("o", "e")
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGXFSZ)


class Streams:
    """The output streams of the instance, and their log."""

    def __init__(self, path: str) -> None:
        self.log = output.Log(path, print)
        self.log.open()
        self.lines = output.Lines()
        self.letters: Dict[int, bytes] = {}
        """The letter of each open pipe."""
        self.poll = select.poll()

    def add(self, handle: int, letter: str) -> None:
        """Read from a pipe from now on."""
        os.set_blocking(handle, False)
        self.letters[handle] = letter.encode()
        self.poll.register(handle, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Wait for output, and log it."""
        for handle, _ in self.poll.poll(max(int(seconds * 1000), 0)):
            if handle in self.letters:
                self.read(handle)
            else:
                os.read(handle, 4096)

    def read(self, handle: int) -> None:
        """Log the available output; close a pipe that has no writer any more."""
        try:
            data = os.read(handle, 1 << 16)
        except BlockingIOError:
            return
        if data:
            when = node_files.stamp(time.time()).encode()
            self.log.write(self.lines.add(self.letters[handle], when, data))
            return
        self.poll.unregister(handle)
        os.close(handle)
        del self.letters[handle]

    def close(self) -> None:
        """Log the remaining output."""
        deadline = time.monotonic() + REST_SECONDS
        while self.letters and time.monotonic() < deadline:
            self.wait(deadline - time.monotonic())
        self.log.write(self.lines.end())
        self.log.close()


def start(unit_folder: str, launch: Launch, streams: Streams) -> Tuple[int, str]:
    """Start the program; return its PID and the error, empty if it was started."""
    (out, out_end), (err, err_end), (error, error_end) = os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        become(unit_folder, launch, out_end, err_end, error_end)
    for handle in (out_end, err_end, error_end):
        os.close(handle)
    for handle, letter in zip((out, err), LETTERS):
        streams.add(handle, letter)
    with os.fdopen(error, "rb") as stream:
        return pid, stream.read().decode(errors="replace")


def become(unit_folder: str, launch: Launch, out: int, err: int, error: int) -> NoReturn:
    """Execute the program in this process; if that fails, write the error to `error` and exit."""
    try:
        os.setsid()
        for number in IGNORED:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        reset_oom_score()
        if launch.binds or launch.private:
            unit_mounts.enter_namespace(unit_folder, launch)
        set_account(launch.uid, launch.gid, launch.groups)
        enter_folder(launch.folder)
        execute(launch.command, launch.env)
    except (OSError, node_files.Refused) as problem:
        os.write(error, str(problem).encode())
    except BaseException as problem:  # noqa: BLE001 - reported as the failure; a second shim must not continue
        os.write(error, repr(problem).encode())
    os._exit(127)


def reset_oom_score() -> None:
    """Reset the OOM score to 0; the shim has a lower one."""
    try:
        with open("/proc/self/oom_score_adj", "w") as stream:
            stream.write("0")
    except OSError:
        pass


def set_account(uid: int, gid: int, groups: List[int]) -> None:
    """Change to an account; only root's can gain privileges afterwards: others mount files of setuid programs."""
    if uid:
        unit_mounts.give_up_privileges()
    os.setgroups(groups)
    os.setgid(gid)
    os.setuid(uid)


def enter_folder(folder: str) -> None:
    """Change the working directory."""
    try:
        os.chdir(folder)
    except OSError as problem:
        raise OSError("the working folder {}: {}".format(folder, problem.strerror)) from None


def execute(command: List[str], environment: Dict[str, str]) -> NoReturn:
    """Execute a program from the PATH of its environment in this process. Unlike os.execvpe it imports nothing."""
    variables = {os.fsencode(name): value.encode("utf-8", "surrogateescape") for name, value in environment.items()}
    words = [word.encode("utf-8", "surrogateescape") for word in command]
    folders = [b""] if b"/" in words[0] else variables.get(b"PATH", os.defpath.encode()).split(b":")
    why = "there is no such program on the node"
    for folder in folders:
        try:
            os.execve(os.path.join(folder, words[0]), words, variables)
        except OSError as problem:
            if problem.errno not in (errno.ENOENT, errno.ENOTDIR):
                why = str(problem.strerror)
    raise OSError("{}: {}".format(command[0], why))


def end_of(status: int) -> Dict[str, Any]:
    """Return how a process ended, from its wait status."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    code = 128 + number if number else os.WEXITSTATUS(status)
    return {"code": code, "signal": number, "reason": "" if code == 0 else endings.words_of(code, number)}


def memory_kills(unit: str) -> int:
    """Return how many processes of the unit the kernel has killed for their memory, 0 if it is unknown."""
    path = next((line for line in node_files.read_text("/proc/self/cgroup").splitlines() if unit in line), "")
    events = node_files.read_text("/sys/fs/cgroup" + path.rpartition("::")[2] + "/memory.events")
    rows = [line.split() for line in events.splitlines()]
    counts = {row[0]: row[1] for row in rows if len(row) == 2}
    return int(counts.get("oom_kill", 0)) if "::" in path else 0


def supervise(unit_folder: str) -> int:
    """Run one instance until it ends; return its exit code."""
    lock = os.open(os.path.join(unit_folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not node_files.locked_within(lock, 2):
        return 0
    document = node_files.read_json(os.path.join(unit_folder, unit_launch.FILE))
    node_files.remove(os.path.join(unit_folder, unit_launch.FILE))
    if not document:
        return 0
    launch = unit_launch.launch_of(document)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    streams = Streams(launch.log)
    streams.poll.register(wake, select.POLLIN)
    pid, trouble = start(unit_folder, launch, streams)
    if not trouble:
        account = {"uid": launch.uid, "gid": launch.gid, "groups": launch.groups}
        known = dict(account, folder=launch.folder, pid=pid, shim=os.getpid(), started=time.time())
        write(unit_folder, "run", known)
    end = wait(pid, streams)
    if trouble:
        end.update(trouble=trouble, reason=trouble)
    unit = os.path.basename(unit_folder)
    node_units.kill_all(unit, {os.getpid()})
    streams.close()
    if end["signal"] == signal.SIGKILL and memory_kills(unit):
        end["reason"] = "out of memory: {}".format(end["reason"])
    write(unit_folder, "end", end)
    return int(end["code"])


def wait(pid: int, streams: Streams) -> Dict[str, Any]:
    """Log the output until the first process has ended; return how and when it ended."""
    while True:
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
        if ended_pid:
            return dict(end_of(status), time=time.time())
        streams.wait(60)


def write(unit_folder: str, item: str, document: Dict[str, Any]) -> None:
    """Write a record of the unit; without it the instance would be reported as lost."""
    for _ in range(60):
        try:
            node_files.write_json(os.path.join(unit_folder, item), document)
        except OSError as problem:
            print("{}: {}".format(item, problem), file=sys.stderr, flush=True)
            time.sleep(1)
        else:
            return


def main() -> int:
    """Start the instance whose folder is the first argument; return the exit status."""
    try:
        return supervise(sys.argv[1])
    except (OSError, ValueError) as problem:
        sys.exit("provision: {}".format(problem))
