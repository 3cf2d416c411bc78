"""``provision adopt``: record pre-existing configuration in the inventory."""

from __future__ import annotations

from typing import Annotated

import typer

from provision.cli.common import JsonOption, NodeOptions, YesOption, confirm, note, print_json, say, show
from provision.cli.option_groups import with_option_groups


@with_option_groups
def adopt(
    where: NodeOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be recorded.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Record pre-existing settings in the inventory.

    Pre-existing settings, packages and modules of the nodes become variables of the inventory.

    Probes Docker and its settings, the NVIDIA runtime, the RDMA stack and peer memory; the nodes are not
    changed. Variables that the inventory already sets are not changed. Settings that are the same on all nodes are
    added to group_vars/all, others to host_vars. Read them, commit them, and edit those that you want to change. A
    second adopt records nothing. The exit code is 1 when the probe of a node failed.

    \b
    Examples:
      provision adopt --dry-run
      provision adopt -i inventories/prod && provision plan -i inventories/prod
      provision adopt --limit gpu3 --yes --json
    """
    from provision import workflow
    from provision.inventory.sources import shown
    from provision.report.adopt_report import as_document, as_text

    cluster = where.cluster()
    nodes = workflow.chosen(cluster, where.limit)
    note(f"probe {len(nodes)} node{'s' * (len(nodes) != 1)} of {cluster.inventory}")
    adoptions, parts = workflow.plan_adopt(cluster, nodes)
    texts = {shown(part.file): part.text() for part in parts}
    going = bool(parts) and not dry_run
    if not as_json and not going:
        show(as_text(adoptions, texts))
    if going:
        say(as_text(adoptions, texts))
        confirm(f"\nAdd this to {len(parts)} file{'s' * (len(parts) != 1)} of the inventory?", yes=yes)
        workflow.adopt(cluster, parts, become_password=where.become_password)
    if as_json:
        print_json(as_document(adoptions, {shown(part.file): part.variables for part in parts}, written=going))
    elif going:
        count = sum(bool(node.record) for node in adoptions)
        show(f"Recorded for {count} node{'s' * (count != 1)}. To see pending changes: provision plan")
    raise typer.Exit(1 if any(node.error for node in adoptions) else 0)
