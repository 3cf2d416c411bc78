"""The batch script of a job and the options of sbatch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from provision.errors import UsageError
from provision.jobs.cluster_snapshot import ClusterSnapshot
from provision.jobs.engines.common.engine import RecordedJob
from provision.jobs.engines.slurm.payload import VERSION, Payload, PayloadMachine, PayloadNode
from provision.jobs.engines.slurm.planning import Choice
from provision.launchers import launcher_of
from provision.model import Cluster
from provision.model.job import JobSpec
from provision.model.reason import reason
from provision.report.reasons import error_of

OUTPUT = "/var/lib/provision/slurm/job-%j.out"
"""The messages of the starter, on the first node of the job."""
MEMORY = 512
"""MiB of each node for the starter; containers are outside of Slurm's limits."""
_ROOM_SECONDS = 120
_START_VARIABLES = ("cluster_data",)
_LABELS = {"partition": "cluster_slurm_partition", "account": "cluster_slurm_account", "qos": "cluster_slurm_qos"}


def check_spec(spec: JobSpec) -> None:
    """Refuse options that this engine does not support.

    Raises:
        UsageError: the job has one.
    """
    unsupported = [
        option
        for option, is_set in (("--gpu-ids", bool(spec.gpu_ids)), ("--allow-drained", spec.allow_drained))
        if is_set
    ]
    if unsupported:
        raise error_of(UsageError, reason("slurm.unsupported_option", option=unsupported[0]))


def payload_of_job(
    job: RecordedJob, first_attempt: int, nodes: Sequence[PayloadNode], cluster: Cluster, sealed: str
) -> Payload:
    """Return the payload of a job's batch script."""
    signed = job.signed
    variables = cluster.nodes[0].variables
    return Payload(
        version=VERSION,
        name=signed.name,
        id=signed.id,
        first_attempt=first_attempt,
        owner=signed.owner,
        submitted=signed.submitted,
        spec=signed.spec,
        signed=job.text,
        signature=job.signature,
        nodes=tuple(nodes),
        variables={key: variables[key] for key in _START_VARIABLES if variables.get(key)},
        sealed=sealed,
        secrets=signed.secrets,
        code=job.code.path.read_bytes() if job.code is not None else b"",
        about=job.code.about if job.code is not None else None,
    )


def payload_node(name: str, slurm: str, snapshot: ClusterSnapshot, certificate: str) -> PayloadNode:
    """Return a node for the payload, from the snapshot of the cluster."""
    from provision.batch.containers import NodeHardware

    candidate = snapshot.candidates.get(name)
    return PayloadNode(
        slurm,
        name,
        snapshot.addresses.get(name, ""),
        snapshot.interfaces.get(name, ""),
        snapshot.hardware.get(name, NodeHardware()),
        snapshot.networks.get(name),
        PayloadMachine.of(candidate) if candidate is not None else None,
        certificate,
    )


def options(
    spec: JobSpec,
    token: str,
    usable: Sequence[PayloadNode],
    exclude: Sequence[str],
    after: Sequence[int],
    cluster: Cluster,
    choice: Choice | None = None,
) -> dict[str, Any]:
    """Return the options of sbatch, as fields of the request ``slurm_submit``.

    Args:
        spec: the job.
        token: its ID.
        usable: the nodes that the job may get.
        exclude: nodes of Slurm that the job must not get.
        after: jobs in Slurm that have to succeed before.
        cluster: the inventory.
        choice: its nodes and GPUs, for a job with --gputopology.
    """
    gpus = max((len(node.machine.gpus) for node in usable if node.machine is not None), default=0)
    return {
        "name": spec.name,
        "comment": f"provision:{spec.name}@{token}",
        "output": OUTPUT,
        "time": _minutes(spec),
        "memory": MEMORY,
        "requeue": spec.retry > 0,
        "hold": spec.hold,
        "exclusive": spec.exclusive,
        "exclude": list(exclude),
        "after": list(after),
        **({"nice": -spec.priority} if spec.priority else {}),
        **(_resources(spec, len(usable), gpus) if choice is None else _planned(spec, choice)),
        **labels(cluster),
    }


def labels(cluster: Cluster) -> dict[str, str]:
    """Return the partition, account and QOS of the inventory, as fields of requests."""
    variables = cluster.nodes[0].variables
    return {key: str(variables[name]) for key, name in _LABELS.items() if variables.get(name)}


def _minutes(spec: JobSpec) -> str:
    """Return the time limit: without one of the job, that of the partition does not end it."""
    if not spec.running_timeout:
        return "UNLIMITED"
    return str(math.ceil((spec.running_timeout + spec.starting_timeout + _ROOM_SECONDS) / 60))


def _resources(spec: JobSpec, nodes: int, gpus_per_node: int) -> dict[str, Any]:
    """Return the options for workers and GPUs; a request for GPUs of tasks packs workers on few nodes."""
    workers = spec.workers
    if not spec.gang and workers > 1:
        return {"nodes": [1, workers], "tasks_per_node": 1, **({"gpus_per_node": spec.gpus} if spec.gpus else {})}
    fields: dict[str, Any] = {"tasks": workers, **({"gpus_per_task": spec.gpus} if spec.gpus else {})}
    if spec.spread:
        count = max(min(workers, nodes), 1)
        return {**fields, "nodes": [count, count], "tasks_per_node": math.ceil(workers / count)}
    most = spec.max_per_node or workers
    if launcher_of(spec.launcher).equal_slots:
        fit = gpus_per_node // spec.gpus if spec.gpus else workers
        each = next(n for n in range(max(min(workers, most, fit), 1), 0, -1) if workers % n == 0)
        return {**fields, "nodes": [workers // each] * 2, "tasks_per_node": each}
    return {**fields, "tasks_per_node": most} if most < workers else fields


def _planned(spec: JobSpec, choice: Choice) -> dict[str, Any]:
    """Return the options for chosen nodes and GPUs; an exclusive job gets all GPUs of its nodes."""
    count = len(choice.nodes)
    gpus = (
        {"gpus_per_node": choice.workers * spec.gpus}
        if spec.exclusive
        else {"gres": [f"gpu:g{minor}:1" for minor in choice.minors]}
    )
    tasks = {"tasks": count * choice.workers, "tasks_per_node": choice.workers}
    return {"nodes": [count, count], "nodelist": list(choice.nodes), **tasks, **gpus}


def script_limit(size: int, limit: int) -> UsageError:
    """Return the error of a batch script that Slurm would refuse."""
    return error_of(UsageError, reason("slurm.script_too_large", size=size, limit=limit))


def slurm_names(cluster: Cluster) -> Mapping[str, str]:
    """Return the name in Slurm of each node of the inventory: `cluster_drain_name`, else its own."""
    return {node.name: str(node.variables.get("cluster_drain_name") or node.name) for node in cluster.nodes}
