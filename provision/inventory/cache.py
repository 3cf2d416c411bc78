"""Cache for the output of ansible-inventory, which takes a second, valid while its sources are unchanged.

Only results that depend on files alone are cached: no inventory with a script or plugin, with settings that add other
sources, or with a secret, encrypted or plain. A cache file is used only if it is private and complete. In all other
cases Ansible is called.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from provision import __version__, cache_files
from provision.documents import decode
from provision.documents.ansible import CachedInventory, InventoryDocument
from provision.errors import InvalidDocument
from provision.inventory.ignored_files import BACKUPS

_FORMAT = 1
_KIND = "inventory"
_VAULT = b"$ANSIBLE_VAULT"
_PRIVATE_KEY = b"PRIVATE KEY-----"
_PLUGIN = re.compile(rb"(?:^|[{,])\s*[\"']?plugin[\"']?\s*:", re.MULTILINE)
_RELEASES = {"ansible": "release.py", "ansible_collections": "ansible_release.py"}
_SETTINGS_THAT_REACH_OUT = re.compile(
    r"plugin|collections_|playbook_(?:dir|vars_root)|fact_cach|^cache|inventory_cache|(?:vars|inventory)_enabled$|^home$"
)
"""Settings that add sources to an inventory: plugins, cached facts, other folders."""
_PLUGIN_FOLDERS = (
    "~/.ansible/plugins/inventory",
    "~/.ansible/plugins/vars",
    "/usr/share/ansible/plugins/inventory",
    "/usr/share/ansible/plugins/vars",
)
_CONFIG_FILES = ("ansible.cfg", "~/.ansible.cfg", "/etc/ansible/ansible.cfg")
"""Locations of Ansible's settings after ANSIBLE_CONFIG; the first that exists is used."""


class _DoubtfulError(Exception):
    """The inventory must not be cached."""


def key_of(path: Path) -> str | None:
    """Return a hash of all sources of Ansible's answer; None if it must not be cached."""
    seen = hashlib.sha256()
    try:
        for part in _parts(path):
            seen.update(hashlib.sha256(part).digest())
    except (_DoubtfulError, OSError):
        return None
    return seen.hexdigest()


def read(key: str) -> tuple[InventoryDocument, str] | None:
    """Return the cached answer (document and warnings); None without a valid one."""
    text = cache_files.read(_KIND, key)
    try:
        cached = decode(text, CachedInventory, node="", what="cached inventory") if text is not None else None
    except InvalidDocument:
        return None
    return (cached.document, cached.stderr) if cached is not None and cached.format == _FORMAT else None


def write(key: str, document: Mapping[str, Any], stderr: str) -> None:
    """Store an answer without secrets."""
    if _has_secret(document):
        return
    text = json.dumps({"format": _FORMAT, "document": document, "stderr": stderr}).encode()
    if _VAULT not in text and _PRIVATE_KEY not in text:
        cache_files.write(_KIND, key, text)


def _parts(path: Path) -> Iterator[bytes]:
    """Yield all sources; raise _DoubtfulError if the answer must not be cached."""
    yield from _releases()
    yield repr((_FORMAT, BACKUPS, __version__, sys.version, str(path), str(path.absolute()), str(Path.cwd()))).encode()
    yield from _settings()
    total = 0
    for file in _files(path):
        content = file.read_bytes()
        total += len(content)
        if total > cache_files.MOST_BYTES or _VAULT in content:
            raise _DoubtfulError(file)
        variables = {"group_vars", "host_vars"} & set(file.parts)
        if not variables and (os.access(file, os.X_OK) or content.startswith(b"#!") or _PLUGIN.search(content)):
            raise _DoubtfulError(file)
        yield repr((str(file), stat.S_IMODE(file.stat().st_mode))).encode()
        yield content


def _releases() -> Iterator[bytes]:
    """Yield the files with the versions of Ansible and its collections."""
    for package, name in _RELEASES.items():
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            file = Path(folder) / name
            yield repr(str(file)).encode()
            if file.exists():
                yield file.read_bytes()


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
        # Ansible ignores a folder that all users may write.
        yield repr((str(file), file.absolute().parent.stat().st_mode)).encode()
        yield content
    for folder in _PLUGIN_FOLDERS:
        if any(Path(folder).expanduser().glob("*")):
            raise _DoubtfulError(folder)


def _files(path: Path) -> list[Path]:
    """Yield every file of the inventory, including targets of links; other types (pipe, device) are doubtful."""
    roots = [path] if path.is_dir() else [path, path.parent / "group_vars", path.parent / "host_vars"]
    files: list[Path] = []
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
                files.append(entry)
    return files


def _has_secret(value: Any) -> bool:
    """Return whether a value inside is a secret, by its name or because it is encrypted with ansible-vault."""
    if isinstance(value, Mapping):
        return any(_is_secret(str(key), item) or _has_secret(item) for key, item in value.items())
    return isinstance(value, list) and any(_has_secret(item) for item in value)


def _is_secret(name: str, value: Any) -> bool:
    from provision.report.secret_names import is_plain, names_secret

    strength = names_secret(name)
    if strength == "weak":
        return isinstance(value, str) and not is_plain(value)
    return name == "__ansible_vault" or (bool(strength) and bool(value) and value is not True)
