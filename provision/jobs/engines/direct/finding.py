"""Asking about one job: the node that keeps the queue knows which others have a part in it."""

from __future__ import annotations

import time
from functools import partial

from provision.batch.records import Report
from provision.connectors import Connector
from provision.documents.jobs import ReportAnswer
from provision.errors import ProvisionError
from provision.jobs.engines.direct.contact import Contact
from provision.jobs.node_ask import ask_jobs
from provision.threads import within

__all__ = ["told_of"]

HEAD_SECONDS = 3.0
"""When the node that keeps the queue has not answered in this time, all are asked beside it."""
PATIENCE_SECONDS = 2.0
"""So much later than twice the others' time a node may answer who is asked how a job stands."""


def told_of(name: str, contact: Contact, head: str, *, hurry: bool = False) -> dict[str, ReportAnswer | ProvisionError]:
    """Return what nodes report of a job: the head and those that it was ever given to; all where the head has none.

    In a `hurry` nodes that are late are left out.
    """
    report, nodes = partial(_report, name), contact.nodes
    begun = time.monotonic()
    first = within(HEAD_SECONDS, lambda: contact.each([nodes[head]], report)) or {}
    others = _others(name, head, first.get(head))
    patience = PATIENCE_SECONDS if hurry else None
    if others is None:
        return contact.each(list(nodes.values()), report, patience=patience)
    took = time.monotonic() - begun
    asked = [nodes[other] for other in others if other in nodes and other != head]
    return {**first, **contact.each(asked, report, patience=patience, answered=took)}


def _report(name: str, way: Connector) -> ReportAnswer:
    return ask_jobs(way, "report", ReportAnswer, names=[name], brief=False)


def _others(name: str, head: str, told: ReportAnswer | ProvisionError | None) -> list[str] | None:
    """Return the nodes that a job was ever given to, by what the head tells; None where that is not known."""
    for job in Report.of(head, told).jobs if isinstance(told, ReportAnswer) else ():
        if job.name != name or not job.queue.state:
            continue
        if job.nodes:
            return list(job.nodes)
        return [] if job.queue.state in {"pending", "held", "stopped"} and not job.queue.attempt else None
    return None
