"""The lock file of a stack in the folder of an inventory: read strictly, and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from provision.documents.stack_lock import MOST_BYTES, document_of, stack_of
from provision.errors import InventoryError, NodeError, ProvisionError
from provision.inventory.sources import shown
from provision.local_files import write_private
from provision.model.reason import reason
from provision.model.stack import STACK_LOCK_FILE, Stack
from provision.report.reasons import error_of
from provision.stack.conflicts import conflicts_of
from provision.yamltext import compose, events, safe_load

_DEPTH = 6
"""Levels of a lock file are fewer."""
_HEAD = """\
# The versions of a node that passed `provision verify --level full`, written by `provision stack lock`.
# `provision apply` brings the nodes of this inventory to them, and holds the packages.
"""


def lock_path(inventory: Path) -> Path:
    """Return the path of the lock file of an inventory, which is a file or a folder."""
    full = inventory.absolute()
    return (full if full.is_dir() else full.parent) / STACK_LOCK_FILE


def read_stack_lock(path: Path) -> Stack | None:
    """Return the stack of a lock file; None if there is no file.

    Raises:
        InventoryError: it is not a lock file, or its combination is known not to work.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _invalid(path, error.strerror or "it cannot be read") from error
    if len(content) > MOST_BYTES:
        raise _invalid(path, f"more than {MOST_BYTES} bytes")
    try:
        text = content.decode()
        _check_form(text)
        stack = stack_of(safe_load(text))
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise _invalid(path, " ".join(str(error).split())[:300]) from error
    conflict = next(conflicts_of(stack), None)
    if conflict is not None:
        raise error_of(InventoryError, reason("stack.lock.conflict", file=shown(path), cause=conflict))
    return stack


def _check_form(text: str) -> None:
    """Refuse what YAML permits and no lock has: aliases, deep nesting, and keys that occur twice.

    Raises:
        ValueError: the file has one of them.
    """
    depth = 0
    for event in events(text):  # deep nesting would crash libyaml's composer
        if event.__class__ is yaml.AliasEvent:
            raise ValueError("aliases are not allowed")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH:
            raise ValueError(f"more than {_DEPTH} levels of nesting")
    _check_keys(compose(text))


def _check_keys(node: Any) -> None:
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise ValueError(f"the key {twice!r} occurs twice")
        for _, value in node.value:
            _check_keys(value)


def write_stack_lock(path: Path, stack: Stack) -> None:
    """Write a lock file.

    Raises:
        NodeError: the node reports a version that no lock file can have.
        ProvisionError: the file cannot be written.
    """
    try:
        document = document_of(stack)
    except ValueError as error:
        raise error_of(NodeError, reason("stack.lock.value", cause=str(error)), node=stack.node) from error
    try:
        text = _HEAD + yaml.safe_dump(document, sort_keys=False, default_flow_style=False)
        write_private(path, text, mode=0o644)
    except OSError as error:
        raise ProvisionError(
            f"{shown(path)} could not be written: {error.strerror}", remedy="Name a file that can be written: --out"
        ) from error


def _invalid(path: Path, cause: str) -> InventoryError:
    return error_of(InventoryError, reason("stack.lock.invalid", file=shown(path), cause=cause))
