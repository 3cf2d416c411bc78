"""What should be: facts and wishes in, a judgement with a reason and a remedy out. README.md lists every id."""

from collections.abc import Mapping, Sequence

# Importing an area registers its checks.
from provision.batch.data import DataFinding
from provision.checks import (
    bandwidth as _bandwidth,  # noqa: F401
)
from provision.checks import (
    base_system as _base_system,  # noqa: F401
)
from provision.checks import (
    cluster as _cluster,  # noqa: F401
)
from provision.checks import (
    collective as _collective,  # noqa: F401
)
from provision.checks import (
    container_ssh as _container_ssh,  # noqa: F401
)
from provision.checks import (
    data as _data,  # noqa: F401
)
from provision.checks import (
    docker_engine as _docker_engine,  # noqa: F401
)
from provision.checks import (
    gpu as _gpu,  # noqa: F401
)
from provision.checks import (
    gpu_health as _gpu_health,  # noqa: F401
)
from provision.checks import (
    gpu_xid as _gpu_xid,  # noqa: F401
)
from provision.checks import (
    node as _node,  # noqa: F401
)
from provision.checks import (
    peer_memory as _peer_memory,  # noqa: F401
)
from provision.checks import (
    rdma_health as _rdma_health,  # noqa: F401
)
from provision.checks import (
    rdma_stack as _rdma_stack,  # noqa: F401
)
from provision.checks import (
    skew as _skew,  # noqa: F401
)
from provision.checks import (
    topology as _topology,  # noqa: F401
)
from provision.checks import (
    training as _training,  # noqa: F401
)
from provision.checks.base import CHECKS, CLUSTER_CHECKS, run
from provision.checks.boot import held_back
from provision.checks.hosts import host_entry
from provision.checks.pairs import PAIR_SECONDS, pairs_script, parse_pairs
from provision.components import COMPONENTS
from provision.components.check import ClusterScene, PairOutcome, Scene
from provision.errors import ProvisionError
from provision.facts import NodeFacts
from provision.model import Bandwidth, CheckResult, CheckStatus, Cluster, Collective, Node

__all__ = [
    "CHECKS",
    "CLUSTER_CHECKS",
    "PAIR_SECONDS",
    "PairOutcome",
    "held_back",
    "host_entry",
    "judge",
    "judge_cluster",
    "pairs_script",
    "parse_pairs",
    "unreachable",
]

CHECKS.update({item.id: item for component in COMPONENTS.values() for item in component.checks})


def judge(
    node: Node,
    facts: NodeFacts,
    cluster: Cluster,
    *,
    all_facts: Mapping[str, NodeFacts] | None = None,
    supported: Sequence[str] = (),
    bandwidth: Bandwidth | None = None,
    data: Sequence[DataFinding] | None = None,
) -> tuple[CheckResult, ...]:
    """Judge one node that was reached; `all_facts` of the other nodes sharpen what is expected of names and keys."""
    everybody = all_facts or {}
    if everybody.get(node.name) is not facts:
        everybody = {**everybody, node.name: facts}
    return run(Scene(node, facts, cluster, everybody, supported, bandwidth, data))


def judge_cluster(
    cluster: Cluster,
    nodes: Sequence[Node],
    facts: Mapping[str, NodeFacts],
    pairs: Sequence[PairOutcome] | None = None,
    bandwidth: Bandwidth | None = None,
    collective: Collective | None = None,
    data: Sequence[DataFinding] | None = None,
) -> tuple[CheckResult, ...]:
    """Judge what only all of `nodes` together show; `facts` are of those that were reached."""
    scene = ClusterScene(cluster, nodes, facts, pairs, bandwidth, collective, data)
    verdicts = {
        item.id: item.judge(scene)
        for item in CLUSTER_CHECKS.values()
        if (bandwidth or not item.full) and (collective or not item.collective) and (data is not None or not item.data)
    }
    return tuple(CheckResult(id, v.status, v.reason, v.remedy, v.simulated) for id, v in verdicts.items())  # noqa: A001


def unreachable(error: ProvisionError) -> tuple[CheckResult, ...]:
    """Judge a node that could not be probed: the one check that it fails stands for all."""
    remedy = error.remedy or "Log in by hand with the same user and key to see what is wrong."
    return (CheckResult("node.reachable", CheckStatus.FAIL, error.message, remedy),)
