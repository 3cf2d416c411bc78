"""Change variables in the files of an inventory's groups and hosts, all of them or none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from provision.errors import InventoryError, ProvisionError
from provision.inventory.load import load
from provision.inventory.sources import shown
from provision.inventory.write import sets_variable, with_variables
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
    """Return the additions per file: variables with the same value on every node are added for all nodes."""
    first, *others = [wanted.get(node.name) for node in cluster.nodes]
    alike = {
        name: value
        for name, value in (first or {}).items()
        if all(other is not None and name in other and other[name] == value for other in others)
    }
    base = inventory_folder(cluster)
    parts = [Addition(vars_file(base / "group_vars", "all"), None, alike)]
    for node in cluster.nodes:
        own = {name: value for name, value in (wanted.get(node.name) or {}).items() if name not in alike}
        parts.append(Addition(vars_file(base / "host_vars", node.name), node.name, own))
    return tuple(addition for addition in parts if addition.variables)


def inventory_folder(cluster: Cluster) -> Path:
    """Return the folder of group_vars and host_vars."""
    return cluster.inventory if cluster.inventory.is_dir() else cluster.inventory.parent


def vars_file(folder: Path, name: str, own: str = "adopted.yml") -> Path:
    """Return the file that Ansible reads for a group or host; in a folder of such files, the file `own`."""
    there = _existing(folder, name)
    if there is None:
        return folder / f"{name}.yml"
    return there / own if there.is_dir() else there


def file_with(folder: Path, name: str, variables: Collection[str]) -> Path | None:
    """Return the YAML file of a group or host that sets one of the variables; None if no file does."""
    there = _existing(folder, name)
    if there is None:
        return None
    files = sorted(there.rglob("*.y*ml")) if there.is_dir() else [there]
    return next((file for file in files if sets_variable(file, variables)), None)


def _existing(folder: Path, name: str) -> Path | None:
    return next((path for end in _ENDS if (path := folder / f"{name}{end}").exists()), None)


def record(cluster: Cluster, parts: tuple[Addition, ...], *, become_password: Secret | None = None) -> None:
    """Add the variables to the files, and verify that the inventory changes by nothing else.

    Raises:
        ProvisionError: A file cannot be written or extended. No file was changed.
    """
    texts = {part.file: _joined(_read(part), part) for part in parts}
    change_files(cluster, texts, lambda after: _insist(cluster, after, parts), become_password=become_password)


def set_for_hosts(
    cluster: Cluster, wanted: Mapping[str, Mapping[str, Any]], *, become_password: Secret | None = None
) -> tuple[Path, ...]:
    """Set variables of hosts in host_vars, in place of their present values, and return the written files.

    Raises:
        ProvisionError: A file cannot be written, or other values would change. No file was changed.
    """
    folder = inventory_folder(cluster) / "host_vars"
    parts = [Addition(vars_file(folder, name), name, own) for name, own in wanted.items() if own]
    texts = {part.file: with_variables(_read(part) or "---\n", part.variables, part.file) for part in parts}
    change_files(cluster, texts, lambda after: _insist(cluster, after, parts), become_password=become_password)
    return tuple(texts)


def change_files(
    cluster: Cluster,
    texts: Mapping[Path, str],
    check: Callable[[Cluster], None] = lambda _: None,
    *,
    become_password: Secret | None = None,
) -> Cluster:
    """Write files of an inventory and return the changed cluster; `check` raises an error if it is not as intended.

    Raises:
        ProvisionError: A file cannot be written, or the inventory is invalid then. No file was changed.
    """
    before = {file: file.read_text(encoding="utf-8") if file.is_file() else None for file in texts}
    try:
        for file, text in texts.items():
            _write(file, text)
        after = load(cluster.inventory, become_password=become_password)
        check(after)
    except BaseException:
        for file, text_before in before.items():
            _restore(file, text_before)
        raise
    return after


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


def _insist(before: Cluster, after: Cluster, parts: Sequence[Addition]) -> None:
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
