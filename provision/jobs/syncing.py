"""Copy a directory to the same path in every container, and prove that it arrived."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shlex
import stat
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from provision.commands.docker import exec_argv
from provision.commands.shell import join
from provision.connectors import Connector, RemoteProcess, each
from provision.errors import LaunchError, ProvisionError, UsageError
from provision.jobs.request import JobRequest, together
from provision.node_archive import shell_script

MARK = ".provision-sync"
"""Lists in the container what the last sync brought, so that the next one knows what it may remove."""

_LISTED = re.compile(r"([fdl]) ([0-7]{1,4}) (.*)", re.DOTALL)
_LISTING_SECONDS = 600.0
"""How long a container may take to list a folder, with the sums of all files, or to unpack it."""
_PLACES = "/ /home /media /mnt /opt /root /srv /tmp /var /usr/local"
_TREES = "/bin /boot /dev /etc /lib /lib32 /lib64 /libx32 /proc /run /sbin /sys /usr /var/lib /var/run /var/log"


@dataclass(frozen=True)
class Entry:
    """One file, link or folder: what must be equal on both sides."""

    kind: str
    """``f``, ``d`` or ``l``."""
    mode: int
    content: str
    """SHA-256 of a file, target of a link, empty for a folder."""


Manifest = dict[str, Entry]


@dataclass(frozen=True)
class Remote:
    """The directory as one container has it."""

    entries: Manifest
    marked: bool
    """A sync made it."""
    brought: frozenset[str]
    """What the last sync brought."""
    mounts: tuple[str, ...]
    """Mount points at the directory or below it."""
    busy: tuple[str, ...] = ()
    """``PID NAME`` of processes whose working directory is the directory or below it."""


def sync(request: JobRequest, confirm: Callable[[str], None]) -> list[str]:
    """Bring ``request.sync`` to every container that may get ranks; return a line about each node.

    What only a container has (checkpoints, logs) stays; what a former sync brought and is gone here is removed.
    """
    folder = cast("Path", request.sync)
    check_target(folder)
    wanted, passed_over = _manifest(folder)
    names = list(dict.fromkeys((request.head, *(entry.name for entry in request.entries))))
    nodes = [request.nodes[name] for name in names]
    remotes = _good(each(nodes, lambda connector: _probe_folder(connector, request.container(connector.name), folder)))
    _refuse_mounts(folder, remotes)
    todo = {name: compare(wanted, remote) for name, remote in remotes.items()}
    _refuse_busy(folder, {name: remote for name, remote in remotes.items() if todo[name].needed})
    overwritten = {name: change for name, change in todo.items() if change.overwrites and not remotes[name].marked}
    if overwritten:
        count = sum(len(change.overwrites) for change in overwritten.values())
        where = ", ".join(overwritten)
        confirm(f"{folder} exists in the containers on {where}, and {count} files there differ. Replace them?")
    changed = [request.nodes[name] for name in names if todo[name].needed]
    _good(each(changed, lambda c: _bring(c, request.container(c.name), folder, wanted, todo[c.name])))
    lines = [f"sync: {path} is neither file, folder nor link and was passed over" for path in passed_over]
    return [*lines, *(f"sync: {name}: {todo[name].words()}" for name in names)]


def check_target(folder: Path) -> None:
    """Refuse what must not be replaced in a container; UsageError says why."""
    if not folder.is_dir():
        raise UsageError(f"--sync {folder}: there is no such folder here")
    text = str(folder)
    trees = _TREES.split()
    if text in _PLACES.split() or folder == Path.home():
        raise UsageError(f"--sync {folder}: this folder holds more than one project", remedy="name a folder inside it")
    if any(text == tree or text.startswith(tree + "/") for tree in trees) and not text.startswith("/usr/local/"):
        raise UsageError(f"--sync {folder}: this belongs to the container's system", remedy="use another folder")
    if "\n" in text:
        raise UsageError("--sync: the folder's name holds a line break")


def _manifest(folder: Path) -> tuple[Manifest, list[str]]:
    try:
        return manifest(folder)
    except FileNotFoundError as error:
        raise LaunchError(
            f"--sync {folder}: {error.filename} went away while it was read",
            remedy="does something still write there? Run it again",
        ) from error
    except OSError as error:
        raise LaunchError(
            f"--sync {folder}: {error.filename} cannot be read: {error.strerror}",
            remedy="make it readable, or keep it outside the folder",
        ) from error


def manifest(folder: Path) -> tuple[Manifest, list[str]]:
    """Return what `folder` holds, and the paths that are neither file, folder nor link."""
    entries: Manifest = {}
    passed_over: list[str] = []
    for path in _walk(folder):
        status = path.lstat()
        name = str(path.relative_to(folder))
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISLNK(status.st_mode):
            entries[name] = Entry("l", 0o777, str(path.readlink()))
        elif stat.S_ISDIR(status.st_mode):
            entries[name] = Entry("d", mode, "")
        elif stat.S_ISREG(status.st_mode):
            entries[name] = Entry("f", mode, _sha256(path))
        else:
            passed_over.append(name)
    return entries, passed_over


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder, onerror=_fail):
        folders.sort()
        for name in sorted([*folders, *files]):
            if Path(root) != folder or name != MARK:
                yield Path(root, name)


def _fail(error: OSError) -> None:
    """A folder that cannot be listed is not an empty one."""
    raise error


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


@dataclass(frozen=True)
class Change:
    """What one container lacks."""

    copy: tuple[str, ...]
    remove: tuple[str, ...]
    overwrites: tuple[str, ...]
    """Files that are there with another content."""

    @property
    def needed(self) -> bool:
        """True when anything must be done."""
        return bool(self.copy or self.remove)

    def words(self) -> str:
        """What was done, for the user."""
        if not self.needed:
            return "unchanged"
        return f"{len(self.copy)} copied, {len(self.remove)} removed, verified"


def compare(wanted: Manifest, remote: Remote) -> Change:
    """Pure: what must be copied to a container, and what a former sync brought and has no more place."""
    copy = tuple(name for name, entry in wanted.items() if remote.entries.get(name) != entry)
    gone = {name for name in remote.brought - wanted.keys() if name in remote.entries}
    other_kind = {name for name in copy if name in remote.entries and remote.entries[name].kind != wanted[name].kind}
    remove = tuple(sorted(gone | other_kind))
    overwrites = tuple(name for name in copy if wanted[name].kind != "d" and name in remote.entries)
    return Change(copy, remove, overwrites)


def parse_listing(data: bytes) -> Remote:
    """Read what the listing script printed."""
    head, marker, body = data.partition(b"BEGIN\n")
    lines = head.decode(errors="surrogateescape").splitlines()
    mounts = tuple(sorted({line[6:] for line in lines if line.startswith("mount ")}))
    busy = tuple(line[5:] for line in lines if line.startswith("busy "))
    if not marker:
        return Remote({}, marked=False, brought=frozenset(), mounts=mounts, busy=busy)
    text = body.decode(errors="surrogateescape")
    listing, _, rest = text.partition("sums\0")
    sums, _, mark = rest.partition("mark\0")
    hashes = {record[66:].removeprefix("./"): record[:64] for record in sums.split("\0") if record}
    fields = listing.split("\0")
    entries: Manifest = {}
    for about, name in zip(fields[::2], fields[1::2], strict=False):
        listed = _LISTED.fullmatch(about)
        if listed:  # what is listed in no known form differs from what is here, and is copied again
            entries[name] = Entry(listed[1], int(listed[2], 8), listed[3] if listed[1] == "l" else hashes.get(name, ""))
    brought = frozenset(name for name in mark.split("\0") if name)
    return Remote(entries, marked="marked" in lines, brought=brought, mounts=mounts, busy=busy)


def _probe_folder(connector: Connector, container: str, folder: Path) -> Remote:
    process = connector.start(
        join(exec_argv(container, ["sh", "-c", shell_script("code/sync-list.sh"), "sh", str(folder)]))
    )
    process.close_stdin()
    return parse_listing(_finish(process, connector.name, f"{folder} could not be read in the container {container}"))


def _finish(process: RemoteProcess, node: str, trouble: str) -> bytes:
    out: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    process.deadline = time.monotonic() + _LISTING_SECONDS
    try:
        for stream, chunk in process.output():
            out[stream].append(chunk)
        code = process.wait()
    finally:
        process.close()
    if code != 0:
        said = b"".join(out["stderr"]).decode(errors="replace")
        raise LaunchError(
            trouble, node=node, remedy="the container needs GNU find, tar and coreutils, and free space", output=said
        )
    return b"".join(out["stdout"])


def _bring(connector: Connector, container: str, folder: Path, wanted: Manifest, change: Change) -> None:
    """Copy beside the directory, swap, and read back what is there then."""
    removed = b"".join(os.fsencode(name) + b"\0" for name in change.remove)
    script = join(
        exec_argv(
            container,
            ["sh", "-c", shell_script("code/sync-unpack.sh"), "sh", str(folder), str(len(removed))],
            stdin=True,
        )
    )
    process = connector.start(script)
    try:
        process.write(removed)
        _send(process, folder, wanted, change.copy)
    except OSError as error:
        process.close()
        raise LaunchError(
            f"{folder} changed while it was copied: {error.filename or ''} {error.strerror or error}",
            node=connector.name,
            remedy="does something still write there? Run it again",
        ) from error
    process.close_stdin()
    _finish(process, connector.name, f"{folder} could not be copied into the container {container}")
    left = compare(wanted, _probe_folder(connector, container, folder))
    if left.needed:
        first = (*left.copy, *left.remove)[0]
        raise LaunchError(
            f"{folder} differs in the container {container} after copying, first at {first}",
            node=connector.name,
            remedy="did the folder change while it was copied? Run it again",
        )


def _send(process: RemoteProcess, folder: Path, wanted: Manifest, names: Sequence[str]) -> None:
    with tarfile.open(fileobj=cast("IO[bytes]", _Pipe(process)), mode="w|", bufsize=1 << 18) as archive:
        for name in names:
            add_member(archive, folder, name)
        mark = "".join(f"{name}\0" for name in wanted).encode(errors="surrogateescape")
        info = tarfile.TarInfo(MARK)
        info.size = len(mark)
        archive.addfile(info, io.BytesIO(mark))


def add_member(archive: tarfile.TarFile, folder: Path, name: str) -> None:
    """Add one file, link or folder of `folder` to an archive, as root's."""
    info = archive.gettarinfo(folder / name, arcname=name)
    if info.islnk():  # the second name of a file: it travels as a file of its own
        info.type, info.size = tarfile.REGTYPE, (folder / name).lstat().st_size
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    if info.isreg():
        with (folder / name).open("rb") as source:
            archive.addfile(info, source)
    else:
        archive.addfile(info)


class _Pipe:
    def __init__(self, process: RemoteProcess) -> None:
        self._process = process

    def write(self, data: bytes) -> int:
        self._process.write(data)
        return len(data)


def _good(results: Mapping[str, object]) -> dict[str, Remote]:
    problems = {name: value for name, value in results.items() if isinstance(value, ProvisionError)}
    if problems:
        raise together(problems)
    return cast("dict[str, Remote]", dict(results))


def _refuse_mounts(folder: Path, remotes: Mapping[str, Remote]) -> None:
    for name, remote in remotes.items():
        if remote.mounts:
            raise LaunchError(
                f"sync: {remote.mounts[0]} is a mount in the container, and replacing {shlex.quote(str(folder))}"
                " would change what is mounted",
                node=name,
                remedy="a mounted folder needs no sync; leave --sync out, or name a folder inside the mount",
            )


def _refuse_busy(folder: Path, remotes: Mapping[str, Remote]) -> None:
    for name, remote in remotes.items():
        if remote.busy:
            pid, _, command = remote.busy[0].partition(" ")
            more = f" and {len(remote.busy) - 1} more" if remote.busy[1:] else ""
            raise LaunchError(
                f"sync: process {pid} ({command}){more} works in {folder} of the container;"
                " replacing the folder would take it away from under it",
                node=name,
                remedy="wait until it has ended, or leave --sync out; nothing was changed on any node",
            )
