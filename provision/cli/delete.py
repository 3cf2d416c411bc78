"""``provision delete``: stop batch jobs and forget them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, print_json, show
from provision.cli.job_options import AllOption, TypeOption, engine_of, insist_on_kind
from provision.cli.levels import info, patience
from provision.errors import NotFound

if TYPE_CHECKING:
    from provision.jobs.engines.base import Engine

__all__ = ["delete"]


def delete(
    names: Annotated[list[str], typer.Argument(metavar="JOB...", help="Names of jobs.")],
    kind: TypeOption = "",
    force: Annotated[
        bool, typer.Option("--force", help="Forget them even where a node does not answer; it clears up later.")
    ] = False,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    all_namespaces: AllOption = False,
) -> None:
    """Stop batch jobs and forget them: containers, logs, TensorBoard, and the name, which is free again.

    What is gone already is no error.

    \b
    Examples:
      provision delete mnist
      provision delete mnist vgg --force
      provision del mnist -T pytorchjob
    """
    del all_namespaces
    runner = engine_of(inventory, lab)
    for name in names:
        if kind and not _there(runner, name, kind):
            info(f"there is no job {name}")
            continue
        with patience(f"deleting {name}"):
            runner.delete(name, info, force=force)
        if not as_json:
            show(f"{name} deleted")
    if as_json:
        print_json({"deleted": names})


def _there(runner: Engine, name: str, kind: str) -> bool:
    """Return whether there is such a job; NotFound for one of another type."""
    try:
        job = runner.get(name)
    except NotFound:
        return False
    insist_on_kind(job, kind)
    return True
