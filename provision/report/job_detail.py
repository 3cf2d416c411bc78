"""One job as text, for ``get``: details, events, GPUs, and the reason for waiting or failure."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from provision.batch.names import trainer
from provision.model.job import Assignment, JobEvent, JobRecord, JobStatus
from provision.report import layout
from provision.report.job_words import (
    NOT_APPLICABLE,
    age,
    allocated,
    columns,
    current_reason,
    duration,
    instance_of,
    requested,
    ruled,
    stamp,
)
from provision.report.node_names import in_short


def get_text(
    job: JobRecord,
    now: float,
    *,
    wide: bool = False,
    events: bool = False,
    gpus: Sequence[str] = (),
) -> str:
    """Return a job in arena's layout; `now` is in seconds since the epoch, `gpus` are lines of `gpu_lines`."""
    heads = [("Name:", job.spec.name), ("Status:", layout.state(str(job.status))), ("Namespace:", "default")]
    heads += [("Priority:", str(job.spec.priority) if job.spec.priority else NOT_APPLICABLE)]
    heads += [("Trainer:", trainer(job.spec.kind)), ("Duration:", duration(job, now))]
    heads += [("Attempt:", str(job.attempt))] if job.attempt > 1 else []
    heads += _wide(job) if wide else []
    heads += [("Unconfirmed:", in_short(job.unconfirmed))] if job.unconfirmed else []
    heads += [("Reason:", current_reason(job, now))] if current_reason(job) else []
    width = max(len(label) for label, _ in heads)
    lines = [f"{label:<{width}} {text}".rstrip() for label, text in heads]
    lines += [*failure_lines(job), *_gaps(job), "", "Instances:", *_instances(job, now)]
    lines += ["", *gpus] if gpus else []
    lines += ["", "Events:", *_events(job.events, now), *_starters(job)] if events else []
    lines += ["", "Your tensorboard will be available on:", job.tensorboard] if job.tensorboard else []
    return "\n".join(lines)


def events_text(jobs: Sequence[JobRecord], now: float) -> str:
    """Return the events of several jobs, oldest first, with the job and the age."""
    entries = sorted(((event, job.spec.name) for job in jobs for event in job.events), key=lambda pair: pair[0].time)
    rows = [[name, event.source, event.type, age(event.time, now), event.message] for event, name in entries]
    return "\n".join(columns([["JOB", "SOURCE", "TYPE", "AGE", "MESSAGE"], *rows]))


def ending(code: int | None, number: int | None) -> str:
    """Return how a process ended: ``exit code 3``, ``killed by SIGKILL (exit code 137)``."""
    if number:
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return f"killed by {name}" + (f" (exit code {code})" if code is not None else "")
    return f"exit code {code}" if code is not None else "no exit code"


def failure_lines(job: JobRecord) -> list[str]:
    """Return the first failure with its instance, exit status and last output; empty unless the job failed."""
    if job.status is not JobStatus.FAILED or not job.first_failure:
        return []
    instance = job.instances.get(job.first_failure)
    assignment = next((assignment for assignment in job.assignments if assignment.instance == job.first_failure), None)
    rank = job.first_rank if job.first_rank is not None else assignment.rank if assignment else None
    description = (
        (f"rank {rank}, " if rank is not None else "")
        + job.first_failure
        + (f" on {assignment.node}" if assignment else "")
    )
    how = ending(instance.exit_code, instance.signal) if instance else "unknown cause"
    lines = ["", f"First failure: {description}: {how}"]
    lines += [f"  {instance.reason}"] if instance and instance.reason and instance.reason != job.reason else []
    return lines + [f"  | {line}" for line in (instance.last_lines if instance else ())]


def gpu_lines(job: JobRecord, usage: dict[str, tuple[str, str]]) -> list[str]:
    """Return the GPU table of ``get -g``.

    Args:
        job: the job.
        usage: UUID of a GPU -> (duty cycle, memory used/total) as text; missing GPUs show N/A.
    """
    header = [
        "INSTANCE",
        "NODE(IP)",
        "GPU(Requested)",
        "GPU(IndexId)",
        "GPU(DutyCycle)",
        "GPU Memory(Used/Total)",
    ]
    rows: list[list[str]] = []
    for assignment in job.assignments:
        first = [assignment.instance, assignment.address or assignment.node, str(requested(job, assignment))]
        if not assignment.gpus:
            rows.append([*first, NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE])
        for at, index in enumerate(assignment.gpus):
            uuid = assignment.uuids[at] if at < len(assignment.uuids) else ""
            duty, memory = usage.get(uuid, (NOT_APPLICABLE, NOT_APPLICABLE))
            rows.append([*(first if at == 0 else ["", "", ""]), str(index), duty, memory])
    total = f"Allocated/Requested GPUs of Job: {allocated(job)}/{job.spec.total_gpus}"
    return ["GPUs:", *ruled(header, rows), "", total]


def _wide(job: JobRecord) -> list[tuple[str, str]]:
    spec = job.spec
    rows = [("CreateTime:", stamp(job.submitted)), ("StartTime:", stamp(job.started)), ("EndTime:", stamp(job.ended))]
    rows += [
        ("Owner:", job.owner),
        ("Image:", "none: runs without a container" if spec.no_container else spec.image),
        ("ImageDigest:", job.image_digest),
    ]
    rows += [("Code:", f"{spec.sync.source} {job.code_sha}".rstrip())] if spec.sync else []
    rows += [("ModelName:", spec.annotations.get("modelName", ""))]
    rows += [("ModelVersion:", spec.annotations.get("modelVersion", ""))]
    rows += [("ModelSource:", spec.annotations.get("modelSource", ""))]
    return [(label, text) for label, text in rows if text]


def _gaps(job: JobRecord) -> list[str]:
    """Return notes about missing information and lost supervisors."""
    lines = [f"{name} does not answer; information from this node is missing" for name in job.unreachable]
    lines += [
        f"the job supervisor on {name} is not running" for name in job.engine_details.get("unsupervisedNodes", ())
    ]
    return ["", *lines] if lines else []


def _instances(job: JobRecord, now: float) -> list[str]:
    header = ["NAME", "STATUS", "AGE", "IS_CHIEF", "GPU(Requested)", "NODE"]
    return ruled(header, [_instance(job, assignment, now) for assignment in job.assignments])


def _instance(job: JobRecord, assignment: Assignment, now: float) -> list[str]:
    instance = instance_of(job, assignment)
    since = age(instance.started or job.started or job.submitted, now)
    gpus = str(requested(job, assignment))
    return [
        assignment.instance,
        layout.state(instance.status),
        since,
        str(assignment.is_leader).lower(),
        gpus,
        assignment.node,
    ]


def _starters(job: JobRecord) -> list[str]:
    """Return a note about who starts a waiting job: only commands and the queue daemon run scheduling passes."""
    if job.status is not JobStatus.PENDING or (job.assignments and not job.retrying):
        return []
    return [
        "",
        "Each submit, stop, delete, restart, wait and `queue run` runs a scheduling pass.",
        "For more: run `provision queue run --daemon` (see: provision queue unit).",
    ]


def _events(events: Sequence[JobEvent], now: float) -> list[str]:
    rows = [[event.source, event.type, age(event.time, now), event.message] for event in events]
    return ruled(["SOURCE", "TYPE", "AGE", "MESSAGE"], rows)
