"""``provision init`` on an existing inventory: change its image or its package repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from provision.cli.common import confirm, note, print_json, say

if TYPE_CHECKING:
    from provision.cli.init_questions import SiteOptions
    from provision.inventory.init import InitRequest
    from provision.report.json_documents.inventories import ChangedInventory


def change_inventory(request: InitRequest, site: SiteOptions, *, yes: bool, as_json: bool) -> None:
    """Change the given settings of an existing inventory, after a question."""
    from provision.cli.init_questions import new_values
    from provision.inventory.site_change import change_settings, plan_change
    from provision.inventory.sources import shown

    change = plan_change(request, new_values(site, yes=yes))
    path = shown(change.cluster.inventory)
    if change.variables:
        say(f"{shown(change.file)}:")
        for name, value in change.variables.items():
            say(f"  {name}")
            say(f"    old: {_brief(change.before(name))}")
            say(f"    new: {_brief(value)}")
        confirm(f"Change {'this variable' if len(change.variables) == 1 else 'these variables'}?", yes=yes)
        change_settings(change)
        note(f"{path}: changed {', '.join(change.variables)}")
        note(f"Next: provision plan -i {path}")
    else:
        note(f"{path}: unchanged; it has these settings already")
    if as_json:
        cluster = change.cluster
        document: ChangedInventory = {
            "name": cluster.name,
            "inventory": str(cluster.inventory),
            "changed": list(change.variables),
        }
        print_json(document)


def _brief(value: Any) -> str:
    """Return a value on one line; keys and certificates as number and size."""
    if value is None:
        return "(not set)"
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return ", ".join(f"certificate for {item.get('registry')}" for item in value) or "(none)"
    text = str(value)
    return f"({len(text.splitlines())} lines)" if "\n" in text.strip() else text or "(none)"
