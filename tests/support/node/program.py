"""The program for jobs in processes that are forked off one that has begun: Python's start would take most of the time.

What is forked imports the program itself, so that the environment and the sources are those of the moment.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import threading
from collections.abc import Mapping
from typing import IO

from tests.support.interpreters import NODE_PYTHON
from tests.support.node.archive import ARCHIVE

__all__ = ["NodeProgram"]

_SERVER = """
import array, errno, fcntl, json, os, re, select, signal, socket, subprocess, sys, threading, time, uuid
sys.path.insert(0, sys.argv[1])
requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=int(sys.argv[2]))
def receive():
    data, messages, _, _ = requests.recvmsg(1 << 18, socket.CMSG_SPACE(16))
    handles = array.array("i")
    for _, _, content in messages:
        handles.frombytes(content)
    for handle in handles:
        os.set_inheritable(handle, False)
    return data, handles
def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
while True:
    environment, handles = receive()
    reap()
    if not environment:
        os._exit(0)
    if not os.fork():
        break
    for handle in handles:
        os.close(handle)
requests.close()
for number, handle in enumerate(handles[:3]):
    os.dup2(handle, number)
    os.close(handle)
os.set_inheritable(handles[3], False)
os.environ.clear()
os.environ.update(json.loads(environment))
from provision.node.jobs import requests as node_jobs
code = 70
try:
    code = node_jobs.main()
finally:
    try:
        sys.stdout.flush()
    except OSError:
        pass
    os.write(handles[3], b"%d" % code)
    os._exit(code)
"""


class _Server:
    """What is forked from; it ends with us."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [NODE_PYTHON, "-I", "-S", "-c", _SERVER, str(ARCHIVE), str(theirs.fileno())]
        self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self._requests = ours
        atexit.register(self._end)

    def begin(self, environment: Mapping[str, str], handles: list[int]) -> None:
        """Fork one with these as its input, output, errors, and as what its exit status goes to."""
        socket.send_fds(self._requests, [json.dumps(dict(environment)).encode()], handles)

    def _end(self) -> None:
        self._requests.close()
        self._process.wait()


_server: _Server | None = None
_making = threading.Lock()


class NodeProgram:
    """The program for jobs as a process that waits for a request; as much of `subprocess.Popen` as is needed."""

    def __init__(self, environment: Mapping[str, str], errors: int | None = None) -> None:
        global _server  # noqa: PLW0603 - one for all nodes
        with _making:
            _server = _server or _Server()
        (given, into), (out, output), (status, status_write) = os.pipe(), os.pipe(), os.pipe()
        err, error = os.pipe() if errors == subprocess.PIPE else (-1, os.dup(2))
        _server.begin(environment, [given, output, error, status_write])
        for handle in (given, output, error, status_write):
            os.close(handle)
        self.stdin: IO[bytes] = os.fdopen(into, "wb")
        self.stdout: IO[bytes] = os.fdopen(out, "rb")
        self.stderr: IO[bytes] | None = os.fdopen(err, "rb") if err >= 0 else None
        self._status: IO[bytes] = os.fdopen(status, "rb")
        self.returncode: int | None = None

    def communicate(self, data: bytes = b"", timeout: float | None = None) -> tuple[bytes, bytes]:
        """Write the rest of its input, and return its output and its errors when it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not, after so long.
        """
        said: dict[str, bytes] = {"out": b"", "err": b""}

        def work() -> None:
            try:
                if not self.stdin.closed:
                    self.stdin.write(data)
                    self.stdin.close()
            except BrokenPipeError:
                pass
            said["out"] = self.stdout.read() if not self.stdout.closed else b""
            said["err"] = self.stderr.read() if self.stderr else b""
            self.wait()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(timeout)
        if thread.is_alive():
            raise subprocess.TimeoutExpired("node_jobs", timeout or 0)
        for stream in (self.stdout, self.stderr):
            if stream:
                stream.close()
        return said["out"], said["err"]

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status when it has ended; -9 where it was killed.

        Raises:
            subprocess.TimeoutExpired: it has not, after so long.
        """
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("node_jobs", timeout or 0)
            with self._status:
                self.returncode = int(self._status.read() or -9)
        return self.returncode
