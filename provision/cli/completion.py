"""Shell completion of node, job, lab and role names. It never connects to a node and returns quickly.

Nodes are those of the inventory; jobs those of the last `list` or `submit` on this machine. On an error there are no
completions, because a message would corrupt the command line.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

_SECONDS = 4.0
"""Time limit for an inventory that is not in the cache."""
_LINES = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
"""Variables in which shells pass the command line: bash, and all others."""
_AHEAD = {"--inventory": "PROVISION_INVENTORY", "-i": "PROVISION_INVENTORY", "--lab": "PROVISION_COMPLETE_LAB"}


def complete_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the nodes with this prefix."""
    return _beginning(incomplete, lambda: [*_listing(ctx).nodes])


def complete_patterns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the nodes and groups with this prefix; after a comma, completions of the next one in the list."""
    before, comma, last = incomplete.rpartition(",")

    def names() -> list[str]:
        listing = _listing(ctx)
        groups = {group for own in listing.groups_of.values() for group in own}
        return [*listing.nodes, *sorted(groups)]

    return [before + comma + name for name in _beginning(last, names)]


def complete_jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the jobs with this prefix."""
    from provision.workflow.job_names import known_job_names

    return _beginning(incomplete, lambda: known_job_names(_inventory(ctx)))


def complete_labs(incomplete: str) -> list[str]:
    """Return the labs with this prefix."""
    from provision.lab.state import known_labs

    return _beginning(incomplete, known_labs)


def complete_lab_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the nodes of the lab in the preceding words."""
    from provision.lab.state import lab_folder, load_spec

    def names() -> list[str]:
        spec = load_spec(lab_folder(str(ctx.params.get("name") or "")))
        return [f"{spec.name}-{number}" for number in range(1, spec.nodes + 1)] if spec else []

    return _beginning(incomplete, names)


def complete_roles(incomplete: str) -> list[str]:
    """Return the roles with this prefix."""
    from provision.components import ROLES

    return _beginning(incomplete, lambda: ROLES)


def complete_words(*words: str) -> Callable[[str], list[str]]:
    """Return a function that completes one of these words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def prepare(aliases: Mapping[str, str]) -> None:
    """Normalize the command line like a call: options before the verb, and aliases."""
    given = os.environ.get("COMP_CWORD", "")
    depth = int(given) if given.isdecimal() else 0
    for variable in _LINES:
        line = os.environ.get(variable)
        if not line:
            continue
        try:
            words = shlex.split(line)
        except ValueError:
            continue
        end = " " if line.endswith(" ") else ""
        while len(words) > 3 and words[1] in _AHEAD:  # noqa: PLR2004 - program, option, value, and a further word
            os.environ[_AHEAD[words[1]]] = words[2]
            del words[1:3]
            depth -= 2
        if len(words) > 1 and (words[2:] or end):
            words[1] = aliases.get(words[1], words[1])
        os.environ[variable] = shlex.join(words) + end
        if "COMP_CWORD" in os.environ:
            os.environ["COMP_CWORD"] = str(depth)


def _beginning(incomplete: str, names: Callable[[], Iterable[str]]) -> list[str]:
    """Return the names with this prefix; none if they are not known in time, and no process remains."""
    from provision.local_processes import end_descendants
    from provision.threads import within

    try:
        completions = within(_SECONDS, names)
        if completions is None:
            end_descendants()
        return [name for name in completions or () if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a shell expects words, not errors
        return []


def _listing(ctx: typer.Context) -> Any:
    from provision.inventory.listing import list_inventory

    return list_inventory(_inventory(ctx))


def _inventory(ctx: typer.Context) -> Path:
    from provision.inventory import resolve
    from provision.lab.manager import inventory_path

    lab = ctx.params.get("lab") or os.environ.get("PROVISION_COMPLETE_LAB")
    return inventory_path(lab) if lab else resolve(ctx.params.get("inventory"), None)
