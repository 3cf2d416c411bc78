"""What a node has told of itself when it was looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provision.batch.records import Report
from provision.documents.jobs import Gpu, JobReport, Lease, LookAnswer

__all__ = ["NodeLook"]


@dataclass(frozen=True)
class NodeLook(Report):
    """What a node's program answered to ``look``."""

    answer: LookAnswer

    @property
    def gpus(self) -> Sequence[Gpu]:
        """Its GPUs; empty where there are none, or where they are not known."""
        return self.answer.gpus or []

    @property
    def leases(self) -> Mapping[str, Lease]:
        """UUID -> who holds it."""
        return self.answer.leases

    @property
    def foreign(self) -> Mapping[str, str]:
        """UUID -> the process of others on it."""
        return self.answer.foreign

    @property
    def drained(self) -> str:
        """Why it takes no new job; empty when it does."""
        return self.answer.drained

    @property
    def closed(self) -> str:
        """Why no container of a job can be made on it."""
        return self.answer.docker_error

    @property
    def trouble(self) -> str:
        """Why its GPUs cannot be given away."""
        return self.closed or self.answer.gpu_error

    def uuids(self) -> dict[int, str]:
        """Return index -> UUID."""
        return {gpu.index: gpu.uuid for gpu in self.gpus}

    def whole(self) -> tuple[str, ...]:
        """Return the UUIDs of all GPUs that can be held: the instances of one that is cut up, in its place."""
        return tuple(uuid for gpu in self.gpus for uuid in gpu.mig or [gpu.uuid])

    def taken(self) -> dict[int, str]:
        """Return index -> why it cannot be had."""
        found: dict[int, str] = {}
        for index, uuid in self.uuids().items():
            if uuid in self.leases:
                found[index] = f"held by {self.leases[uuid].job}"
            elif uuid in self.foreign:
                found[index] = f"in use by {self.foreign[uuid]}"
        return found

    def alive(self) -> dict[str, bool]:
        """Return the jobs that have a part here which is not over, and whether each wants the node for itself."""
        living = [job for job in self.jobs if job.instances and not job.result and not _broken(job)]
        return {job.name: job.spec.get("exclusive") is True for job in living}


def _broken(job: JobReport) -> bool:
    """Whether its start failed, so that nothing of it is here whatever its instances' records say."""
    return job.queue.state == "failed" or (job.queue.state == "stopped" and job.keeper != "active")
