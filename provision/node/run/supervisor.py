"""Runs one job on the head node and ends all of it when the client is gone.

It arrives over SSH on standard input, followed by one line of JSON and then by lines from the client:
``beat`` (I am here) and ``stop`` (end the job). It needs Python 3.8 and nothing else, and leaves no file.

What goes back on standard output is framed: a line ``KIND LENGTH`` and that many bytes. Kinds: ``o`` and ``e``
(output of the job), ``a`` (a beat was heard), ``s`` (the job has started), ``x`` (JSON: how it ended).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import IO, Any

OUTPUT = threading.Lock()


def send(kind: str, data: bytes = b"", *, wait: bool = True) -> None:
    """Send one frame; the client being gone is no error, the reader of our input sees it too."""
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
    """One job: the launcher in the head node's container, and what it started anywhere."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.changed = threading.Event()
        self.reason: str | None = None
        self.heard = time.monotonic()
        self.code: int | None = None
        self.pumps: list[threading.Thread] = []

    def end(self, reason: str) -> None:
        """Ask for the end; the first reason counts."""
        self.reason = self.reason or reason
        self.changed.set()

    def listen(self, source: IO[bytes]) -> None:
        """Hear the client; its silence is judged in `supervise`."""
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
        """Start the launcher; the ranks' variables and the host file are what it reads.

        The variables never reach the environment of the docker client, which is a program of this node's root.
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
        """Pass output on; when nobody takes it any more, go on reading, so that the job can end."""
        while True:
            data = os.read(stream.fileno(), 65536)
            if not data:
                return
            send(kind, data)

    def watch(self, child: subprocess.Popen[bytes]) -> None:
        """Notice the end of the launcher."""
        self.code = child.wait()
        self.changed.set()

    def supervise(self) -> None:
        """Wait until the launcher ends, the client asks for the end, is gone, or is silent for too long."""
        silence = self.spec["silence_seconds"]
        while self.code is None and self.reason is None:
            left = self.heard + silence - time.monotonic()
            if left <= 0:
                self.end("silence")
                return
            self.changed.wait(min(left, 5))

    def reap(self) -> dict[str, str]:
        """End everything that carries the job's mark, here and in the other nodes' containers, all at once."""
        spec = self.spec
        aborted = self.reason is not None
        grace = spec["grace_seconds"] if aborted else 1
        settings = f"job={spec['id']}; grace={grace};"
        here = f"{settings} term={int(aborted)}; linger=\n{spec['reap']}"
        there = f"{settings} term=0; linger={'1' if aborted else ''}\n{spec['reap']}\n{spec['sweep']}"
        todo = {spec["head"]: ["sh"]}
        if aborted or self.code != 0:
            for name in spec["others"]:
                todo[name] = [word.replace("@NODE@", name) for word in spec["reach"]]
        running = {}
        for name, argv in todo.items():
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
        return {name: said for name, said in ((n, self.finish(c)) for n, c in running.items()) if said}

    @staticmethod
    def finish(child: subprocess.Popen[bytes]) -> str:
        """Wait for one reaper; what it says is what it could not end."""
        try:
            said = child.communicate(timeout=20)[0].decode(errors="replace").strip()
        except subprocess.TimeoutExpired:
            child.kill()
            return "no answer"
        return (said or f"exit {child.returncode}") if child.returncode else ""

    def tidy(self) -> None:
        """Wait for the launcher's last words, and take away what it could not take away itself."""
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


def feed(child: subprocess.Popen[bytes], text: str) -> None:
    """Give a child its whole input; one that has ended already needs none."""
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
    os._exit(0)  # threads that wait for a client which is gone must not keep us


def read_line(source: IO[bytes]) -> bytes:
    """Read up to a newline, however the bytes arrive."""
    line = b""
    while not line.endswith(b"\n"):
        piece = source.readline()
        if not piece:
            sys.exit("the client went away before it described the job")
        line += piece
    return line
