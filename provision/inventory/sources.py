"""Locate variables in an inventory's files, so that messages contain file and line."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.inventory.ignored_files import is_ignored, is_variable_file

_YAML_ENDS = (".yml", ".yaml", ".json")
_VAULT = "$ANSIBLE_VAULT"
_NO_SOURCES = ("group_vars", "host_vars", "vars_plugins")
"""Folders of an inventory in which Ansible searches for no hosts."""


@dataclass(frozen=True)
class Definition:
    """One definition of a variable."""

    file: Path
    line: int
    key: str
    host: str | None
    group: str | None


class SourceIndex:
    """All definitions in the files of one inventory. Files are read at first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._definitions: list[Definition] | None = None

    def find(self, key: str, host: str | None = None, groups: Iterable[str] = ()) -> str | None:
        """Return ``file:line`` of the definition of `key` that applies to `host`; None if no file contains it."""
        matches = [d for d in self._all() if d.key == key]
        own = [d for d in matches if host is not None and d.host == host]
        by_group = [d for d in matches if d.group in {*groups, "all"}]
        by_group.sort(key=lambda d: d.group == "all")
        chosen = next(iter([*reversed(own), *by_group]), None)
        return f"{shown(chosen.file)}:{chosen.line}" if chosen else None

    def _all(self) -> list[Definition]:
        if self._definitions is None:
            self._definitions = list(_definitions(self._path))
        return self._definitions


def shown(path: Path | str) -> str:
    """Return `path` relative to the current folder."""
    text = str(path)
    name, colon, line = text.partition(":")
    relative = os.path.relpath(name)
    return text if relative.startswith("..") else relative + colon + line


def inventory_files(path: Path) -> list[Path]:
    """Return the files that Ansible reads as inventory sources for `path`."""
    if not path.is_dir():
        return [path]
    matches: list[Path] = []
    for entry in sorted(path.iterdir()):
        if is_ignored(entry.name) or entry.name in _NO_SOURCES:
            continue
        matches.extend(inventory_files(entry))
    return matches


def empty_folders(path: Path) -> list[Path]:
    """Return the deepest folders that Ansible reads for `path` and that contain no inventory source."""
    if not path.is_dir():
        return []
    read = [entry for entry in sorted(path.iterdir()) if not is_ignored(entry.name) and entry.name not in _NO_SOURCES]
    below = [empty for entry in read for empty in empty_folders(entry)]
    return below if read else [path]


def variable_files(path: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield ``("group"|"host", its name, file)`` for every file under group_vars and host_vars."""
    base = path if path.is_dir() else path.parent
    for kind in ("group", "host"):
        for entry in sorted(base.glob(f"{kind}_vars/*")):
            if entry.is_dir():
                yield from ((kind, entry.name, file) for file in _files_below(entry))
            elif not is_ignored(entry.name):
                yield kind, _stem(entry), entry


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files that Ansible reads in a folder of variables; it skips folders whose name has a suffix."""
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and is_variable_file(entry.name) and not entry.suffix:
            yield from _files_below(entry)
        elif entry.is_file() and is_variable_file(entry.name):
            yield entry


def syntax_problems(path: Path) -> list[str]:
    """Return ``file:line: problem`` for each file with a syntax error."""
    problems: list[str] = []
    sources = [*inventory_files(path), *(file for _, _, file in variable_files(path))]
    for file in sources:
        text = _text(file)
        if text is None or os.access(file, os.X_OK):
            continue
        if _is_yaml(file, text) or file not in inventory_files(path):
            problems.extend(_yaml_problem(file, text))
        else:
            problems.extend(_ini_problems(file, text))
    return problems


def _yaml_problem(file: Path, text: str) -> list[str]:
    import yaml

    from provision import yamltext

    try:
        yamltext.compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{shown(file)}:{mark.line + 1}" if mark else shown(file)
        return [f"{place}: not valid YAML: {error.problem or error.context}"]
    except yaml.YAMLError as error:
        return [f"{shown(file)}: not valid YAML: {error}"]
    return []


def _ini_problems(file: Path, text: str) -> list[str]:
    problems = []
    section = "ungrouped"
    for number, line in _ini_lines(text):
        if line.startswith("["):
            section = line.strip("[]")
            if not re.fullmatch(r"\[[^\]:\s]+(:(vars|children|hosts))?\]\s*(#.*)?", line):
                problems.append(f"{shown(file)}:{number}: '{line}' is not a section header")
        elif section.endswith(":vars"):
            if "=" not in line:
                problems.append(f"{shown(file)}:{number}: '{line}' is not of the form key=value")
        elif not section.endswith(":children"):
            problems.extend(
                f"{shown(file)}:{number}: '{word}' is not of the form key=value"
                for word in _ini_words(line)[1:]
                if "=" not in word
            )
    return problems


def _definitions(path: Path) -> Iterator[Definition]:
    for file in inventory_files(path):
        text = _text(file)
        if text is None:
            continue
        if _is_yaml(file, text):
            for key, value in _pairs(_compose(text)):
                yield from _group_definitions(file, str(key.value), value)
        else:
            yield from _ini_definitions(file, text)
    for kind, name, file in variable_files(path):
        for key, _ in _pairs(_compose(_text(file) or "")):
            host, group = (name, None) if kind == "host" else (None, name)
            yield Definition(file, key.start_mark.line + 1, str(key.value), host, group)


def _group_definitions(file: Path, group: str, node: Any) -> Iterator[Definition]:
    for part, value in _pairs(node):
        if part.value == "vars":
            for key, _ in _pairs(value):
                yield Definition(file, key.start_mark.line + 1, str(key.value), None, group)
        elif part.value == "hosts":
            for host, variables in _pairs(value):
                for key, _ in _pairs(variables):
                    yield Definition(file, key.start_mark.line + 1, str(key.value), str(host.value), None)
        elif part.value == "children":
            for child, below in _pairs(value):
                yield from _group_definitions(file, str(child.value), below)


def _ini_definitions(file: Path, text: str) -> Iterator[Definition]:
    section = "ungrouped"
    for number, line in _ini_lines(text):
        if line.startswith("["):
            section = line.split("]")[0].strip("[")
        elif section.endswith(":vars"):
            yield Definition(file, number, line.split("=")[0].strip(), None, section.removesuffix(":vars"))
        elif not section.endswith(":children"):
            words = _ini_words(line)
            for word in words[1:]:
                yield Definition(file, number, word.split("=")[0], words[0], None)


def _ini_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if line and line[0] not in "#;":
            yield number, line


def _ini_words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()


def _pairs(node: Any) -> list[tuple[Any, Any]]:
    return list(node.value) if getattr(node, "id", "") == "mapping" else []


def _compose(text: str) -> Any:
    import yaml

    from provision import yamltext

    try:
        return yamltext.compose(text)
    except yaml.YAMLError:
        return None


def _text(file: Path) -> str | None:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return None if text.startswith((_VAULT, "#!")) else text


def _is_yaml(file: Path, text: str) -> bool:
    if file.suffix:
        return file.suffix in _YAML_ENDS
    return text.lstrip().startswith(("---", "{")) or getattr(_compose(text), "id", "") == "mapping"


def _stem(file: Path) -> str:
    return file.stem if file.suffix in _YAML_ENDS else file.name
