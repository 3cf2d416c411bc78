"""Folders with credentials, which are removed after the end of their process, also after SIGKILL."""

import fcntl
import os
import shutil
import tempfile
from typing import Tuple

PREFIX = "code-"
GUARD = "code.lock"
LOCK = ".lock"


def private_folder() -> Tuple[str, int]:
    """Create a folder that only this account can read; return it with the lock that this process holds.

    It is in memory where possible. Folders of killed processes, whose locks are free, are removed.
    """
    base = os.environ.get("PROVISION_RUN_ROOT") or "/run/provision"
    try:
        os.makedirs(base, 0o755, exist_ok=True)
        guard = guarded(base)
    except OSError:  # a user who is not root
        base = user_base()
        guard = guarded(base)
    try:
        remove_abandoned(base)
        folder = tempfile.mkdtemp(prefix=PREFIX, dir=base)
        return folder, locked(folder)
    finally:
        os.close(guard)


def user_base() -> str:
    """Return this user's folder for folders with credentials: in memory where the system provides one."""
    memory = os.environ.get("XDG_RUNTIME_DIR", "")
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    base = os.path.join(memory if os.path.isabs(memory) and os.access(memory, os.W_OK) else state, "provision")
    os.makedirs(base, 0o700, exist_ok=True)
    return base


def sweep(base: str) -> None:
    """Remove the folders without a living process."""
    if not any(name.startswith(PREFIX) for name in os.listdir(base)):
        return
    guard = guarded(base)
    try:
        remove_abandoned(base)
    finally:
        os.close(guard)


def guarded(base: str) -> int:
    """Return the lock for the creation and removal of folders."""
    handle = os.open(os.path.join(base, GUARD), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def locked(folder: str) -> int:
    """Return a lock in a folder, which this process holds until it ends."""
    handle = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


def remove_abandoned(base: str) -> None:
    """Remove the folders without a living process; the caller holds the guard."""
    for name in os.listdir(base):
        path = os.path.join(base, name)
        if not name.startswith(PREFIX) or not os.path.isdir(path):
            continue
        try:
            handle = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # its process was killed before it had the lock, or an earlier version created it
            shutil.rmtree(path, ignore_errors=True)
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(handle)
