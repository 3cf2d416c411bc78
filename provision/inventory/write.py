"""Text of an inventory's files: new, or changed in place without other changes."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from provision.errors import InventoryError
from provision.inventory.sources import shown

KNOWN_HOSTS = "known_hosts.txt"
"""File next to hosts.yml. Ansible parses every file of an inventory folder as an inventory, except .txt files."""

_HEADER = """---
# An ordinary Ansible inventory. `provision init --add` and `--remove` preserve manual edits.
# The page "Variables" of the documentation lists all variables.
gpu_nodes:
  hosts:
"""


_TODO = (
    "# TODO: set the image in which jobs run, from a registry or a tar file. `provision apply` requires it:",
    '# training_image_reference: "registry.example.com/training:1"',
)


@dataclass(frozen=True)
class HostEntry:
    """One host with its own variables."""

    name: str
    variables: Mapping[str, Any] = field(default_factory=dict)


def hosts_text(entries: Iterable[HostEntry]) -> str:
    """Return hosts.yml with `entries` in the group gpu_nodes."""
    return _HEADER + "".join(_entry_lines(entry, 4, 2) for entry in entries)


def group_vars_text(variables: Mapping[str, Any]) -> str:
    """Return group_vars/all.yml with `variables`, and a TODO if the training image is not one of them."""
    lines = ["---", '# Variables of all nodes. The page "Variables" of the documentation lists all of them.']
    lines += [_variable(key, value) for key, value in variables.items()]
    if not variables.get("training_image_reference"):
        lines += ["", *_TODO]
    return "\n".join(lines) + "\n"


def with_variables(text: str, variables: Mapping[str, Any], file: Path) -> str:
    """Return the vars file `text` with `variables`, each in place of its present value, otherwise at the end.

    Raises:
        InventoryError: The file is encrypted, or does not have one variable per line.
    """
    for key, value in variables.items():
        root = _compose(text)
        empty = all(line.startswith("#") or line.strip() in {"", "---"} for line in text.splitlines())
        if not empty and (not isinstance(root, yaml.MappingNode) or root.flow_style):
            raise InventoryError(
                f"{shown(file)}: encrypted, or not one variable per line",
                remedy="Add these lines manually:\n" + "\n".join(_variable(*item) for item in variables.items()),
            )
        lines = text.splitlines(keepends=True)
        lines[-1:] = [line if line.endswith("\n") else line + "\n" for line in lines[-1:]]
        pair = next((pair for pair in _pairs(root) if pair[0].value == key), None)
        start, end = (pair[0].start_mark.line, end_line(lines, pair)) if pair else (len(lines), len(lines))
        lines[start:end] = [_variable(key, value) + "\n"]
        if key == "training_image_reference":
            lines = [line for line in lines if line.rstrip("\n") not in _TODO]
        text = "".join(lines)
    return text


def _variable(key: str, value: Any) -> str:
    """Return a variable as YAML; keys and certificates are block scalars."""
    if isinstance(value, str) and "\n" in value:
        return "\n".join([f"{key}: |", *(f"  {line}".rstrip() for line in value.rstrip("\n").split("\n"))])
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        lines = [f"{key}:"]
        for item in value:
            for number, (name, part) in enumerate(item.items()):
                text = _variable(name, part).split("\n")
                lines += [f"  {'-' if number == 0 else ' '} {text[0]}", *(f"    {line}".rstrip() for line in text[1:])]
        return "\n".join(lines)
    return f"{key}: {_flow(value) if isinstance(value, Mapping) else scalar(value)}"


def _flow(value: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(value), default_flow_style=True, width=1000).strip()


def sets_variable(file: Path, names: Collection[str]) -> bool:
    """Return whether a YAML file of variables sets one of `names`; False for one that cannot be read."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return any(key.value in names for key, _ in _pairs(_compose(text)))


def common_args(jump: str | None) -> str:
    """Return ansible_ssh_common_args: only keys in the inventory's own known_hosts file are trusted."""
    quoted = f"""-o 'UserKnownHostsFile="{{{{ inventory_dir }}}}/{KNOWN_HOSTS}"' -o StrictHostKeyChecking=yes"""
    return quoted + (f" -o ProxyJump={jump}" if jump else "")


def with_hosts(text: str, entries: Sequence[HostEntry], file: Path) -> str:
    """Return the hosts.yml `text` with `entries` after the last host of gpu_nodes, otherwise of the first group."""
    root = _compose(text)
    hosts = _group_hosts(root)
    if hosts is None or hosts.flow_style or not hosts.value:
        raise InventoryError(
            f"{shown(file)}: no group 'gpu_nodes' with one host per line",
            remedy="Add these lines manually:\n" + "".join(_entry_lines(entry, 4, 2) for entry in entries),
        )
    first_key = hosts.value[0][0]
    indent = first_key.start_mark.column
    step = max(2, indent - _column_above(root, hosts))
    lines = text.splitlines(keepends=True)
    end = end_line(lines, hosts.value[-1])
    if lines[end - 1][-1:] != "\n":
        lines[end - 1] += "\n"
    return "".join([*lines[:end], *(_entry_lines(entry, indent, step) for entry in entries), *lines[end:]])


def without_hosts(text: str, names: Sequence[str], file: Path) -> str:
    """Return the hosts.yml `text` without the hosts `names` in any group."""
    root = _compose(text)
    lines = text.splitlines(keepends=True)
    gone: set[int] = set()
    for hosts in _all_hosts(root):
        mine = [pair for pair in hosts.value if str(pair[0].value) in names]
        if mine and hosts.flow_style:
            raise InventoryError(
                f"{shown(file)}:{hosts.start_mark.line + 1}: hosts in braces cannot be removed",
                remedy=f"Remove {', '.join(names)} there manually.",
            )
        for pair in mine:
            gone.update(range(pair[0].start_mark.line, end_line(lines, pair)))
    return "".join(line for number, line in enumerate(lines) if number not in gone)


def without_keys(text: str, names: Iterable[str], unused: Iterable[str]) -> str:
    """Return the known_hosts `text` without the lines of the hosts `names` (their comments) and addresses `unused`."""
    named, addresses = set(names), set(unused)
    remaining = []
    for line in text.splitlines(keepends=True):
        words = line.split()
        comment = words[3] if len(words) > 3 else ""  # noqa: PLR2004 - names, type, key, comment
        mine = comment in named or (words and not line.startswith("#") and set(words[0].split(",")) <= addresses)
        if not mine:
            remaining.append(line)
    return "".join(remaining)


def with_key(text: str, node: str, names: Sequence[str], mine: Collection[int], new: str, file: Path) -> str:
    """Return the known_hosts `text` with the line `new` in place of all other keys of a node.

    Args:
        text: Content of the file.
        node: Inventory name, which is the comment of lines that ``init`` wrote.
        names: Names of the node in the file. A line with further names keeps those.
        mine: Numbers of the lines that match any of these names.
        new: The line to write, in place of the first old one.
        file: Path, for messages.
    """
    lines: list[str] = []
    at: int | None = None
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        words = line.split()
        comment = words[3] if len(words) > 3 else ""  # noqa: PLR2004 - names, type, key, comment
        if not words or words[0].startswith(("#", "@")) or (number not in mine and comment != node):
            lines.append(line)
            continue
        at = len(lines) if at is None else at
        hashed = words[0].startswith("|")
        others = [] if hashed or comment == node else [name for name in words[0].split(",") if name not in names]
        if any(set(name) & set("*?!") for name in others):
            raise InventoryError(
                f"{shown(file)}:{number}: the pattern '{words[0]}' has the old key of {node} and of other hosts",
                remedy="Nothing was written. Edit this line manually.",
            )
        if others:
            lines.append(" ".join([",".join(others), *words[1:]]) + "\n")
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    lines.insert(len(lines) if at is None else at, new + "\n")
    return "".join(lines)


def _entry_lines(entry: HostEntry, indent: int, step: int) -> str:
    pad = " " * indent
    own = "".join(f"{pad}{' ' * step}{key}: {scalar(value)}\n" for key, value in entry.variables.items())
    return f"{pad}{_key(entry.name)}:\n{own}"


def scalar(value: Any) -> str:
    """Return a YAML scalar or flow list on one line. JSON is YAML, and plain words need no quotes."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z/][A-Za-z0-9_./-]*|[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+", value):
        return value if isinstance(yaml.safe_load(value), str) else json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if isinstance(yaml.safe_load(name), str) else json.dumps(name)


def _compose(text: str) -> Any:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:  # an INI file; callers find no hosts in it
        return None


def _pairs(node: Any) -> list[tuple[Any, Any]]:
    return list(node.value) if isinstance(node, yaml.MappingNode) else []


def _groups(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield every group with its mapping, parents first."""
    for key, value in _pairs(node):
        yield str(key.value), value
        for part, below in _pairs(value):
            if part.value == "children":
                yield from _groups(below)


def _hosts_of(group: Any) -> Any:
    return next((value for key, value in _pairs(group) if key.value == "hosts" and _pairs(value)), None)


def _all_hosts(root: Any) -> list[Any]:
    return [hosts for _, group in _groups(root) if (hosts := _hosts_of(group)) is not None]


def _group_hosts(root: Any) -> Any:
    groups = list(_groups(root))
    named = [group for name, group in groups if name == "gpu_nodes"]
    if named:
        return _hosts_of(named[0])
    return next((hosts for _, group in groups if (hosts := _hosts_of(group)) is not None), None)


def _column_above(root: Any, hosts: Any) -> int:
    for _, group in _groups(root):
        for key, value in _pairs(group):
            if value is hosts:
                return int(key.start_mark.column)
    return 0


def end_line(lines: Sequence[str], pair: tuple[Any, Any]) -> int:
    """Return the line after the value of a key; comments and blank lines below it do not belong to it."""
    key, value = pair
    end = min(len(lines), int(max(key.end_mark.line, value.end_mark.line)) + 1)
    column = int(key.start_mark.column)
    while end - 1 > key.start_mark.line:
        text = lines[end - 1]
        blank = not text.strip() or text.lstrip().startswith("#")
        if not blank and len(text) - len(text.lstrip()) > column:
            break
        end -= 1
    return end
