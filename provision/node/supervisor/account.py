"""Gives the account of ``--user`` a name and a home in a container that was made.

To the image that account is a number alone, and ssh, sshd and Python's getpass refuse to work for a nameless one.
"""

import io
import tarfile
import time

from provision.node import docker as node_docker

HOME = "provision-home"
ROOT = "root"
ACCOUNTS = "etc/passwd"
ARCHIVE = "/containers/{}/archive?path={}"
SECONDS = 60
MOST, MARGIN = 1 << 20, 1 << 16
"""Bytes of an image's file of accounts, and of what an archive puts around it."""


def name_account(container, account):
    """Enter an account, ``UID:GID``, into a container's /etc/passwd unless it is there; make its home; give it /root.

    /root is where a job works unless told otherwise, and below it is its code; images keep it for root alone. What is
    mounted there belongs to the node or the cluster, and stays as it is. OSError when the engine does not do it.
    """
    uid, gid = (int(number) for number in account.split(":"))
    found = node_docker.engine_json("/containers/{}/json".format(container)) or {}
    targets = {str(mount.get("Destination")) for mount in found.get("Mounts") or ()}
    text = None if targets & {"/etc", "/" + ACCOUNTS, "/" + HOME} else with_account(_passwd_in(container), uid, gid)
    folders = ([] if text is None else [HOME]) + ([] if "/" + ROOT in targets else [ROOT])
    if not uid or not folders:
        return
    status, body = node_docker.engine("PUT", ARCHIVE.format(container, "/"), SECONDS, archive(text, folders, uid, gid))
    if status != 200:
        raise OSError("the account {} could not be named: {}".format(account, node_docker.engine_words(body)))


def _passwd_in(container):
    """Return the image's /etc/passwd; "" where there is none, None where it is no plain file, or a large one."""
    path = ARCHIVE.format(container, "/" + ACCOUNTS)
    status, body = node_docker.engine("GET", path, SECONDS, limit=MOST + MARGIN)
    if status != 200:
        return ""
    try:
        with tarfile.open(fileobj=io.BytesIO(body)) as packed:
            member = packed.next()
            if member is None or not member.isreg() or member.issparse() or member.size > MOST:
                return None
            return packed.extractfile(member).read(MOST).decode("utf-8", "surrogateescape")
    except (tarfile.TarError, EOFError):
        return None


def with_account(text, uid, gid):
    """Return /etc/passwd with an account; None where it has that number already, or cannot be told."""
    if text is None:
        return None
    numbers = [line.split(":")[2] for line in text.splitlines() if line.count(":") == 6]
    if str(uid) in numbers:
        return None
    line = "provision-{0}:x:{0}:{1}::/{2}:/bin/sh\n".format(uid, gid, HOME)
    return text + ("" if text.endswith("\n") or not text else "\n") + line


def archive(text, folders, uid, gid):
    """Return what is unpacked at a container's root: /etc/passwd, and folders that are the account's alone."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as stream:
        if text is not None:
            content = text.encode("utf-8", "surrogateescape")
            stream.addfile(_entry(ACCOUNTS, size=len(content), mode=0o644), io.BytesIO(content))
        for folder in folders:
            stream.addfile(_entry(folder, type=tarfile.DIRTYPE, mode=0o700, uid=uid, gid=gid))
    return packed.getvalue()


def _entry(name, **told):
    entry = tarfile.TarInfo(name)
    entry.mtime = int(time.time())
    for key, value in told.items():
        setattr(entry, key, value)
    return entry
