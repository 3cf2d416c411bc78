"""``provision delete``: stop batch jobs and forget them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, print_json, show
from provision.cli.job_options import AllOption, TypeOption, engine_of, insist_on_kind, one_by_one
from provision.cli.levels import info, patience
from provision.errors import NotFound

if TYPE_CHECKING:
    from provision.jobs.engines.base import Engine

__all__ = ["delete"]


def delete(
    names: Annotated[list[str], typer.Argument(metavar="JOB...", help="Names of jobs.")],
    kind: TypeOption = "",
    force: Annotated[bool, typer.Option("--force", help="Also jobs of somebody else that are not over.")] = False,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    all_namespaces: AllOption = False,
) -> None:
    """Stop batch jobs and forget them: containers, logs, TensorBoard, and the name, which is free again.

    What is gone already is no error. A node that does not answer keeps its part,
    and the job is listed again when the node is back: delete it once more then. Of
    several each is deleted, whatever becomes of the others; the exit code is that
    of the first that could not be.

    \b
    Examples:
      provision delete mnist
      provision delete mnist vgg --force
      provision del mnist -T pytorchjob
    """
    del all_namespaces
    runner = engine_of(inventory, lab, through_agent=True)
    gone: list[str] = []

    def forget(name: str) -> None:
        if kind and not _there(runner, name, kind):
            info(f"there is no job {name}")
            return
        with patience(f"deleting {name}"):
            runner.delete(name, info, force=force)
        gone.append(name)
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
