"""Write variables into an inventory: into the files of its groups and hosts, below what stands there, or not at all."""

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

__all__ = ["Addition", "additions", "record", "set_for_hosts"]

_HEADER = """\
# What others set up on the nodes, kept as it stands: recorded by `provision adopt`. Change it to ask for another.
"""
_ENDS = ("", ".yml", ".yaml", ".json")
"""In the order in which Ansible looks; it takes the first that is there."""
_UNREADABLE = ("$ANSIBLE_VAULT", "{", "[")


@dataclass(frozen=True)
class Addition:
    """What is to be added to one file."""

    file: Path
    node: str | None
    """Whose file it is; None: of all nodes."""
    variables: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """Return the variables as YAML."""
        return "".join(f"{name}: {_value(value)}\n" for name, value in self.variables.items())


def _value(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()


def additions(cluster: Cluster, wanted: Mapping[str, Mapping[str, Any]]) -> tuple[Addition, ...]:
    """Return what to add where: for all nodes at once what is wanted alike on every node of the inventory.

    Args:
        cluster: as it was loaded.
        wanted: node -> variables, which the inventory does not set there; a node of which nothing is known is left out.
    """
    first, *others = [wanted.get(node.name) for node in cluster.nodes]
    alike = {
        name: value
        for name, value in (first or {}).items()
        if all(other is not None and name in other and other[name] == value for other in others)
    }
    base = cluster.inventory if cluster.inventory.is_dir() else cluster.inventory.parent
    found = [Addition(_file(base / "group_vars", "all"), None, alike)]
    for node in cluster.nodes:
        own = {name: value for name, value in (wanted.get(node.name) or {}).items() if name not in alike}
        found.append(Addition(_file(base / "host_vars", node.name), node.name, own))
    return tuple(addition for addition in found if addition.variables)


def _file(folder: Path, name: str) -> Path:
    """Return the file that Ansible reads for a group or host; of a folder of such files one of our own."""
    there = next((path for end in _ENDS if (path := folder / f"{name}{end}").exists()), None)
    if there is None:
        return folder / f"{name}.yml"
    return there / "adopted.yml" if there.is_dir() else there


def record(cluster: Cluster, parts: tuple[Addition, ...], *, become_password: Secret | None = None) -> None:
    """Add the variables to the files, and see that the inventory then says just that more.

    Raises:
        ProvisionError: a file cannot be written, or cannot be added to; every file is as it was.
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
    """Give hosts variables of their own, in host_vars, in place of what stands there; all else stays as it is written.

    Args:
        cluster: as it was loaded.
        wanted: node -> variables.
        become_password: as it was loaded with.

    Returns:
        The files that were written.

    Raises:
        ProvisionError: a file cannot be written, or the inventory would say something else; every file is as it was.
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
    """Return the file with the variables, each where it stands already, else at the end."""
    lines = (text or "---\n").splitlines()
    for name, value in part.variables.items():
        line = f"{name}: {_value(value)}"
        begin, end = _lines_of(name, "\n".join(lines), part)
        lines[begin:end] = [line]
    return "\n".join(lines) + "\n"


def _lines_of(name: str, text: str, part: Addition) -> tuple[int, int]:
    """Return where a variable stands, from and to; the end of the file for one that does not."""
    lines = text.splitlines()
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _by_hand(part, f"{shown(part.file)} is no YAML") from error
    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value):
        return len(lines), len(lines)
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        raise _by_hand(part, f"{shown(part.file)} does not have its variables one below the other")
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
        raise _by_hand(part, f"{shown(part.file)} is encrypted, or written between braces, and cannot be added to")
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
            raise _by_hand(parts[0], f"what was added to {shown(parts[0].file)} does not come out as it was meant")


def _by_hand(part: Addition, why: str) -> InventoryError:
    return InventoryError(
        f"{why}; the inventory was left as it was", remedy="Add these lines yourself, then adopt again:\n" + part.text()
    )


def _write(file: Path, text: str) -> None:
    """Whole or not at all; a file that is there keeps its mode, and a link stays one."""
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
            remedy="The inventory was left as it was. Make it writable, or add yourself what --dry-run shows.",
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
        return  # it has other files, or was never made
