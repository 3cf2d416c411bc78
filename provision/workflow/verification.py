"""Verify nodes: probe them, and judge the result by all checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from provision.errors import ProvisionError
from provision.model import Cluster, Node, NodeChecks, Verification
from provision.workflow.survey import ON_REQUEST, chosen, probe, supported_systems, with_defaults, with_preserved

if TYPE_CHECKING:
    from provision.batch.data import DataFinding
    from provision.checks import PairOutcome
    from provision.checks.minimums import Held
    from provision.connectors.base import Connector
    from provision.facts import NodeFacts


@dataclass(frozen=True)
class Survey:
    """What a verification saw and judged."""

    cluster: Cluster
    """With the roles' defaults."""
    facts: Mapping[str, NodeFacts | ProvisionError]
    verification: Verification
    held: Mapping[str, tuple[Held, ...]] = field(default_factory=dict)
    """Node -> what a guide asks for, and what is there; empty unless it was asked for."""

    def simulated(self) -> list[tuple[str, list[str]]]:
        """Return for each node that was reached the stand-ins that it carries, as ``thing: what it stands in for``."""
        return [
            (name, [f"{thing}: {text}" for thing, text in facts.simulated.items()])
            for name, facts in self.facts.items()
            if not isinstance(facts, ProvisionError) and isinstance(facts.simulated, Mapping)
        ]


def verify(
    cluster: Cluster,
    limit: str | None = None,
    *,
    pairs: bool = True,
    full: Callable[[str], None] | None = None,
    keep: bool = False,
    profile: str = "",
    collective: bool = False,
) -> Survey:
    """Probe the nodes and judge them by all checks; `pairs` tries all logins between containers too.

    With `full` the bandwidth between the containers is measured as well, and `full` receives progress. With `keep` the
    facts include their source text. With `profile` the nodes are also compared with the requirements of that guide, one
    of `checks.minimums.MINIMUMS`. With `collective` and `full` an all-reduce runs over all idle nodes.
    """
    from provision import checks
    from provision.workflow.bandwidth import measure
    from provision.workflow.collective import all_reduce

    complete = with_defaults(cluster)
    nodes = chosen(complete, limit)
    without = () if profile == "kubernetes" else ON_REQUEST
    names = [node.name for node in complete.nodes]
    facts = probe(nodes, names=names, keep=keep, topology=True, without=without)
    complete, _ = with_preserved(cluster, complete, facts)
    nodes = tuple(complete.node(node.name) for node in nodes)
    reached = {name: value for name, value in facts.items() if not isinstance(value, ProvisionError)}
    supported = supported_systems()
    outcomes = try_pairs([node for node in nodes if node.name in reached], reached) if pairs else None
    bandwidth = measure(nodes, reached, full) if full else None
    data = _data_findings(cluster, [node for node in nodes if node.name in reached and node.takes_jobs])
    judged = tuple(
        NodeChecks(
            node.name,
            checks.unreachable(probed)
            if isinstance(probed := facts[node.name], ProvisionError)
            else checks.judge(
                node, probed, complete, all_facts=reached, supported=supported, bandwidth=bandwidth, data=data
            ),
        )
        for node in nodes
    )
    reduced = all_reduce(complete, nodes, facts, full) if full and collective else None
    results = checks.judge_cluster(complete, nodes, reached, outcomes, bandwidth, reduced, data)
    held = _held(profile, [node for node in nodes if node.name in reached], reached, complete) if profile else {}
    judged = tuple(
        replace(node, checks=(*node.checks, *(item.as_check() for item in held.get(node.name, ())))) for node in judged
    )
    return Survey(complete, facts, Verification(judged, results, bandwidth, reduced), held)


def _data_findings(cluster: Cluster, nodes: Sequence[Node]) -> list[DataFinding] | None:
    """Return what is wrong with the data volumes of the inventory on these nodes; None when it names none."""
    from provision.batch.data import judge, volumes_of
    from provision.jobs.data import check_volumes

    volumes = list(volumes_of(cluster).values())
    if not volumes or not nodes:
        return None
    answers = check_volumes(nodes, volumes)
    return [item for volume in volumes for item in judge(volume, answers[volume.name])]


def _held(
    profile: str, nodes: Sequence[Node], facts: Mapping[str, NodeFacts], cluster: Cluster
) -> dict[str, tuple[Held, ...]]:
    """Hold nodes that were reached against what a guide asks for."""
    from provision.checks.minimums import hold

    supported = supported_systems()
    return {node.name: hold(profile, node, facts[node.name], cluster, supported=supported) for node in nodes}


def try_pairs(nodes: Sequence[Node], facts: Mapping[str, NodeFacts]) -> list[PairOutcome] | None:
    """Log in from every running training container to every other and itself; None when no container runs."""
    from provision.checks import PAIR_SECONDS, pairs_script, parse_pairs
    from provision.connectors import each
    from provision.facts import running_container

    ready = [node for node in nodes if running_container(facts[node.name])]
    names = [node.name for node in ready]
    containers = {node.name: str(node.variables.get("training_container_name")) for node in ready}

    def login(connector: Connector) -> list[PairOutcome]:
        script = pairs_script(containers[connector.name], names)
        result = connector.run(script, timeout=PAIR_SECONDS * (2 + len(names) // 8))
        return parse_pairs(connector.name, names, result.stdout, result.stderr)

    outcomes: list[PairOutcome] = []
    for source, value in each(ready, login).items():
        lost = parse_pairs(source, names, "", value.message) if isinstance(value, ProvisionError) else value
        outcomes.extend(lost)
    return outcomes or None
