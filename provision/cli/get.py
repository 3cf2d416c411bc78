"""``provision get``: details of one batch job."""

from __future__ import annotations

from typing import Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption
from provision.cli.job_gpus import gpu_block, metrics, usage_of
from provision.cli.job_options import (
    SHORT_TIME_LIMIT,
    AllOption,
    FormOption,
    JobArgument,
    TypeOption,
    check_kind,
    cluster_and_engine,
    insist_on_kind,
    now,
    present,
)
from provision.cli.levels import patience


def get(
    name: JobArgument,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    kind: TypeOption = "",
    events: Annotated[bool, typer.Option("--events", "-e", help="With its events, which show why it waits.")] = False,
    gpus: Annotated[bool, typer.Option("--gpus", "-g", help="With the utilization and memory of its GPUs.")] = False,
    form: FormOption = "",
    as_json: JsonOption = False,
    all_namespaces: AllOption = False,
) -> None:
    """Show a batch job in detail.

    Shows its state, its instances, and why it waits or failed.

    For a failed job it shows which rank failed first, where, how, and its last lines. `describe` is get -e -g.

    \b
    Examples:
      provision get mnist --type pytorchjob
      provision get mnist -e
      provision describe mnist
      provision get mnist -o json
    """
    from provision.report.job_detail import get_text
    from provision.report.job_document import job_document

    del all_namespaces
    check_kind(kind)
    cluster, engine = cluster_and_engine(inventory, lab, through_agent=True)
    with patience("querying the nodes"):
        job = engine.get(name, time_limit=SHORT_TIME_LIMIT)
        insist_on_kind(job, kind)
        used = (
            usage_of(cluster, [assignment.node for assignment in job.assignments if assignment.gpus]) if gpus else None
        )
    moment = now()
    block = gpu_block(job, used) if used else ()
    document = job_document(job, moment, engine.name)
    for one, assignment in zip(document["instances"], job.assignments, strict=True):
        one["gpuMetrics"] = metrics(used, assignment.uuids) if used else {}
    present(
        form,
        as_json=as_json,
        document=lambda: document,
        text=lambda: name if form == "name" else get_text(job, moment, wide=form == "wide", events=events, gpus=block),
    )
