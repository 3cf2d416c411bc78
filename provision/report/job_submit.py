"""What ``submit`` says: where a job would go and what would be started, and that it was submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from provision.batch.document import brief
from provision.batch.names import trainer
from provision.commands.shell import join
from provision.model.job import JobRecord, JobStatus
from provision.model.job_views import DryRun
from provision.report.job_words import ruled, told_reason

if TYPE_CHECKING:
    from provision.batch.submission import Submission

__all__ = ["closing_lines", "dry_run_document", "dry_run_text"]


def closing_lines(job: JobRecord) -> list[str]:
    """Return arena's two lines, and before the second one why it waits."""
    name = job.spec.name
    lines = [f"The Job {name} has been submitted successfully"]
    if job.status in {JobStatus.PENDING, JobStatus.QUEUING}:
        lines.append(f"It is {job.status}: {told_reason(job) or 'it waits for its turn'}")
    kind = trainer(job.spec.kind).lower()
    return [*lines, f"You can run `provision get {name} --type {kind}` to check the job status"]


def dry_run_document(submission: Submission, found: DryRun) -> dict[str, Any]:
    """Return what ``submit --dry-run -o json`` prints; ``submit -f`` accepts it and makes the same job of it.

    Args:
        submission: what is submitted.
        found: where it would go, and what would be started.
    """
    return {
        "fits": not found.reason,
        "reason": found.reason,
        "placement": [
            {
                "instance": seat.instance,
                "node": seat.node,
                "address": seat.address,
                "rank": seat.rank,
                "gpus": list(seat.gpus),
                "uuids": list(seat.uuids),
                "nics": list(seat.nics),
            }
            for seat in found.seats
        ],
        "env": {name: dict(values) for name, values in found.environment.items()},
        "commands": {name: list(argv) for name, argv in found.commands.items()},
        "files": dict(found.files),
        "warnings": list(found.notes),
        "spec": brief(submission.spec, sync_secrets=tuple(submission.sync), pull_secrets=submission.pull_secrets),
    }


def dry_run_text(found: DryRun) -> str:
    """Return placement, variables, commands and files; what all instances have alike is said once."""
    lines = [f"It cannot start now: {found.reason}" if found.reason else "It would start now:"]
    if found.seats:
        rows = [[s.instance, str(s.rank), _numbers(s.gpus), " ".join(s.nics) or "-", s.node] for s in found.seats]
        lines += ruled(["NAME", "RANK", "GPUS", "NICS", "NODE"], rows)
    lines += _environment(found.environment)
    for name, argv in found.commands.items():
        lines += ["", f"# {name}", join(argv)]
    for name, text in found.files.items():
        lines += ["", f"# file {name}", text.rstrip("\n")]
    return "\n".join(lines)


def _numbers(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers)) or "-"


def _environment(environment: Mapping[str, Mapping[str, str]]) -> list[str]:
    if not environment:
        return []
    first, *others = environment.values()
    alike = {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
    lines = ["", "# variables of all instances"] if alike else []
    lines += [f"{name}={value}" for name, value in sorted(alike.items())]
    for instance, values in environment.items():
        own = {name: value for name, value in values.items() if name not in alike}
        lines += ["", f"# variables of {instance}"] if own else []
        lines += [f"{name}={value}" for name, value in sorted(own.items())]
    return lines
