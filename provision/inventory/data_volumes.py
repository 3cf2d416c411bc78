"""Write the cluster's data volumes into an inventory's group_vars, without other changes to its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from provision.errors import InventoryError, UsageError
from provision.inventory.record import change_files, file_with, inventory_folder, vars_file
from provision.inventory.sources import shown
from provision.inventory.write import end_line, scalar
from provision.model import Cluster

_COMMENT = "# Data volumes that jobs mount by name (--data NAME:/path). `provision data` only edits these lines.\n"


def add_volume(cluster: Cluster, variable: str, name: str, entry: Mapping[str, Any]) -> Cluster:
    """Add a volume to the inventory and return the changed cluster.

    Raises:
        UsageError: The name exists, or the inventory is a single file.
        InventoryError: The variable is set in a file that cannot be changed.
    """
    if name in _present(cluster, variable):
        raise UsageError(f"volume {name} already exists", remedy=f"To remove it, run: provision data rm {name}")
    return _changed(cluster, variable, lambda text, file: with_entry(text, variable, name, entry, file))


def remove_volume(cluster: Cluster, variable: str, name: str) -> Cluster:
    """Remove a volume from the inventory. Its content is preserved."""
    present = _present(cluster, variable)
    if name not in present:
        raise UsageError(f"there is no volume {name}; there are: {', '.join(map(str, present)) or 'none'}")
    return _changed(cluster, variable, lambda text, file: without_entry(text, variable, name, file))


def _present(cluster: Cluster, variable: str) -> Mapping[Any, Any]:
    existing = cluster.nodes[0].variables.get(variable) if cluster.nodes else None
    return existing if isinstance(existing, Mapping) else {}


def _changed(cluster: Cluster, variable: str, change: Callable[[str, Path], str]) -> Cluster:
    folder = inventory_folder(cluster) / "group_vars"
    file = file_with(folder, "all", {variable})
    if file is None and _present(cluster, variable):
        raise InventoryError(
            f"{variable} is set outside {shown(folder)} for all nodes",
            remedy="change it there manually, or move it to group_vars/all.yml",
        )
    file = file or vars_file(folder, "all", "data.yml")
    text = file.read_text(encoding="utf-8") if file.is_file() else "---\n"
    return change_files(cluster, {file: change(text, file)})


def _entry_of(text: str, variable: str) -> tuple[Any, Any] | None:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return None
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    return next(((key, value) for key, value in pairs if key.value == variable), None)


def with_entry(text: str, variable: str, name: str, entry: Mapping[str, Any], file: Path) -> str:
    """Return a vars file with one more entry at the end of `variable`, which is created if missing."""
    lines = (text if not text or text.endswith("\n") else text + "\n").splitlines(keepends=True)
    existing = _entry_of(text, variable)
    if existing is None:
        blank = "" if lines in ([], ["---\n"]) else "\n"
        return "".join([*lines, blank, _COMMENT, f"{variable}:\n", *_lines(name, entry, 2)])
    _refuse_flow(existing, file)
    key, value = existing
    start = key.start_mark.line
    if not isinstance(value, yaml.MappingNode) or not value.value:
        return "".join([*lines[:start], f"{variable}:\n", *_lines(name, entry, 2), *lines[start + 1 :]])
    indent = int(value.value[0][0].start_mark.column)
    end = end_line(lines, value.value[-1])
    return "".join([*lines[:end], *_lines(name, entry, indent), *lines[end:]])


def without_entry(text: str, variable: str, name: str, file: Path) -> str:
    """Return a vars file without an entry of `variable`; comments are preserved."""
    existing = _entry_of(text, variable)
    lines = text.splitlines(keepends=True)
    if existing is None:
        return text
    _refuse_flow(existing, file)
    mine = next(((key, value) for key, value in existing[1].value if key.value == name), None)
    if mine is None:
        return text
    start, end = mine[0].start_mark.line, end_line(lines, mine)
    if len(existing[1].value) == 1:
        head = existing[0].start_mark.line
        return "".join([*lines[:head], f"{variable}: {{}}\n", *lines[head + 1 : start], *lines[end:]])
    return "".join([*lines[:start], *lines[end:]])


def _lines(name: str, entry: Mapping[str, Any], indent: int) -> list[str]:
    pad = " " * indent
    return [f"{pad}{scalar(name)}:\n", *(f"{pad}  {field}: {scalar(value)}\n" for field, value in entry.items())]


def _refuse_flow(existing: tuple[Any, Any], file: Path) -> None:
    value = existing[1]
    if isinstance(value, yaml.MappingNode) and value.flow_style and value.value:
        line = value.start_mark.line + 1
        raise InventoryError(
            f"{shown(file)}:{line}: volumes in braces cannot be changed",
            remedy="write them one per line, or change them manually",
        )
