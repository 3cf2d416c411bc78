"""Jobs as JSON: arena's keys, so that scripts for it go on working, and ours beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from provision.batch.names import trainer
from provision.model.job import JobRecord, Seat
from provision.report.job_words import NOT_APPLICABLE, age, allocated, chief, duration, instance_of, requested

__all__ = ["event_documents", "instance_document", "job_document", "survey_documents", "written"]

_NOT_LISTED = frozenset({"image", "noContainer", "command", "workingDir", "annotations", "env", "secretEnv", "events"})
"""Lists are made from brief reports, which have none of these."""
_MODEL = ("modelName", "modelVersion", "modelSource")


def job_document(job: JobRecord, now: float, engine: str = "direct") -> dict[str, Any]:
    """Return what ``get -o json`` prints; keys are an interface and only ever added.

    Args:
        job: the job.
        now: seconds since the epoch.
        engine: what runs it.
    """
    first = chief(job)
    spec = job.spec
    return {
        "uuid": job.id,
        "name": spec.name,
        "namespace": "default",
        "duration": duration(job, now),
        "status": str(job.status),
        "trainer": trainer(spec.kind).lower(),
        "tensorboard": job.tensorboard,
        "chiefName": first.instance if first else "",
        "instances": [instance_document(job, seat, now) for seat in job.seats],
        "priority": str(spec.priority) if spec.priority else NOT_APPLICABLE,
        "requestGPUs": spec.total_gpus,
        "allocatedGPUs": allocated(job),
        "creationTimestamp": int(job.submitted),
        **{key: spec.annotations.get(key, "") for key in _MODEL},
        "engine": engine,
        "owner": job.owner,
        "attempt": job.attempt,
        "reason": job.reason,
        "reasonTimestamp": int(job.reason_time),
        "startTimestamp": int(job.started),
        "endTimestamp": int(job.ended),
        "exitCode": job.exit_code,
        "exitCodes": {name: told.exit_code for name, told in job.instances.items()},
        "firstFailure": _failure(job),
        "placement": [_place(seat) for seat in job.seats],
        "codeSHA": job.code_sha,
        "imageDigest": job.image_digest,
        "image": spec.image,
        "noContainer": spec.no_container,
        "command": list(spec.command),
        "workingDir": spec.working_dir,
        "labels": dict(spec.labels),
        "annotations": dict(spec.annotations),
        "env": dict(spec.env),
        "secretEnv": list(spec.secret_env),
        "leases": {node: list(held) for node, held in job.leases.items()},
        "unreachable": list(job.unreachable),
        "unconfirmedNodes": list(job.unconfirmed),
        "deleteRequested": job.deleting,
        "keeperLost": list(job.keeper_lost),
        "events": event_documents(job),
    }


def instance_document(job: JobRecord, seat: Seat, now: float) -> dict[str, Any]:
    """Return one instance."""
    told = instance_of(job, seat)
    return {
        "ip": seat.address,
        "status": told.status,
        "name": seat.instance,
        "age": age(told.started or job.started or job.submitted, now),
        "node": seat.node,
        "nodeIP": seat.address,
        "chief": seat.chief,
        "requestGPUs": requested(job, seat),
        "gpuMetrics": {},
        "creationTimestamp": int(told.started),
        "role": seat.role,
        "rank": seat.rank,
        "exitCode": told.exit_code,
        "signal": told.signal,
        "reason": told.reason,
        "endTimestamp": int(told.ended),
    }


def event_documents(job: JobRecord) -> list[dict[str, Any]]:
    """Return a job's events, oldest first."""
    return [
        {
            "job": job.spec.name,
            "time": event.time,
            "source": event.source,
            "type": event.type,
            "message": event.message,
        }
        for event in job.events
    ]


def survey_documents(jobs: Sequence[JobRecord], now: float, engine: str = "direct") -> list[dict[str, Any]]:
    """Return what ``list -o json`` prints: a list, as arena does, without what nodes tell of a single job alone."""
    return [
        {key: value for key, value in job_document(job, now, engine).items() if key not in _NOT_LISTED} for job in jobs
    ]


def written(document: Any, form: str) -> str:
    """Return a document as ``json`` or ``yaml``."""
    if form == "yaml":
        text = _yaml(document, unicode=True)
        # A terminal gets no control characters; escaped, they are still part of the value.
        plain = all(letter.isprintable() or letter in "\n\t\u00a0" for letter in text)
        return text if plain else _yaml(document, unicode=False)
    return json.dumps(document, indent=2, ensure_ascii=False)


def _yaml(document: Any, *, unicode: bool) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=unicode, default_flow_style=False).rstrip("\n")


def _failure(job: JobRecord) -> Mapping[str, Any] | None:
    if not job.first_failure:
        return None
    told = job.instances.get(job.first_failure)
    node = next((seat.node for seat in job.seats if seat.instance == job.first_failure), "")
    return {
        "instance": job.first_failure,
        "rank": job.first_rank,
        "node": node,
        "exitCode": told.exit_code if told else None,
        "signal": told.signal if told else None,
        "lastLines": list(told.last_lines) if told else [],
    }


def _place(seat: Seat) -> dict[str, Any]:
    return {
        "instance": seat.instance,
        "node": seat.node,
        "gpus": list(seat.gpus),
        "uuids": list(seat.uuids),
        "nics": list(seat.nics),
        "links": "",
    }
