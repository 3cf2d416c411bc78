"""The fields of a job that an MPIJob or PyTorchJob has, without the annotations of an export."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provision.batch.export.findings import Findings, PodFields
from provision.batch.export.kubernetes import QUEUE_LABEL
from provision.batch.export.pod_fields import as_command, differences, read_pod, variable_differences
from provision.batch.export.pod_placement import PLACEMENT
from provision.batch.inference import starts_processes, starts_ranks, words_of
from provision.documents.kubernetes import Manifest, problems
from provision.model.job import Kind
from provision.model.reason import reason

PREFIX = "provision/"
"""Of the annotations with the fields of a job that a manifest does not have."""
KINDS = {
    "kubeflow.org/v2beta1/MPIJob": Kind.MPI,
    "kubeflow.org/v1/MPIJob": Kind.MPI,
    "kubeflow.org/v1/PyTorchJob": Kind.PYTORCH,
}
_BESIDE = frozenset({"v1/Secret", "v1/Service", "v1/ConfigMap", "v1/Namespace"})
"""Objects that may be in the same file."""
_SILENT = frozenset({"mpiImplementation", "sshAuthMountPath", "launcherCreationPolicy", "mainContainer"})
_DEFAULTS = {"mpiImplementation": "OpenMPI", "sshAuthMountPath": "/root/.ssh"}
_RIGHTS = ("privileged", "user")
"""Fields that change what a job may do; a job has one value for all instances."""
_READ_SPEC = frozenset(
    {"slotsPerWorker", "mpiReplicaSpecs", "pytorchReplicaSpecs", "nprocPerNode", "runPolicy", "cleanPodPolicy"}
)
_METADATA = frozenset({"name", "labels", "annotations"})
_WRITTEN_BY_SERVER = frozenset(
    {"creationTimestamp", "generation", "managedFields", "ownerReferences", "resourceVersion", "selfLink", "uid"}
)
_RUN_POLICY = {
    "cleanPodPolicy": "clean_task_policy",
    "ttlSecondsAfterFinished": "ttl_after_finished",
    "activeDeadlineSeconds": "running_timeout",
    "backoffLimit": "retry",
    "suspend": "hold",
}


@dataclass
class Reading:
    """What a manifest says."""

    findings: Findings
    fields: dict[str, Any] = field(default_factory=dict)
    """Field of JobSpec -> its value."""
    annotations: dict[str, str] = field(default_factory=dict)
    """Field of JobSpec -> the text of the export's annotation."""
    sync_secrets: tuple[str, ...] = ()
    queue: str = ""
    """The LocalQueue of Kueue, which decides when the job starts."""


def is_manifest(documents: list[Manifest]) -> bool:
    """Return whether a file has Kubernetes' objects."""
    return any({"apiVersion", "kind"} <= one.value.keys() for one in documents)


def job_of(documents: list[Manifest], findings: Findings) -> Manifest | None:
    """Return the job among the documents of a file; None if there is not exactly one that can be read."""
    jobs = [one for one in documents if one.kind in KINDS]
    for one in documents:
        if one.kind in _BESIDE:
            findings.notes.append(("kind", reason("manifest.beside", kind=one.kind)))
        elif one.kind not in KINDS:
            findings.problems.append(("kind", reason("manifest.other_kind", kind=one.kind)))
    if len(jobs) > 1:
        findings.problems.append(("kind", reason("manifest.several_jobs", number=len(jobs))))
    return jobs[0] if len(jobs) == 1 and not findings.problems else None


def read_fields(job: Manifest, findings: Findings) -> Reading:
    """Return the fields of a job; nothing but problems if the manifest violates its schema."""
    reading = Reading(findings)
    findings.problems += problems(job.value)
    if findings.problems:
        return reading
    kind = KINDS[job.kind]
    reading.fields["kind"] = kind
    _read_metadata(job.value["metadata"], reading)
    spec = job.value["spec"]
    for name, value in spec.items():
        if name == "runLauncherAsWorker" and not value:
            continue
        if name not in _READ_SPEC | _SILENT and value not in (None, {}, []):
            findings.refuse(f"spec.{name}")
    _read_run_policy(spec, reading)
    (_read_mpi if kind is Kind.MPI else _read_pytorch)(spec, reading)
    return reading


def _read_metadata(metadata: Mapping[str, Any], reading: Reading) -> None:
    findings, fields = reading.findings, reading.fields
    for name, value in metadata.items():
        if name not in _METADATA | _WRITTEN_BY_SERVER and value:
            findings.note(f"metadata.{name}")
    fields["name"] = metadata.get("name") or ""
    labels = dict(metadata.get("labels") or {})
    reading.queue = labels.pop(QUEUE_LABEL, "")
    if reading.queue:
        findings.note(f"metadata.labels.{QUEUE_LABEL}")
    fields["labels"] = labels
    annotations = metadata.get("annotations") or {}
    reading.annotations = {
        key.removeprefix(PREFIX): value for key, value in annotations.items() if key.startswith(PREFIX)
    }
    fields["annotations"] = {key: value for key, value in annotations.items() if not key.startswith(PREFIX)}


def _read_run_policy(spec: Mapping[str, Any], reading: Reading) -> None:
    policy = {"cleanPodPolicy": spec.get("cleanPodPolicy"), **(spec.get("runPolicy") or {})}
    for name, value in policy.items():
        if value is None or name == "schedulingPolicy":
            continue
        if name not in _RUN_POLICY:
            reading.findings.note(f"spec.runPolicy.{name}")
            continue
        target = _RUN_POLICY[name]
        reading.fields[target] = float(value) if target.endswith(("finished", "timeout")) else value
    scheduling = policy.get("schedulingPolicy") or {}
    for name in scheduling:
        if name != "minAvailable":
            reading.findings.note(f"spec.runPolicy.schedulingPolicy.{name}")


def _read_mpi(spec: Mapping[str, Any], reading: Reading) -> None:
    findings, roles, main = reading.findings, spec["mpiReplicaSpecs"], spec.get("mainContainer") or ""
    path = "spec.mpiReplicaSpecs"
    if spec.get("mpiImplementation") not in {None, _DEFAULTS["mpiImplementation"]}:
        findings.refuse("spec.mpiImplementation")
    if spec.get("sshAuthMountPath") not in {None, _DEFAULTS["sshAuthMountPath"]}:
        findings.note("spec.sshAuthMountPath")
    if not roles.get("Worker"):
        findings.problems.append((path, reason("manifest.missing_field", path=f"{path}.Worker")))
        return
    launcher = _pod(roles, "Launcher", path, reading, main)
    worker = _pod(roles, "Worker", path, reading, main)
    if _count(roles["Launcher"]) != 1:
        findings.refuse(f"{path}.Launcher.replicas")
    if launcher.gpus:
        findings.note(f"{path}.Launcher.template.spec.containers[0].resources.limits.nvidia.com/gpu")
        launcher.gpus = 0
    if worker.argv and not any("sshd" in word for word in worker.argv):
        findings.note(f"{path}.Worker.template.spec.containers[0].command")
    gpus, slots = worker.gpus, spec.get("slotsPerWorker")
    if slots is not None and slots != max(gpus, 1):
        findings.problems.append(("spec.slotsPerWorker", reason("manifest.slots", slots=slots, expected=max(gpus, 1))))
    _compare_mpi(launcher, worker, findings)
    _assemble(reading, launcher, worker, _count(roles["Worker"]))
    _read_command(reading, launcher.argv, f"{path}.Launcher.template.spec.containers[0].command")


def _read_pytorch(spec: Mapping[str, Any], reading: Reading) -> None:
    findings, roles = reading.findings, spec["pytorchReplicaSpecs"]
    path = "spec.pytorchReplicaSpecs"
    names = [name for name in ("Master", "Worker") if roles.get(name)]
    if not names:
        findings.problems.append((path, reason("manifest.missing_field", path=f"{path}.Master")))
        return
    pods = [_pod(roles, name, path, reading) for name in names]
    if "Master" in names and _count(roles["Master"]) != 1:
        findings.refuse(f"{path}.Master.replicas")
    first, last = pods[0], pods[-1]
    different = list(differences(first, last))
    different += [("command", f"{last.path}.spec.containers[0].command")] if first.argv != last.argv else []
    for name, where in different:
        findings.problems.append((where, reason("manifest.different", path=where, field=name, roles=tuple(names))))
    reading.fields["nproc_per_node"] = spec.get("nprocPerNode") or ""
    _assemble(reading, first, last, sum(_count(roles[name]) for name in names))
    _read_command(reading, first.argv, f"{path}.{names[0]}.template.spec.containers[0].command")


def _compare_mpi(launcher: PodFields, worker: PodFields, findings: Findings) -> None:
    """Report what differs between launcher and workers; the launcher of a job runs beside its first worker."""
    roles = ("Launcher", "Worker")
    for name in PLACEMENT:
        value = launcher.fields.pop(name, None)
        if value is not None and value != worker.fields.get(name):
            where = f"{launcher.path}.spec"
            findings.notes.append((where, reason("manifest.launcher_placement", path=where, field=name)))
    different = [(name, f"{worker.path}.spec") for name in _RIGHTS]
    different = [one for one in different if launcher.fields.get(one[0]) != worker.fields.get(one[0])]
    different += variable_differences(launcher, worker)
    for name in launcher.fields:
        if name in _RIGHTS:
            continue
        if name not in worker.fields:
            where = f"{launcher.path}.spec"
            findings.notes.append((where, reason("manifest.all_instances", path=where, field=name)))
        elif launcher.fields[name] != worker.fields[name]:
            different.append((name, f"{worker.path}.spec"))
    for name, where in different:
        findings.problems.append((where, reason("manifest.different", path=where, field=name, roles=roles)))


def _pod(roles: Mapping[str, Any], name: str, path: str, reading: Reading, main: str = "") -> PodFields:
    """Return the pod of a role; its container is restarted only by a retry of the job."""
    policy = roles[name].get("restartPolicy")
    if policy not in {None, "Never"} and not (policy == "OnFailure" and reading.fields.get("retry")):
        reading.findings.note(f"{path}.{name}.restartPolicy")
    template = roles[name].get("template") or {}
    return read_pod(template, f"{path}.{name}.template", reading.findings, main, reading.fields["name"])


def _count(role: Mapping[str, Any]) -> int:
    replicas = role.get("replicas")
    return 1 if replicas is None else int(replicas)


def _assemble(reading: Reading, first: PodFields, last: PodFields, workers: int) -> None:
    fields = reading.fields
    fields |= {**last.fields, **first.fields}
    fields |= {"workers": workers, "gpus": last.gpus, "image": first.image}
    if last.image != first.image:
        fields["worker_image"] = last.image
    fields["env"] = {**last.env, **first.env}
    fields["secret_env"] = tuple(dict.fromkeys([*first.secret_env, *last.secret_env]))
    reading.sync_secrets = tuple(dict.fromkeys([*first.sync_secrets, *last.sync_secrets]))


def _read_command(reading: Reading, argv: tuple[str, ...], path: str) -> None:
    """Read the command; one that the engine would start several times becomes a command line, which runs once."""
    fields = reading.fields
    if not argv:
        reading.findings.refuse(path, "command")
        return
    command, shell = as_command(argv)
    is_mpi = fields["kind"] is Kind.MPI
    starts = starts_ranks if is_mpi else starts_processes
    if (len(command) > 1 and (is_mpi or fields.get("nproc_per_node")) and not starts(words_of(command))) or (
        len(command) == 1 and len(argv) == 1
    ):
        command = (shlex.join(command),)
    fields["command"], fields["shell"] = command, shell
