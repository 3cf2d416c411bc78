"""What a node has told of itself when it was looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["NodeLook"]


@dataclass(frozen=True)
class NodeLook:
    """What a node's program answered to ``look``."""

    node: str
    document: Mapping[str, Any]

    @property
    def gpus(self) -> Sequence[Mapping[str, Any]]:
        """``{"index", "uuid", ...}``; empty where there are none, or where they are not known."""
        found = self.document.get("gpus")
        return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []

    @property
    def leases(self) -> Mapping[str, Mapping[str, Any]]:
        """UUID -> who holds it."""
        return self._mapping("leases")

    @property
    def foreign(self) -> Mapping[str, Any]:
        """UUID -> the process of others on it."""
        return self._mapping("foreign")

    @property
    def drained(self) -> str:
        """Why it takes no new job; empty when it does."""
        return str(self.document.get("drained") or "")

    @property
    def closed(self) -> str:
        """Why no container of a job can be made on it."""
        return str(self.document.get("docker_error") or "")

    @property
    def trouble(self) -> str:
        """Why its GPUs cannot be given away."""
        return self.closed or str(self.document.get("gpu_error") or "")

    def uuids(self) -> dict[int, str]:
        """Return index -> UUID."""
        return {int(one["index"]): str(one["uuid"]) for one in self.gpus if "index" in one and "uuid" in one}

    def whole(self) -> tuple[str, ...]:
        """Return the UUIDs of all GPUs that can be held: the instances of one that is cut up, in its place."""
        found: list[str] = []
        for gpu in self.gpus:
            parts = gpu.get("mig")
            found += [str(part) for part in parts] if isinstance(parts, list) and parts else [str(gpu.get("uuid"))]
        return tuple(found)

    def taken(self) -> dict[int, str]:
        """Return index -> why it cannot be had."""
        found: dict[int, str] = {}
        for index, uuid in self.uuids().items():
            if uuid in self.leases:
                found[index] = f"held by {self.leases[uuid].get('job')}"
            elif uuid in self.foreign:
                found[index] = f"in use by {self.foreign[uuid]}"
        return found

    def alive(self) -> dict[str, bool]:
        """Return the jobs that have a part here which is not over, and whether each wants the node for itself."""
        jobs = self.document.get("jobs")
        found: dict[str, bool] = {}
        for job in jobs if isinstance(jobs, list) else ():
            if isinstance(job, Mapping) and job.get("instances") and not job.get("result") and not _broken(job):
                spec = job.get("spec")
                found[str(job.get("name"))] = isinstance(spec, Mapping) and spec.get("exclusive") is True
        return found

    def _mapping(self, key: str) -> Mapping[str, Any]:
        found = self.document.get(key)
        return found if isinstance(found, Mapping) else {}


def _broken(job: Mapping[str, Any]) -> bool:
    """Whether its start failed, so that nothing of it is here whatever its instances' records say."""
    queue = job.get("queue")
    return isinstance(queue, Mapping) and queue.get("state") in {"failed", "stopped"}
