"""Runs the facts' commands on a node that has python3, and tells their outputs apart: the probe, in one process.

`script.py` has the same in the shell's words for nodes without python3, and calls it. The text of busy.py, managed.py,
engine.py and this file is sent as one program. Python 3.6 or newer, and nothing else.

Each command has a session and a time limit of its own, and prints into memory. Those of a row share one session, one
after the other; when one of them hangs, or ends the shell of all, those behind it get sessions of their own. There are
two rows: one of the shell's, and one of what Python does itself (WORKS) in a fork of this process. Of that only the
node's own program has no words of the shell's.
"""

import json
import os
import signal
import stat
import sys
import time
from hashlib import sha256

from provision.facts.files.busy import PROC, _read
from provision.facts.files.engine import found_here, leave, shown
from provision.facts.files.managed import (
    ASK_UNITS,
    LISTED,
    PLAIN,
    content_of,
    program_of,
    spawn,
    systemd_shows,
)
from provision.facts.units import TIME_KEEPERS, UNIT_PLACES

SHELL = "/bin/sh"
CUT_OFF = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
GIVEN_UP = 75  # the exit code that lets the shell not try in its own words
SLACK = 40  # seconds for each second that Python took to begin
TEMPORARY = ("/run", "/dev/shm", "/tmp", "/var/tmp")  # nosec B108 # O_EXCL, mode 0600, unlinked at once
RECEIPTS, CONTAINER_SSH = "/var/lib/provision/receipts", "/var/lib/provision/container_ssh"
CONTAINER_KEYS = ("ssh_host_ed25519_key.pub", "id_ed25519.pub")
CONTAINER_FILES = (
    "authorized_keys", "known_hosts", "ssh_config", "sshd_config", "keys/ssh_host_ed25519_key", "keys/id_ed25519",
)  # fmt: skip
NO_KEY = bytes(set(range(256)) - set(PLAIN + b"+= \n"))
ENGINE_FILE, PACKAGES_FILE = "engine", "packages"
DPKG_FILES = ("/var/lib/dpkg/status", "/var/lib/dpkg/updates")
SETTLED_SECONDS = 2  # of what is written twice in less, some file systems do not tell that it was
WRAPS = {"group": "set --\n{{\n{}\n}}\n", "subshell": "(\n{}\n)\n"}
ROW_HEAD = (
    'probe_ended() {{ set -- "$1" "$?"; printf \'\\n{0} %s %s\\n\' "$@"; printf \'\\n{0} %s %s\\n\' "$@" >&2; }}\n'
)


def memory():
    """Return a file without a name."""
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
    raise OSError(f"no folder takes temporary files: {', '.join(TEMPORARY)}")


class Session:
    """A process group, and what it prints. In a row each command's end is marked in both of its outputs."""

    def __init__(self, names, seconds, row_mark=b""):
        self.names, self.row_mark, self.deadline = names, row_mark, time.monotonic() + seconds
        self.out, self.err, self.longer = memory(), memory(), False

    def start(self, text):
        """Run a text of the shell's."""
        self.pid = spawn(SHELL, ["sh", "-c", text], self.out, self.err, leads="session")

    def fork(self, works):
        """Do a part of our own work, as if each function were a program."""
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
                code = done(work)
                for stream in (1, 2) if self.row_mark else ():
                    os.write(stream, b"%s%s %d\n" % (self.row_mark, name.encode(), code))
        finally:
            os._exit(code)

    def kill(self):
        """End it, where a signal can."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            pass

    def printed(self, code):
        """Return name -> (stdout, stderr, exit code) of each command that has ended."""
        out, err = (os.pread(stream, os.fstat(stream).st_size, 0) for stream in (self.out, self.err))
        if not self.row_mark:
            return {self.names[0]: (out, err, code)}
        both = zip(ended(out, self.row_mark), ended(err, self.row_mark))
        return {name: (text, said, end) for (name, end, text), (_, _, said) in both}

    def close(self):
        """Let go of what it printed."""
        os.close(self.out)
        os.close(self.err)


def done(work):
    """Do it; return the exit code of a program that did."""
    try:
        return work() or 0
    except Exception:  # noqa: BLE001 - as a program's, it is told by whoever reads the output
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def ended(output, mark):
    """Return (name, exit code, output) of each command of a row that has ended."""
    text, *parts = output.split(mark)
    found = []
    for part in parts:
        words, _, after = part.partition(b"\n")
        name, _, code = words.partition(b" ")
        found.append((name.decode(), code, text))
        text = after
    return found


class Look:
    """The commands of one look: name -> (limit in seconds, how it is run, its text)."""

    def __init__(self, token, commands, together, slack, works):
        self.token, self.commands, self.together, self.slack, self.works = token, commands, together, slack, works
        self.found = {}  # name -> (stdout, stderr, exit code or how it was given up)
        self.running = {}  # pid -> session
        self.ended = {}  # pid -> name of what was given up

    def run(self):
        """Return when each command has ended or was given up."""
        rows = {True: [], False: []}
        for name, (_, how, _) in sorted(self.commands.items(), key=lambda item: item[1][1] == "program"):
            if how in self.works or how in WRAPS:
                rows[how in WRAPS].append(name)
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
        """Start one in a session of its own."""
        limit, how, text = self.commands[name]
        session = Session([name], (limit if how in ("apart", "program") else self.together) + self.slack)
        if how == "program":
            session.fork([self.works[how]])
        else:
            session.start(text)
        self.running[session.pid] = session

    def wait(self):
        """Wait for an end or for a limit, and see to it."""
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
                self.over(self.running.pop(pid), status)

    def over(self, session, status):
        """Take what a session printed that has ended; its shell may have left commands of a row undone."""
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        self.found.update(session.printed(b"%d" % (128 - code if code < 0 else code)))
        undone = [name for name in session.names if name not in self.found]
        if undone:
            said = os.pread(session.err, 65536, 0)
            if b"fork" in said:
                raise OSError(said.decode(errors="replace").splitlines()[-1])
        session.close()
        for name in undone:
            self.begin(name)

    def give_up(self, session):
        """End a session whose time is over: the first that has not ended hangs, and those behind it have not begun."""
        if session.row_mark:
            self.found.update(session.printed(b""))
        undone = [name for name in session.names if name not in self.found]
        limit, how, _ = self.commands[undone[0]] if undone else (0, "", "")
        if how == "program" and session.row_mark and not session.longer:
            session.longer, session.deadline = True, session.deadline + limit - self.together
            return
        del self.running[session.pid]
        session.kill()
        if undone:
            seconds = limit if how in ("apart", "program") else self.together if session.row_mark else 2 * self.together
            self.found[undone[0]] = (b"", b"", b"hung:%d" % (seconds + self.slack))
            self.ended[session.pid] = undone[0]
        session.close()
        for name in undone[1:]:
            self.begin(name)

    def stop(self):
        """End all that still runs."""
        for session in self.running.values():
            session.kill()

    def note_stuck(self, path):
        """Name for later looks the processes of those given up that no signal could end."""
        if not self.ended:
            return
        time.sleep(0.2)
        lines = []
        for pid in filter(str.isdigit, os.listdir(PROC)):
            words = _read(f"{PROC}/{pid}/stat").rpartition(")")[2].split()
            if words and words[0] != "Z" and int(words[2]) in self.ended:
                lines.append(f"{self.ended[int(words[2])]} {pid} {words[19]}\n")
        if lines:
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            os.write(handle, "".join(lines).encode())

    def report(self, known):
        """Return what all printed; of an output whose hash is known, which one it is."""
        parts = [b"provision-probe 1 %s\n" % self.token.encode()]
        for name in self.commands:
            out, err, end = self.found[name]
            digest = sha256(out).hexdigest() if known else ""
            word, text = ("same", digest.encode() + b"\n") if digest in known else ("out", out)
            parts += f"{self.token} {word} {name}\n".encode(), text, f"\n{self.token} err {name}\n".encode(), err
            parts += f"\n{self.token} end {name} ".encode(), end, b"\n"
        return b"".join(parts)


def forget(path):
    """Remove what programs of other versions have left beside a file."""
    folder, kept = os.path.split(path)
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name not in (kept, ENGINE_FILE, PACKAGES_FILE):
            try:
                os.unlink(os.path.join(folder, name))
            except OSError:
                pass


def unit_states():
    """Print what the shell's UNITS does."""
    wanted = ["docker.service"]
    for unit in (f"{name}.service" for name in TIME_KEEPERS):
        wanted += [unit] * any(os.path.exists(f"{folder}/{unit}") for folder in UNIT_PLACES)
    try:
        blocks = systemd_shows(wanted, time.monotonic() + 3600)  # whoever waits for this has a limit
        said = "\n".join("".join(f"{key}={block.get(key, '')}\n" for _, key in ASK_UNITS[:4]) for block in blocks)
        print(said, flush=True)
    except (OSError, ValueError, IndexError):
        properties = ",".join(key for _, key in ASK_UNITS[:4])
        code, said = told(["systemctl", "show", "--property=" + properties, "--", *wanted])
        if code:
            return code
    if program_of("docker"):
        print("client=yes", flush=True)
    if "ActiveState=active" in said.partition("\n\n")[2]:
        told(["timedatectl", "show", "-p", "NTPSynchronized"])
    return 0


def packages(kept):
    """Print all packages of dpkg's, and keep in mind which are installed.

    What dpkg-query said in an earlier look still holds where no file that it reads has changed: dpkg puts a new one in
    place of its list, and leaves what it is about in another folder. What has just been written is not relied on.
    """
    mark = " ".join(map(signature, DPKG_FILES))
    before, _, said = (content_of(kept) or b"").partition(b"\n")
    code = 0
    if before != mark.encode() or not before:
        code, text = told(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}|${Package}|${Version}\\n"])
        said = text.encode(errors="surrogateescape")
        if not code and settled(DPKG_FILES[0]):
            leave(kept, mark.encode() + b"\n" + said)
    else:
        sys.stdout.buffer.write(said)
    rows = [line.split("|") for line in said.decode(errors="replace").splitlines()] if not code else ()
    LISTED.update((row[1], row[2]) for row in rows if len(row) == 3 and row[0][1:2] == "i")
    return code


def signature(path):
    """Return what tells a file or folder from one that was changed."""
    try:
        status = os.stat(path)
    except OSError:
        return "none"
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def settled(path):
    """Return whether a file is there, and was written long enough ago for its next change to be seen by its times."""
    try:
        return time.time() - os.stat(path).st_mtime > SETTLED_SECONDS
    except OSError:
        return False


def told(command):
    """Run a program in our own session; return its exit code and what it printed, which is told as ours."""
    path = program_of(command[0])
    if not path:
        return 127, ""
    start = os.lseek(1, 0, os.SEEK_CUR)
    _, status = os.waitpid(spawn(path, command, 1, 2, leads=""), 0)
    said = os.pread(1, os.fstat(1).st_size - start, start).decode(errors="surrogateescape")
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status), said


def lines_of(folder, names):
    """Print each line of some files behind the file's name, as grep -H does."""
    for name in names:
        lines = (content_of(os.path.join(folder, name), follow=True) or b"").split(b"\n")
        for line in lines if lines[-1] else lines[:-1]:
            sys.stdout.buffer.write(b"%s:%s\n" % (name.encode(), line))


def sysctls():
    """Print what the shell's words for this fact do."""
    keys = os.environ.get("PROBE_SYSCTLS", "").split()
    paths = {key: "/proc/sys/" + key.replace(".", "/") for key in keys}
    there = [key for key in keys if os.access(paths[key], os.R_OK)]
    print("".join(f"key {key}\n{paths[key]}:{_read(paths[key])}\n" for key in there), end="")


def limits():
    """Print what the shell's words for this fact do."""
    print(_read(f"{PROC}/self/limits"), "== init", _read(f"{PROC}/1/limits"), sep="\n")


def modules():
    """Print what the shell's words for this fact do."""
    print(_read(f"{PROC}/modules"))


def receipts():
    """Print what the shell's words for this fact do."""
    lines_of(RECEIPTS, sorted(name for name in shown(RECEIPTS, "") if name.endswith(".json")))


def container_trust():
    """Print what the shell's words for this fact do."""
    lines_of(CONTAINER_SSH, ("known_hosts", "authorized_keys"))


def container_ssh():
    """Print what the shell's words for this fact do; what the folder `keys` holds is the container's, not ours."""
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


def probe(token, begun, together, most, stuck, known, kept, *commands):
    """Look, and print what was found."""
    each = [commands[at : at + 4] for at in range(0, len(commands), 4)]
    slack = min(int((uptime() - float(begun)) * SLACK), int(most)) if begun else 0
    works = {
        "units": unit_states, "sysctls": sysctls, "limits": limits, "modules": modules, "receipts": receipts,
        "container_trust": container_trust, "container_ssh": container_ssh,
        "program": lambda: print(json.dumps(found_here(RECEIPTS, os.path.join(kept, ENGINE_FILE)))),
    }  # fmt: skip
    if program_of("dpkg-query"):
        works["packages"] = lambda: packages(os.path.join(kept, PACKAGES_FILE))
    named = {name: (int(limit), how, text) for name, limit, how, text in each}
    look = Look(token, named, int(together), slack, works)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD, *CUT_OFF))
    try:
        look.run()
        look.note_stuck(stuck)
    except (OSError, KeyboardInterrupt) as problem:
        look.stop()
        os.write(2, f"{str(problem) or 'cut off'}\n".encode())
        os._exit(GIVEN_UP)
    except BaseException:
        look.stop()
        raise
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CUT_OFF)
    text = memoryview(look.report(known.split()))
    while text:
        text = text[os.write(1, text) :]
    os._exit(0)
