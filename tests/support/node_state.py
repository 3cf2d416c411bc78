"""The state of a node before the roles and after a reset: all files of /etc, and all packages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["differences", "node_state"]

# Every file and link of /etc (accounts are among them) with content, mode and owners; packages with their versions.
_PROGRAM = r"""
import hashlib, json, os, shutil, subprocess
files = {}
for folder, _, names in os.walk("/etc"):
    for name in names:
        path = os.path.join(folder, name)
        status = os.lstat(path)
        what = os.readlink(path) if os.path.islink(path) else hashlib.sha256(open(path, "rb").read()).hexdigest()
        files[path] = [what, oct(status.st_mode), status.st_uid, status.st_gid]
query = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status} ${Version}\n"]
if not shutil.which("dpkg-query"):
    query = ["rpm", "-qa", "--qf", "%{NAME} %{EPOCH}:%{VERSION}-%{RELEASE}\n"]
packages = subprocess.run(query, stdout=subprocess.PIPE, check=True).stdout.decode()
print(json.dumps({"etc": files, "packages": sorted(packages.splitlines())}))
"""
# Written anew by the system's own tools (useradd, ldconfig), whatever is done with them.
_CACHES = {f"/etc/{name}-" for name in ("passwd", "shadow", "group", "gshadow", "subuid", "subgid")} | {
    "/etc/ld.so.cache",
    "/etc/.pwd.lock",
}


def node_state(shell: Callable[[str], str]) -> dict[str, Any]:
    """Return the files of /etc, without caches, and the packages of a node.

    Args:
        shell: returns the output of a shell command on the node.
    """
    state: dict[str, Any] = json.loads(shell(f"python3 -c '{_PROGRAM}'"))
    state["etc"] = {path: what for path, what in state["etc"].items() if path not in _CACHES}
    return state


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the files and packages that are not the same in two states."""
    paths = {path for path in {*one["etc"], *other["etc"]} if one["etc"].get(path) != other["etc"].get(path)}
    return sorted(paths | (set(one["packages"]) ^ set(other["packages"])))
