"""Code of a job in files of this machine: its folder, its hash, and its atomic publication."""

import contextlib
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tarfile
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple


class Failed(Exception):
    """A request failed; `kind` is for programs, `what` for people."""

    def __init__(self, kind: str, what: str, output: str = "") -> None:
        Exception.__init__(self, what)
        self.kind, self.what, self.output = kind, what, output


def tree_sha(folder: str, names: Optional[Sequence[str]] = None) -> str:
    """Return the SHA-256 of the files and links under `folder`: names, contents, and whether they can be executed."""
    total = hashlib.sha256()
    for name in sorted(walk(folder) if names is None else names, key=os.fsencode):
        path = os.path.join(folder, name)
        about = os.lstat(path)
        if stat.S_ISLNK(about.st_mode):
            kind, content = "l", hashlib.sha256(os.fsencode(os.readlink(path))).hexdigest()
        elif stat.S_ISREG(about.st_mode):
            kind, content = "x" if about.st_mode & 0o100 else "f", file_sha(path)
        else:
            continue
        total.update(("%s %s " % (kind, content)).encode() + os.fsencode(name) + b"\0")
    return total.hexdigest()


def file_sha(path: str) -> str:
    """Return the SHA-256 of a file."""
    total = hashlib.sha256()
    with open(path, "rb") as source:
        for chunk in iter(lambda: source.read(1 << 20), b""):
            total.update(chunk)
    return total.hexdigest()


def walk(folder: str) -> Iterator[str]:
    """Yield files, links and empty folders under `folder`, as paths relative to it."""
    for root, folders, files in os.walk(folder, onerror=fail):
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        for name in files + links:
            yield os.path.relpath(os.path.join(root, name), folder)
        if not folders and not files and root != folder:
            yield os.path.relpath(root, folder)


def fail(error: OSError) -> None:
    """Raise the error of a folder that cannot be listed."""
    raise error


def extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: str) -> None:
    """Write one member into `folder`; refuse a name outside of it."""
    path = os.path.join(folder, member.name)
    inside = os.path.realpath(os.path.dirname(path)) + os.sep
    if os.path.isabs(member.name) or ".." in member.name.split("/") or not inside.startswith(folder + os.sep):
        raise Failed("damaged", "the archive contains a path outside of its folder: %r" % member.name)
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    if member.issym():
        os.symlink(member.linkname, path)
    elif member.isdir():
        os.makedirs(path, 0o755, exist_ok=True)
    elif member.isfile():
        data = archive.extractfile(member)
        with open(path, "xb") as out:
            shutil.copyfileobj(data, out)  # type: ignore[arg-type] # a file has data
        os.chmod(path, 0o755 if member.mode & 0o100 else 0o644)


def places(request: Dict[str, Any]) -> Tuple[str, str]:
    """Return the temporary and the final folder of the code; remove those of earlier failures."""
    root = os.environ.get("PROVISION_JOBS_ROOT") or "/var/lib/provision/jobs"
    job, repository = request["job"], request["repository"]
    for name in (job, repository):
        if not re.match(r"[A-Za-z0-9_][A-Za-z0-9._+-]*$", name):
            raise Failed("failed", "%r: invalid name of a folder" % name)
    folder = os.path.realpath(os.path.join(root, job))
    os.makedirs(folder, 0o700, exist_ok=True)
    code = os.path.join(folder, "code")
    os.makedirs(code, 0o755, exist_ok=True)
    for name in os.listdir(code):
        if name.startswith(".part-"):
            remove(os.path.join(code, name))
    return os.path.join(code, ".part-%d" % os.getpid()), os.path.join(code, repository)


@contextlib.contextmanager
def removed_at_failure(part: str) -> Iterator[None]:
    """Remove a folder if the block fails."""
    try:
        yield
    except BaseException:
        remove(part)
        raise


def publish(part: str, target: str, request: Dict[str, Any]) -> None:
    """Move the complete code to its final folder."""
    own(part, request)
    os.chmod(part, 0o755)  # nosec B103 # the containers' users read it
    old = part + ".old"
    if os.path.lexists(target):
        os.rename(target, old)
    os.rename(part, target)
    remove(old)


def own(folder: str, request: Dict[str, Any]) -> None:
    """Change the owner to the account of the containers, unless that is root."""
    account = re.match(r"(\d+):(\d+)", request.get("user") or "")
    if account is None:
        return
    user, group = int(account.group(1)), int(account.group(2))
    for _root, folders, files, handle in os.fwalk(folder, topdown=False):
        for name in folders + files:
            os.chown(name, user, group, dir_fd=handle, follow_symlinks=False)
    os.lchown(folder, user, group)


def remove(path: str) -> None:
    """Remove a file, a link or a folder, if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):
        done = subprocess.run(
            ["/bin/rm", "-rf", "--", path], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
        )
        if done.returncode:  # a program, because jobs can create folders that are too deep for Python
            raise OSError(done.stderr.decode(errors="replace").strip()[-400:])
    elif os.path.lexists(path):
        os.unlink(path)
