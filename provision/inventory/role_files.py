"""Contents of the roles' files, cached while unchanged, because reading them takes much longer than stat calls.

Files count as unchanged while names, modes, sizes, inodes and times are the same. The times must be old enough, because
two writes within the resolution of the clock are not distinguishable.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from provision import cache_files
from provision.documents import decode
from provision.documents.ansible import RolesDocument
from provision.errors import InvalidDocument

_FORMAT = 2
_KIND = "roles"
_SETTLED_NS = 2_000_000_000
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DECLARED = re.compile(r"^\w+:", re.MULTILINE)
_LEFT_OUT = frozenset({"molecule", "__pycache__", "README.md"})
"""Files that do not affect nodes."""

_Seen = tuple[tuple[str | int, ...], ...]
_last: tuple[Path, _Seen, RolesDocument] | None = None


def argument_specs(roles: Path) -> dict[str, dict[str, Any]]:
    """Return role -> options of its entry point main, for roles with a meta/argument_specs.yml."""
    return _document(roles)["argument_specs"]


def defaults(roles: Path) -> dict[str, Any]:
    """Return role -> variables of its defaults/main.yml."""
    return dict(_document(roles)["defaults"])


def code_of_roles(roles: Path) -> dict[str, tuple[str, list[str]]]:
    """Return role -> hash of its files, and all words with which it can use a variable."""
    return dict(_document(roles)["code"])


def systems(roles: Path) -> dict[str, dict[str, Any]]:
    """Return supported system, such as ``debian_12`` -> its variables in the shared role."""
    return dict(_document(roles)["systems"])


def _document(roles: Path) -> RolesDocument:
    global _last  # noqa: PLW0603 - the roles are constant
    seen = _seen(roles)
    if seen is None:
        return _made(roles)
    if _last is None or _last[:2] != (roles, seen):
        _last = (roles, seen, _cached(roles, seen))
    return _last[2]


def _cached(roles: Path, seen: _Seen) -> RolesDocument:
    key = hashlib.sha256(repr((_FORMAT, str(roles), seen)).encode()).hexdigest()
    content = cache_files.read(_KIND, key)
    try:
        if content is not None:
            return decode(content, RolesDocument, node="", what="cached roles")
    except InvalidDocument:
        pass
    document = _made(roles)
    newest = max((stamp for *_, changed, modified in seen for stamp in (int(changed), int(modified))), default=0)
    if newest + _SETTLED_NS < time.time_ns() and seen == _seen(roles):
        text = json.dumps(document)
        if decode(text, RolesDocument, node="", what="roles") == document:
            cache_files.write(_KIND, key, text.encode())
    return document


def _seen(roles: Path) -> _Seen | None:
    """Return the attributes that reveal a changed file, of all files; None if one is missing or a link to a folder."""
    results: list[tuple[str | int, ...]] = []
    folders = [str(roles)]
    try:
        for folder in folders:
            for entry in os.scandir(folder):
                if entry.name in _LEFT_OUT:
                    continue
                if not entry.is_dir():
                    it = entry.stat()  # the target of a link
                    times = it.st_ctime_ns, it.st_mtime_ns
                    results.append((entry.path, it.st_mode, it.st_size, it.st_dev, it.st_ino, *times))
                else:  # a link to a folder of the programs of nodes, too
                    folders.append(entry.path)
    except OSError:
        return None
    return tuple(sorted(results))


def _made(roles: Path) -> RolesDocument:
    """Read all roles."""
    from provision.components import SHARED

    folders = sorted(file.parent.parent for file in roles.glob("*/tasks/main.yml"))
    contents = {folder.name: _contents(folder) for folder in folders}
    shared = contents.get(SHARED.role, {})
    return {
        "argument_specs": dict(_options(roles)),
        "defaults": _defaults(roles),
        "systems": _systems(roles / SHARED.role / "vars"),
        "code": {role: (_hash(shared, own), sorted(_words(own))) for role, own in contents.items()},
    }


def _options(roles: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    from provision import yamltext

    for file in sorted(roles.glob("*/meta/argument_specs.yml")):
        document = yamltext.safe_load(file.read_text(encoding="utf-8")) or {}
        main = (document.get("argument_specs") or {}).get("main") or {}
        yield file.parent.parent.name, {str(name): raw or {} for name, raw in (main.get("options") or {}).items()}


def _defaults(roles: Path) -> dict[str, Any]:
    from provision import yamltext

    merged: dict[str, Any] = {}
    for file in sorted(roles.glob("*/defaults/main.yml")):
        merged.update(yamltext.safe_load(file.read_text(encoding="utf-8")) or {})
    return merged


def _systems(folder: Path) -> dict[str, Any]:
    from provision import yamltext

    files = sorted(folder.glob("*_*.yml"))
    return {file.stem: yamltext.safe_load(file.read_text(encoding="utf-8")) or {} for file in files}


def _contents(folder: Path) -> dict[str, bytes]:
    """Return path below the role -> content."""
    walked = os.walk(folder, followlinks=True)
    files = sorted(Path(place, name) for place, _, names in walked for name in names)
    named = ((path.relative_to(folder), path) for path in files)
    return {str(name): path.read_bytes() for name, path in named if not _LEFT_OUT.intersection(name.parts)}


def _hash(*parts: dict[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name, content in (item for part in parts for item in part.items()):
        whole.update(f"{name}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()[:32]


def _words(contents: dict[str, bytes]) -> set[str]:
    """Return the words with which the role can use a variable, without declarations and defaults."""
    results: set[str] = set()
    for name, content in contents.items():
        text = content.decode(errors="replace")
        if name.startswith("defaults/"):
            text = _DECLARED.sub("", text)
        if not name.startswith("meta/"):
            results.update(_WORD.findall(text))
    return results
