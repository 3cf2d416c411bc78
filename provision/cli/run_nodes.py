"""Select the nodes of ``provision run`` that run ranks, and report the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.common import say_reasons
from provision.errors import HostNotTrusted, LaunchError, ProvisionError
from provision.model.cluster import NO_JOBS
from provision.report.grouping import reason_lines
from provision.report.reasons import message, remedy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provision.facts import NodeFacts
    from provision.launchers import HostEntry
    from provision.model import Cluster


def entries_for_ranks(
    cluster: Cluster, limit: str | None, *, allow_missing: bool, allow_degraded: bool, choosing: bool = False
) -> tuple[list[HostEntry], list[tuple[str, str]], dict[str, NodeFacts]]:
    """Return the nodes that run ranks, degraded ones among them with reasons, and the facts of each.

    Raises:
        LaunchError: A selected node cannot run ranks.
    """
    from provision import workflow

    nodes = workflow.chosen(cluster, limit)
    say_reasons("excluded: ", ((node.name, message(NO_JOBS)) for node in nodes if not node.takes_jobs))
    nodes = tuple(node for node in nodes if node.takes_jobs)
    node_facts = workflow.probe(nodes, names=[node.name for node in cluster.nodes], topology=choosing)
    entries, left_out = workflow.host_entries(cluster, node_facts, allow_degraded=allow_degraded)
    degraded = workflow.degraded(cluster, node_facts)
    distrusted = [(name, why) for name, why in left_out if isinstance(node_facts[name], HostNotTrusted)]
    if distrusted or (left_out and not (allow_missing or choosing)):
        degraded_remedies = (
            {} if allow_degraded else {name: remedy(verdict.reason, name) for name, verdict in degraded.items()}
        )
        raise _missing(distrusted or left_out, node_facts, degraded_remedies)
    say_reasons("excluded: ", left_out)
    if not entries:
        raise LaunchError(
            "no node can run ranks",
            remedy="Run `provision verify` to see what each node lacks, and `provision apply` to fix it",
            output="\n".join(reason_lines(left_out)),
        )
    listed = {entry.name for entry in entries}
    taken = [(name, message(verdict.reason, name)) for name, verdict in degraded.items() if name in listed]
    return entries, taken, {name: facts for name, facts in node_facts.items() if not isinstance(facts, ProvisionError)}


def _missing(
    left_out: list[tuple[str, str]],
    node_facts: Mapping[str, NodeFacts | ProvisionError],
    degraded_remedies: Mapping[str, str] | None = None,
) -> LaunchError:
    """Report every selected node that cannot run ranks, with a remedy for the first.

    `degraded_remedies` contains remedies for nodes that --allow-degraded would use.
    """
    name, reason = left_out[0]
    error, remedies = node_facts[name], degraded_remedies or {}
    known = error.remedy if isinstance(error, ProvisionError) else remedies.get(name)
    remedy = (
        known
        or f"Run `provision verify --limit {name}` to see the cause, and `provision apply --limit {name}` to fix it"
    )
    if not any(isinstance(node_facts[node], HostNotTrusted) for node, _ in left_out):
        remedy = remedy.rstrip(".") + "; or exclude it: --allow-missing, or --limit with the others"
        remedy += "; or use it nevertheless: --allow-degraded" if name in remedies else ""
    if len(left_out) == 1:
        return LaunchError(reason, node=name, remedy=remedy)
    lines = "\n".join(f"  {line}" for line in reason_lines(left_out))
    return LaunchError(f"{len(left_out)} of {len(node_facts)} nodes cannot run ranks:\n{lines}", remedy=remedy)
