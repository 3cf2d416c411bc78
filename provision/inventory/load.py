"""Load an inventory as a `Cluster`, or report all its problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from provision.errors import InventoryError
from provision.inventory.connection import CONNECTION_KEYS, SECRET_KEYS, connection_of, connection_problems
from provision.inventory.listing import NODE_GROUP, Listing, list_inventory
from provision.inventory.people import people_problems
from provision.inventory.problems import worded
from provision.inventory.sources import SourceIndex, shown, variable_files
from provision.inventory.specs import read_specs
from provision.inventory.stack_lock import lock_path, read_stack_lock
from provision.inventory.templates import has_template, is_vault, read_keys, rendered
from provision.inventory.validate import cluster_problems, doubtful_names, variable_problems
from provision.model import Cluster, Connection, Node, Secret
from provision.resources import roles_folder

AGENT_ACCOUNT = "provision-jobs"
"""Default of ``cluster_agent_account``; a test compares it with the role's default."""
TRUE = frozenset({"true", "yes", "on", "1", "y", "t"})


def load(path: Path, *, become_password: Secret | None = None, roles: Path | None = None) -> Cluster:
    """Read and validate an Ansible inventory without connecting to a node.

    Raises:
        InventoryError: All problems, each with file and line or with its host.
    """
    listing = list_inventory(path)
    specs = read_specs(roles or roles_folder())
    values = rendered(path, listing, CONNECTION_KEYS)
    connections = {name: connection_of(name, values[name], become_password) for name in listing.nodes}
    problems = [
        *cluster_problems(listing, connections),
        *(problem for name in listing.nodes for problem in connection_problems(name, values[name])),
        *variable_problems(listing, specs),
    ]
    sources = SourceIndex(path)
    if problems:
        raise _refusal(path, worded(problems, listing, sources), listing.warnings)
    doubts = worded(doubtful_names(listing, specs), listing, sources)
    read = rendered(path, listing, read_keys(listing), all_needed=False)
    problems = list(people_problems(listing.nodes, read))
    if problems:
        raise _refusal(path, worded(problems, listing, sources), listing.warnings)
    connections = {name: _with_agent(connections[name], read[name]) for name in listing.nodes}
    nodes = tuple(
        _without_jobs(
            Node(
                name, connections[name], _hidden({**listing.hosts[name], **read[name]}), listing.groups_of.get(name, ())
            )
        )
        for name in listing.nodes
    )
    warnings = (*listing.warnings, *doubts, *_unused_files(path, listing))
    return Cluster(_name(path, nodes), path.absolute(), nodes, warnings, read_stack_lock(lock_path(path)))


def _refusal(path: Path, lines: Sequence[str], warnings: Sequence[str]) -> InventoryError:
    remedy = "Correct the inventory. No node was connected to or changed."
    if len(lines) == 1:
        text = lines[0] if lines[0].startswith(shown(path)) else f"{shown(path)}: {lines[0]}"
        return InventoryError(text, remedy=remedy, output="\n".join(warnings))
    listed = "\n".join(f"  {line}" for line in lines)
    return InventoryError(
        f"{shown(path)} has {len(lines)} problems:\n{listed}", remedy=remedy, output="\n".join(warnings)
    )


def _without_jobs(node: Node) -> Node:
    """Return the node with the job roles disabled if it takes no jobs; the Ansible roles do the same."""
    if node.takes_jobs:
        return node
    from provision.components import JOB_ROLES

    return replace(node, variables={**node.variables, **{f"{role}_enabled": False for role in JOB_ROLES}})


def _with_agent(connection: Connection, variables: Mapping[str, Any]) -> Connection:
    """Return the connection with whether it connects to the node agent."""
    account = variables.get("cluster_agent_account") or AGENT_ACCOUNT
    wanted = str(variables.get("cluster_agent", "")).strip().lower() in TRUE or connection.user == account
    return replace(connection, user=connection.user or str(account), agent=True) if wanted else connection


def _hidden(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Convert passwords to `Secret`, so that no report or log prints them."""
    return {
        key: Secret(str(value)) if key in SECRET_KEYS and not is_vault(value) else value
        for key, value in variables.items()
    }


def _name(path: Path, nodes: Sequence[Node]) -> str:
    given = nodes[0].variables.get("cluster_name")
    if isinstance(given, str) and given and not has_template(given):
        return given
    full = path.absolute()
    return full.name if full.is_dir() else full.parent.name if full.stem in ("hosts", "inventory") else full.stem


def _unused_files(path: Path, listing: Listing) -> list[str]:
    """Return warnings for variable files that Ansible never reads."""
    pairs = ((file, _why_unused(kind, name, file, listing)) for kind, name, file in variable_files(path))
    return [f"{shown(file)}: {why}" for file, why in pairs if why]


def _why_unused(kind: str, name: str, file: Path, listing: Listing) -> str:
    """Return why Ansible does not read a variable file, empty if it does."""
    known: Mapping[str, Any] = listing.groups if kind == "group" else listing.hosts
    if name not in known and name not in ("all", "ungrouped", NODE_GROUP):
        groups = f"; there are {', '.join(sorted({'all', *known} - {'ungrouped'}))}" if kind == "group" else ""
        return f"no {kind} is named {name}, so this file has no effect{groups}"
    if file.parent.name == f"{kind}_vars" and file.name != name and (file.parent / name).is_dir():
        return f"Ansible reads the folder {name} beside this file instead, so the file has no effect"
    return ""
