"""Runs the facts' commands on a node that has python3, in one process, and separates their outputs.

`script.py` calls it, and has the same in shell for nodes without python3. The text of busy.py,
managed.py, engine.py and this file is sent as one program. Python 3.6 or newer and the standard library only.

Each command has its own session and time limit, and writes to memory. The commands of a row share one session, one
after the other; if one of them hangs or ends the shared shell, the later ones get sessions of their own. There are two
rows: one in a shell, and one of functions (`works`) in a fork of this process. Every function except `program` has a
shell equivalent.
"""

import json
import os
import signal
import stat
import sys
import time
from hashlib import sha256

from provision.node.probe.busy import PROC, _read
from provision.node.probe.engine import entries, managed_and_engine, write_cache
from provision.node.probe.managed import (
    ASK_UNITS,
    LISTED,
    PLAIN,
    content_of,
    program_of,
    spawn,
    systemd_properties,
)
from provision.node.probe.units import TIME_SERVICES, UNIT_SEARCH_PATH

SHELL = "/bin/sh"
CUT_OFF = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
GIVEN_UP = 75  # the exit code that makes the shell not run the commands itself
SLACK = 40  # seconds for each second that Python took to start
TEMPORARY = ("/run", "/dev/shm", "/tmp", "/var/tmp")  # nosec B108 # O_EXCL, mode 0600, unlinked at once
RECEIPTS, CONTAINER_SSH = "/var/lib/provision/receipts", "/var/lib/provision/container_ssh"
CONTAINER_KEYS = ("ssh_host_ed25519_key.pub", "id_ed25519.pub")
CONTAINER_FILES = (
    "authorized_keys", "known_hosts", "ssh_config", "sshd_config", "keys/ssh_host_ed25519_key", "keys/id_ed25519",
)  # fmt: skip
NO_KEY = bytes(set(range(256)) - set(PLAIN + b"+= \n"))
ENGINE_FILE, PACKAGES_FILE = "engine", "packages"
DPKG_FILES = ("/var/lib/dpkg/status", "/var/lib/dpkg/updates")
SETTLED_SECONDS = 2  # some file systems do not show two writes within less time
WRAPS = {"group": "set --\n{{\n{}\n}}\n", "subshell": "(\n{}\n)\n"}
ROW_HEAD = (
    'probe_ended() {{ set -- "$1" "$?"; printf \'\\n{0} %s %s\\n\' "$@"; printf \'\\n{0} %s %s\\n\' "$@" >&2; }}\n'
)


def memory():
    """Return an unnamed file."""
    if hasattr(os, "memfd_create"):  # Python 3.8
        return os.memfd_create("probe")
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

    def __init__(self, names, seconds, row_mark=b""):
        self.names, self.row_mark, self.deadline = names, row_mark, time.monotonic() + seconds
        self.out, self.err, self.longer = memory(), memory(), False

    def start(self, text):
        """Run a shell script."""
        self.pid = spawn(SHELL, ["sh", "-c", text], self.out, self.err, leads="session")

    def fork(self, works):
        """Run functions in a fork, as if each were a program."""
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            os.setsid()
            os.dup2(self.out, 1)
            os.dup2(self.err, 2)
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            for name, work in zip(self.names, works):
                code = exit_code_of(work)
                for stream in (1, 2) if self.row_mark else ():
                    os.write(stream, b"%s%s %d\n" % (self.row_mark, name.encode(), code))
        finally:
            os._exit(code)

    def kill(self):
        """Kill the process group, if a signal can."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            pass

    def outputs(self, code):
        """Return name -> (stdout, stderr, exit code) of each command that has ended."""
        out, err = (os.pread(stream, os.fstat(stream).st_size, 0) for stream in (self.out, self.err))
        if not self.row_mark:
            return {self.names[0]: (out, err, code)}
        both = zip(finished_commands(out, self.row_mark), finished_commands(err, self.row_mark))
        return {name: (text, errors, end) for (name, end, text), (_, _, errors) in both}

    def close(self):
        """Close the outputs."""
        os.close(self.out)
        os.close(self.err)


def exit_code_of(work):
    """Call `work`; return the exit code of an equivalent program."""
    try:
        return work() or 0
    except Exception:  # noqa: BLE001 - the error is reported on stderr, as by a program
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def finished_commands(output, mark):
    """Return (name, exit code, output) of each command of a row that has ended."""
    text, *parts = output.split(mark)
    commands = []
    for part in parts:
        words, _, after = part.partition(b"\n")
        name, _, code = words.partition(b" ")
        commands.append((name.decode(), code, text))
        text = after
    return commands


class ProbeRun:
    """The commands of one probe: name -> (limit in seconds, mode, text)."""

    def __init__(self, token, commands, together, slack, works):
        self.token, self.commands, self.together, self.slack, self.works = token, commands, together, slack, works
        self.results = {}  # name -> (stdout, stderr, exit code or reason)
        self.running = {}  # pid -> session
        self.killed = {}  # process group -> name of the command that exceeded its limit

    def run(self):
        """Run all commands until each has ended or exceeded its limit."""
        rows = {True: [], False: []}
        for name, (_, mode, _) in sorted(self.commands.items(), key=lambda item: item[1][1] == "program"):
            if mode in self.works or mode in WRAPS:
                rows[mode in WRAPS].append(name)
            else:
                self.begin(name)
        mark = f"\n{self.token} ".encode()
        if rows[False]:
            session = Session(rows[False], self.together + self.slack, mark)
            session.fork([self.works[self.commands[name][1]] for name in session.names])
            self.running[session.pid] = session
        if rows[True]:
            session = Session(rows[True], self.together + self.slack, mark)
            texts = [WRAPS[self.commands[name][1]].format(self.commands[name][2]) for name in session.names]
            marked = [f"{text}probe_ended {name}\n" for text, name in zip(texts, session.names)]
            session.start(ROW_HEAD.format(self.token) + "".join(marked))
            self.running[session.pid] = session
        while self.running:
            self.wait()

    def begin(self, name):
        """Start a command in its own session."""
        limit, mode, text = self.commands[name]
        session = Session([name], (limit if mode in ("apart", "program") else self.together) + self.slack)
        if mode == "program":
            session.fork([self.works[mode]])
        else:
            session.start(text)
        self.running[session.pid] = session

    def wait(self):
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

    def finish(self, session, status):
        """Store the outputs of a finished session; restart commands of a row that its shell did not reach."""
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        self.results.update(session.outputs(b"%d" % (128 - code if code < 0 else code)))
        undone = [name for name in session.names if name not in self.results]
        if undone:
            errors = os.pread(session.err, 65536, 0)
            if b"fork" in errors:
                raise OSError(errors.decode(errors="replace").splitlines()[-1])
        session.close()
        for name in undone:
            self.begin(name)

    def give_up(self, session):
        """Kill a session that exceeded its limit. The first unfinished command hangs; restart the later ones."""
        if session.row_mark:
            self.results.update(session.outputs(b""))
        undone = [name for name in session.names if name not in self.results]
        limit, mode, _ = self.commands[undone[0]] if undone else (0, "", "")
        if mode == "program" and session.row_mark and not session.longer:
            session.longer, session.deadline = True, session.deadline + limit - self.together
            return
        del self.running[session.pid]
        session.kill()
        if undone:
            seconds = (
                limit if mode in ("apart", "program") else self.together if session.row_mark else 2 * self.together
            )
            self.results[undone[0]] = (b"", b"", b"hung:%d" % (seconds + self.slack))
            self.killed[session.pid] = undone[0]
        session.close()
        for name in undone[1:]:
            self.begin(name)

    def stop(self):
        """Kill all running sessions."""
        for session in self.running.values():
            session.kill()

    def note_stuck(self, path):
        """Record the killed processes that still live, for later probes."""
        if not self.killed:
            return
        time.sleep(0.2)
        lines = []
        for pid in filter(str.isdigit, os.listdir(PROC)):
            words = _read(f"{PROC}/{pid}/stat").rpartition(")")[2].split()
            if words and words[0] != "Z" and int(words[2]) in self.killed:
                lines.append(f"{self.killed[int(words[2])]} {pid} {words[19]}\n")
        if lines:
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            os.write(handle, "".join(lines).encode())

    def report(self, known):
        """Return all outputs; an output whose hash is known is replaced by its hash."""
        parts = [b"provision-probe 1 %s\n" % self.token.encode()]
        for name in self.commands:
            out, err, end = self.results[name]
            digest = sha256(out).hexdigest() if known else ""
            word, text = ("same", digest.encode() + b"\n") if digest in known else ("out", out)
            parts += f"{self.token} {word} {name}\n".encode(), text, f"\n{self.token} err {name}\n".encode(), err
            parts += f"\n{self.token} end {name} ".encode(), end, b"\n"
        return b"".join(parts)


def remove_other_caches(path):
    """Remove the cache files of other program versions."""
    folder, current = os.path.split(path)
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name not in (current, ENGINE_FILE, PACKAGES_FILE):
            try:
                os.unlink(os.path.join(folder, name))
            except OSError:
                pass


def unit_states():
    """Print the output of the shell script UNITS."""
    units = ["docker.service"]
    for unit in (f"{name}.service" for name in TIME_SERVICES):
        units += [unit] * any(os.path.exists(f"{folder}/{unit}") for folder in UNIT_SEARCH_PATH)
    try:
        blocks = systemd_properties(units, time.monotonic() + 3600)  # the session has its own limit
        text = "\n".join("".join(f"{key}={block.get(key, '')}\n" for _, key in ASK_UNITS[:4]) for block in blocks)
        print(text, flush=True)
    except (OSError, ValueError, IndexError):
        properties = ",".join(key for _, key in ASK_UNITS[:4])
        code, text = run_program(["systemctl", "show", "--property=" + properties, "--", *units])
        if code:
            return code
    if program_of("docker"):
        print("client=yes", flush=True)
    if "ActiveState=active" in text.partition("\n\n")[2]:
        run_program(["timedatectl", "show", "-p", "NTPSynchronized"])
    return 0


def packages(cache):
    """Print all packages of dpkg, and remember which are installed.

    The output of an earlier dpkg-query is valid while the files that it reads are unchanged: dpkg replaces its list,
    and writes pending changes to another folder. A list that was just written is not cached.
    """
    mark = " ".join(map(signature, DPKG_FILES))
    before, _, listing = (content_of(cache) or b"").partition(b"\n")
    code = 0
    if before != mark.encode() or not before:
        code, text = run_program(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}|${Package}|${Version}\\n"])
        listing = text.encode(errors="surrogateescape")
        if not code and settled(DPKG_FILES[0]):
            write_cache(cache, mark.encode() + b"\n" + listing)
    else:
        sys.stdout.buffer.write(listing)
    rows = [line.split("|") for line in listing.decode(errors="replace").splitlines()] if not code else ()
    LISTED.update((row[1], row[2]) for row in rows if len(row) == 3 and row[0][1:2] == "i")
    return code


def signature(path):
    """Return values that change whenever a file or folder changes."""
    try:
        status = os.stat(path)
    except OSError:
        return "none"
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def settled(path):
    """Return whether a file exists and is old enough that its next change will change its times."""
    try:
        return time.time() - os.stat(path).st_mtime > SETTLED_SECONDS
    except OSError:
        return False


def run_program(command):
    """Run a program whose output becomes part of ours; return its exit code and output."""
    path = program_of(command[0])
    if not path:
        return 127, ""
    start = os.lseek(1, 0, os.SEEK_CUR)
    _, status = os.waitpid(spawn(path, command, 1, 2, leads=""), 0)
    text = os.pread(1, os.fstat(1).st_size - start, start).decode(errors="surrogateescape")
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status), text


def lines_of(folder, names):
    """Print each line of some files with the file's name before it, as grep -H does."""
    for name in names:
        lines = (content_of(os.path.join(folder, name), follow=True) or b"").split(b"\n")
        for line in lines if lines[-1] else lines[:-1]:
            sys.stdout.buffer.write(b"%s:%s\n" % (name.encode(), line))


def sysctls():
    """Print the output of this fact's shell command."""
    keys = os.environ.get("PROBE_SYSCTLS", "").split()
    paths = {key: "/proc/sys/" + key.replace(".", "/") for key in keys}
    readable = [key for key in keys if os.access(paths[key], os.R_OK)]
    print("".join(f"key {key}\n{paths[key]}:{_read(paths[key])}\n" for key in readable), end="")


def limits():
    """Print the output of this fact's shell command."""
    print(_read(f"{PROC}/self/limits"), "== init", _read(f"{PROC}/1/limits"), sep="\n")


def modules():
    """Print the output of this fact's shell command."""
    print(_read(f"{PROC}/modules"))


def receipts():
    """Print the output of this fact's shell command."""
    lines_of(RECEIPTS, sorted(name for name in entries(RECEIPTS, "") if name.endswith(".json")))


def container_trust():
    """Print the output of this fact's shell command."""
    lines_of(CONTAINER_SSH, ("known_hosts", "authorized_keys"))


def container_ssh():
    """Print the output of this fact's shell command; the folder `keys` belongs to the container's account."""
    for name in CONTAINER_FILES:
        try:
            print(f"mode {stat.S_IMODE(os.lstat(os.path.join(CONTAINER_SSH, name)).st_mode):o} {name}")
        except OSError:
            continue
    for name in CONTAINER_KEYS:
        text = content_of(os.path.join(CONTAINER_SSH, "keys", name))
        if text is not None:
            print(f"\n:{name}:" + text[:1024].translate(None, NO_KEY).decode(), end="")


def uptime():
    """Return the seconds since boot."""
    return float(_read(f"{PROC}/uptime").split()[0])


def probe(token, begun, together, most, stuck, known, cache, *commands):
    """Run all commands and print their outputs."""
    rows = [commands[at : at + 4] for at in range(0, len(commands), 4)]
    slack = min(int((uptime() - float(begun)) * SLACK), int(most)) if begun else 0
    works = {
        "units": unit_states, "sysctls": sysctls, "limits": limits, "modules": modules, "receipts": receipts,
        "container_trust": container_trust, "container_ssh": container_ssh,
        "program": lambda: print(json.dumps(managed_and_engine(RECEIPTS, os.path.join(cache, ENGINE_FILE)))),
    }  # fmt: skip
    if program_of("dpkg-query"):
        works["packages"] = lambda: packages(os.path.join(cache, PACKAGES_FILE))
    named = {name: (int(limit), mode, text) for name, limit, mode, text in rows}
    probe_run = ProbeRun(token, named, int(together), slack, works)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD, *CUT_OFF))
    try:
        probe_run.run()
        probe_run.note_stuck(stuck)
    except (OSError, KeyboardInterrupt) as problem:
        probe_run.stop()
        os.write(2, f"{str(problem) or 'cut off'}\n".encode())
        os._exit(GIVEN_UP)
    except BaseException:
        probe_run.stop()
        raise
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CUT_OFF)
    text = memoryview(probe_run.report(known.split()))
    while text:
        text = text[os.write(1, text) :]
    os._exit(0)
