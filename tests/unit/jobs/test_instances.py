"""Which instance of a job a verb is about, and how a verb fails if there is none."""

from __future__ import annotations

import pytest

from provision.errors import NodeUnreachable, NotFound
from provision.jobs.job_access import instance_of
from provision.model.job import JobRecord, JobSpec, JobStatus, Kind

SPEC = JobSpec("mnist", Kind.PYTORCH, ("true",))


def test_a_job_without_an_instance_is_reported_as_such() -> None:
    with pytest.raises(NotFound, match="PENDING"):
        instance_of(JobRecord(SPEC, "1", "me@here", 1.0, JobStatus.PENDING), "")


def test_instances_on_a_node_that_does_not_answer_are_not_denied() -> None:
    """The node may have an instance, and its output: exit code 7 instead of 3."""
    record = JobRecord(
        SPEC, "1", "me@here", 1.0, JobStatus.STOPPING, nodes=("gpu3",), unconfirmed=("gpu3",), silent=("gpu3",)
    )
    with pytest.raises(NodeUnreachable, match="gpu3"):
        instance_of(record, "")
