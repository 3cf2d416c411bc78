"""``provision delete``: stop batch jobs and delete their records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, print_json, show
from provision.cli.completion import complete_nodes
from provision.cli.job_options import (
    AllOption,
    JobsArgument,
    TypeOption,
    check_kind,
    cluster_and_engine,
    insist_on_kind,
    one_by_one,
)
from provision.cli.job_owner import ask_about_owner
from provision.cli.levels import info, patience
from provision.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provision.jobs.engines.base import JobEngine
    from provision.model import Cluster
    from provision.report.json_documents.jobs import DeletedJobs


def delete(
    names: JobsArgument,
    kind: TypeOption = "",
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", "--force", help="Delete jobs of other users without a question; --force is an alias."
        ),
    ] = False,
    lost: Annotated[
        list[str] | None,
        typer.Option(
            "--lost",
            metavar="NODE",
            help="Do not wait for a node that is permanently lost; repeatable.",
            autocompletion=complete_nodes,
        ),
    ] = None,
    ignore: Annotated[bool, typer.Option("--ignore-not-found", help="Exit 0 for jobs that do not exist.")] = False,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    all_namespaces: AllOption = False,
) -> None:
    """Stop batch jobs and remove their records.

    Containers, logs and TensorBoard are removed, and the name can be used again. An unfinished job of another user is
    deleted after a confirmation; without a terminal, only with --yes or its alias --force (otherwise exit code 2).
    Neither skips the confirmation of the nodes: for that, see --lost.

    The name can be used again when all nodes of the job have confirmed. While a node
    does not answer, the job is STOPPING and the exit code is 7; it is deleted when the
    node answers again. With several names each job is deleted, and the exit code is
    that of the first one that could not be deleted: 3 no such job, 6 it did not end in
    time, 7 a node has not confirmed. When two jobs have the same name, use the ID
    instead (`uuid` in -o json).

    \b
    Examples:
      provision delete mnist
      provision delete mnist vgg --yes
      provision del mnist -T pytorchjob
      provision delete mnist --lost gpu3
    """
    del all_namespaces
    check_kind(kind)
    cluster, engine = cluster_and_engine(inventory, lab, through_agent=True)
    document: DeletedJobs = {"deleted": []}

    def forget(name: str) -> None:
        if not _deleted(cluster, engine, name, kind, lost or (), yes=yes, ignore=ignore):
            return
        document["deleted"].append(name)
        if not as_json:
            show(f"{name} deleted")

    code = one_by_one(names, forget)
    if as_json:
        print_json(document)
    raise typer.Exit(code)


def _deleted(
    cluster: Cluster, engine: JobEngine, name: str, kind: str, lost: Sequence[str], *, yes: bool, ignore: bool
) -> bool:
    """Delete a job; return False if it does not exist and that is ignored."""
    from provision.workflow.job_names import remove_job_name

    try:
        if kind:
            insist_on_kind(engine.get(name), kind)
        ask_about_owner(engine, name, "Delete", yes=yes)
        with patience(f"deleting {name}"):
            engine.delete(name, info, lost=lost)
    except NotFound as error:
        if not ignore:
            raise NotFound(error.message, remedy=f"{error.remedy or ''}. {_IGNORE}".lstrip(". ")) from error
        info(f"there is no job {name}")
        return False
    remove_job_name(cluster.inventory, name)
    return True


_IGNORE = "For scripts: --ignore-not-found"
