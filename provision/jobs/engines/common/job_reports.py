"""Reports of one job: the queue host knows the other nodes that have a part of it."""

from __future__ import annotations

import time
from collections.abc import Callable

from provision.batch.records import Report
from provision.connectors import Connector
from provision.documents.jobs import ReportAnswer
from provision.errors import ProvisionError
from provision.jobs.node_contact import Contact
from provision.threads import within

HEAD_SECONDS = 3.0
"""If the queue host has not answered within this time, all nodes are asked."""
PATIENCE_SECONDS = 2.0
"""With a time limit, a node may answer so much later than twice the time of the others."""


def reports_of(
    name: str,
    contact: Contact,
    head: str,
    report: Callable[[Connector], ReportAnswer],
    *,
    time_limit: float | None = None,
) -> dict[str, ReportAnswer | ProvisionError]:
    """Return the reports of a job: those of the queue host and the job's nodes, or of all nodes if these are unknown.

    With `time_limit`, nodes that answer much later than the others, or not within so many seconds, are left out.
    """
    nodes = contact.nodes
    begun = time.monotonic()
    first = within(HEAD_SECONDS, lambda: contact.each([nodes[head]], report)) or {}
    others = _others(name, head, first.get(head))
    patience = PATIENCE_SECONDS if time_limit is not None else None
    if others is None:
        return contact.each(list(nodes.values()), report, patience=patience, time_limit=time_limit)
    took = time.monotonic() - begun
    asked = [nodes[other] for other in others if other in nodes and other != head]
    return {**first, **contact.each(asked, report, patience=patience, answered=took, time_limit=time_limit)}


def _others(name: str, head: str, answer: ReportAnswer | ProvisionError | None) -> list[str] | None:
    """Return the nodes of all attempts of a job, as the queue host reports them; None if they are unknown."""
    for job in Report.of(head, answer).jobs if isinstance(answer, ReportAnswer) else ():
        if job.name != name or not job.queue.state:
            continue
        if job.nodes:
            return list(job.nodes)
        return [] if job.queue.state in {"pending", "held", "stopped"} and not job.queue.attempt else None
    return None
