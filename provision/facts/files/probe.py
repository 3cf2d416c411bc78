"""Runs the facts' commands on a node that has python3, and tells their outputs apart: the probe, in one process.

`script.py` has the same in the shell's words for nodes without python3, and calls it. Its text is sent behind that of
busy.py, managed.py and engine.py, whose names it uses. Python 3.6 or newer, and nothing else.

Each command has a session and a time limit of its own, and prints into memory. Those of the row share one session, one
after the other; when one of them hangs, or ends the shell of all, those behind it get sessions of their own. What the
node's own program finds comes from a fork of this process, which has it ready.
"""

import _signal
import os
import stat
import sys
import time

SHELL = "/bin/sh"
CUT_OFF = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM)
GIVEN_UP = 75  # the exit code that lets the shell not try in its own words
SLACK = 40  # seconds for each second that Python took to begin
TEMPORARY = ("/run", "/dev/shm", "/tmp", "/var/tmp")
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
        self.out, self.err = memory(), memory()

    def start(self, text):
        """Run a text of the shell's."""
        self.pid = spawn(SHELL, ["sh", "-c", text], self.out, self.err, session=True)

    def fork(self, work):
        """Do a part of our own work, as if it were a program."""
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            os.setsid()
            os.dup2(self.out, 1)
            os.dup2(self.err, 2)
            _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
            work()
            sys.stdout.flush()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
        finally:
            os._exit(code)

    def kill(self):
        """End it, where a signal can."""
        try:
            os.killpg(self.pid, _signal.SIGKILL)
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

    def __init__(self, token, commands, together, slack, work):
        self.token, self.commands, self.together, self.slack, self.work = token, commands, together, slack, work
        self.found = {}  # name -> (stdout, stderr, exit code or how it was given up)
        self.running = {}  # pid -> session
        self.ended = {}  # pid -> name of what was given up

    def run(self):
        """Return when each command has ended or was given up."""
        row = [name for name, (_, how, _) in self.commands.items() if how in WRAPS]
        for name in self.commands:
            if name not in row:
                self.begin(name)
        if row:
            session = Session(row, self.together + self.slack, f"\n{self.token} ".encode())
            texts = [WRAPS[self.commands[name][1]].format(self.commands[name][2]) for name in row]
            marked = [f"{text}probe_ended {name}\n" for text, name in zip(texts, row)]
            session.start(ROW_HEAD.format(self.token) + "".join(marked))
            self.running[session.pid] = session
        while self.running:
            self.wait()

    def begin(self, name):
        """Start one in a session of its own."""
        limit, how, text = self.commands[name]
        session = Session([name], (self.together if how in WRAPS else limit) + self.slack)
        if how == "program":
            session.fork(self.work)
        else:
            session.start(text)
        self.running[session.pid] = session

    def wait(self):
        """Wait for an end or for a limit, and see to it."""
        deadline = min(session.deadline for session in self.running.values())
        signal = _signal.sigtimedwait((_signal.SIGCHLD, *CUT_OFF), max(deadline - time.monotonic(), 0))
        if signal is None:
            for session in [each for each in self.running.values() if each.deadline <= time.monotonic()]:
                self.give_up(session)
        elif signal.si_signo != _signal.SIGCHLD:
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
        del self.running[session.pid]
        session.kill()
        if session.row_mark:
            self.found.update(session.printed(b""))
        undone = [name for name in session.names if name not in self.found]
        for name in undone[:1]:
            limit, how, _ = self.commands[name]
            seconds = limit if how not in WRAPS else self.together if session.row_mark else 2 * self.together
            self.found[name] = (b"", b"", b"hung:%d" % (seconds + self.slack))
            self.ended[session.pid] = name
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


def keep(path, content):
    """Leave a file for later looks, where only root can, in place of those that earlier texts have left."""
    folder, name = os.path.split(path)
    try:
        if not os.path.isdir(folder):
            os.mkdir(folder, 0o700)
        status = os.lstat(folder)
        if status.st_uid or status.st_mode & 0o022 or not stat.S_ISDIR(status.st_mode):
            return
        for other in os.listdir(folder):
            if other.partition(".")[0] == name.partition(".")[0] and other != name:
                os.unlink(os.path.join(folder, other))
        handle = os.open(f"{path}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.rename(f"{path}.{os.getpid()}", path)
    except OSError:
        pass


def uptime():
    """Return the seconds since boot."""
    return float(_read(f"{PROC}/uptime").split()[0])


def probe(token, begun, together, most, stuck, known, folder, *commands):
    """Look, and print what was found."""
    each = [commands[at : at + 4] for at in range(0, len(commands), 4)]
    slack = min(int((uptime() - float(begun)) * SLACK), int(most)) if begun else 0
    look = Look(
        token, {name: (int(limit), how, text) for name, limit, how, text in each}, int(together), slack,
        lambda: print(dumps(found_here(folder))),
    )  # fmt: skip
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGCHLD, *CUT_OFF))
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
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, CUT_OFF)
    text = memoryview(look.report(known.split()))
    while text:
        text = text[os.write(1, text) :]
    os._exit(0)
