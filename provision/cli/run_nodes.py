"""Which nodes of ``provision run`` get ranks, and what is said of those that cannot."""

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

__all__ = ["entries_for_ranks"]


def entries_for_ranks(
    cluster: Cluster, limit: str | None, *, allow_missing: bool, allow_degraded: bool, choosing: bool = False
) -> tuple[list[HostEntry], list[tuple[str, str]], dict[str, NodeFacts]]:
    """Return the nodes that get ranks, which of them should take none and why, and what is known of each.

    Args:
        cluster: with the roles' defaults.
        limit: an Ansible host pattern.
        allow_missing: leave out nodes that cannot take ranks.
        allow_degraded: take nodes that are not what they were recorded to be.
        choosing: nodes are being chosen among these; their topology is asked for, and some may be missing.

    Raises:
        LaunchError: one that was asked for cannot take ranks.
    """
    from provision import workflow

    nodes = workflow.chosen(cluster, limit)
    say_reasons("left out: ", ((node.name, NO_JOBS) for node in nodes if not node.takes_jobs))
    nodes = tuple(node for node in nodes if node.takes_jobs)
    found = workflow.probe(nodes, names=[node.name for node in cluster.nodes], topology=choosing)
    entries, left_out = workflow.host_entries(cluster, found, allow_degraded=allow_degraded)
    degraded = workflow.degraded(cluster, found)
    distrusted = [(name, why) for name, why in left_out if isinstance(found[name], HostNotTrusted)]
    if distrusted or (left_out and not (allow_missing or choosing)):
        held_back = {} if allow_degraded else {name: remedy(verdict.reason, name) for name, verdict in degraded.items()}
        raise _missing(distrusted or left_out, found, held_back)
    say_reasons("left out: ", left_out)
    if not entries:
        raise LaunchError(
            "no node can take ranks",
            remedy="`provision verify` says what each node lacks; `provision apply` mends it",
            output="\n".join(reason_lines(left_out)),
        )
    listed = {entry.name for entry in entries}
    taken = [(name, message(verdict.reason, name)) for name, verdict in degraded.items() if name in listed]
    return entries, taken, {name: facts for name, facts in found.items() if not isinstance(facts, ProvisionError)}


def _missing(
    left_out: list[tuple[str, str]],
    found: Mapping[str, NodeFacts | ProvisionError],
    held_back: Mapping[str, str] | None = None,
) -> LaunchError:
    """Name every node that was asked for and cannot take ranks, and what to do about the first.

    `held_back` has the remedies of those that would be taken with --allow-degraded.
    """
    name, reason = left_out[0]
    error, held = found[name], held_back or {}
    known = error.remedy if isinstance(error, ProvisionError) else held.get(name)
    remedy = known or f"`provision verify --limit {name}` says what it lacks; `provision apply --limit {name}` mends it"
    if not any(isinstance(found[node], HostNotTrusted) for node, _ in left_out):
        remedy = remedy.rstrip(".") + "; or go on without it: --allow-missing, or --limit with the others"
        remedy += "; or with it as it is: --allow-degraded" if name in held else ""
    if len(left_out) == 1:
        return LaunchError(reason, node=name, remedy=remedy)
    lines = "\n".join(f"  {line}" for line in reason_lines(left_out))
    return LaunchError(f"{len(left_out)} of {len(found)} nodes cannot take ranks:\n{lines}", remedy=remedy)
