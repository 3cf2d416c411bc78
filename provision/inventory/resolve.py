"""Which inventory is meant when several ways of saying it exist."""

from __future__ import annotations

import os
from pathlib import Path

from provision.errors import UsageError
from provision.inventory.configuration import PROJECT_FILE, configured_inventory
from provision.inventory.ignored_files import is_ignored
from provision.inventory.sources import inventory_files

__all__ = ["FOLDER", "candidates", "resolve"]

FOLDER = Path("inventories")
"""Where ``init`` writes inventories, in the current folder."""


def resolve(inventory: str | None, lab: str | None) -> Path:
    """Return the path of the inventory to use.

    Args:
        inventory: what ``--inventory`` says; without it, the environment's PROVISION_INVENTORY, else what a
            configuration file names.
        lab: the path of a lab's inventory, which the caller looked up.

    Raises:
        UsageError: when none is said and there is not exactly one under ``./inventories`` other than ``example``.
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
    found = candidates()
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(
            "no inventory is named, and there is none under ./inventories",
            remedy="Write one with: provision init 'gpu[1-8]' --user USER   (or try the lab: provision lab up demo)",
        )
    raise UsageError(
        "no inventory is named, and ./inventories has several: " + ", ".join(path.name for path in found),
        remedy=f'Choose one with -i {found[0]}, or for good with this line in {PROJECT_FILE}: inventory = "{found[0]}"',
    )


def candidates(folder: Path = FOLDER) -> list[Path]:
    """Return the inventories under `folder` other than the documented example; backups and empty folders are none."""
    if not folder.is_dir():
        return []
    entries = (entry for entry in folder.iterdir() if entry.name != "example" and not is_ignored(entry.name))
    return sorted(entry for entry in entries if inventory_files(entry))
