"""Jobs as JSON: arena's keys, for compatibility with its scripts, and additional ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import yaml
from msgspec import to_builtins

from provision.batch.names import trainer
from provision.model.job import Assignment, JobRecord
from provision.report.job_words import NOT_APPLICABLE, age, allocated, duration, instance_of, leader, requested

if TYPE_CHECKING:
    from provision.report.json_documents.jobs import (
        Event,
        FirstFailure,
        Job,
        ListedJob,
        Place,
    )
    from provision.report.json_documents.jobs import (
        Instance as InstanceDocument,
    )


def job_document(job: JobRecord, now: float, engine: str) -> Job:
    """Return the document of ``get -o json``; keys are an interface and only ever added."""
    spec = job.spec
    return {
        **_listed(job, now, engine),
        "image": spec.image,
        "noContainer": spec.no_container,
        "command": list(spec.command),
        "workingDir": spec.working_dir,
        "annotations": dict(spec.annotations),
        "env": dict(spec.env),
        "secretEnv": list(spec.secret_env),
        "events": event_documents(job),
    }


def _listed(job: JobRecord, now: float, engine: str) -> ListedJob:
    """Return a job in a list, which is built from brief reports without the other keys of `job_document`."""
    first = leader(job)
    spec = job.spec
    return {
        "uuid": job.id,
        "name": spec.name,
        "namespace": "default",
        "duration": duration(job, now),
        "status": job.status,
        "trainer": trainer(spec.kind).lower(),
        "tensorboard": job.tensorboard,
        "chiefName": first.instance if first else "",
        "instances": [instance_document(job, assignment, now) for assignment in job.assignments],
        "priority": str(spec.priority) if spec.priority else NOT_APPLICABLE,
        "requestGPUs": spec.total_gpus,
        "allocatedGPUs": allocated(job),
        "creationTimestamp": int(job.submitted),
        "modelName": spec.annotations.get("modelName", ""),
        "modelVersion": spec.annotations.get("modelVersion", ""),
        "modelSource": spec.annotations.get("modelSource", ""),
        "engine": engine,
        "owner": job.owner,
        "attempt": job.attempt,
        "reason": job.reason,
        "code": job.cause.code,
        "params": job.cause.as_document()["params"],
        "reasonTimestamp": int(job.reason_time),
        "startTimestamp": int(job.started),
        "endTimestamp": int(job.ended),
        "exitCode": job.exit_code,
        "exitCodes": {name: instance.exit_code for name, instance in job.instances.items()},
        "firstFailure": _failure(job),
        "placement": [_place(assignment) for assignment in job.assignments],
        "codeSHA": job.code_sha,
        "imageDigest": job.image_digest,
        "labels": dict(spec.labels),
        "leases": {node: list(uuids) for node, uuids in job.allocations.items()},
        "unreachable": list(job.unreachable),
        "unconfirmedNodes": list(job.unconfirmed),
        "deleteRequested": job.deleting,
        "keeperLost": list(job.engine_details.get("unsupervisedNodes", ())),
        "engineDetails": dict(job.engine_details),
    }


def instance_document(job: JobRecord, assignment: Assignment, now: float) -> InstanceDocument:
    """Return one instance."""
    instance = instance_of(job, assignment)
    return {
        "ip": assignment.address,
        "status": instance.status,
        "name": assignment.instance,
        "age": age(instance.started or job.started or job.submitted, now),
        "node": assignment.node,
        "nodeIP": assignment.address,
        "chief": assignment.is_leader,
        "requestGPUs": requested(job, assignment),
        "gpuMetrics": {},
        "creationTimestamp": int(instance.started),
        "role": assignment.role,
        "rank": assignment.rank,
        "exitCode": instance.exit_code,
        "signal": instance.signal,
        "reason": instance.reason,
        "endTimestamp": int(instance.ended),
    }


def event_documents(job: JobRecord) -> list[Event]:
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


def survey_documents(jobs: Sequence[JobRecord], now: float, engine: str) -> list[ListedJob]:
    """Return the document of ``list -o json``: a list, as in arena, without the details of single jobs."""
    return [_listed(job, now, engine) for job in jobs]


def written(document: Any, form: str) -> str:
    """Return a document as ``json`` or ``yaml``."""
    if form == "yaml":
        document = to_builtins(document)  # enum members as text
        text = _yaml(document, unicode=True)
        # Control characters are escaped on a terminal, but remain part of the value.
        plain = all(letter.isprintable() or letter in "\n\t\u00a0" for letter in text)
        return text if plain else _yaml(document, unicode=False)
    return json.dumps(document, indent=2, ensure_ascii=False)


def _yaml(document: Any, *, unicode: bool) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=unicode, default_flow_style=False).rstrip("\n")


def _failure(job: JobRecord) -> FirstFailure | None:
    if not job.first_failure:
        return None
    instance = job.instances.get(job.first_failure)
    node = next((assignment.node for assignment in job.assignments if assignment.instance == job.first_failure), "")
    return {
        "instance": job.first_failure,
        "rank": job.first_rank,
        "node": node,
        "exitCode": instance.exit_code if instance else None,
        "signal": instance.signal if instance else None,
        "lastLines": list(instance.last_lines) if instance else [],
    }


def _place(assignment: Assignment) -> Place:
    return {
        "instance": assignment.instance,
        "node": assignment.node,
        "gpus": list(assignment.gpus),
        "uuids": list(assignment.uuids),
        "nics": list(assignment.nics),
        "links": "",
    }
