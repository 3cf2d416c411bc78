"""Which instance of a job a verb uses, and how a verb fails if there is none."""

from __future__ import annotations

import pytest

from provision.errors import NodeUnreachable, NotFound
from provision.jobs.job_access import instance_of
from provision.model.job import JobRecord, JobSpec, JobStatus, Kind

SPEC = JobSpec("mnist", Kind.PYTORCH, ("true",))


def test_a_job_without_an_instance_is_reported_with_its_status() -> None:
    with pytest.raises(NotFound, match="PENDING"):
        instance_of(JobRecord(SPEC, "1", "me@here", 1.0, JobStatus.PENDING), "")


def test_an_instance_on_an_unreachable_node_is_not_reported_as_missing() -> None:
    """The node may have the instance and its output: exit code 7 instead of 3."""
    record = JobRecord(
        SPEC, "1", "me@here", 1.0, JobStatus.STOPPING, nodes=("gpu3",), unconfirmed=("gpu3",), silent=("gpu3",)
    )
    with pytest.raises(NodeUnreachable, match="gpu3"):
        instance_of(record, "")
