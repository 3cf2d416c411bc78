"""``provision stack``: lock, compare and predict the versions of kernel, driver and software of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from provision.cli.common import (
    InventoryOption,
    JsonOption,
    LabOption,
    LimitOption,
    cluster_from,
    note,
    print_json,
    show,
)
from provision.cli.completion import complete_nodes
from provision.cli.levels import patience
from provision.errors import NotFound, UsageError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Lock, compare and predict the stack of nodes.

The stack is the kernel with its headers, RDMA stack, NVIDIA driver, fabric manager, container toolkit, docker and
training image. `provision apply` brings nodes to the versions of stack.lock.yml.

\b
Examples:
  provision stack lock gpu1
  provision stack diff stack.lock.yml gpu2
  provision stack check
""",
)


@app.command("lock")
def lock(
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="Node that passes verify.", autocompletion=complete_nodes)
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", dir_okay=False, help="Write here instead of beside the inventory."),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept", metavar="CONFLICT", help="Known conflict that does not apply here. Repeatable."),
    ] = None,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write stack.lock.yml with the versions of a node.

    Runs `provision verify --level full` on all nodes (or --limit), because the bandwidth is measured between nodes.
    The node is refused if one of its checks fails, if its bandwidth was not measured although it has RDMA devices, or
    if its combination of versions is known not to work (--accept NAME if your packages are patched for it). Nothing is
    changed on the nodes.

    \b
    Examples:
      provision stack lock gpu1
      provision stack lock gpu1 --out new.lock.yml
    """
    from provision.cli.progress import Steps
    from provision.inventory.sources import shown
    from provision.inventory.stack_lock import lock_path, write_stack_lock
    from provision.report.stack_report import lock_document, lock_text
    from provision.workflow import stack as workflow

    cluster = cluster_from(inventory, lab)
    if node not in {one.name for one in cluster.nodes}:
        raise NotFound(f"there is no node {node}", remedy="Name a node of the inventory: provision plan lists them.")
    note(f"verify {cluster.inventory} (full)")
    stack = workflow.lock_stack(cluster, node, Steps().step, limit, accept or ())
    path = out or lock_path(cluster.inventory)
    write_stack_lock(path, stack)
    if as_json:
        print_json(lock_document(str(path), stack))
    else:
        show(lock_text(shown(path), stack))


@app.command("diff")
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A node or a lock file.", autocompletion=complete_nodes)],
    b: Annotated[str, typer.Argument(metavar="B", help="A node or a lock file.", autocompletion=complete_nodes)],
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two nodes or lock files.

    A name of the inventory is a node; any other word is the path of a lock file. The exit code is 1 if they differ.

    \b
    Examples:
      provision stack diff gpu1 gpu2
      provision stack diff inventories/prod/stack.lock.yml gpu2
    """
    from provision.report.stack_report import differences_document, differences_text
    from provision.stack.compare import differences
    from provision.workflow import stack as workflow

    cluster = cluster_from(inventory, lab)
    with patience("reading the stacks"):
        results = differences(workflow.stack_named(cluster, a), workflow.stack_named(cluster, b))
    if as_json:
        print_json(differences_document(a, b, results))
    else:
        show(differences_text(a, b, results))
    raise typer.Exit(1 if results else 0)


@app.command("check")
def check(
    kernel: Annotated[
        list[str] | None,
        typer.Option("--kernel", metavar="RELEASE", help="Kernel to predict for, as `uname -r` prints it. Repeatable."),
    ] = None,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict builds for a kernel that is not installed.

    For each node: whether NVIDIA driver, RDMA stack and peer memory are known not to build for a kernel. Without
    --kernel the kernels are those that the node's package sources have and that are not installed. Uses the kernel's
    headers in the package sources, the ranges in dkms.conf, and a table of combinations that are known not to work.
    Nothing is compiled or changed. The exit code is 1 if a build is known to fail.

    \b
    Examples:
      provision stack check
      provision stack check --kernel 6.12.0-1-amd64 --limit gpu1
    """
    from provision.report.stack_report import fails, forecast_document, forecast_text
    from provision.stack.prediction import MOST_KERNELS, is_release
    from provision.workflow import stack as workflow

    kernels = kernel or []
    odd = next((one for one in kernels if not is_release(one)), None)
    if odd is not None or len(kernels) > MOST_KERNELS:
        raise UsageError(
            f"--kernel {odd}: not the release of a kernel" if odd else f"--kernel: at most {MOST_KERNELS}",
            remedy="Write it as `uname -r` prints it, for example 6.12.0-1-amd64.",
        )
    cluster = cluster_from(inventory, lab)
    with patience("querying the package sources of the nodes"):
        results = workflow.forecasts(cluster, limit, kernels)
    if as_json:
        print_json(forecast_document(results))
    else:
        show(forecast_text(results))
    raise typer.Exit(1 if fails(results) else 0)
