"""``provision wait``: wait for a batch job."""

from __future__ import annotations

from typing import Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption
from provision.cli.job_options import FormOption, JobArgument, engine_of, now, present, seconds
from provision.cli.levels import patience
from provision.errors import UsageError


def wait(
    name: JobArgument,
    wanted: Annotated[str, typer.Option("--for", metavar="STATE", help="succeeded or running.")] = "succeeded",
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout", metavar="TIME", help="Time limit: 90s, 5m or 2h; a number without a unit is seconds."
        ),
    ] = "",
    inventory: InventoryOption = None,
    lab: LabOption = None,
    form: FormOption = "",
    as_json: JsonOption = False,
) -> None:
    """Wait until a batch job runs or has succeeded.

    The exit code is 0 when the state is reached. For a failed job it is the code of the rank that failed first (137
    for SIGKILL), and 1 when the job was stopped. It is 3 when the job does not exist, and 6 after the time limit; then
    the job continues.

    \b
    Examples:
      provision wait mnist
      provision wait mnist --for running --timeout 60
      provision wait mnist --for running --timeout 5m && provision logs -f mnist
    """
    from provision.cli.following import leaving, pusher, report_end, tell
    from provision.model.job import JobStatus
    from provision.report.job_document import job_document
    from provision.workflow.job_watch import exit_code, wait_for

    states = {"succeeded": JobStatus.SUCCEEDED, "complete": JobStatus.SUCCEEDED, "running": JobStatus.RUNNING}
    if wanted.lower() not in states:
        raise UsageError(f"--for {wanted}: unknown state", remedy="Choose succeeded or running.")
    limit = seconds(timeout, "--timeout", bare=True)
    engine = engine_of(inventory, lab, through_agent=True)
    with patience("querying the nodes"):
        engine.get(name)
    with leaving(name):
        job = wait_for(
            lambda: engine.get(name), states[wanted.lower()], timeout=limit, report=tell, push=pusher(engine)
        )
    if job.status.over:
        report_end(job)
    if form or as_json:
        present(
            form,
            as_json=as_json,
            document=lambda: job_document(job, now(), engine.name),
            text=lambda: name,
        )
    raise typer.Exit(exit_code(job) if job.status.over else 0)
