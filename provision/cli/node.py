"""``provision node``: nodes of the batch queue."""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, print_json, say, show
from provision.cli.completion import complete_nodes
from provision.cli.job_options import FormOption, cluster_and_engine, engine_of, present, require
from provision.cli.levels import info, patience, warn
from provision.errors import NodeUnreachable, NotFound, UsageError
from provision.report.node_names import in_short

if TYPE_CHECKING:
    from provision.errors import ProvisionError
    from provision.jobs.engines.base import JobEngine
    from provision.model import Cluster, Node
    from provision.model.job_views import NodeView
    from provision.report.json_documents.inventories import LabelledNodes
    from provision.report.json_documents.jobs import NodeChange

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List, label and drain nodes.

The nodes are shown as the batch queue uses them.

\b
Examples:
  provision node list
  provision node label gpu1 gpu.schedule=topology
  provision node drain gpu2 --reason "the fan is loud"
""",
)

_SCHEDULE = ("gpu.schedule", "ack.node.gpu.schedule")
"""Name on the command line -> name in the document."""
_MODES = ("default", "topology", "share")
_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?")
NodesArgument = Annotated[
    list[str], typer.Argument(metavar="NODE...", help="Names of nodes.", autocompletion=complete_nodes)
]


@app.command("list")
def list_(
    inventory: InventoryOption = None,
    lab: LabOption = None,
    form: FormOption = "",
    as_json: JsonOption = False,
) -> None:
    """List nodes with their GPUs and labels.

    `Ready,SchedulingDisabled` in STATUS: the node answers, and `provision node drain` excludes it from new jobs.

    The lines below the table show why a node accepts no batch jobs: it does not answer, its GPUs are unknown, Docker
    does not answer, it is drained by `provision node drain`, or the inventory sets cluster_takes_jobs: false.

    Not shown are degraded nodes (check peer_memory.boot of `provision verify`), refused data addresses, and nodes
    drained in Slurm or Kubernetes. `provision get JOB` shows why a job waits.

    \b
    Examples:
      provision node list
      provision node list -o json
    """
    from provision.report.job_nodes import node_documents, node_list_text

    engine = engine_of(inventory, lab)
    with patience("querying the nodes"):
        nodes = engine.nodes().nodes
    present(
        form,
        as_json=as_json,
        document=lambda: node_documents(nodes),
        text=lambda: "\n".join(node.name for node in nodes) if form == "name" else node_list_text(nodes),
    )


@app.command("label")
def label(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="NODE... KEY=VALUE...",
            help="Nodes and labels; KEY- removes a label.",
            autocompletion=complete_nodes,
        ),
    ],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Change a label that has another value.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Even while jobs hold GPUs of the node.")] = False,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set or remove labels of nodes.

    Labels are stored in the inventory (host_vars); submit --selector matches them.

    gpu.schedule selects the jobs that may use the node's GPUs: topology for jobs with --gputopology, share for jobs
    that share GPUs, default for all others. A node has one mode; to change it, use --overwrite, while no job uses the
    node's GPUs.

    \b
    Examples:
      provision node label gpu1 gpu2 gpu.schedule=topology
      provision node label gpu1 gpu.schedule=default --overwrite
      provision node label gpu1 rack=r1 old-
    """
    from provision.inventory.record import set_for_hosts

    names = [word for word in words if "=" not in word and not word.endswith("-")]
    changes = _changes([word for word in words if word not in names])
    if not names or not changes:
        raise UsageError(
            "provision node label: a node or a label is missing",
            remedy="For example: provision node label gpu1 gpu.schedule=topology",
        )
    cluster, engine = cluster_and_engine(inventory, lab)
    require(engine, "LABELS", "provision node label")
    _known(cluster, names)
    wanted = {name: _wanted(cluster.node(name), changes, overwrite=overwrite) for name in names}
    moved = [name for name, own in wanted.items() if "cluster_gpu_schedule" in own]
    if moved and not force:
        with patience("querying the nodes"):
            views = {view.name: view for view in engine.nodes().nodes}
        for name in moved:
            _insist_free(name, views.get(name))
    files = set_for_hosts(cluster, wanted)
    engine.set_labels({name: _labels_after(cluster.node(name), own) for name, own in wanted.items() if own})
    if as_json:
        document: LabelledNodes = {"nodes": wanted, "files": [str(file) for file in files]}
        print_json(document)
        return
    for name in names:
        show(f"{name} {'labeled' if wanted[name] else 'unchanged'}")
    for file in files:
        info(f"written: {file}")


@app.command("drain")
def drain(
    names: NodesArgument,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Reason to show to owners of waiting jobs.")
    ] = "",
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop nodes from accepting new batch jobs.

    Running jobs continue. `resume` reverts it. `provision submit --toleration drained` uses the node nevertheless.

    `provision run` cannot use GPUs of a drained node. `run` on nodes without GPUs, `hostfile` and `place` ignore the
    drain.

    \b
    Examples:
      provision node drain gpu2 --reason "memory errors"
    """
    engine = _engine_that_drains(names, "provision node drain", inventory, lab)
    with patience("querying the nodes"):
        done = engine.drain(names, f"{reason or 'drained'} ({getpass.getuser()})")
    _report(done, "drained", as_json=as_json)


@app.command("resume")
def resume(
    names: NodesArgument,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let drained nodes accept batch jobs again.

    Starts the jobs that waited for them.

    \b
    Examples:
      provision node resume gpu2
    """
    engine = _engine_that_drains(names, "provision node resume", inventory, lab)
    with patience("querying the nodes"):
        done = engine.resume(names, info)
    _report(done, "resumed", as_json=as_json)


def _engine_that_drains(names: Sequence[str], verb: str, inventory: str | None, lab: str | None) -> JobEngine:
    """Return the job engine; it can drain, and the nodes exist."""
    cluster, engine = cluster_and_engine(inventory, lab)
    require(engine, "DRAIN", verb)
    _known(cluster, names)
    return engine


def _report(done: Mapping[str, ProvisionError | None], word: str, *, as_json: bool) -> None:
    """Print what was done on each node, and exit with its code."""
    if as_json:
        document: dict[str, NodeChange] = {
            name: {"ok": error is None, "error": error.message if error else None} for name, error in done.items()
        }
        print_json(document)
    for name, error in done.items():
        if error is not None:
            say(f"error: {error}")
            say(f"hint: {error.remedy}" if error.remedy else f"hint: {name} was not changed")
        elif not as_json:
            show(f"{name} {word}")
    raise typer.Exit(NodeUnreachable.exit_code if any(done.values()) else 0)


def _known(cluster: Cluster, names: Sequence[str]) -> None:
    known = [node.name for node in cluster.nodes]
    odd = [name for name in names if name not in known]
    if odd:
        raise NotFound(f"there is no node {odd[0]}", remedy=f"Nodes are {in_short(list(known))}.")


def _changes(words: Sequence[str]) -> dict[str, str | None]:
    """Return label -> value, None for a label to remove.

    Raises:
        UsageError: A label is invalid.
    """
    changes: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name if equals else name.removesuffix("-")
        name = _SCHEDULE[0] if name in _SCHEDULE else name
        if not _KEY.fullmatch(name) or name in changes:
            raise UsageError(
                f"{word}: not a label, or given twice", remedy="Write KEY=VALUE, or KEY- to remove a label."
            )
        if name == _SCHEDULE[0] and equals and value not in _MODES:
            raise UsageError(f"{word}: unknown mode", remedy=f"Choose {', '.join(_MODES)}.")
        changes[name] = value if equals else None
    return changes


def _wanted(node: Node, changes: Mapping[str, str | None], *, overwrite: bool) -> dict[str, Any]:
    """Return the variables of a host.

    Raises:
        UsageError: A label has another value, and --overwrite is not given.
    """
    variables: dict[str, Any] = {}
    stored = node.variables.get("cluster_labels")
    old = {str(key): str(value) for key, value in stored.items()} if isinstance(stored, Mapping) else {}
    labels = dict(old)
    for name, value in changes.items():
        is_mode = name == _SCHEDULE[0]
        before = node.variables.get("cluster_gpu_schedule") if is_mode else old.get(name)
        if is_mode and value is None:
            warn(f"{node.name} stays {before or 'default'}: a mode cannot be removed; set {name}=default --overwrite")
            continue
        if before == value:
            continue
        if before is not None and value is not None and not overwrite:
            raise UsageError(
                f"{node.name} has {name}={before} already", remedy=f"To change it to {value}, add --overwrite."
            )
        if is_mode:
            variables["cluster_gpu_schedule"] = value
        elif value is None:
            labels.pop(name, None)
        else:
            labels[name] = value
    return variables | ({"cluster_labels": labels} if labels != old else {})


def _labels_after(node: Node, changes: Mapping[str, Any]) -> dict[str, str]:
    """Return all labels of a node with its changed variables, including the mode of its GPUs."""
    variables = {**node.variables, **changes}
    labels, mode = variables.get("cluster_labels"), variables.get("cluster_gpu_schedule")
    labels = {str(key): str(value) for key, value in labels.items()} if isinstance(labels, Mapping) else {}
    return labels | ({_SCHEDULE[0]: str(mode)} if mode else {})


def _insist_free(name: str, view: NodeView | None) -> None:
    from provision.report.reasons import message

    if view is None or not view.ready:
        why = message(view.reason) if view else "it did not answer"
        raise NodeUnreachable(
            f"whether jobs hold its GPUs is not known: {why}", node=name, remedy="Try again, or add --force."
        )
    jobs = sorted({gpu.job for gpu in view.gpus if gpu.job})
    if jobs:
        raise UsageError(
            f"{', '.join(jobs)} {'holds' if len(jobs) == 1 else 'hold'} GPUs of {name}",
            remedy="Wait until they have ended, or add --force.",
        )
