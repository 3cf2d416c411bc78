"""What stands around a batch job: its code on every node, its data, its TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from provision.connectors import Connector
from provision.model.job import JobSpec

if TYPE_CHECKING:
    from provision.jobs.engines.direct.starting import Attempt
    from provision.model import Cluster

__all__ = ["Surroundings"]

JOBS = "/var/lib/provision/jobs"


class Surroundings:
    """Prepares them between `prepare` and `start` of an attempt."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def mounts(self, spec: JobSpec, node: str) -> list[str]:
        """Return ``/source:/target[:ro]`` for the containers on a node."""
        found: list[str] = []
        if spec.sync is not None:
            name = spec.sync.name
            found.append(f"{JOBS}/{spec.name}/code/{name}:{spec.working_dir.rstrip('/')}/code/{name}")
        return found

    def before(self, attempt: Attempt, connectors: Mapping[str, Connector], say: Callable[[str], None]) -> str:
        """Bring the code; return its SHA, empty without code."""
        spec = attempt.spec
        if spec.sync is None:
            return ""
        from provision.jobs.code import sync_code

        user = spec.user.partition(",")[0]
        return sync_code(connectors, spec.name, spec.sync, attempt.secrets.sync, say, user=user)

    def after(self, attempt: Attempt, connector: Connector, say: Callable[[str], None]) -> str:
        """Start TensorBoard beside the chief."""
        return ""
