"""Asks nodes whether they have the data volumes that a job mounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.batch.data import DataFinding, Volume, judge
from provision.connectors import Connector, each
from provision.documents.jobs import DataResult
from provision.errors import NodeError, ProvisionError
from provision.jobs.node_ask import ask
from provision.model import Node
from provision.threads import outcomes

SECONDS = 10.0
"""How long a volume is waited for; a server that has just come back needs some."""


def look_at(connector: Connector, volumes: Sequence[Volume], user: str = "") -> dict[str, Any]:
    """Return what one node says of each volume, by name."""
    asked = [{"name": v.name, "path": v.path, "read_only": v.read_only} for v in volumes]
    request = {"volumes": asked, "seconds": SECONDS, "user": user}
    return ask(connector, "data-check", request, DataResult, seconds=SECONDS + 30).volumes


def check_data(connectors: Mapping[str, Connector], volumes: Sequence[Volume], *, user: str = "") -> list[DataFinding]:
    """Return what is wrong with `volumes` on these nodes; nothing where a job can use them.

    `user` (``UID:GID``) is who the job's containers run as: reading and writing is tried as that user.
    """
    nodes = list(connectors) if volumes else []
    results = outcomes(lambda node: look_at(connectors[node], volumes, user), nodes, limit=len(nodes))
    for outcome in results:
        if isinstance(outcome, Exception) and not isinstance(outcome, ProvisionError):
            raise outcome
    findings: list[DataFinding] = []
    for volume in volumes:
        answers = {
            node: outcome.get(volume.name) if isinstance(outcome, dict) else outcome
            for node, outcome in zip(nodes, results, strict=True)
        }
        findings += judge(volume, answers, seconds=SECONDS)
    return findings


def require_data(connectors: Mapping[str, Connector], volumes: Sequence[Volume], *, user: str = "") -> list[str]:
    """Return the warnings about `volumes`; NodeError where a job could not use one."""
    findings = check_data(connectors, volumes, user=user)
    failed = [finding for finding in findings if finding.level == "fail"]
    if failed:
        first = failed[0]
        others = [f"{finding.node or 'all'}: {finding.problem}" for finding in failed[1:]]
        raise NodeError(
            f"data volume {first.volume}: {first.problem}",
            node=first.node or None,
            remedy=first.remedy or None,
            output="\n".join(others),
        )
    return [f"data volume {finding.volume}: {finding.problem}" for finding in findings]


def check_volumes(nodes: Sequence[Node], volumes: Sequence[Volume]) -> dict[str, dict[str, Any]]:
    """Return volume -> node -> what the node said of it, or its error; one SSH session per node, none for nothing."""
    results = each(nodes, lambda connector: look_at(connector, volumes)) if volumes else {}
    return {
        volume.name: {
            node: outcome if isinstance(outcome, ProvisionError) else outcome.get(volume.name)
            for node, outcome in results.items()
        }
        for volume in volumes
    }
