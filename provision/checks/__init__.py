"""What should be: facts and wishes in, a judgement with a reason and a remedy out. README.md lists every id."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules

from provision.batch.data import DataFinding
from provision.checks.base import CHECKS, CLUSTER_CHECKS, register, run
from provision.checks.boot import boot_failure
from provision.checks.hosts import host_entry
from provision.checks.pairs import PAIR_SECONDS, pairs_script, parse_pairs
from provision.components import COMPONENTS
from provision.components.check import ClusterScene, PairOutcome, Scene
from provision.errors import ProvisionError
from provision.facts import NodeFacts
from provision.model import Bandwidth, CheckResult, CheckStatus, Cluster, Collective, Node
from provision.model.reason import reason

for _area in iter_modules(__path__, f"{__name__}."):  # to import a module registers its checks
    import_module(_area.name)
for _component in COMPONENTS.values():
    for _check in _component.checks:
        register(_check)


def judge(
    node: Node,
    facts: NodeFacts,
    cluster: Cluster,
    *,
    all_facts: Mapping[str, NodeFacts] | None = None,
    supported: Mapping[str, str] | None = None,
    bandwidth: Bandwidth | None = None,
    data: Sequence[DataFinding] | None = None,
) -> tuple[CheckResult, ...]:
    """Judge one node that was reached; `all_facts` of the other nodes sharpen what is expected of names and keys."""
    everybody = all_facts or {}
    if everybody.get(node.name) is not facts:
        everybody = {**everybody, node.name: facts}
    return run(Scene(node, facts, cluster, everybody, supported or {}, bandwidth, data))


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
    return tuple(CheckResult(id, v.status, v.reason, v.simulated) for id, v in verdicts.items())  # noqa: A001


def unreachable(error: ProvisionError) -> tuple[CheckResult, ...]:
    """Judge a node that could not be probed: the one check that it fails stands for all."""
    if error.remedy:
        why = reason("node.reachable.failed_with_remedy", cause=error.message, remedy=error.remedy)
    else:
        why = reason("node.reachable.failed", cause=error.message)
    return (CheckResult("node.reachable", CheckStatus.FAIL, why),)
