"""``provision delete``: stop batch jobs and forget them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, YesOption, print_json, show
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
from provision.errors import NotFound

if TYPE_CHECKING:
    from provision.jobs.engines.base import Engine

__all__ = ["delete"]


def delete(
    names: JobsArgument,
    kind: TypeOption = "",
    force: Annotated[bool, typer.Option("--force", help="Also jobs of other owners; the same as --yes.")] = False,
    yes: YesOption = False,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    all_namespaces: AllOption = False,
) -> None:
    """Stop batch jobs and remove their records.

    Containers, logs and TensorBoard are removed, and the name is free again. A job of another owner that is not over is
    deleted after a question; without a terminal only with --yes (exit code 2 without it).

    What is gone already is no error. A node that does not answer keeps its part,
    and the job is listed again when the node is back: delete it once more then. Of
    several each is deleted, whatever becomes of the others; the exit code is that
    of the first that could not be.

    \b
    Examples:
      provision delete mnist
      provision delete mnist vgg --yes
      provision del mnist -T pytorchjob
    """
    from provision.workflow.job_names import remove_job_name

    del all_namespaces
    cluster, runner = cluster_and_engine(inventory, lab, through_agent=True)
    gone: list[str] = []

    def forget(name: str) -> None:
        if kind and not _there(runner, name, kind):
            info(f"there is no job {name}")
            return
        ask_about_owner(runner, name, "Delete", yes=yes or force)
        with patience(f"deleting {name}"):
            runner.delete(name, info, force=True)  # whose it is has been asked about
        gone.append(name)
        remove_job_name(cluster.inventory, name)
        if not as_json:
            show(f"{name} deleted")

    code = one_by_one(names, forget)
    if as_json:
        print_json({"deleted": gone})
    raise typer.Exit(code)


def _there(runner: Engine, name: str, kind: str) -> bool:
    """Return whether there is such a job; NotFound for one of another type."""
    try:
        job = runner.get(name)
    except NotFound:
        return False
    insist_on_kind(job, kind)
    return True
