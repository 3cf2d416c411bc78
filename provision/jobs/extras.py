"""What a batch job needs in addition to its containers, in the order in which an engine calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from provision.batch.names import JOBS
from provision.connectors import Connector
from provision.errors import ProvisionError
from provision.model import Cluster
from provision.model.job import JobRecord, JobSpec, JobStatus

if TYPE_CHECKING:
    from provision.jobs.attempt import Attempt
    from provision.jobs.code import Archive

Say = Callable[[str], None]


class JobExtras:
    """Code, data and TensorBoard of the jobs of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def mounts(self, spec: JobSpec, node: str) -> list[str]:
        """Return the ``/source:/target[:ro]`` mounts of a job: data, code, and a log folder outside all volumes."""
        from provision.batch.data import mounts_for, volumes_for
        from provision.batch.tensorboard import log_place

        del node  # the same on all nodes
        mounts = [*mounts_for(spec, self._cluster), *code_mounts(spec)]
        if spec.tensorboard:
            place = log_place(spec, volumes_for(spec, self._cluster))
            mounts += [] if place.shared else [":".join(place.mount)]
        return mounts

    def before(
        self, attempt: Attempt, connectors: Mapping[str, Connector], say: Say, code: Archive | None = None
    ) -> str:
        """Check the data and copy the code; return the SHA of the code, empty without code.

        Raises:
            NodeError: a node does not have the data, or cannot get the code.
        """
        from provision.batch.data import volumes_for
        from provision.batch.tensorboard import warnings_for
        from provision.jobs.data import require_data

        spec = attempt.spec
        volumes = volumes_for(spec, self._cluster)
        for warning in (*require_data(connectors, volumes, user=spec.user), *warnings_for(spec, volumes)):
            say(f"warning: {warning}")
        if spec.sync is None:
            return ""
        from provision.jobs.code import sync_code

        return sync_code(
            connectors,
            spec.name,
            spec.sync,
            attempt.secrets.sync,
            say,
            user=spec.user,
            archive=code,
            fetch_here=attempt.own,
        )

    def after(self, attempt: Attempt, connector: Connector, say: Say) -> str:
        """Start TensorBoard on the node of the leader; return its address, empty if the start fails."""
        from provision.batch.data import volumes_for
        from provision.jobs.tensorboard import start_tensorboard

        spec = attempt.spec
        if not spec.tensorboard:
            return ""
        record = JobRecord(spec, attempt.id, "", 0.0, JobStatus.PENDING, assignments=tuple(attempt.assignments))
        try:
            return start_tensorboard(connector, record, volumes_for(spec, self._cluster))
        except ProvisionError as error:
            say(f"warning: {error}" + (f" ({error.remedy})" if error.remedy else ""))
            for line in error.output.splitlines()[-5:]:
                say(f"  | {line}")
            return ""


def code_mounts(spec: JobSpec) -> list[str]:
    """Return the mounts of the code of a job."""
    if spec.sync is None:
        return []
    inside = f"{spec.working_dir.rstrip('/')}/code/{spec.sync.name}"
    return [f"{JOBS}/{spec.name}/code/{spec.sync.name}:{inside}"]
