"""``provision gdr``: GPUDirect RDMA paths of nodes or of a described machine."""

from __future__ import annotations

from typing import Annotated

import typer

from provision.cli.common import JsonOption, NodeOptions, VerboseOption, note, print_json, show
from provision.cli.option_groups import with_option_groups
from provision.errors import UsageError


@with_option_groups
def gdr(
    where: NodeOptions,
    assume: Annotated[
        str | None,
        typer.Option(
            "--assume",
            metavar="KEY=VALUE,...",
            help="Evaluate this machine instead of nodes: driver=V, modules=open|proprietary, kernel=V, "
            "stack=inbox|inbox-peer|ofed|ofed-4.9, gpu=GPU, nccl=V, cards=hard|soft|none, peermem=stub|missing|both.",
        ),
    ] = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the GPUDirect RDMA path and the reason.

    The path is how network cards access GPU memory.

    The path is dma_buf, nvidia_peermem, nv_peer_mem or none. The report lists the unmet preconditions of the other
    paths with remedies, the remaining steps for the chosen path, and the variables for NCCL. Nothing is changed.
    The exit code is 1 when a node could not be evaluated.

    With --assume no node is probed. GPU is a product, such as H100, or its architecture: maxwell, pascal, volta,
    turing, ampere, ada, hopper, grace-hopper or blackwell. Driver, kernel and stack are required.
    stack=inbox-peer is the stack of a kernel that exports the peer memory interface, as some of Ubuntu's do.
    cards=soft is Soft-RoCE. peermem is the problem of the module: a stub that was built before the RDMA stack was
    installed, none for this kernel, or both nvidia-peermem and nv_peer_mem loaded.

    \b
    Examples:
      provision gdr
      provision gdr -i inventories/prod --limit 'gpu[1-4]' --json
      provision gdr --assume driver=570.133.20,kernel=6.8.0,stack=inbox,gpu=H100
      provision gdr --assume driver=535,kernel=6.8,stack=ofed,gpu=volta,nccl=2.20
      provision gdr --assume driver=550,modules=proprietary,kernel=6.5,stack=inbox
      provision gdr --assume driver=535,kernel=5.15,stack=ofed,peermem=stub
    """
    if assume is not None:
        if where.is_given or where.limit is not None:
            raise UsageError("--assume probes no node and excludes --inventory, --lab and --limit", remedy="Omit them.")
        _assumed(assume, as_json=as_json)
        return
    from provision import workflow
    from provision.report.gdr_report import nodes_document, nodes_text

    cluster = where.cluster()
    nodes = workflow.chosen(cluster, where.limit)
    note(f"gdr {cluster.inventory} on {len(nodes)} node{'s' * (len(nodes) != 1)}")
    judged = workflow.gdr(cluster, where.limit)
    if as_json:
        print_json(nodes_document(judged))
    else:
        show(nodes_text(judged, verbose=verbose))
    raise typer.Exit(1 if any(node.error is not None for node in judged) else 0)


def _assumed(text: str, *, as_json: bool) -> None:
    from provision.gdr import assumed, verdict
    from provision.report.gdr_report import as_document, as_text

    judged = verdict(assumed(text))
    if as_json:
        print_json(as_document(judged))
    else:
        show(as_text(judged))
