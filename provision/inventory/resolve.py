"""Select the inventory from options, environment, configuration files and folders."""

from __future__ import annotations

import os
from pathlib import Path

from provision.errors import UsageError
from provision.inventory.configuration import PROJECT_FILE, configured_inventory
from provision.inventory.ignored_files import is_ignored
from provision.inventory.sources import inventory_files

FOLDER = Path("inventories")
"""Folder in which ``init`` creates inventories, relative to the current folder."""


def resolve(inventory: str | None, lab: str | None) -> Path:
    """Return the path of the inventory to use.

    Raises:
        UsageError: No inventory is given, and ``./inventories`` does not contain exactly one other than ``example``.
    """
    if lab:
        return Path(lab)
    said = inventory or os.environ.get("PROVISION_INVENTORY")
    if said:
        path = Path(said).expanduser()
        short = FOLDER / said
        return short if not path.exists() and "/" not in said and short.exists() else path
    configured = configured_inventory()
    if configured is not None:
        return configured
    inventories = candidates()
    if len(inventories) == 1:
        return inventories[0]
    if not inventories:
        raise UsageError(
            "no inventory given, and ./inventories has none",
            remedy="Create one with: provision init 'gpu[1-8]' --user USER   (or use a lab: --lab NAME; "
            "`provision lab list` shows them)",
        )
    raise UsageError(
        "no inventory given, and ./inventories has several: " + ", ".join(path.name for path in inventories),
        remedy=f"Select one with -i {inventories[0]}, "
        f'or permanently with this line in {PROJECT_FILE}: inventory = "{inventories[0]}"',
    )


def candidates(folder: Path = FOLDER) -> list[Path]:
    """Return the inventories in `folder` except the documented example, backups and empty folders."""
    if not folder.is_dir():
        return []
    entries = (entry for entry in folder.iterdir() if entry.name != "example" and not is_ignored(entry.name))
    return sorted(entry for entry in entries if inventory_files(entry))
