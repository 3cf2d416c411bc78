"""``provision bootstrap``: run the roles on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.apply import agree
from provision.cli.common import (
    AskBecomePassOption,
    JsonOption,
    YesOption,
    ask_become_password,
    checked,
    note,
    print_json,
    show,
)

if TYPE_CHECKING:
    from provision.model import ApplyReport, Cluster, Secret
    from provision.report.json_documents.changes import Apply
    from provision.workflow import Asked, PlanResult


def bootstrap(
    image: Annotated[
        str | None, typer.Option("--image", metavar="REFERENCE", help="Training image to pull and start.")
    ] = None,
    variables: Annotated[
        Path | None,
        typer.Option(
            "--vars",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Variables in YAML; the documentation's page Variables lists them.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="ROLE", help="Only run this role, or one step of it (ROLE_STEP). Repeatable."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of this node. [its host name]")] = None,
    yes: YesOption = False,
    ask_become_pass: AskBecomePassOption = False,
    as_json: JsonOption = False,
) -> None:
    """Set up this machine alone, without SSH.

    Runs the roles that apply runs on a cluster, on one node. As with apply, a preflight and the plan precede the
    question. If the preflight finds a problem, or there are no pending steps, nothing is asked or changed.

    Without a training image (--image, or training_image_reference in the variables) the node gets Docker, RDMA and
    the NVIDIA runtime, but no training container.

    \b
    Examples:
      provision bootstrap
      provision bootstrap --yes
      provision bootstrap --image registry.example.com/train:1 --yes
      provision bootstrap --vars site.yml --yes
      provision bootstrap --only docker_engine --json --yes
    """
    import socket

    from provision import workflow

    asked = workflow.asked_for(only or ())
    password = ask_become_password(ask=ask_become_pass)
    with _this_machine(name or socket.gethostname(), image, variables, password) as cluster:
        note(f"bootstrap this machine as {cluster.nodes[0].name}")
        request = workflow.Request(asked.roles)
        probe_result = workflow.probe_and_plan(cluster, cluster.nodes, request)
        if not asked.steps:
            probe_result = checked(probe_result)
        stopped = not asked.steps and bool(workflow.blocked(probe_result))
        if not stopped and (asked.steps or workflow.steps_to_confirm(probe_result)):
            agree(probe_result, steps=bool(asked.steps), yes=yes)
        report = _applied(cluster, asked, probe_result, password)
    _report(report, probe_result, stopped=stopped, as_json=as_json)
    raise typer.Exit(report.exit_code)


@contextmanager
def _this_machine(name: str, image: str | None, variables: Path | None, password: Secret | None) -> Iterator[Cluster]:
    """Yield an inventory of this machine in a temporary folder."""
    import tempfile

    from provision import workflow
    from provision.errors import InventoryError
    from provision.inventory import load

    with tempfile.TemporaryDirectory(prefix="provision-") as folder:
        path = workflow.local_inventory(Path(folder), name, image=image, variables=variables)
        try:
            cluster = load(path, become_password=password)
        except InventoryError as error:
            error.message = error.message.replace(f"{path}/group_vars/all.yml", str(variables))
            raise
        yield cluster


def _report(report: ApplyReport, probe_result: PlanResult, *, stopped: bool, as_json: bool) -> None:
    from provision.report.apply_report import as_document, as_text
    from provision.report.plan_report import problems_document, problems_text

    if as_json:
        document: Apply = {**as_document(report), "problems": problems_document(probe_result.plan)}
        print_json(document)
    elif stopped:
        show(problems_text(probe_result.plan))
        show("\nNothing was changed.")
    else:
        show(as_text(report))


def _applied(cluster: Cluster, asked: Asked, probe_result: PlanResult, password: Secret | None) -> ApplyReport:
    from provision import workflow
    from provision.cli.progress import ApplyProgress

    request = workflow.Request(asked.roles)
    with ApplyProgress([node.name for node in cluster.nodes], verbose=True) as progress:
        return workflow.apply(
            cluster,
            cluster.nodes,
            request=request,
            result=probe_result,
            steps=asked.steps,
            become_password=password,
            on_event=progress.event,
        )
