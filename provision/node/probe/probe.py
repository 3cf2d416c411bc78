"""Runs the facts' commands on a node in one process, and separates their outputs.

The request is JSON on standard input (`provision.facts.probe_request.request`). Each command has its own session and
time limit, and writes to memory. The commands of a row run in one session, one after the other; if one of them
hangs or ends the shell, the later ones get sessions of their own. There are two rows: one in a shell, one of functions
in a fork of this process. The end of each command of a row is marked in its outputs. The mark is random, and no other
account can read it: it is never an argument of a program. A process that no signal can kill is recorded, and its
command is not started again while it lives.
"""

import errno
import json
import os
import resource
import signal
import stat
import sys
import time
from hashlib import sha256
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from provision.node.probe import GIVEN_UP, NO_PROCESS, STARTED
from provision.node.probe.busy import PROC, read_proc_file
from provision.node.probe.engine import entries, managed_and_engine, write_cache
from provision.node.probe.managed import (
    ASK_UNITS,
    LISTED,
    PENDING,
    PLAIN,
    RPM_FORM,
    content_of,
    enabled,
    program_of,
    rpm_versions,
    spawn,
    systemd_properties,
    uses_dpkg,
)
from provision.node.probe.units import TIME_SERVICES, UNIT_SEARCH_PATH

CACHE = "/run/provision-probe"  # results that later probes reuse; only root can write there
STUCK = "/run/provision-probe.stuck"  # processes of earlier probes that no signal could kill
PATH = "/usr/local/sbin:/usr/sbin:/sbin"  # these also have programs that the facts need
SHELL = "/bin/sh"
CUT_OFF = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
SLACK = 100  # seconds for each second that Python took to load the program
TEMPORARY = ("/run", "/dev/shm", "/tmp", "/var/tmp")  # nosec B108 # O_EXCL, mode 0600, unlinked at once
RECEIPTS, CONTAINER_SSH = "/var/lib/provision/receipts", "/var/lib/provision/container_ssh"
CONTAINER_KEYS = ("ssh_host_ed25519_key.pub", "id_ed25519.pub")
CONTAINER_FILES = (
    "authorized_keys", "known_hosts", "ssh_config", "sshd_config", "keys/ssh_host_ed25519_key", "keys/id_ed25519",
)  # fmt: skip
NO_KEY = bytes(set(range(256)) - set(PLAIN + b"+= "))
ENGINE_FILE, PACKAGES_FILE = "engine", "packages"
PACKAGE_FILES = {
    "dpkg-query": ("/var/lib/dpkg/status", "/var/lib/dpkg/updates"),
    "rpm": (
        *("/var/lib/rpm/" + name for name in ("Packages", "rpmdb.sqlite", "rpmdb.sqlite-wal")),
        *("/usr/lib/sysimage/rpm/" + name for name in ("rpmdb.sqlite", "rpmdb.sqlite-wal")),
        PENDING,
    ),
}
"""Program that lists packages -> the files that change whenever its list does."""
Function = Callable[[], Optional[int]]
"""A function that prints as a program would, and returns its exit status; None is 0."""
Result = Tuple[bytes, bytes, bytes]
"""Stdout, stderr, and the exit status, ``hung:SECONDS`` or ``long``."""
TOO_LONG: Result = (b"", b"", b"long")
Stuck = Tuple[str, str, str]
"""A process that no signal could kill: its command, number and start time."""
SETTLED_SECONDS = 2  # some file systems do not show two writes within less time
MARK_VARIABLE = "PROBE_MARK"
ROW_HEAD = """probe_mark=$PROBE_MARK; unset PROBE_MARK
probe_ended() { set -- "$probe_mark $1 $?"; echo; echo "$1"; echo >&2; echo "$1" >&2; }
"""


def memory() -> int:
    """Return an unnamed file."""
    if hasattr(os, "memfd_create"):  # Python 3.8  # novermin
        return os.memfd_create("probe")
    try:
        from ctypes import CDLL

        handle: int = CDLL(None).memfd_create(b"probe", 1)
        if handle >= 0:
            return handle
    except (ImportError, AttributeError, OSError):  # no ctypes, or glibc before 2.27
        pass
    for folder in TEMPORARY:
        path = os.path.join(folder, f"provision-probe.{os.getpid()}-{time.time()}")
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            continue
        os.unlink(path)
        return handle
    raise OSError(f"no folder for temporary files is writable: {', '.join(TEMPORARY)}")


class Session:
    """A process group and its output. In a row, the end of each command is marked in both outputs."""

    def __init__(self, names: List[str], seconds: float, *, is_row: bool = False) -> None:
        self.names, self.deadline, self.is_extended = names, time.monotonic() + seconds, False
        self.mark = os.urandom(16).hex() if is_row else ""
        self.out, self.err = memory(), memory()

    def start(self, text: str) -> None:
        """Run a shell script; only root can read its environment."""
        variables = {MARK_VARIABLE: self.mark} if self.mark else {}
        self.pid = spawn(SHELL, ["sh", "-c", text], self.out, self.err, leads="session", variables=variables)

    def fork(self, functions: List[Function]) -> None:
        """Run functions in a fork, as if each were a program."""
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            os.setsid()
            os.dup2(self.out, 1)
            os.dup2(self.err, 2)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # they become exceptions
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            for name, function in zip(self.names, functions):
                code = exit_code_of(function)
                for stream in (1, 2) if self.mark else ():
                    os.write(stream, f"\n{self.mark} {name} {code}\n".encode())
        finally:
            os._exit(code)

    def kill(self) -> None:
        """Kill the process group, if a signal can."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            pass

    def outputs(self, code: bytes) -> Dict[str, Result]:
        """Return name -> (stdout, stderr, exit code) of each command that has ended."""
        out, err = (os.pread(stream, os.fstat(stream).st_size, 0) for stream in (self.out, self.err))
        if not self.mark:
            return {self.names[0]: (out, err, code)}
        both = zip(finished_commands(out, self.mark), finished_commands(err, self.mark))
        return {name: (text, errors, end) for (name, end, text), (_, _, errors) in both}

    def close(self) -> None:
        """Close the outputs."""
        os.close(self.out)
        os.close(self.err)


def exit_code_of(function: Function) -> int:
    """Call `function`; return the exit code of an equivalent program."""
    try:
        return function() or 0
    except Exception:  # noqa: BLE001 - the error is reported on stderr, as by a program
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def finished_commands(output: bytes, mark: str) -> List[Tuple[str, bytes, bytes]]:
    """Return (name, exit code, output) of each command of a row that has ended."""
    text, *parts = output.split(f"\n{mark} ".encode())
    commands: List[Tuple[str, bytes, bytes]] = []
    for part in parts:
        words, newline, after = part.partition(b"\n")
        name, _, code = words.partition(b" ")
        if not newline:
            break  # the limit of the output was reached here
        commands.append((name.decode(), code, text))
        text = after
    return commands


class Command:
    """A command of the request."""

    def __init__(self, name: str, limit: int, text: str, *, shared: bool) -> None:
        self.name, self.limit, self.text, self.shared = name, limit, text, shared
        self.function = text[1:] if text.startswith("@") else ""  # its name


class ProbeRun:
    """The commands of one probe."""

    def __init__(
        self,
        token: str,
        commands: List[Command],
        functions: Dict[str, Function],
        *,
        shared_limit: int,
        slack: int,
        output_limit: int,
        answer_limit: int,
    ) -> None:
        self.token, self.functions = token, functions
        self.shared_limit, self.slack, self.output_limit, self.answer_limit = (
            shared_limit, slack, output_limit, answer_limit,
        )  # fmt: skip
        self.commands = {command.name: command for command in commands}
        self.results: Dict[str, Result] = {}
        self.running: Dict[int, Session] = {}
        """By process number."""
        self.killed: Dict[int, str] = {}
        """Process group -> name of the command that exceeded its limit."""

    def run(self, stuck: List[str]) -> None:
        """Run all commands, except those of `stuck`, until each has ended or exceeded its limit.

        The kernel limits the outputs, so that a command that prints endlessly does not fill the memory.
        """
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.output_limit, most))
        self.results.update({name: (b"", b"", b"hung:again") for name in stuck if name in self.commands})
        new = [command for command in self.commands.values() if command.name not in self.results]
        for command in new:
            if not command.function and not command.shared:
                self.begin(command.name)
        called = sorted((command for command in new if command.function), key=lambda command: not command.shared)
        if called:
            session = self.row(called)
            session.fork([self.functions[command.function] for command in called])
            self.running[session.pid] = session
        shells = [command for command in new if command.shared and not command.function]
        if shells:
            session = self.row(shells)
            marked = [f"(\n{command.text}\n)\nprobe_ended {command.name}\n" for command in shells]
            session.start(ROW_HEAD + "".join(marked))
            self.running[session.pid] = session
        while self.running:
            self.wait()

    def row(self, commands: List[Command]) -> Session:
        """Return the session of commands that run one after the other."""
        return Session([command.name for command in commands], self.shared_limit + self.slack, is_row=True)

    def begin(self, name: str) -> None:
        """Start a command in its own session."""
        command = self.commands[name]
        session = Session([name], (self.shared_limit if command.shared else command.limit) + self.slack)
        if command.function:
            session.fork([self.functions[command.function]])
        else:
            session.start(command.text)
        self.running[session.pid] = session

    def wait(self) -> None:
        """Wait for the end of a process or for a limit, and handle it."""
        deadline = min(session.deadline for session in self.running.values())
        received = signal.sigtimedwait((signal.SIGCHLD, *CUT_OFF), max(deadline - time.monotonic(), 0))
        if received is None:
            for session in [each for each in self.running.values() if each.deadline <= time.monotonic()]:
                self.give_up(session)
        elif received.si_signo != signal.SIGCHLD:
            raise KeyboardInterrupt
        while self.running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if pid in self.running:
                self.finish(self.running.pop(pid), status)

    def finish(self, session: Session, status: int) -> None:
        """Store the outputs of a finished session; start commands of a row that did not end in it again."""
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        self.results.update(session.outputs(b"%d" % (128 - code if code < 0 else code)))
        session.close()
        for name in session.names:
            if name not in self.results:
                self.begin(name)

    def give_up(self, session: Session) -> None:
        """Kill a session that exceeded its limit. The first unfinished command hangs; restart the later ones."""
        if session.mark:
            self.results.update(session.outputs(b""))
        undone = [name for name in session.names if name not in self.results]
        first = self.commands[undone[0]] if undone else None
        if first and first.function and not first.shared and session.mark and not session.is_extended:
            session.is_extended, session.deadline = True, session.deadline + first.limit - self.shared_limit
            return
        del self.running[session.pid]
        session.kill()
        if first:
            seconds = (self.shared_limit if first.shared else first.limit) + self.slack
            rounds = 2 if first.shared and not session.mark else 1
            self.results[first.name] = (b"", b"", b"hung:%d" % (seconds * rounds))
            self.killed[session.pid] = first.name
        session.close()
        for name in undone[1:]:
            self.begin(name)

    def stop(self) -> None:
        """Kill all running sessions."""
        for session in self.running.values():
            session.kill()

    def stuck_processes(self) -> List[Stuck]:
        """Return (name, pid, start time) of the killed processes that still live."""
        if not self.killed:
            return []
        time.sleep(0.2)
        stuck: List[Stuck] = []
        for pid in filter(str.isdigit, os.listdir(PROC)):
            state, group, start = process_state(pid)
            if state != "Z" and group in self.killed:
                stuck.append((self.killed[group], pid, start))
        return stuck

    def report(self, known: List[str], note: str = "") -> bytes:
        """Return all outputs; an output whose hash is known is replaced by its hash.

        The longest are left out if the answer would exceed its limit. The `note` is for a support bundle.
        """
        sections = {name: self.section(name, self.results[name], known) for name in self.commands}
        left = self.answer_limit
        for name in sorted(sections, key=lambda name: len(sections[name])):
            if len(sections[name]) > left:
                sections[name] = self.section(name, TOO_LONG, [])
            left -= len(sections[name])
        head = f"provision-probe 1 {self.token}\n" + (f"note: {note}\n" if note else "")
        return head.encode(errors="replace") + b"".join(sections[name] for name in self.commands)

    def section(self, name: str, result: Result, known: List[str]) -> bytes:
        """Return the part of a command in the answer."""
        out, err, end = result if len(result[0]) + len(result[1]) < self.output_limit else TOO_LONG
        digest = sha256(out).hexdigest() if known else ""
        word, text = ("same", digest.encode() + b"\n") if digest in known else ("out", out)
        parts = [f"{self.token} {word} {name}\n".encode(), text, f"\n{self.token} err {name}\n".encode(), err]
        return b"".join([*parts, f"\n{self.token} end {name} ".encode(), end, b"\n"])


def process_state(pid: str) -> Tuple[str, int, str]:
    """Return state, process group and start time of a process; of a process that is gone, those of a zombie."""
    words = read_proc_file(f"{PROC}/{pid}/stat").rpartition(")")[2].split()
    return (words[0], int(words[2]), words[19]) if words else ("Z", 0, "")


def read_stuck(path: str) -> List[Stuck]:
    """Return the processes of earlier probes that still live; only root can write the file."""
    lines = (content_of(path) or b"").decode(errors="replace").splitlines()
    recorded = [tuple(line.split()) for line in lines if line.count(" ") == 2]
    alive: List[Stuck] = []
    for name, pid, start in recorded:
        state, _, began = process_state(pid) if pid.isdigit() else ("Z", 0, "")
        if state != "Z" and began == start:
            alive.append((name, pid, start))
    return alive


def record_stuck(path: str, new: List[Stuck]) -> str:
    """Add processes for later probes, and remove those that have ended; return why that fails, else empty."""
    if not new and not os.path.lexists(path):
        return ""
    try:
        handle = locked(path)
    except OSError as problem:
        return str(problem)
    try:
        alive = read_stuck(path) + new
        if alive:
            text = "".join("{} {} {}\n".format(*process) for process in alive).encode()
            os.ftruncate(handle, os.pwrite(handle, text, 0))
        else:
            os.unlink(path)
    except OSError as problem:
        return str(problem)
    finally:
        os.close(handle)
    return ""


def locked(path: str) -> int:
    """Return the open file with a lock against other probes, which hold it for milliseconds."""
    import fcntl  # rarely needed

    for _ in range(100):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_nlink:  # else another probe removed it meanwhile
                return handle
        except BlockingIOError:
            time.sleep(0.02)
        os.close(handle)
    raise OSError(f"{path} is locked")


SNAP = "/snap/docker/current"
"""Exists if Docker is installed as a snap."""


def unit_states() -> int:
    """Print the states of Docker and of the time services, and whether the clock is synchronized.

    timedatectl is queried only if a service sets the clock, because the query starts a service.
    """
    units = ["docker.service"]
    for unit in (f"{name}.service" for name in TIME_SERVICES):
        units += [unit] * any(os.path.exists(f"{folder}/{unit}") for folder in UNIT_SEARCH_PATH)
    try:
        blocks = systemd_properties(units, time.monotonic() + 3600)  # the session has its own limit
        for unit, block in zip(units, blocks):
            block["UnitFileState"] = enabled(unit, block)
        text = "\n".join("".join(f"{key}={block.get(key, '')}\n" for _, key in ASK_UNITS[:4]) for block in blocks)
        print(text, flush=True)
    except (OSError, ValueError, IndexError):
        properties = ",".join(key for _, key in ASK_UNITS[:4])
        code, text = print_output_of(["systemctl", "show", "--property=" + properties, "--", *units])
        if code:
            return code
    client = program_of("docker")
    if client:
        print("client=yes", flush=True)
    if client and is_podman(client):
        print("podman=yes", flush=True)
    if os.path.exists(SNAP):
        print("snap=yes", flush=True)
    if "ActiveState=active" in text.partition("\n\n")[2]:
        print_output_of(["timedatectl", "show", "-p", "NTPSynchronized"])
    return 0


def is_podman(path: str) -> bool:
    """Return whether the program ``docker`` is the script of podman-docker."""
    try:
        with open(path, "rb") as stream:
            head = stream.read(4096)
    except OSError:
        return False
    return head.startswith(b"#!") and b"podman" in head


def packages(cache: str) -> int:
    """Print all packages of dpkg, or else of rpm, and remember which are installed.

    An earlier list is valid while the files of the package database are unchanged: dpkg replaces its list, and writes
    pending changes to another folder. A list that was just written is not cached.
    """
    programs = [name for name in PACKAGE_FILES if name != "dpkg-query" or uses_dpkg()]
    program = next(filter(program_of, programs), None)
    if not program:
        print("neither dpkg-query nor rpm exists", file=sys.stderr)
        return 1
    files = PACKAGE_FILES[program]
    mark = " ".join(map(signature, files))
    before, _, listing = ((content_of(cache) if cache else None) or b"").partition(b"\n")
    code = 0
    if before != mark.encode() or not before:
        code, listing = dpkg_list() if program == "dpkg-query" else rpm_list()
        if cache and not code and settled(*files):
            write_cache(cache, mark.encode() + b"\n" + listing)
    sys.stdout.buffer.write(listing)
    rows = [line.split("|") for line in listing.decode(errors="replace").splitlines()] if not code else ()
    LISTED.update((row[1], row[2]) for row in rows if len(row) == 3 and row[0][1:2] == "i")
    return code


def dpkg_list() -> Tuple[int, bytes]:
    """Return the exit code of dpkg-query, and the state, name and version of each package."""
    return output_of(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}|${Package}|${Version}\\n"])


def rpm_list() -> Tuple[int, bytes]:
    """Return the exit code of rpm, and the completely installed packages in the form of `dpkg_list`."""
    code, listing = output_of(["rpm", "-qa", "--qf", RPM_FORM])
    versions = rpm_versions(listing.decode(errors="replace"))
    return code, "".join(f"ii |{name}|{version}\n" for name, version in sorted(versions.items())).encode()


def signature(path: str) -> str:
    """Return values that change whenever a file or folder changes."""
    try:
        status = os.stat(path)
    except OSError:
        return "none"
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def settled(*paths: str) -> bool:
    """Return whether a file exists, and all are old enough that their next change will change their times."""
    try:
        times = [os.stat(path).st_mtime for path in paths if os.path.exists(path)]
    except OSError:  # removed in this moment
        return False
    return bool(times) and time.time() - max(times) > SETTLED_SECONDS


def print_output_of(command: Sequence[str]) -> Tuple[int, str]:
    """Run a program whose output becomes part of this process's output; return its exit code and output."""
    path = program_of(command[0])
    if not path:
        return 127, ""
    start = os.lseek(1, 0, os.SEEK_CUR)
    _, status = os.waitpid(spawn(path, command, 1, 2, leads=""), 0)
    text = os.pread(1, os.fstat(1).st_size - start, start).decode(errors="surrogateescape")
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status), text


def output_of(command: Sequence[str]) -> Tuple[int, bytes]:
    """Run a program, and return its exit code and output, which is not part of this process's output."""
    start = os.lseek(1, 0, os.SEEK_CUR)
    code, text = print_output_of(command)
    os.ftruncate(1, start)
    os.lseek(1, start, os.SEEK_SET)
    return code, text.encode(errors="surrogateescape")


def lines_of(folder: str, names: Sequence[str]) -> None:
    """Print each line of some files with the file's name before it, as grep -H does."""
    for name in names:
        lines = (content_of(os.path.join(folder, name), follow=True) or b"").split(b"\n")
        for line in lines if lines[-1] else lines[:-1]:
            sys.stdout.buffer.write(b"%s:%s\n" % (name.encode(), line))


def sysctls() -> None:
    """Print the readable sysctls of PROBE_SYSCTLS, with their files."""
    keys = os.environ.get("PROBE_SYSCTLS", "").split()
    paths = {key: "/proc/sys/" + key.replace(".", "/") for key in keys}
    readable = [key for key in keys if os.access(paths[key], os.R_OK)]
    print("".join(f"key {key}\n{paths[key]}:{read_proc_file(paths[key])}\n" for key in readable), end="")


def limits() -> None:
    """Print the limits of this session and of init."""
    print(read_proc_file(f"{PROC}/self/limits"), "== init", read_proc_file(f"{PROC}/1/limits"), sep="\n")


def modules() -> None:
    """Print the loaded kernel modules."""
    print(read_proc_file(f"{PROC}/modules"))


def receipts() -> None:
    """Print all receipts."""
    lines_of(RECEIPTS, sorted(name for name in entries(RECEIPTS, "") if name.endswith(".json")))


def container_trust() -> None:
    """Print whom the training container trusts."""
    lines_of(CONTAINER_SSH, ("known_hosts", "authorized_keys"))


def container_ssh() -> None:
    """Print modes and public keys of the training container; the folder `keys` belongs to the container's account."""
    for name in CONTAINER_FILES:
        try:
            print(f"mode {stat.S_IMODE(os.lstat(os.path.join(CONTAINER_SSH, name)).st_mode):o} {name}")
        except OSError:
            continue
    for name in CONTAINER_KEYS:
        text = content_of(os.path.join(CONTAINER_SSH, "keys", name))
        if text is not None:
            print(f"\n:{name}:" + text[:1024].partition(b"\n")[0].translate(None, NO_KEY).decode(), end="")


def slurm() -> None:
    """Print the state of Slurm; most nodes have none."""
    if program_of("scontrol"):
        from provision.node.probe.slurm import slurm_state  # starts programs, with modules that nothing else needs

        print(json.dumps(slurm_state()))


def package_proxy() -> None:
    """Print whether the package cache serves this node; most nodes have none."""
    if b'"package_cache"' in (content_of(os.path.join(RECEIPTS, "platform.json")) or b""):
        from provision.node.probe.package_proxy import package_proxy as answer  # loads a module for HTTP

        print(json.dumps(answer(RECEIPTS)))


def prepare_environment(variables: Dict[str, str]) -> None:
    """Set the environment of all commands."""
    system = os.uname()
    os.environ.update(variables, LC_ALL="C", PROBE_RELEASE=system.release, PROBE_MACHINE=system.machine)
    os.environ["PATH"] = "{}:{}".format(os.environ.get("PATH") or "/usr/bin:/bin", PATH)
    os.umask(0o077)


def functions_of(cache: str) -> Dict[str, Function]:
    """Return the functions that commands such as ``@packages`` name; without `cache` they store nothing."""
    engine, dpkg = (os.path.join(cache, name) if cache else "" for name in (ENGINE_FILE, PACKAGES_FILE))
    return {
        "units": unit_states, "sysctls": sysctls, "limits": limits, "modules": modules, "receipts": receipts,
        "container_trust": container_trust, "container_ssh": container_ssh, "packages": lambda: packages(dpkg),
        "slurm": slurm, "package_proxy": package_proxy,
        "managed": lambda: print(json.dumps(managed_and_engine(RECEIPTS, engine))),
    }  # fmt: skip


def main() -> None:
    """Run all commands of the request and print their outputs.

    A slow node needs longer to load the program, and its commands get more time. The request may arrive later, because
    the network is slow.
    """
    slack = int((time.monotonic() - STARTED) * SLACK)
    request = json.load(sys.stdin)
    prepare_environment(request["environment"])
    commands = [Command(*words, shared=shared) for *words, shared in request["commands"]]
    probe_run = ProbeRun(
        request["token"],
        commands,
        functions_of(CACHE if request["write"] else ""),
        shared_limit=request["shared_limit"],
        slack=min(slack, request["most_slack"]),
        output_limit=request["output_limit"],
        answer_limit=request["answer_limit"],
    )
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD, *CUT_OFF))
    try:
        probe_run.run([name for name, _, _ in read_stuck(STUCK)])
        note = record_stuck(STUCK, probe_run.stuck_processes()) if request["write"] else ""
    except (OSError, KeyboardInterrupt) as problem:
        probe_run.stop()
        os.write(2, f"{str(problem) or 'cut off'}\n".encode())
        no_process = isinstance(problem, OSError) and problem.errno in (errno.EAGAIN, errno.ENOMEM)
        os._exit(NO_PROCESS if no_process else GIVEN_UP)
    except BaseException:
        probe_run.stop()
        raise
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CUT_OFF)
    text = memoryview(probe_run.report(request["known"], note))
    while text:
        text = text[os.write(1, text) :]
    os._exit(0)
