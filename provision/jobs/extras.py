"""What a batch job needs beside its containers, in the order in which an engine asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from provision.batch.names import JOBS
from provision.connectors import Connector
from provision.errors import ProvisionError
from provision.model import Cluster
from provision.model.job import JobRecord, JobSpec, JobStatus, Seat
from provision.model.job_requests import Secrets

if TYPE_CHECKING:
    from provision.jobs.code import Archive

__all__ = ["JobExtras", "code_mounts"]

Say = Callable[[str], None]


class Started(Protocol):
    """One start of a job, as far as it matters here."""

    @property
    def spec(self) -> JobSpec:
        """What was asked for."""

    @property
    def id(self) -> str:
        """The job's."""

    @property
    def seats(self) -> Sequence[Seat]:
        """Its instances, and where they go."""

    @property
    def secrets(self) -> Secrets:
        """What nobody may see."""

    @property
    def own(self) -> bool:
        """Whether the user of this controller submitted it."""


class JobExtras:
    """Code, data and TensorBoard of the jobs of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def mounts(self, spec: JobSpec, node: str) -> list[str]:
        """Return ``/source:/target[:ro]`` for a job's containers: data, code, and a log folder that is on no volume."""
        from provision.batch.data import mounts_for, volumes_for
        from provision.batch.tensorboard import log_place

        del node  # the same on all
        found = [*mounts_for(spec, self._cluster), *code_mounts(spec)]
        if spec.tensorboard:
            place = log_place(spec, volumes_for(spec, self._cluster))
            found += [] if place.shared else [":".join(place.mount)]
        return found

    def before(
        self, attempt: Started, connectors: Mapping[str, Connector], say: Say, code: Archive | None = None
    ) -> str:
        """Look at the data and bring the code; return the code's SHA, empty without code.

        Raises:
            NodeError: a node has not the data, or cannot get the code.
        """
        from provision.batch.data import volumes_for
        from provision.batch.tensorboard import warnings_for
        from provision.jobs.code import sync_code
        from provision.jobs.data import require_data

        spec = attempt.spec
        volumes = volumes_for(spec, self._cluster)
        for warning in (*require_data(connectors, volumes, user=spec.user), *warnings_for(spec, volumes)):
            say(f"warning: {warning}")
        if spec.sync is None:
            return ""
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

    def after(self, attempt: Started, connector: Connector, say: Say) -> str:
        """Start TensorBoard on the chief's node; return its address. Where it does not run, the job goes on without."""
        from provision.batch.data import volumes_for
        from provision.jobs.tensorboard import start_tensorboard

        spec = attempt.spec
        if not spec.tensorboard:
            return ""
        record = JobRecord(spec, attempt.id, "", 0.0, JobStatus.PENDING, seats=tuple(attempt.seats))
        try:
            return start_tensorboard(connector, record, volumes_for(spec, self._cluster))
        except ProvisionError as error:
            say(f"warning: {error}" + (f" ({error.remedy})" if error.remedy else ""))
            for line in error.output.splitlines()[-5:]:
                say(f"  | {line}")
            return ""


def code_mounts(spec: JobSpec) -> list[str]:
    """Return how a job's code goes into its containers."""
    if spec.sync is None:
        return []
    inside = f"{spec.working_dir.rstrip('/')}/code/{spec.sync.name}"
    return [f"{JOBS}/{spec.name}/code/{spec.sync.name}:{inside}"]
