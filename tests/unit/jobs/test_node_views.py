"""The nodes of ``node list`` and ``top node``: whether they accept jobs, and why not."""

import pytest

from provision.documents.jobs import LookAnswer
from provision.jobs.engines.common.survey import node_views
from provision.model.cluster import NO_JOBS
from provision.testing import make_cluster
from tests.support.reasons import parts

DRAINED = "placement.node_drained"


@pytest.mark.parametrize(
    ("variables", "answer", "codes"),
    [
        ({}, {"drained": "fan (eve)"}, [DRAINED]),
        ({}, {"drained": "fan (eve)", "gpu_error": "nvidia-smi failed"}, ["placement.gpus_unreadable", DRAINED]),
        ({"cluster_takes_jobs": False}, {"drained": "fan (eve)"}, [NO_JOBS.code, DRAINED]),
        ({"cluster_takes_jobs": False}, {"gpu_error": "nvidia-smi failed"}, [NO_JOBS.code]),
    ],
)
def test_a_drained_node_shows_its_drain_reason_beside_other_problems(variables, answer, codes):
    """The status says SchedulingDisabled, so that the reason for it has to be there."""
    cluster = make_cluster("gpu1", **variables)
    (view,) = node_views(cluster, "gpu1", {"gpu1": LookAnswer(**answer)})

    assert view.drained == ("drained" in answer)
    assert [part.code for part in parts(view.reason) if part.code != "placement.node_problems"] == codes
