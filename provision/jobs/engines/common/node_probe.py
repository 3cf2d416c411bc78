"""The result of probing a node for jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provision.batch.records import Report
from provision.documents.jobs import Gpu, JobReport, Lease, LookAnswer
from provision.model.reason import Reason, reason


@dataclass(frozen=True)
class NodeProbe(Report):
    """The answer of the node program to ``look``."""

    answer: LookAnswer

    @property
    def gpus(self) -> Sequence[Gpu]:
        """The GPUs; empty if there are none, or if they are not known."""
        return self.answer.gpus or []

    @property
    def leases(self) -> Mapping[str, Lease]:
        """UUID -> lease."""
        return self.answer.leases

    @property
    def foreign(self) -> Mapping[str, str]:
        """UUID -> a process on it that belongs to no job."""
        return self.answer.foreign

    @property
    def drained(self) -> Reason | None:
        """Why the node accepts no new jobs; None if it does."""
        return reason("placement.node_drained", cause=self.answer.drained) if self.answer.drained else None

    @property
    def container_problem(self) -> Reason | None:
        """Why no container can be created on the node; None if it can."""
        return reason("placement.no_containers", cause=self.answer.docker_error) if self.answer.docker_error else None

    @property
    def gpu_problem(self) -> Reason | None:
        """Why its GPUs cannot be allocated; None if they can."""
        unreadable = reason("placement.gpus_unreadable", cause=self.answer.gpu_error) if self.answer.gpu_error else None
        return self.container_problem or unreadable

    def uuids(self) -> dict[int, str]:
        """Return index -> UUID."""
        return {gpu.index: gpu.uuid for gpu in self.gpus}

    def all_gpus(self) -> tuple[str, ...]:
        """Return the UUIDs of all GPUs that can be leased; the MIG instances in place of a partitioned GPU."""
        return tuple(uuid for gpu in self.gpus for uuid in gpu.mig or [gpu.uuid])

    def unavailable(self) -> dict[int, str]:
        """Return index -> the job or the process that uses the GPU."""
        users = {**self.foreign, **{uuid: lease.job for uuid, lease in self.leases.items()}}
        return {index: users[uuid] for index, uuid in self.uuids().items() if uuid in users}

    def live_jobs(self) -> dict[str, bool]:
        """Return the jobs with a running part on the node, and whether each one is exclusive."""
        living = [job for job in self.jobs if job.instances and not job.result and not _broken(job)]
        return {job.name: job.spec.get("exclusive") is True for job in living}


def _broken(job: JobReport) -> bool:
    """Return whether the start failed, so that nothing of the job is here despite the records of its instances."""
    return job.queue.state == "failed" or (job.queue.state == "stopped" and job.supervisor != "active")
