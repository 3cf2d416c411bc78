"""Action plugin: carry the modules that DKMS built on one node to the other nodes, through the controller's cache.

On the build node, it stores the builds in the cache if they differ from those that are there. On other nodes, it
installs a build for each kernel that has none. Both are modules `nvidia_driver_build`, whose answers are not trusted:
names, sizes and hashes are checked here, and again on the node that gets the files.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import os
import re
import stat
import sys
import tempfile
import zlib
from pathlib import Path

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import action_loader

_MODULE = "nvidia_driver_build"
_FIELDS = {
    "name": re.compile(r"nvidia[a-z0-9-]{0,60}"),
    "version": re.compile(r"[0-9][0-9.]{0,30}"),
    "kernel": re.compile(r"[0-9][A-Za-z0-9.+~_-]{0,63}"),
    "machine": re.compile(r"[a-z0-9_]{1,20}"),
    "digest": re.compile(r"([0-9a-f]{64})?"),
}
_FILE = {
    "name": re.compile(r"nvidia[a-z0-9-]{0,60}\.ko(\.(xz|zst|gz))?"),
    "sha256": re.compile(r"[0-9a-f]{64}"),
    "content": re.compile(r"[A-Za-z0-9+/]*={0,2}"),
}
_MOST_BUILDS = 64
_MOST_FILES = 16
_MOST_BYTES = 512 * 2**20
"""Maximum size of the files of a build."""
_MOST_CACHED = 50
"""Maximum number of builds in the cache; the oldest ones are removed."""


class RefusedError(AnsibleError):
    """A build that is not carried."""


class ActionModule(ActionBase):
    """Store the builds of the build node, or install them on another node."""

    def run(self, tmp=None, task_vars=None):
        """Return the result; the contents of the modules are not part of it."""
        result = super().run(tmp, task_vars)
        arguments, check_mode = self._task.args, self._task.check_mode
        kernels, source = arguments["kernels"], arguments["source"]

        def send(**more):
            program = light_program()(_MODULE, {"certificate": arguments["certificate"], **more})
            answer = self._execute_module(
                module_name="platform_light", module_args={"program": program}, task_vars=task_vars
            )
            if answer.get("failed") or answer.get("unreachable"):
                raise RefusedError(str(answer.get("msg") or "the module failed without a message")[:2000])
            return answer

        builds = checked_builds(send(action="state", kernels=kernels).get("builds"), kernels)
        if source == task_vars["inventory_hostname"]:
            stored = [_store(send, source, one, check_mode=check_mode) for one in builds if one["digest"]]
            return {**result, "changed": False, "stored": stored}
        missing = [kernel for kernel in kernels if not any(one["digest"] for one in builds if one["kernel"] == kernel)]
        carried = [_install(send, source, kernel, builds, check_mode=check_mode) for kernel in missing]
        return {**result, "changed": bool(carried), "carried": carried}


def light_program():
    """Return the function that packs a module of the roles for a node."""
    plugin = action_loader.get("platform_light", class_only=True)
    return sys.modules[plugin.__module__].light_program


def _store(send, source, build, *, check_mode):
    """Store a build in the cache unless it is there; return its digest."""
    cached = read_build(source, build)
    if (cached is None or cached["digest"] != build["digest"]) and not check_mode:
        answer = send(action="export", **_key(build, "name", "version", "kernel"))
        write_build(source, {**build, "files": answer.get("files"), "certificate": answer.get("certificate")})
    return _key(build, "name", "version", "kernel", "digest")


def _install(send, source, kernel, builds, *, check_mode):
    """Install the build for a kernel; return its digest."""
    drivers = [one for one in builds if one["kernel"] == kernel]
    build = next(filter(None, (read_build(source, one) for one in drivers)), None)
    if build is None:
        names = ", ".join(f"{one['name']} {one['version']}" for one in drivers) or "the driver"
        raise RefusedError(
            f"{source} has built no modules of {names} for kernel {kernel}. Add the kernel to nvidia_driver_kernels of "
            f"{source} and run `provision apply --only nvidia_driver --force nvidia_driver --limit {source}`, or remove "
            "nvidia_driver_build_node."
        )
    if not check_mode:
        send(
            action="install",
            digest=build["certificate"],
            **_key(build, "name", "version", "kernel", "files"),
        )
    return _key(build, "name", "version", "kernel", "digest")


def _key(build, *names):
    return {name: build[name] for name in names}


def checked_builds(answer, kernels):
    """Return the builds that a node reports, without other fields.

    Raises:
        RefusedError: the answer has another form, or a kernel that was not requested.
    """
    if not isinstance(answer, list) or len(answer) > _MOST_BUILDS:
        raise RefusedError("the node answers no list of builds")
    builds = [_checked(one, _FIELDS) for one in answer]
    if any(one["kernel"] not in kernels for one in builds):
        raise RefusedError("the node answers a build for a kernel that was not requested")
    return builds


def checked_build(build):
    """Return a build with its files; its digest is that of the files.

    Raises:
        RefusedError: a name, a size or a hash is wrong.
    """
    checked = _checked(build, _FIELDS)
    files = build.get("files")
    if not isinstance(files, list) or not 0 < len(files) <= _MOST_FILES:
        raise RefusedError("a build has no files, or too many")
    left = _MOST_BYTES
    checked["files"] = [_checked(one, _FILE) for one in files]
    for one in checked["files"]:
        content = _unpacked(one["content"], left)
        left -= len(content)
        if hashlib.sha256(content).hexdigest() != one["sha256"]:
            raise RefusedError(f"{one['name']}: wrong SHA-256")
    names = sorted((one["name"], one["sha256"]) for one in checked["files"])
    lines = "".join(f"{checksum} {name}\n" for name, checksum in names)
    if hashlib.sha256(lines.encode()).hexdigest() != checked["digest"]:
        raise RefusedError("the files are not those of the build")
    certificate = build.get("certificate")
    if not isinstance(certificate, str) or not _FIELDS["digest"].fullmatch(certificate):
        raise RefusedError("the build has an invalid certificate")
    return {**checked, "certificate": certificate}


def _checked(row, fields):
    for name, pattern in fields.items():
        if not isinstance(row, dict) or not isinstance(row.get(name), str) or not pattern.fullmatch(row[name]):
            raise RefusedError(f"the node answers an invalid {name} of a build")
    return _key(row, *fields)


def _unpacked(content, most):
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(content, validate=True), most + 1)  # 0 would be no limit
    except (binascii.Error, zlib.error) as error:
        raise RefusedError("a file of a build is damaged") from error
    if len(data) > most or not stream.eof:
        raise RefusedError("the files of a build are too large")
    return data


def cache_folder():
    """Return the folder of the builds on the controller."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if base.startswith("/") else Path.home() / ".cache") / "provision/nvidia-driver"


def _path(source, build):
    words = [source, *(build[name] for name in ("name", "version", "kernel", "machine"))]
    return cache_folder() / (hashlib.sha256("\0".join(words).encode()).hexdigest() + ".json")


def read_build(source, build):
    """Return the cached build of a node for the same driver, kernel and machine; None without a valid one."""
    try:
        handle = os.open(_path(source, build), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return None
        try:
            cached = checked_build(json.load(stream))
        except (ValueError, RefusedError):
            return None
    names = ("name", "version", "kernel", "machine")
    return cached if _key(cached, *names) == _key(build, *names) else None


def write_build(source, build):
    """Store a build atomically, readable by its owner only.

    Raises:
        RefusedError: the build is not valid.
    """
    text = json.dumps(checked_build(build))
    folder = cache_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".build-", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(temporary).replace(_path(source, build))
    finally:
        Path(temporary).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):  # another process removes them, too
        cached = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in cached[:-_MOST_CACHED]:
            path.unlink()
