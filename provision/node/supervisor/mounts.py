"""Restricts the mounts of an account's container to what the account can reach.

Docker's engine runs as root: it would mount a folder that the account cannot enter, and follow a link that the account
has created meanwhile. Therefore each source is opened with the account's rights, and bound below a folder of root while
the engine starts the container.
"""

import array
import os
import re
import socket
import stat
from typing import List, NoReturn, Sequence

from provision.node import files as node_files
from provision.node.jobs import records as node_records
from provision.node.unit import mounts as unit_mounts

MOUNTS = os.path.join(node_records.RUN, "mounts")
WITHOUT_VALUE = ("--init", "--privileged")
ROOTS = re.compile(r"/(attempts/[0-9]+/(mount|ssh|config/[0-9]+)|code/[A-Za-z0-9_][A-Za-z0-9._+-]*|logs)\Z")
"""Paths in a job's folder that only root can replace by a link; the code of an account may contain links."""
DETACH = 2


class Mounts:
    """The mounts of one container, except those that root has created in the job's own folder."""

    def __init__(self, name: str, job: str, account: str, words: Sequence[str]) -> None:
        self.folder = os.path.join(MOUNTS, name)
        self.uid, self.gid = (int(number) for number in account.split(":"))
        self.groups = [self.gid]
        self.sources: List[str] = []
        self.words = list(words)
        at = 0
        while at < len(self.words) and self.words[at].startswith("--"):
            if self.words[at] == "--group-add":
                self.groups.append(int(self.words[at + 1]))
            if self.words[at] == "--volume":
                source, colon, rest = self.words[at + 1].partition(":")
                is_own = source.startswith(job + "/") and ROOTS.match(source[len(job) :])
                if source.startswith("/") and not is_own:
                    self.words[at + 1] = self.mount_point(len(self.sources)) + colon + rest
                    self.sources.append(source)
            at += 1 if self.words[at] in WITHOUT_VALUE else 2

    def mount_point(self, number: int) -> str:
        """Return the path at which a source is bound."""
        return os.path.join(self.folder, str(number))

    def __enter__(self) -> None:
        self.clear()
        if not self.sources:
            return
        os.makedirs(self.folder, mode=0o700)
        try:
            for number, handle in enumerate(self.open_sources()):
                target = self.mount_point(number)
                unit_mounts.make_mount_point(target, is_folder=stat.S_ISDIR(os.fstat(handle).st_mode))
                path = "/proc/self/fd/{}".format(handle)
                unit_mounts.mount(path, target, unit_mounts.BIND | unit_mounts.RECURSIVE)
                os.close(handle)
        except BaseException:
            self.clear()
            raise

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove the mounts; a container that has been started keeps its own."""
        for name in node_files.names_in(self.folder):
            path = os.path.join(self.folder, name)
            unit_mounts.LIBRARY.umount2(os.fsencode(path), DETACH)
            if os.path.isdir(path):
                os.rmdir(path)
            else:
                os.unlink(path)
        if os.path.isdir(self.folder):
            os.rmdir(self.folder)

    def open_sources(self) -> List[int]:
        """Return descriptors of the sources; a child process with the account's rights opens them."""
        parent_end, child_end = socket.socketpair()
        pid = os.fork()
        if not pid:
            self._send_sources(child_end)
        child_end.close()
        size = socket.CMSG_SPACE(len(self.sources) * array.array("i").itemsize)
        with parent_end:
            message, packed, _, _ = parent_end.recvmsg(1 << 16, size)
        os.waitpid(pid, 0)
        handles = array.array("i")
        for _, _, data in packed:
            handles.frombytes(data[: len(data) - len(data) % handles.itemsize])
        if message != b"+" or len(handles) != len(self.sources):
            raise OSError("the account cannot mount {}".format(message.decode(errors="replace")))
        return list(handles)

    def _send_sources(self, connection: socket.socket) -> NoReturn:
        """Send the descriptors from the child process, or the error, and end the process."""
        message = b"its process ended"
        try:
            os.setgroups(self.groups)
            os.setgid(self.gid)
            os.setuid(self.uid)
            handles = array.array("i", [unit_mounts.open_any(source) for source in self.sources])
            connection.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)])
            os._exit(0)
        except OSError as problem:
            message = "{}: {}".format(problem.filename, problem.strerror).encode("utf-8", "surrogateescape")
        finally:
            connection.send(message)
            os._exit(1)
