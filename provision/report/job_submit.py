"""Results of ``submit``: the placement and commands of a dry run, and the confirmation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from provision.batch.document import brief
from provision.batch.names import trainer
from provision.commands.shell import join
from provision.model.job import JobRecord, JobStatus
from provision.model.job_views import DryRun
from provision.report.job_words import current_reason, ruled
from provision.report.reasons import message

if TYPE_CHECKING:
    from provision.batch.submission import Submission
    from provision.report.json_documents.jobs import SubmitDryRun


def closing_lines(job: JobRecord, place: Sequence[str] = ()) -> list[str]:
    """Return arena's two lines, and in between the reason if the job waits.

    Args:
        job: the job after its submission.
        place: the options of the command line that choose the nodes.
    """
    name = job.spec.name
    lines = [f"The Job {name} has been submitted successfully"]
    if job.status in {JobStatus.PENDING, JobStatus.QUEUING}:
        lines.append(f"It is {job.status}: {current_reason(job) or 'it waits for its turn'}")
    kind = trainer(job.spec.kind).lower()
    command = join(["provision", "get", name, "--type", kind, *place])
    return [*lines, f"You can run `{command}` to check the job status"]


def dry_run_document(submission: Submission, dry_run: DryRun) -> SubmitDryRun:
    """Return the document of ``submit --dry-run -o json``; ``submit -f`` accepts it and creates the same job."""
    return {
        "fits": not dry_run.reason.code,
        "reason": message(dry_run.reason),
        **dry_run.reason.as_document(),
        "placement": [
            {
                "instance": assignment.instance,
                "node": assignment.node,
                "address": assignment.address,
                "rank": assignment.rank,
                "gpus": list(assignment.gpus),
                "uuids": list(assignment.uuids),
                "nics": list(assignment.nics),
            }
            for assignment in dry_run.assignments
        ],
        "env": {name: dict(values) for name, values in dry_run.environment.items()},
        "commands": {name: list(argv) for name, argv in dry_run.commands.items()},
        "files": dict(dry_run.files),
        "warnings": list(dry_run.notes),
        "spec": brief(submission.spec, sync_secrets=tuple(submission.sync), pull_secrets=submission.pull_secrets),
    }


def dry_run_text(dry_run: DryRun) -> str:
    """Return placement, variables, commands and files; common variables are listed once."""
    reason = message(dry_run.reason)
    lines = [f"It cannot start now: {reason}" if reason else "It would start now:"]
    if dry_run.assignments:
        rows = [
            [s.instance, str(s.rank), _numbers(s.gpus), " ".join(s.nics) or "-", s.node] for s in dry_run.assignments
        ]
        lines += ruled(["NAME", "RANK", "GPUS", "NICS", "NODE"], rows)
    lines += _environment(dry_run.environment)
    for name, argv in dry_run.commands.items():
        lines += ["", f"# {name}", join(argv)]
    for name, text in dry_run.files.items():
        lines += ["", f"# file {name}", text.rstrip("\n")]
    return "\n".join(lines)


def _numbers(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers)) or "-"


def _environment(environment: Mapping[str, Mapping[str, str]]) -> list[str]:
    if not environment:
        return []
    first, *others = environment.values()
    common = {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
    lines = ["", "# variables of all instances"] if common else []
    lines += [f"{name}={value}" for name, value in sorted(common.items())]
    for instance, values in environment.items():
        own = {name: value for name, value in values.items() if name not in common}
        lines += ["", f"# variables of {instance}"] if own else []
        lines += [f"{name}={value}" for name, value in sorted(own.items())]
    return lines
