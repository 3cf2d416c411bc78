"""``provision delete``: stop batch jobs and forget them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, YesOption, print_json, show
from provision.cli.completion import complete_nodes
from provision.cli.job_options import (
    AllOption,
    JobsArgument,
    TypeOption,
    cluster_and_engine,
    insist_on_kind,
    one_by_one,
)
from provision.cli.job_owner import ask_about_owner
from provision.cli.levels import info, patience
from provision.errors import InvalidRecord, NotFound

if TYPE_CHECKING:
    from provision.jobs.engines.base import Engine

__all__ = ["delete"]


def delete(
    names: JobsArgument,
    kind: TypeOption = "",
    force: Annotated[bool, typer.Option("--force", help="Also jobs of other owners; the same as --yes.")] = False,
    yes: YesOption = False,
    lost: Annotated[
        list[str] | None,
        typer.Option(
            "--lost",
            metavar="NODE",
            help="Do not wait for a node that never comes back; repeatable.",
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

    Containers, logs and TensorBoard are removed, and the name is free again. A job of another owner that is not over is
    deleted after a question; without a terminal only with --yes (exit code 2 without it).

    The name is free when all nodes of the job have confirmed. While a node does not
    answer, the job is STOPPING and the exit code is 7; it is deleted when the node
    answers again. With several names each job is deleted, and the exit code is that
    of the first one that could not be deleted: 3 no such job, 6 it did not end in
    time, 7 a node has not confirmed. When two jobs have one name, give the ID
    instead (`uuid` in -o json).

    \b
    Examples:
      provision delete mnist
      provision delete mnist vgg --yes
      provision del mnist -T pytorchjob
      provision delete mnist --lost gpu3
    """
    from provision.workflow.job_names import remove_job_name

    del all_namespaces
    cluster, runner = cluster_and_engine(inventory, lab, through_agent=True)
    gone: list[str] = []

    def forget(name: str) -> None:
        try:
            if kind:
                insist_on_kind(runner.get(name), kind)
            agreed = _agree(runner, name, yes=yes or force)
            with patience(f"deleting {name}"):
                runner.delete(name, info, force=agreed, lost=lost or ())
        except NotFound as error:
            if not ignore:
                raise NotFound(error.message, remedy=f"{error.remedy or ''}. {_IGNORE}".lstrip(". ")) from error
            info(f"there is no job {name}")
            return
        gone.append(name)
        remove_job_name(cluster.inventory, name)
        if not as_json:
            show(f"{name} deleted")

    code = one_by_one(names, forget)
    if as_json:
        print_json({"deleted": gone})
    raise typer.Exit(code)


_IGNORE = "For scripts: --ignore-not-found"


def _agree(runner: Engine, name: str, *, yes: bool) -> bool:
    """Ask where another owner's job is deleted; return False where the engine has to compare the owner.

    That is so for a job whose record is not valid: there is no signature to find its owner by.
    """
    try:
        ask_about_owner(runner, name, "Delete", yes=yes)
    except InvalidRecord:
        return False
    return True
