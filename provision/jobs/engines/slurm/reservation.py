"""GPUs for a program that is not a batch job: allocations of Slurm without a script, and leases on the nodes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.batch.slurm.states import SlurmNodeState, gpu_types, holders, node_states
from provision.documents.jobs import Done, Written
from provision.documents.slurm_jobs import SlurmDevice, SlurmState, SlurmSubmitted, StepGpus
from provision.errors import LaunchError, ProvisionError
from provision.jobs.engines.common.gpu_reservation import reserved_gpus
from provision.jobs.engines.slurm.submission import MEMORY
from provision.jobs.node_ask import ask_jobs
from provision.jobs.node_contact import Contact
from provision.model.job_requests import GpuRequest
from provision.model.reason import reason
from provision.report.reasons import error_of

PATIENCE_SECONDS = 10
"""How long Slurm may take to allocate free GPUs."""
MINUTES = 15
"""The time limit of an allocation, which ends it if this process dies; this process extends it meanwhile."""
_EXTEND_SECONDS = 300.0


@dataclass(frozen=True)
class Scheduler:
    """What allocations need: the node with Slurm's commands, and the names of nodes in Slurm."""

    contact: Contact
    head: str
    names: Mapping[str, str]
    labels: Mapping[str, str]
    """Partition, account and QOS of allocations."""

    def ask(self, do: str, kind: type[Any], **request: Any) -> Any:
        """Send a request to the node with Slurm's commands."""
        with contextlib.closing(self.contact.connect(self.head)) as connector:
            return ask_jobs(connector, do, kind, **request)


@contextlib.contextmanager
def allocated_gpus(owner: str, requests: Sequence[GpuRequest], scheduler: Scheduler) -> Iterator[None]:
    """Allocate GPUs in Slurm and lease them while the context is open: all of them, or none.

    Raises:
        LaunchError: one of them is in use.
    """
    states = node_states(scheduler.ask("slurm_state", SlurmState, nodes=True).nodes)
    numbers: dict[str, int] = {}
    over = threading.Event()
    try:
        for request in sorted(requests, key=lambda one: one.node):
            numbers[request.node] = _allocate(owner, request, scheduler, states)
        threading.Thread(target=_extend, args=(scheduler, numbers, over), daemon=True, name="allocations").start()
        with reserved_gpus(owner, requests, scheduler.contact.nodes, slurm_jobs=numbers):
            yield
    finally:
        over.set()
        if numbers:
            with contextlib.suppress(ProvisionError):  # their time limit ends them
                scheduler.ask("slurm_cancel", Done, jobs=list(numbers.values()))


def _allocate(owner: str, request: GpuRequest, scheduler: Scheduler, states: Mapping[str, SlurmNodeState]) -> int:
    """Return the number of the allocation of one node."""
    slurm = scheduler.names[request.node]
    with contextlib.closing(scheduler.contact.connect(request.node)) as connector:
        devices = ask_jobs(connector, "slurm_gpus", StepGpus).devices
    minors = _minors(request, devices)
    gres = states[slurm].gres if slurm in states else ""
    options: dict[str, Any] = {
        "nodes": [1, 1],
        "nodelist": [slurm],
        "tasks": 1,
        "name": "provision-run",
        "comment": f"provision-run:{owner}"[:200],
        "memory": MEMORY,
        "time": str(MINUTES),
        **scheduler.labels,
        **_gpus(minors, gres),
    }
    answer: SlurmSubmitted = scheduler.ask("slurm_allocate", SlurmSubmitted, options=options, seconds=PATIENCE_SECONDS)
    if answer.job:
        return answer.job
    names = holders(scheduler.ask("slurm_state", SlurmState).jobs).get(slurm, [])
    cause = answer.refused.strip().splitlines()[-1:] or [""]
    raise error_of(LaunchError, reason("slurm.gpus_taken", cause=cause[0][:300], jobs=names), node=request.node)


def _minors(request: GpuRequest, devices: Sequence[SlurmDevice]) -> list[int]:
    """Return the minor numbers of the requested GPUs.

    Raises:
        LaunchError: the node does not list all of them.
    """
    missing = sorted(set(request.uuids) - {device.uuid for device in devices})
    if missing:
        why = reason("slurm.gpus_unknown", node_name=request.node, uuids=missing)
        raise error_of(LaunchError, why, node=request.node)
    if request.uuids:
        return [device.minor for device in devices if device.uuid in request.uuids]
    return [device.minor for device in sorted(devices, key=lambda one: one.index)[: request.count]]


def _gpus(minors: Sequence[int], gres: str) -> dict[str, Any]:
    """Return the options for exact GPUs: by a type of each GPU where Slurm has one, else the whole node."""
    if not minors:
        return {}
    if gpu_types(gres).issuperset(minors):
        return {"gres": [f"gpu:g{minor}:1" for minor in minors]}
    return {"exclusive": True, "gpus_per_node": len(minors)}


def _extend(scheduler: Scheduler, numbers: Mapping[str, int], over: threading.Event) -> None:
    """Extend the time limits of allocations until the context is closed."""
    while not over.wait(_EXTEND_SECONDS):
        for number in numbers.values():
            with contextlib.suppress(ProvisionError):
                scheduler.ask("slurm_job_update", Written, job=number, more_minutes=int(_EXTEND_SECONDS // 60))
