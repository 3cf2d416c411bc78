"""Add variables to the files of an inventory's groups and hosts, atomically."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from provision.errors import InventoryError, ProvisionError
from provision.inventory.load import load
from provision.inventory.sources import shown
from provision.model import Cluster, Secret

_HEADER = """\
# Pre-existing configuration of the nodes, recorded by `provision adopt`. Edit it to change the configuration.
"""
_ENDS = ("", ".yml", ".yaml", ".json")
"""File names in Ansible's order; the first that exists is used."""
_UNREADABLE = ("$ANSIBLE_VAULT", "{", "[")


@dataclass(frozen=True)
class Addition:
    """Variables to add to one file."""

    file: Path
    node: str | None
    """Host of the file; None for all nodes."""
    variables: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """Return the variables as YAML."""
        return "".join(f"{name}: {_value(value)}\n" for name, value in self.variables.items())


def _value(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()


def additions(cluster: Cluster, wanted: Mapping[str, Mapping[str, Any]]) -> tuple[Addition, ...]:
    """Return the additions per file: variables with the same value on every node are added for all nodes.

    Args:
        cluster: The loaded inventory.
        wanted: Node -> variables that the inventory does not set there. Unknown nodes are omitted.
    """
    first, *others = [wanted.get(node.name) for node in cluster.nodes]
    alike = {
        name: value
        for name, value in (first or {}).items()
        if all(other is not None and name in other and other[name] == value for other in others)
    }
    base = cluster.inventory if cluster.inventory.is_dir() else cluster.inventory.parent
    parts = [Addition(_file(base / "group_vars", "all"), None, alike)]
    for node in cluster.nodes:
        own = {name: value for name, value in (wanted.get(node.name) or {}).items() if name not in alike}
        parts.append(Addition(_file(base / "host_vars", node.name), node.name, own))
    return tuple(addition for addition in parts if addition.variables)


def _file(folder: Path, name: str) -> Path:
    """Return the file that Ansible reads for a group or host; in a folder of such files, our own file."""
    there = next((path for end in _ENDS if (path := folder / f"{name}{end}").exists()), None)
    if there is None:
        return folder / f"{name}.yml"
    return there / "adopted.yml" if there.is_dir() else there


def record(cluster: Cluster, parts: tuple[Addition, ...], *, become_password: Secret | None = None) -> None:
    """Add the variables to the files, and verify that the inventory changes by nothing else.

    Raises:
        ProvisionError: A file cannot be written or extended. No file was changed.
    """
    before = {part.file: _read(part) for part in parts}
    try:
        for part in parts:
            _write(part.file, _joined(before[part.file], part))
        _insist(cluster, load(cluster.inventory, become_password=become_password), parts)
    except BaseException:
        for file, text in before.items():
            _restore(file, text)
        raise


def set_for_hosts(
    cluster: Cluster, wanted: Mapping[str, Mapping[str, Any]], *, become_password: Secret | None = None
) -> tuple[Path, ...]:
    """Set variables of hosts in host_vars, replacing their present values, without other changes.

    Args:
        cluster: The loaded inventory.
        wanted: Node -> variables.
        become_password: Password with which it was loaded.

    Returns:
        The written files.

    Raises:
        ProvisionError: A file cannot be written, or other values would change. No file was changed.
    """
    base = cluster.inventory if cluster.inventory.is_dir() else cluster.inventory.parent
    parts = tuple(Addition(_file(base / "host_vars", name), name, own) for name, own in wanted.items() if own)
    before = {part.file: _read(part) for part in parts}
    try:
        for part in parts:
            _write(part.file, _with(before[part.file], part))
        _insist(cluster, load(cluster.inventory, become_password=become_password), parts)
    except BaseException:
        for file, text in before.items():
            _restore(file, text)
        raise
    return tuple(part.file for part in parts)


def _with(text: str | None, part: Addition) -> str:
    """Return the file with the variables, each in place of its present value, otherwise at the end."""
    lines = (text or "---\n").splitlines()
    for name, value in part.variables.items():
        line = f"{name}: {_value(value)}"
        begin, end = _lines_of(name, "\n".join(lines), part)
        lines[begin:end] = [line]
    return "\n".join(lines) + "\n"


def _lines_of(name: str, text: str, part: Addition) -> tuple[int, int]:
    """Return start and end of a variable in the text; the end of the file if it is missing."""
    lines = text.splitlines()
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _by_hand(part, f"{shown(part.file)} is not valid YAML") from error
    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value):
        return len(lines), len(lines)
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        raise _by_hand(part, f"{shown(part.file)} does not have one variable per line")
    keys = [key for key, _ in root.value]
    starts = [key.start_mark.line for key in keys]
    at = next((number for number, key in enumerate(keys) if key.value == name), None)
    if at is None:
        return len(lines), len(lines)
    end = starts[at + 1] if at + 1 < len(starts) else len(lines)
    while end - 1 > starts[at] and lines[end - 1].lstrip()[:1] in {"", "#"}:
        end -= 1
    return starts[at], end


def _read(part: Addition) -> str | None:
    try:
        text = part.file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _by_hand(part, f"{shown(part.file)} cannot be read") from error
    if text.lstrip().startswith(_UNREADABLE):
        raise _by_hand(part, f"{shown(part.file)} is encrypted or in braces, and cannot be extended")
    return text


def _joined(text: str | None, part: Addition) -> str:
    if not (text or "").strip():
        return f"---\n{_HEADER}{part.text()}"
    header = "" if _HEADER in str(text) else f"\n{_HEADER}"
    return f"{str(text).rstrip()}\n{header}{part.text()}"


def _insist(before: Cluster, after: Cluster, parts: tuple[Addition, ...]) -> None:
    for node in before.nodes:
        wanted = dict(node.variables)
        for part in parts:
            wanted |= part.variables if part.node in {None, node.name} else {}
        if dict(after.node(node.name).variables) != wanted:
            raise _by_hand(parts[0], f"the variables added to {shown(parts[0].file)} do not have the intended values")


def _by_hand(part: Addition, why: str) -> InventoryError:
    return InventoryError(
        f"{why}; the inventory was not changed",
        remedy="Add these lines manually, then run adopt again:\n" + part.text(),
    )


def _write(file: Path, text: str) -> None:
    """Write a file atomically. An existing file keeps its mode, and a link remains a link."""
    real = file.resolve()
    draft = real.with_name(f".{real.name}.new")
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        if real.exists():
            draft.chmod(real.stat().st_mode & 0o7777)
        draft.replace(real)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ProvisionError(
            f"{shown(file)} cannot be written: {error.strerror}",
            remedy="The inventory was not changed. Make it writable, or add the lines of --dry-run manually.",
        ) from error


def _restore(file: Path, text: str | None) -> None:
    if text is not None:
        if file.read_text(encoding="utf-8") != text:
            _write(file, text)
        return
    file.unlink(missing_ok=True)
    try:
        file.parent.rmdir()
    except OSError:
        return  # it has other files, or was not created
