"""Kubernetes manifests of a job: MPIJob, PyTorchJob, TrainJob or Job, with its Secrets and its Service."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from provision.batch.export.expansion import literal
from provision.batch.export.pods import (
    MOST_ID,
    WORKER_LABEL,
    container,
    drop_empty,
    is_domain,
    is_key,
    is_label,
    pod_spec,
)
from provision.batch.export.secrets import secret_objects
from provision.batch.export.workload import (
    MASTER_PORT,
    ExportOptions,
    Group,
    Workload,
    build,
    dropped,
    fetches_code,
    rank_variables,
    runs_once,
)
from provision.errors import UsageError
from provision.model.job import JobSpec, Kind
from provision.model.reason import Reason, reason

KINDS = {Kind.MPI: ("mpijob",), Kind.PYTORCH: ("pytorchjob", "trainjob", "job"), Kind.RUN: ("job",)}
"""Kind of a job -> kinds of manifests; the first one is the default."""
READABLE = frozenset({"mpijob", "pytorchjob"})
"""Manifests that ``submit -f`` reads."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
RUNTIME = "torch-distributed"
"""The runtime that Kubeflow Trainer installs for PyTorch."""
MANAGER = "provision/export"
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_LONGEST_SERVICE = 63
_NAME_REMEDY = "Use letters, digits, '-' and '.'."
_IN_DIRECTORY = 'cd "$1" || exit; shift; exec "$@"'
_TORCH_NAMES = (
    'export RANK="$PET_NODE_RANK" WORLD_SIZE="$PET_NNODES" MASTER_ADDR="$PET_MASTER_ADDR" '
    f'MASTER_PORT="${{PET_MASTER_PORT:-{MASTER_PORT}}}"; {_IN_DIRECTORY}'
)

_NEVER = {
    "gputopology": "The kubelet chooses the GPUs of a pod; --topology LABEL keeps all pods within one topology level.",
    "exclusive": "Request all GPUs of a node.",
    "gpu_ids": "The kubelet chooses the GPUs.",
    "procs_per_gpu": "Each GPU gets one process; the device plugin can share GPUs.",
    "mps": "The device plugin of NVIDIA can share GPUs by MPS.",
    "fabric": "Set the variables of NCCL by --env.",
    "ulimits": "Limits of containers are settings of containerd.",
    "tensorboard": "Start TensorBoard as a Deployment on the same volume.",
    "starting_timeout": "A timeout of Kueue (waitForPodsReady) has the same purpose.",
    "priority": "Create a PriorityClass, and set priorityClassName.",
    "depends": "Submit the job after the others.",
}
_OF_KIND = {
    "job": {
        "clean_task_policy": "Pods of a Job stay until it is deleted.",
        "worker_image": "All pods of a Job have one image.",
    },
    "trainjob": {
        "worker_image": "All nodes of a TrainJob have one image.",
        "pull": "The image is pulled as its training runtime defines.",
        "retry": "The training runtime defines the restarts.",
        "ttl_after_finished": "Delete the TrainJob when it has finished.",
        "clean_task_policy": "Pods of a TrainJob stay until it is deleted.",
        "sync": "Copy the code into the image or onto a volume.",
    },
}
"""Field -> what to do instead."""


def kind_of(spec: JobSpec, options: ExportOptions) -> str:
    """Return the kind of manifest for a job.

    Raises:
        UsageError: the job cannot be written as this kind, or it has no containers.
    """
    kinds = KINDS[spec.kind]
    if options.kind and options.kind not in kinds:
        raise UsageError(
            f"--kind {options.kind}: a job of type {spec.kind} cannot be written as this kind",
            remedy=f"Use --kind {' or '.join(kinds)}.",
        )
    kind = options.kind or kinds[0]
    if spec.no_container:
        raise UsageError(
            "--no-container: a pod needs an image", remedy="Remove --no-container and set --image, or use --to slurm."
        )
    if kind == "trainjob" and not spec.name[0].isalpha():
        raise UsageError(
            f"--name {spec.name}: the name of a TrainJob must start with a letter", remedy="Use --name or --kind job."
        )
    return kind


def documents(spec: JobSpec, options: ExportOptions) -> tuple[list[dict[str, Any]], list[Reason]]:
    """Return the manifests of a job, the job itself last, and what has no counterpart."""
    kind = kind_of(spec, options)
    _check_names(spec, options)
    workload = build(spec, options)
    notes = [*workload.notes, *_notes(spec, kind, options)]
    writers = {"mpijob": _mpijob, "pytorchjob": _pytorchjob, "trainjob": _trainjob, "job": _job}
    secrets, secret_notes = secret_objects(spec, options)
    job = writers[kind](workload, options)
    service = [_service(spec)] if kind == "job" and spec.workers > 1 else []
    return [*secrets, *service, drop_empty(job)], [*notes, *secret_notes]


def _check_names(spec: JobSpec, options: ExportOptions) -> None:
    """Refuse names that the API server would refuse.

    Raises:
        UsageError: with the option.
    """
    names = [("--queue", options.queue, is_label(QUEUE_LABEL, options.queue))]
    names += [("--topology", options.topology, not options.topology or is_key(options.topology))]
    names += [("--rdma-resource", options.rdma_resource, _is_resource(options.rdma_resource))]
    names += [("--data", name, is_domain(name)) for name, _ in spec.data]
    names += [("--nodes or --exclude", name, is_label("node", name)) for name in (*spec.nodes, *spec.exclude)]
    for option, name, is_valid in names:
        if not is_valid:
            raise UsageError(
                f"{option} {name!r}: Kubernetes does not accept this name",
                remedy="Use DOMAIN/NAME, e.g. rdma/hca." if option == "--rdma-resource" else _NAME_REMEDY,
            )
    _check_values(spec, options)


def _check_values(spec: JobSpec, options: ExportOptions) -> None:
    """Refuse values that the API server would refuse.

    Raises:
        UsageError: with the option.
    """
    service = {"mpijob": spec.name, "pytorchjob": f"{spec.name}-master-0", "job": spec.name if spec.workers > 1 else ""}
    name = service.get(kind_of(spec, options), "")
    if name and (not name[0].isalpha() or len(name) > _LONGEST_SERVICE):
        raise UsageError(
            f"--name {spec.name}: the job has the Service {name}, whose name must start with a letter and have at most "
            f"{_LONGEST_SERVICE} characters",
            remedy="Use --name.",
        )
    for mount in spec.mounts:
        if ".." in mount.partition(":")[0].split("/"):
            raise UsageError(
                f"--mount {mount}: Kubernetes does not accept '..' in a path", remedy="Write the path without '..'."
            )
    if any(int(number) > MOST_ID for number in re.findall(r"\d+", spec.user)):
        raise UsageError(
            f"--user {spec.user}: Kubernetes accepts numbers up to {MOST_ID}", remedy="Use a smaller number."
        )


def _is_resource(name: str) -> bool:
    """Return whether a name can be that of a device plugin's resource; none is given if it is empty."""
    return not name or ("/" in name and is_key(name))


def _notes(spec: JobSpec, kind: str, options: ExportOptions) -> Iterator[Reason]:
    names = {**_NEVER, **_OF_KIND.get(kind, {})}
    if spec.max_per_node > 1:
        names["max_per_node"] = "Use --max-per-node 1, or the limits of the nodes."
    if options.queue:
        names["hold"] = "Kueue starts the job when its queue admits it."
    if not fetches_code(spec):
        names["sync"] = "Copy the code into the image or onto a volume, or use --sync-mode git."
    yield from dropped(spec, f"a {kind}", names)
    yield from _placement_notes(spec, options)
    yield from _kind_notes(spec, kind, options)
    if spec.rdma and not options.rdma_resource and spec.gpus and spec.workers > 1:
        yield reason("export.no_rdma_resource")
    for name, _ in spec.data:
        yield reason("export.claim", volume=name)
    if spec.mounts:
        yield reason("export.host_path", mounts=spec.mounts)


def _kind_notes(spec: JobSpec, kind: str, options: ExportOptions) -> Iterator[Reason]:
    if runs_once(spec):
        yield reason("export.launcher_without_gpus")
    if kind == "mpijob" and spec.user.partition(":")[0] not in {"", "0"}:
        yield reason("export.ssh_folder", account=spec.user)
    if kind == "job" and spec.retry and spec.workers > 1:
        yield reason("export.single_pod_retries")
    if kind == "mpijob" and options.host_network:
        yield reason("export.host_network_sshd")
    if options.submitted and spec.sync is not None and fetches_code(spec) and not options.sync_secrets:
        yield reason("export.code_credential", source=spec.sync.source)
    if options.topology and not options.queue:
        yield reason("export.topology_without_queue")
    if kind == "trainjob" and options.host_network:
        yield reason("export.no_counterpart", option="--host-network", target="a trainjob", instead="")


def _placement_notes(spec: JobSpec, options: ExportOptions) -> Iterator[Reason]:
    invalid = [key for key, value in spec.selector.items() if not is_label(key, value)]
    invalid += [key for key, value in spec.labels.items() if not is_label(key, value)]
    invalid += [key for key in spec.annotations if not is_key(key)]
    if invalid:
        yield reason("export.invalid_label", keys=invalid)
    if spec.nodes or spec.exclude:
        yield reason("export.node_names", nodes=(*spec.nodes, *spec.exclude))
    if spec.gang and not options.queue and spec.workers > 1:
        yield reason("export.gang")


def _metadata(spec: JobSpec, options: ExportOptions) -> dict[str, Any]:
    labels = {key: value for key, value in spec.labels.items() if is_label(key, value)}
    annotations = {key: value for key, value in spec.annotations.items() if is_key(key)}
    queue = {QUEUE_LABEL: options.queue} if options.queue else {}
    return {"name": spec.name, "labels": {**labels, **queue}, "annotations": annotations}


def _template(workload: Workload, group: Group, options: ExportOptions, name: str, **more: Any) -> dict[str, Any]:
    spec = workload.spec
    metadata: dict[str, Any] = {}
    if group.role != "launcher" and (spec.spread or spec.max_per_node == 1):
        metadata["labels"] = {WORKER_LABEL: spec.name}
    if options.topology:
        metadata["annotations"] = {TOPOLOGY: options.topology}
    return {"metadata": metadata, "spec": pod_spec(workload, group, options, name, **more)}


def _run_policy(workload: Workload, options: ExportOptions, pods: int) -> dict[str, Any]:
    spec = workload.spec
    return {
        "cleanPodPolicy": spec.clean_task_policy or "Running",
        **_limits(spec, options),
        "schedulingPolicy": {"minAvailable": pods} if spec.gang and not options.queue and pods > 1 else {},
    }


def _limits(spec: JobSpec, options: ExportOptions) -> dict[str, Any]:
    return {
        "backoffLimit": spec.retry,
        "activeDeadlineSeconds": math.ceil(spec.running_timeout) or None,
        "ttlSecondsAfterFinished": math.ceil(spec.ttl_after_finished) if spec.ttl_after_finished else None,
        "suspend": True if spec.hold and not options.queue else None,
    }


def _mpijob(workload: Workload, options: ExportOptions) -> dict[str, Any]:
    spec = workload.spec
    launcher, worker = workload.groups
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": _metadata(spec, options),
        "spec": {
            "slotsPerWorker": max(spec.gpus, 1),
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": _run_policy(workload, options, spec.workers),
            "mpiReplicaSpecs": {
                role: {
                    "replicas": group.count,
                    "restartPolicy": "Never",
                    "template": _template(workload, group, options, "mpi"),
                }
                for role, group in (("Launcher", launcher), ("Worker", worker))
            },
        },
    }


def _pytorchjob(workload: Workload, options: ExportOptions) -> dict[str, Any]:
    spec = workload.spec
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _metadata(spec, options),
        "spec": {
            "nprocPerNode": workload.processes or None,
            "runPolicy": _run_policy(workload, options, spec.workers),
            "pytorchReplicaSpecs": {
                group.role.capitalize(): {
                    "replicas": group.count,
                    "restartPolicy": "OnFailure" if spec.retry else "Never",
                    "template": _template(workload, group, options, "pytorch"),
                }
                for group in workload.groups
            },
        },
    }


def _job(workload: Workload, options: ExportOptions) -> dict[str, Any]:
    spec = workload.spec
    group = replace(workload.groups[0], count=spec.workers)
    master = f"{spec.name}-0.{spec.name}" if spec.workers > 1 else "localhost"
    ranks: list[dict[str, Any]] = []
    for name, value in rank_variables(spec, master, "").items():
        if name in spec.env or name in spec.secret_env:
            continue
        index = {"valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}
        ranks.append({"name": name, **({"value": value} if value else index)})
    more = {"restartPolicy": "Never", "subdomain": spec.name if spec.workers > 1 else None}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(spec, options),
        "spec": {
            "completionMode": "Indexed",
            "completions": spec.workers,
            "parallelism": spec.workers,
            **_limits(spec, options),
            "template": _template(workload, group, options, "main", ranks=ranks, **more),
        },
    }


def _service(spec: JobSpec) -> dict[str, Any]:
    """Return the Service that gives the pods of a Job names, under which rank 0 is reached."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": spec.name},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": spec.name},
        },
    }


def _trainjob(workload: Workload, options: ExportOptions) -> dict[str, Any]:
    """Return a TrainJob; its fields have no working directory, and the runtime sets only PET_* variables."""
    spec = workload.spec
    group = workload.groups[0]
    spec = replace(spec, sync=None)
    template = _template(replace(workload, spec=spec), group, options, "node")
    pod = template["spec"]
    only = container(replace(workload, spec=spec), group, options, "node")
    patched = {name: only[name] for name in ("name", "volumeMounts", "securityContext") if only.get(name)}
    names = ("volumes", "imagePullSecrets", "securityContext", "nodeSelector", "affinity", "tolerations")
    patch = {**{name: pod.get(name) for name in names}, "containers": [patched]}
    node = {"name": "node", "template": {"spec": {"template": {"metadata": template["metadata"], "spec": patch}}}}
    command = ["sh", "-c", _TORCH_NAMES, "sh", spec.working_dir, *group.command]
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(spec, options),
        "spec": {
            "runtimeRef": {"name": RUNTIME},
            "trainer": {
                "image": spec.image,
                "command": [literal(word) for word in command],
                "env": only["env"],
                "numNodes": spec.workers,
                "numProcPerNode": int(workload.processes) if workload.processes.isdecimal() else None,
                "resourcesPerNode": only.get("resources"),
            },
            "suspend": True if spec.hold and not options.queue else None,
            "activeDeadlineSeconds": math.ceil(spec.running_timeout) or None,
            "runtimePatches": [
                {
                    "manager": MANAGER,
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [node]}}},
                }
            ],
        },
    }
