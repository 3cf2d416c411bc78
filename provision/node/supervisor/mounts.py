"""Gives a container of an account those folders of the node alone that the account can reach.

Docker's engine is root's: it would mount a folder below one that is closed to the account, and follow a link that the
account has made meanwhile. So each source is opened with the account's rights, and bound below a folder of root's for
as long as the engine starts the container.
"""

import array
import os
import re
import socket
import stat

from provision.node import files as node_files
from provision.node.jobs import records as node_records
from provision.node.unit import mounts as unit_mounts

MOUNTS = os.path.join(node_records.RUN, "mounts")
WITHOUT_VALUE = ("--init", "--privileged")
ROOTS = re.compile(r"/(attempts/[0-9]+/(mount|ssh|config/[0-9]+)|code/[A-Za-z0-9_][A-Za-z0-9._+-]*|logs)\Z")
"""What of a job's folder root alone can exchange for a link; in the code of an account there may be links."""
DETACH = 2


class Mounts:
    """The mounts of one container that are not what root made in the job's own folder.

    Args:
        name: what their folder is called.
        job: the job's own folder.
        account: ``UID:GID``.
        words: those of ``docker create``.
    """

    def __init__(self, name, job, account, words):
        self.folder = os.path.join(MOUNTS, name)
        self.uid, self.gid = (int(number) for number in account.split(":"))
        self.groups, self.sources, self.words = [self.gid], [], list(words)
        at = 0
        while at < len(self.words) and self.words[at].startswith("--"):
            if self.words[at] == "--group-add":
                self.groups.append(int(self.words[at + 1]))
            if self.words[at] == "--volume":
                source, colon, rest = self.words[at + 1].partition(":")
                own = source.startswith(job + "/") and ROOTS.match(source[len(job) :])
                if source.startswith("/") and not own:
                    self.words[at + 1] = self.point(len(self.sources)) + colon + rest
                    self.sources.append(source)
            at += 1 if self.words[at] in WITHOUT_VALUE else 2

    def point(self, number):
        """Return where a source is bound."""
        return os.path.join(self.folder, str(number))

    def __enter__(self):
        self.clear()
        if not self.sources:
            return
        os.makedirs(self.folder, mode=0o700)
        try:
            for number, handle in enumerate(self.opened()):
                unit_mounts.make_point(self.point(number), is_folder=stat.S_ISDIR(os.fstat(handle).st_mode))
                path = "/proc/self/fd/{}".format(handle)
                unit_mounts.mount(path, self.point(number), unit_mounts.BIND | unit_mounts.RECURSIVE)
                os.close(handle)
        except BaseException:
            self.clear()
            raise

    def __exit__(self, *_):
        self.clear()

    def clear(self):
        """Take the mounts away; a container that has been started keeps its own."""
        for name in node_files.names_in(self.folder):
            path = os.path.join(self.folder, name)
            unit_mounts.LIBRARY.umount2(os.fsencode(path), DETACH)
            os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
        if os.path.isdir(self.folder):
            os.rmdir(self.folder)

    def opened(self):
        """Return descriptors of the sources: a child opens them as the account, and so only what it can reach."""
        ours, childs = socket.socketpair()
        pid = os.fork()
        if not pid:
            said = b"it ended"
            try:
                os.setgroups(self.groups)
                os.setgid(self.gid)
                os.setuid(self.uid)
                handles = [unit_mounts.open_anything(source) for source in self.sources]
                childs.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", handles))])
                os._exit(0)
            except OSError as problem:
                said = "{}: {}".format(problem.filename, problem.strerror).encode("utf-8", "surrogateescape")
            finally:
                childs.send(said)
                os._exit(1)
        childs.close()
        room = socket.CMSG_SPACE(len(self.sources) * array.array("i").itemsize)
        with ours:
            said, packed, _, _ = ours.recvmsg(1 << 16, room)
        os.waitpid(pid, 0)
        handles = array.array("i")
        for _, _, data in packed:
            handles.frombytes(data[: len(data) - len(data) % handles.itemsize])
        if said != b"+" or len(handles) != len(self.sources):
            raise OSError("the account cannot have mounted {}".format(said.decode(errors="replace")))
        return list(handles)
