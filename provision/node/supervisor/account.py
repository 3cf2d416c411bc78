"""Adds the account of ``--user`` with a name and a home to a new container.

Images do not have that account, and ssh, sshd and Python's getpass fail for an account without a name.
"""

import io
import tarfile
import time
from typing import List, Optional

from provision.node import docker as node_docker

HOME = "provision-home"
ROOT = "root"
ACCOUNTS = "etc/passwd"
ARCHIVE = "/containers/{}/archive?path={}"
SECONDS = 60
MOST, MARGIN = 1 << 20, 1 << 16
"""Maximum bytes of an image's /etc/passwd, and of the headers of an archive with it."""


def name_account(container: str, account: str) -> None:
    """Add an account, ``UID:GID``, to a container's /etc/passwd if it is missing; create its home; give it /root.

    /root is the default working directory of a job and contains its code; images restrict it to root. Mounts at these
    paths belong to the node or the cluster and are not changed. Raises OSError if the engine refuses.
    """
    uid, gid = (int(number) for number in account.split(":"))
    about = node_docker.engine_json("/containers/{}/json".format(container)) or {}
    targets = {str(mount.get("Destination")) for mount in about.get("Mounts") or ()}
    text = None if targets & {"/etc", "/" + ACCOUNTS, "/" + HOME} else with_account(_passwd_in(container), uid, gid)
    folders = ([] if text is None else [HOME]) + ([] if "/" + ROOT in targets else [ROOT])
    if not uid or not folders:
        return
    status, body = node_docker.engine("PUT", ARCHIVE.format(container, "/"), SECONDS, archive(text, folders, uid, gid))
    if status != 200:
        raise OSError("the account {} could not be named: {}".format(account, node_docker.engine_words(body)))


def _passwd_in(container: str) -> Optional[str]:
    """Return the image's /etc/passwd; "" if it has none, None if it is not a regular file or too large."""
    path = ARCHIVE.format(container, "/" + ACCOUNTS)
    status, body = node_docker.engine("GET", path, SECONDS, limit=MOST + MARGIN)
    if status != 200:
        return ""
    try:
        with tarfile.open(fileobj=io.BytesIO(body)) as packed:
            member = packed.next()
            if member is None or not member.isreg() or member.issparse() or member.size > MOST:
                return None
            content = packed.extractfile(member)
            return None if content is None else content.read(MOST).decode("utf-8", "surrogateescape")
    except (tarfile.TarError, EOFError):
        return None


def with_account(text: Optional[str], uid: int, gid: int) -> Optional[str]:
    """Return /etc/passwd with an account; None if it contains the number already, or is unknown."""
    if text is None:
        return None
    numbers = [line.split(":")[2] for line in text.splitlines() if line.count(":") == 6]
    if str(uid) in numbers:
        return None
    line = "provision-{0}:x:{0}:{1}::/{2}:/bin/sh\n".format(uid, gid, HOME)
    return text + ("" if text.endswith("\n") or not text else "\n") + line


def archive(text: Optional[str], folders: List[str], uid: int, gid: int) -> bytes:
    """Return an archive for a container's root: /etc/passwd, and folders that only the account can enter."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as stream:
        if text is not None:
            content = text.encode("utf-8", "surrogateescape")
            entry = _entry(ACCOUNTS, 0o644)
            entry.size = len(content)
            stream.addfile(entry, io.BytesIO(content))
        for folder in folders:
            entry = _entry(folder, 0o700)
            entry.type, entry.uid, entry.gid = tarfile.DIRTYPE, uid, gid
            stream.addfile(entry)
    return packed.getvalue()


def _entry(name: str, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mtime, entry.mode = int(time.time()), mode
    return entry
