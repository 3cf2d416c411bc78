"""Write files of root atomically."""

import os
import stat
import subprocess

SELINUX = "/sys/fs/selinux/enforce"
RESTORECON = "/usr/sbin/restorecon"


def replace(path, content, mode=0o644):
    """Replace a file atomically. The file never has more permissions than `mode`."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    temporary = path + ".provision-new"
    if os.path.lexists(temporary):
        os.unlink(temporary)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content if isinstance(content, bytes) else content.encode())
        stream.flush()
        os.fchmod(stream.fileno(), mode)
        os.fsync(stream.fileno())
    os.rename(temporary, path)
    relabel([path])


def is_root_file(path, mode=0o644):
    """Return whether a path is a regular file that root owns, with this mode."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return (status.st_mode, status.st_uid, status.st_gid) == (stat.S_IFREG | mode, os.geteuid(), os.getegid())


def relabel(paths):
    """Give paths and their folders the labels of SELinux's policy, if SELinux is enabled: a replaced file has its folder's."""
    if paths and os.path.exists(SELINUX) and os.access(RESTORECON, os.X_OK):
        everything = sorted({*paths, *map(os.path.dirname, paths)})
        subprocess.call([RESTORECON, "-i", *everything], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
