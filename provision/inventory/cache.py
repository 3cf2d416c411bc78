"""What Ansible made of an inventory, kept while nothing that it was made of has changed: asking it takes a second.

Only what depends on files alone is kept. Nothing is kept of an inventory with a script or a plugin in it, under
settings that bring in more than its files, or with a secret in it, encrypted or plain. What a cache file says is
believed when it is ours, closed to others and whole; else Ansible is asked, as it is where anything is in doubt.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from provision.report.secret_names import is_plain, names_secret

__all__ = ["key_of", "read", "write"]

_FORMAT = 1
_KEPT = 50
_MOST_BYTES = 32 * 1024 * 1024
"""Of all files of an inventory, and of one file of the cache."""
_VAULT = b"$ANSIBLE_VAULT"
_PRIVATE_KEY = b"PRIVATE KEY-----"
_PLUGIN = re.compile(rb"(?:^|[{,])\s*[\"']?plugin[\"']?\s*:", re.MULTILINE)
_SETTINGS_THAT_REACH_OUT = re.compile(
    r"plugin|collections_|playbook_(?:dir|vars_root)|fact_cach|^cache|inventory_cache|(?:vars|inventory)_enabled$|^home$"
)
"""Settings by which an inventory is made of more than its own files: code of plugins, kept facts, other folders."""
_PLUGIN_FOLDERS = (
    "~/.ansible/plugins/inventory",
    "~/.ansible/plugins/vars",
    "/usr/share/ansible/plugins/inventory",
    "/usr/share/ansible/plugins/vars",
)
_CONFIG_FILES = ("ansible.cfg", "~/.ansible.cfg", "/etc/ansible/ansible.cfg")
"""Where Ansible looks for its settings, beside ANSIBLE_CONFIG; the first that exists counts."""


class _DoubtfulError(Exception):
    """The inventory is not one to be kept."""


def key_of(path: Path) -> str | None:
    """Return a hash of all that Ansible's answer is made of; None where the answer is not to be kept."""
    seen = hashlib.sha256()
    try:
        for part in _parts(path):
            seen.update(hashlib.sha256(part).digest())
    except (_DoubtfulError, OSError):
        return None
    return seen.hexdigest()


def read(key: str) -> tuple[dict[str, Any], str] | None:
    """Return the kept answer (document and warnings); None where there is none that can be believed."""
    try:
        descriptor = os.open(_folder() / f"{key}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        private = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        if not private or status.st_size > _MOST_BYTES or not _is_ours(_folder()):
            return None
        try:
            digest, _, text = stream.read().partition(b"\n")
            if hashlib.sha256(text).hexdigest() != digest.decode("ascii"):
                return None
            kept = json.loads(text)
            found = (dict(kept["document"]), str(kept["stderr"])) if kept["format"] == _FORMAT else None
        except (OSError, ValueError, LookupError, TypeError):
            return None
    with suppress(OSError):
        os.utime(_folder() / f"{key}.json")
    return found


def write(key: str, document: Mapping[str, Any], stderr: str) -> None:
    """Keep an answer, whole or not at all; not to be able to is no error. The oldest beyond fifty go."""
    if _has_secret(document):
        return
    text = json.dumps({"format": _FORMAT, "document": document, "stderr": stderr}).encode()
    if len(text) > _MOST_BYTES or _VAULT in text or _PRIVATE_KEY in text:
        return
    folder = _folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_ours(folder):
            return
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".part-", delete=False) as part:
            try:
                part.write(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
                part.close()
                Path(part.name).replace(folder / f"{key}.json")
            except BaseException:
                Path(part.name).unlink(missing_ok=True)
                raise
        _forget_old(folder)
    except OSError:
        return


def _forget_old(folder: Path) -> None:
    by_age = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in [*by_age[_KEPT:], *_abandoned(folder)]:
        file.unlink(missing_ok=True)


def _abandoned(folder: Path) -> list[Path]:
    """Parts that somebody began to write an hour before the newest, and did not finish."""
    parts = list(folder.glob(".part-*"))
    newest = max((file.stat().st_mtime for file in folder.iterdir()), default=0.0)
    return [part for part in parts if part.stat().st_mtime < newest - 3600]


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "provision" / "inventory"


def _is_ours(folder: Path) -> bool:
    status = os.lstat(folder)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _parts(path: Path) -> Iterator[bytes]:
    """Yield all that counts; raises _DoubtfulError at the first thing that forbids to keep the answer."""
    versions = (_version("ansible-core"), _version("ansible"), _version("provision"), sys.version)
    yield repr((_FORMAT, versions, str(path), str(path.absolute()), str(Path.cwd()))).encode()
    yield from _settings()
    total = 0
    for file in _files(path):
        content = file.read_bytes()
        total += len(content)
        if total > _MOST_BYTES or _VAULT in content:
            raise _DoubtfulError(file)
        variables = {"group_vars", "host_vars"} & set(file.parts)
        if not variables and (os.access(file, os.X_OK) or content.startswith(b"#!") or _PLUGIN.search(content)):
            raise _DoubtfulError(file)
        yield repr((str(file), stat.S_IMODE(file.stat().st_mode))).encode()
        yield content


def _settings() -> Iterator[bytes]:
    for name, value in sorted(os.environ.items()):
        if name.startswith("ANSIBLE_"):
            if _SETTINGS_THAT_REACH_OUT.search(name.removeprefix("ANSIBLE_").lower()):
                raise _DoubtfulError(name)
            yield f"{name}={value}".encode(errors="surrogateescape")
    for place in (os.environ.get("ANSIBLE_CONFIG", ""), *_CONFIG_FILES):
        file = Path(place or "ansible.cfg").expanduser()
        if not file.exists():
            continue
        file = file / "ansible.cfg" if file.is_dir() else file
        content = file.read_bytes()
        for line in content.decode(errors="replace").splitlines():
            name = re.split(r"[=:]", line, maxsplit=1)[0].strip().lower()
            if not name.startswith(("#", ";")) and _SETTINGS_THAT_REACH_OUT.search(name):
                raise _DoubtfulError(file)
        # A folder that all may write is ignored.
        yield repr((str(file), file.absolute().parent.stat().st_mode)).encode()
        yield content
    for folder in _PLUGIN_FOLDERS:
        if any(Path(folder).expanduser().glob("*")):
            raise _DoubtfulError(folder)


def _files(path: Path) -> list[Path]:
    """Every file of the inventory, links followed; what is no file (a pipe, a device, a lost link) is doubtful."""
    roots = [path] if path.is_dir() else [path, path.parent / "group_vars", path.parent / "host_vars"]
    found: list[Path] = []
    for root in roots:
        if not root.exists() and root != path:
            continue
        entries = [root, *sorted(root.rglob("*"))] if root.is_dir() else [root]
        for entry in entries:
            if entry != root and entry.is_symlink() and entry.is_dir():
                raise _DoubtfulError(entry)
            if not entry.is_dir():
                if not entry.is_file():
                    raise _DoubtfulError(entry)
                found.append(entry)
    return found


def _has_secret(value: Any) -> bool:
    """Return whether anything inside is a secret, by its name or because it came out of a vault."""
    if isinstance(value, Mapping):
        return any(_is_secret(str(key), item) or _has_secret(item) for key, item in value.items())
    return isinstance(value, list) and any(_has_secret(item) for item in value)


def _is_secret(name: str, value: Any) -> bool:
    strength = names_secret(name)
    if strength == "weak":
        return isinstance(value, str) and not is_plain(value)
    return name == "__ansible_vault" or (bool(strength) and bool(value) and value is not True)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
