"""Runs one job from the head node, and ends all its processes when the client disconnects.

Standard input is one line of JSON, followed by lines of the client: ``beat`` (it is connected) and ``stop`` (end the
job). It needs Python 3.6 or newer and nothing else, and leaves no file.

Standard output consists of frames: a line ``KIND LENGTH`` and that many bytes. Kinds: ``o`` and ``e`` (output of the
job), ``a`` (confirms a beat), ``s`` (the job has started), ``x`` (JSON: how it ended).
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import IO, Any, Dict, List, Optional

OUTPUT = threading.Lock()


def send(kind: str, data: bytes = b"", *, wait: bool = True) -> None:
    """Send one frame; a closed connection is no error here, the reader of standard input sees it too."""
    if not OUTPUT.acquire(blocking=wait, timeout=5 if wait and kind == "x" else -1):
        return
    try:
        if not wait and not select.select([], [1], [], 0)[1]:
            return
        frame = b"%s %d\n%s" % (kind.encode(), len(data), data)
        while frame:
            frame = frame[os.write(1, frame) :]
    except OSError:
        pass
    finally:
        OUTPUT.release()


class Job:
    """One job: the launcher in the head node's container, and its processes on all nodes."""

    def __init__(self, spec: Dict[str, Any]) -> None:
        self.spec = spec
        self.changed = threading.Event()
        self.reason: Optional[str] = None
        self.heard = time.monotonic()
        self.code: Optional[int] = None
        self.pumps: List[threading.Thread] = []

    def end(self, reason: str) -> None:
        """Request the end; later reasons are ignored."""
        self.reason = self.reason or reason
        self.changed.set()

    def listen(self, source: IO[bytes]) -> None:
        """Read the lines of the client; `supervise` ends the job of a silent one."""
        while True:
            line = source.readline()
            if not line:
                self.end("client")
                return
            self.heard = time.monotonic()
            if line == b"stop\n":
                self.end("stop")
            else:
                send("a", wait=False)

    def start(self) -> None:
        """Start the launcher with the ranks' variables and the host file on its standard input.

        The variables are not in the environment of the docker client, which runs as root on this node.
        """
        spec = self.spec
        child = subprocess.Popen(
            spec["argv"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.pumps = [
            threading.Thread(target=self.pump, args=(kind, stream), daemon=True)
            for kind, stream in (("o", child.stdout), ("e", child.stderr))
        ]
        for thread in self.pumps:
            thread.start()
        feed(child, spec["input"])
        threading.Thread(target=self.watch, args=(child,), daemon=True).start()
        self.child = child

    def pump(self, kind: str, stream: IO[bytes]) -> None:
        """Forward output; without a reader, continue reading, so that the job can end."""
        while True:
            data = os.read(stream.fileno(), 65536)
            if not data:
                return
            send(kind, data)

    def watch(self, child: "subprocess.Popen[bytes]") -> None:
        """Record the end of the launcher."""
        self.code = child.wait()
        self.changed.set()

    def supervise(self) -> None:
        """Wait until the launcher ends, or the client requests the end, disconnects or is silent for too long."""
        silence = self.spec["silence_seconds"]
        while self.code is None and self.reason is None:
            left = self.heard + silence - time.monotonic()
            if left <= 0:
                self.end("silence")
                return
            self.changed.wait(min(left, 5))

    def reap(self) -> Dict[str, str]:
        """End all processes of the job, on all nodes in parallel; return the errors by node."""
        spec = self.spec
        aborted = self.reason is not None
        grace = spec["grace_seconds"] if aborted else 1
        settings = f"job={spec['id']}; grace={grace};"
        here = f"{settings} term={int(aborted)}; linger=\n{spec['reap']}"
        there = f"{settings} term=0; linger={'1' if aborted else ''}\n{spec['reap']}\n{spec['sweep']}"
        commands = {spec["head"]: ["sh"]}
        if aborted or self.code != 0:
            for name in spec["others"]:
                commands[name] = [word.replace("@NODE@", name) for word in spec["reach"]]
        running = {}
        for name, argv in commands.items():
            with contextlib.suppress(OSError):
                running[name] = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        for name, child in running.items():
            feed(child, here if name == spec["head"] else there)
        errors = {name: self.finish(child) for name, child in running.items()}
        return {name: error for name, error in errors.items() if error}

    @staticmethod
    def finish(child: "subprocess.Popen[bytes]") -> str:
        """Wait for one reaper; return its output if it fails: the processes that it could not end."""
        try:
            output = child.communicate(timeout=20)[0].decode(errors="replace").strip()
        except subprocess.TimeoutExpired:
            child.kill()
            return "no answer"
        return (output or f"exit {child.returncode}") if child.returncode else ""

    def tidy(self) -> None:
        """Wait for the launcher's last output, and remove what it could not remove itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(5)
        for thread in self.pumps:
            thread.join(2)
        if self.reason is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    self.spec["tidy"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=10,
                    check=False,
                )


def feed(child: "subprocess.Popen[bytes]", text: str) -> None:
    """Write the complete input of a child, unless it has ended already."""
    if child.stdin is not None:
        with contextlib.suppress(OSError):
            child.stdin.write(text.encode("utf-8", "surrogateescape"))
            child.stdin.close()
        child.stdin = None


def main() -> None:
    """Run the job that standard input describes."""
    source = os.fdopen(0, "rb", buffering=0, closefd=False)
    spec = json.loads(read_line(source))
    job = Job(spec)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: job.end("signal"))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    job.start()
    send("s")
    threading.Thread(target=job.listen, args=(source,), daemon=True).start()
    job.supervise()
    left = job.reap()
    job.tidy()
    send("x", json.dumps({"code": job.code, "reason": job.reason, "left": left}).encode())
    os._exit(0)  # threads that wait for a disconnected client must not delay the exit


def read_line(source: IO[bytes]) -> bytes:
    """Read up to a newline."""
    line = b""
    while not line.endswith(b"\n"):
        piece = source.readline()
        if not piece:
            sys.exit("the client disconnected before it described the job")
        line += piece
    return line
