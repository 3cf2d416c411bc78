"""One job as text: ``get``, with its events and GPUs, and why it waits or failed."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from provision.batch.names import trainer
from provision.model.job import JobEvent, JobRecord, JobStatus, Seat
from provision.report import layout
from provision.report.job_words import (
    NOT_APPLICABLE,
    age,
    allocated,
    columns,
    duration,
    instance_of,
    requested,
    ruled,
    stamp,
    told_reason,
)
from provision.report.node_names import in_short

__all__ = ["ending", "events_text", "failure_lines", "get_text", "gpu_lines"]


def get_text(
    job: JobRecord,
    now: float,
    *,
    wide: bool = False,
    events: bool = False,
    gpus: Sequence[str] = (),
) -> str:
    """Return a job in arena's layout.

    Args:
        job: the job.
        now: seconds since the epoch.
        wide: with the times of its beginning and end, its image, and where its code and model are from.
        events: with its events.
        gpus: lines of `gpu_lines`.
    """
    heads = [("Name:", job.spec.name), ("Status:", layout.state(str(job.status))), ("Namespace:", "default")]
    heads += [("Priority:", str(job.spec.priority) if job.spec.priority else NOT_APPLICABLE)]
    heads += [("Trainer:", trainer(job.spec.kind)), ("Duration:", duration(job, now))]
    heads += [("Attempt:", str(job.attempt))] if job.attempt > 1 else []
    heads += _wide(job) if wide else []
    heads += [("Unconfirmed:", in_short(job.unconfirmed))] if job.unconfirmed else []
    heads += [("Reason:", told_reason(job, now))] if told_reason(job) else []
    width = max(len(label) for label, _ in heads)
    lines = [f"{label:<{width}} {text}".rstrip() for label, text in heads]
    lines += [*failure_lines(job), *_gaps(job), "", "Instances:", *_instances(job, now)]
    lines += ["", *gpus] if gpus else []
    lines += ["", "Events:", *_events(job.events, now), *_starters(job)] if events else []
    lines += ["", "Your tensorboard will be available on:", job.tensorboard] if job.tensorboard else []
    return "\n".join(lines)


def events_text(jobs: Sequence[JobRecord], now: float) -> str:
    """Return the events of several jobs, oldest first: LAST SEEN as AGE, as get -e shows them, with the job."""
    found = sorted(((event, job.spec.name) for job in jobs for event in job.events), key=lambda pair: pair[0].time)
    rows = [[name, event.source, event.type, age(event.time, now), event.message] for event, name in found]
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
    """Return who failed first, where, how, and what it said last; nothing for a job that did not fail."""
    if job.status is not JobStatus.FAILED or not job.first_failure:
        return []
    told = job.instances.get(job.first_failure)
    seat = next((seat for seat in job.seats if seat.instance == job.first_failure), None)
    rank = job.first_rank if job.first_rank is not None else seat.rank if seat else None
    who = (f"rank {rank}, " if rank is not None else "") + job.first_failure + (f" on {seat.node}" if seat else "")
    how = ending(told.exit_code, told.signal) if told else "how is not known"
    lines = ["", f"First failure: {who}: {how}"]
    lines += [f"  {told.reason}"] if told and told.reason and told.reason != job.reason else []
    return lines + [f"  | {line}" for line in (told.last_lines if told else ())]


def gpu_lines(job: JobRecord, usage: dict[str, tuple[str, str]]) -> list[str]:
    """Return the block of get -g.

    Args:
        job: the job.
        usage: GPU's UUID -> (duty cycle, memory used/total) as text; a GPU that is missing shows N/A.
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
    for seat in job.seats:
        first = [seat.instance, seat.address or seat.node, str(requested(job, seat))]
        if not seat.gpus:
            rows.append([*first, NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE])
        for at, index in enumerate(seat.gpus):
            uuid = seat.uuids[at] if at < len(seat.uuids) else ""
            duty, memory = usage.get(uuid, (NOT_APPLICABLE, NOT_APPLICABLE))
            rows.append([*(first if at == 0 else ["", "", ""]), str(index), duty, memory])
    total = f"Allocated/Requested GPUs of Job: {allocated(job)}/{job.spec.total_gpus}"
    return ["GPUs:", *ruled(header, rows), "", total]


def _wide(job: JobRecord) -> list[tuple[str, str]]:
    spec = job.spec
    found = [("CreateTime:", stamp(job.submitted)), ("StartTime:", stamp(job.started)), ("EndTime:", stamp(job.ended))]
    found += [
        ("Owner:", job.owner),
        ("Image:", "none: processes of the nodes" if spec.no_container else spec.image),
        ("ImageDigest:", job.image_digest),
    ]
    found += [("Code:", f"{spec.sync.source} {job.code_sha}".rstrip())] if spec.sync else []
    found += [("ModelName:", spec.annotations.get("modelName", ""))]
    found += [("ModelVersion:", spec.annotations.get("modelVersion", ""))]
    found += [("ModelSource:", spec.annotations.get("modelSource", ""))]
    return [(label, text) for label, text in found if text]


def _gaps(job: JobRecord) -> list[str]:
    """What is not known, or nobody watches."""
    lines = [f"{name} does not answer: what it alone knows is missing here" for name in job.unreachable]
    lines += [f"on {name} nothing watches over the job any more" for name in job.keeper_lost]
    return ["", *lines] if lines else []


def _instances(job: JobRecord, now: float) -> list[str]:
    header = ["NAME", "STATUS", "AGE", "IS_CHIEF", "GPU(Requested)", "NODE"]
    return ruled(header, [_instance(job, seat, now) for seat in job.seats])


def _instance(job: JobRecord, seat: Seat, now: float) -> list[str]:
    told = instance_of(job, seat)
    since = age(told.started or job.started or job.submitted, now)
    gpus = str(requested(job, seat))
    return [seat.instance, layout.state(told.status), since, str(seat.chief).lower(), gpus, seat.node]


def _starters(job: JobRecord) -> list[str]:
    """Who starts a job that waits in line: nobody does where no command and no daemon looks at the queue."""
    if job.status is not JobStatus.PENDING or (job.seats and not job.again):
        return []
    return [
        "",
        "It is tried by each submit, stop, delete, restart, wait and `queue run`, and not",
        "in between, unless `provision queue run --daemon` runs (provision queue unit).",
    ]


def _events(events: Sequence[JobEvent], now: float) -> list[str]:
    rows = [[event.source, event.type, age(event.time, now), event.message] for event in events]
    return ruled(["SOURCE", "TYPE", "AGE", "MESSAGE"], rows)
