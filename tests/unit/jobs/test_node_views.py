"""The nodes of ``node list`` and ``top node``: whether they accept jobs, and why not."""

import pytest

from provision.documents.jobs import LookAnswer
from provision.jobs.engines.direct.survey import node_views
from provision.model.cluster import NO_JOBS
from provision.testing import make_cluster


@pytest.mark.parametrize(
    ("variables", "answer", "reason"),
    [
        ({}, {"drained": "fan (eve)"}, "fan (eve)"),
        ({}, {"drained": "fan (eve)", "gpu_error": "nvidia-smi failed"}, "nvidia-smi failed; fan (eve)"),
        ({"cluster_takes_jobs": False}, {"drained": "fan (eve)"}, f"{NO_JOBS}; fan (eve)"),
        ({"cluster_takes_jobs": False}, {"gpu_error": "nvidia-smi failed"}, NO_JOBS),
    ],
)
def test_a_drained_node_shows_its_drain_reason_beside_other_problems(variables, answer, reason):
    """The status says SchedulingDisabled, so that the reason for it has to be there."""
    cluster = make_cluster("gpu1", **variables)
    (view,) = node_views(cluster, "gpu1", {"gpu1": LookAnswer(**answer)})

    assert (view.drained, view.reason) == ("drained" in answer, reason)
