"""``provision reload``: reload the peer memory module, as the nodes do at boot."""

from __future__ import annotations

import typer

from provision.cli.common import JsonOption, NodeOptions, VerboseOption, YesOption, confirm, note, print_json, say, show
from provision.cli.option_groups import with_option_groups


@with_option_groups
def reload(
    where: NodeOptions,
    yes: YesOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Reload the modules that GPUDirect RDMA needs.

    Does the same as every node at boot.

    The module is unloaded. Then the node's own unit checks, loads and, if required, builds it, within two
    minutes, on all nodes in parallel. On success the node accepts jobs again. A node on which a job runs, or
    whose module is in use, is not changed. The exit code is 1 when a node is not ready afterwards.

    \b
    Examples:
      provision reload
      provision reload --limit gpu3 --yes
      provision reload -i inventories/prod --limit 'gpu[1:4]' --yes --json
    """
    from provision import workflow
    from provision.report.node_names import in_short
    from provision.report.reload_report import as_document, as_text

    cluster = where.cluster()
    nodes = workflow.chosen(cluster, where.limit)
    names = in_short([node.name for node in nodes])
    note(f"reload {cluster.inventory} on {len(nodes)} node{'s' * (len(nodes) != 1)}: {names}")
    which = "this node" if len(nodes) == 1 else "these nodes"
    confirm(f"Unload the peer-memory module on {which} and load it again?", yes=yes)
    done = workflow.reload(cluster, where.limit, on_warning=lambda warning: say(f"warning: {warning}"))
    if as_json:
        print_json(as_document(done))
    else:
        show(as_text(done, verbose=verbose))
    raise typer.Exit(0 if all(node.result.ok for node in done) else 1)
