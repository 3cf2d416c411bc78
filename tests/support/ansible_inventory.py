"""``ansible-inventory`` in processes that are forked off one that has begun: its start would take most of the time."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["run"]

_SERVER = """
import json, os, socket, sys
from ansible.cli.inventory import InventoryCLI

requests = socket.socket(fileno=int(sys.argv[1]))
while True:
    request, handles, _, _ = socket.recv_fds(requests, 1 << 18, 3)
    if not request:
        sys.exit(0)
    child = os.fork()
    if not child:
        break
    _, status = os.waitpid(child, 0)
    os.write(handles[2], b"%d" % os.waitstatus_to_exitcode(status))
    for handle in handles:
        os.close(handle)
words, folder, environment = json.loads(request)
for number, handle in enumerate(handles[:2], 1):
    os.dup2(handle, number)
os.chdir(folder)
os.environ.clear()
os.environ.update(environment)
code = 70
try:
    InventoryCLI.cli_executor(words)
    code = 0
except SystemExit as ended:
    code = ended.code or 0
finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""


class _Server:
    """What is forked from; it ends with us."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, "-c", _SERVER, str(theirs.fileno())]
        self._process = subprocess.Popen(
            words, cwd="/", env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()
        self.settings = _settings(environment)
        atexit.register(self._end)

    def run(self, words: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run the program to its end."""
        reader, writer = os.pipe()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, os.fdopen(reader) as status:
            request = json.dumps([words, str(Path.cwd()), dict(environment)]).encode()
            socket.send_fds(self._requests, [request], [out.fileno(), err.fileno(), writer])
            os.close(writer)
            code = int(status.read() or -9)
            texts = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0) for file in (out, err)]
        return subprocess.CompletedProcess(words, code, *(text.decode(errors="replace") for text in texts))

    def _end(self) -> None:
        self._requests.close()
        self._process.wait()


_servers: list[_Server] = []


def run(argv: Sequence[str], *, env: Mapping[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Do as ``subprocess.run`` does with Ansible's inventory program, which reads its settings when it begins."""
    if not _servers:
        _servers.append(_Server(env))
    (server,) = _servers
    if Path(argv[0]).name != "ansible-inventory" or _settings(env) != server.settings or Path("ansible.cfg").exists():
        return subprocess.run(argv, env=env, **options)  # noqa: PLW1510 - `check` is among the options
    return server.run(argv, env)


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("ANSIBLE_")}
