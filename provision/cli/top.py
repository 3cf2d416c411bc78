"""``provision top``: use of nodes, jobs and GPUs."""

from __future__ import annotations

import io
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, show
from provision.cli.completion import complete_jobs, complete_nodes
from provision.cli.job_gpus import gpu_block, metrics, usage_of
from provision.cli.job_options import (
    AllOption,
    FormOption,
    LongInventoryOption,
    TypeOption,
    UserOption,
    all_jobs,
    check_kind,
    cluster_and_engine,
    insist_on_kind,
    now,
    present,
    require,
    say_missing,
    survey_code,
)
from provision.cli.levels import info, patience
from provision.errors import NotFound, UsageError
from provision.report.node_names import in_short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provision.jobs.engines.base import JobEngine
    from provision.model import Cluster
    from provision.model.job_views import NodeList, NodeView

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Show the use of nodes, jobs and GPUs.

\b
Examples:
  provision top node
  provision top job
  provision top gpu -r
""",
)

_EVERY = 2.0
RefreshOption = Annotated[bool, typer.Option("--refresh", "-r", help="Refresh every two seconds, until Ctrl-C.")]
_MODES = {"n": "none", "e": "default", "t": "topology", "s": "share"}


@app.command("node")
def node(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NODE...]", help="Only these nodes.", autocompletion=complete_nodes)
    ] = None,
    detail: Annotated[bool, typer.Option("--details", "-d", help="With the instances and GPUs of each.")] = False,
    mode: Annotated[
        str,
        typer.Option("--gpu-mode", "-m", metavar="MODE", help="n: without GPUs; e, t, s: default, topology, share."),
    ] = "",
    metric: Annotated[bool, typer.Option("--metric", help="With the utilization of their GPUs.")] = False,
    refresh: RefreshOption = False,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    form: FormOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the allocated GPUs of each node.

    ROLE is master for the queue host. A GPU used by a process outside of jobs is not allocated.

    \b
    Examples:
      provision top node
      provision top node gpu1 -d
      provision top node -o json
    """
    from provision.report import job_nodes as report

    if mode and mode not in _MODES:
        raise UsageError(f"-m {mode}: unknown mode", remedy="Use n, e (default), t (topology) or s (share).")
    cluster, engine = cluster_and_engine(inventory, lab)
    if metric:
        require(engine, "SAMPLING", "provision top node --metric")

    def once() -> None:
        nodes = _chosen(engine.nodes(), names or [])
        nodes = [one for one in nodes if mode in {"", _letter(one)}]
        form_or_detail = detail or form == "wide"
        present(
            form,
            as_json=as_json,
            document=lambda: report.top_node_document(nodes),
            text=lambda: (
                "\n".join(one.name for one in nodes)
                if form == "name"
                else report.top_node_text(nodes, detail=form_or_detail)
            ),
        )
        if metric and not as_json:
            used = usage_of(cluster, [one.name for one in nodes])
            show("\n" + report.gpu_text(nodes, used.gpus, used.simulated))

    _repeat(once, refresh)


@app.command("job")
def job(
    name: Annotated[
        str, typer.Argument(metavar="[JOB]", help="This job's GPUs. [all jobs]", autocompletion=complete_jobs)
    ] = "",
    instance: Annotated[str, typer.Option("--instance", "-i", metavar="INSTANCE", help="Only this instance.")] = "",
    kind: TypeOption = "",
    user: UserOption = "",
    refresh: RefreshOption = False,
    inventory: LongInventoryOption = None,
    lab: LabOption = None,
    form: FormOption = "",
    as_json: JsonOption = False,
    all_namespaces: AllOption = False,
) -> None:
    """Show the GPUs that jobs request and hold.

    For one job, the utilization and memory of each of its GPUs.

    \b
    Examples:
      provision top job
      provision top job -u alice
      provision top job mnist -r
    """
    from provision.report.job_document import survey_documents
    from provision.report.job_list import names_text, top_text
    from provision.report.job_words import simulated_note
    from provision.workflow.job_watch import chosen_jobs

    del all_namespaces
    if user and name:
        raise UsageError("--user requires the list of all jobs", remedy=f"Omit --user or {name}.")
    if refresh and not name:
        raise UsageError("-r requires one job", remedy="Specify it: provision top job NAME -r")
    check_kind(kind)
    cluster, engine = cluster_and_engine(inventory, lab)
    if name:
        _repeat(lambda: _one_job(name, instance, kind, cluster, engine, form=form, as_json=as_json), refresh)
        return
    with patience("querying the nodes"):
        survey = all_jobs(engine)
        nodes = engine.nodes().nodes
    say_missing(survey)
    jobs = chosen_jobs(survey.jobs, kind=kind, user=user)
    notes = simulated_note([one.name for one in nodes if one.simulated])
    present(
        form,
        as_json=as_json,
        document=lambda: survey_documents(jobs, now(), engine.name),
        text=lambda: names_text(jobs) if form == "name" else "\n".join([top_text(jobs, now()), *notes]),
    )
    raise typer.Exit(survey_code(survey))


@app.command("gpu")
def gpu(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NODE...]", help="Only these nodes.", autocompletion=complete_nodes)
    ] = None,
    refresh: RefreshOption = False,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    form: FormOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the utilization of each GPU.

    Shows utilization, memory and temperature, and the instance, user, program and PID that use it.

    DUTY is the fraction of the last moment in which the GPU was active; a GPU at 100 % may still be used inefficiently.

    \b
    Examples:
      provision top gpu
      provision top gpu gpu1 -r
      provision top gpu -o wide
    """
    from provision.report import job_nodes as report

    cluster, engine = cluster_and_engine(inventory, lab)
    require(engine, "SAMPLING", "provision top gpu")

    def once() -> None:
        nodes = _chosen(engine.nodes(), names or [])
        used = usage_of(cluster, [one.name for one in nodes])
        present(
            form,
            as_json=as_json,
            document=lambda: report.gpu_document(nodes, used.gpus, used.simulated),
            text=lambda: report.gpu_text(nodes, used.gpus, used.simulated, wide=form == "wide"),
        )

    _repeat(once, refresh)


def _one_job(
    name: str, instance: str, kind: str, cluster: Cluster, engine: JobEngine, *, form: str, as_json: bool
) -> None:
    from dataclasses import replace

    from provision.report.job_document import job_document
    from provision.report.job_list import wide_text

    record = engine.get(name)
    insist_on_kind(record, kind)
    assignments = [
        assignment
        for assignment in record.assignments
        if instance in {"", assignment.instance, assignment.instance.removeprefix(f"{name}-")}
    ]
    if instance and not assignments:
        raise NotFound(f"{name} has no instance {instance}", remedy=f"`provision get {name}` lists its instances.")
    used = usage_of(cluster, [assignment.node for assignment in assignments if assignment.gpus])
    shown = replace(record, assignments=tuple(assignments))
    document = job_document(shown, now(), engine.name)
    for one, assignment in zip(document["instances"], assignments, strict=True):
        one["gpuMetrics"] = metrics(used, assignment.uuids)
    present(
        form,
        as_json=as_json,
        document=lambda: document,
        text=lambda: "\n".join([wide_text([record], now()), "", *gpu_block(shown, used)]),
    )


def _chosen(listed: NodeList, names: Sequence[str]) -> list[NodeView]:
    known = {one.name: one for one in listed.nodes}
    odd = [name for name in names if name not in known]
    if odd:
        raise NotFound(f"there is no node {odd[0]}", remedy=f"Nodes are {in_short(list(known))}.")
    return [known[name] for name in names] if names else list(listed.nodes)


def _letter(node: NodeView) -> str:
    return next((letter for letter, name in _MODES.items() if name == node.mode), "") if node.gpus else "n"


def _repeat(once: Callable[[], None], refresh: bool) -> None:
    """Show the output once, or every two seconds until Ctrl-C, which is not an error."""
    if not refresh:
        with patience("querying the nodes"):
            once()
        return
    info("querying the nodes; press Ctrl-C to end")
    try:
        while True:
            _show_frame(once)
            time.sleep(_EVERY)
    except KeyboardInterrupt:
        raise SystemExit(0) from None


def _show_frame(once: Callable[[], None]) -> None:
    """Show the output of `once`; on a terminal, redraw the screen without flickering."""
    if not sys.stdout.isatty():
        once()
        return
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        once()
    lines, room = printed.getvalue().splitlines(), shutil.get_terminal_size().lines - 1
    if len(lines) > room:
        lines[max(room - 1, 0) :] = [f"... {len(lines) - room + 1} more lines"]
    sys.stdout.write("\033[H" + "".join(f"{line}\033[K\n" for line in lines) + "\033[J")
    sys.stdout.flush()
