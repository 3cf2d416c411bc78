"""Jobs with an invalid entry: they can only be deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from provision.connectors import Connector
from provision.documents.jobs import Deleted, Done, InvalidEntry, ReportAnswer, invalid_entries
from provision.errors import InvalidRecord, NodeError, NodeUnreachable, ProvisionError
from provision.jobs.node_ask import ask_jobs, owner

GRACE_SECONDS = 15.0
ENDING_SECONDS = 30.0
"""The time of an end in addition to the grace time."""


class InvalidJob(InvalidRecord):
    """The entry of a job is not valid, on the nodes of `entries`."""

    def __init__(self, name: str, entries: Mapping[str, InvalidEntry]) -> None:
        node, entry = next(iter(entries.items()))
        super().__init__(
            f"the recorded job {name} is not valid: {entry.problem}",
            node=node,
            remedy=f"Delete it: provision delete {name}",
        )
        self.name = name
        self.entries = entries
        self.other_owner = next((one.owner for one in entries.values() if one.owner not in {"", owner()}), "")


def insist_on_valid(name: str, answers: Mapping[str, Any]) -> None:
    """Refuse a job whose entry on a node is not valid.

    Raises:
        InvalidJob: a node has an invalid entry.
    """
    entries = {
        node: entry
        for node, answer in answers.items()
        if isinstance(answer, ReportAnswer)
        for entry in invalid_entries(answer, node)
        if entry.name == name
    }
    if entries:
        raise InvalidJob(name, entries)


def delete_invalid(
    job: InvalidJob,
    each: Callable[[list[str], Callable[[Connector], Any]], Mapping[str, Any]],
    head: str,
) -> None:
    """End and delete a job with an invalid entry on its nodes, on the queue host last.

    Raises:
        NodeError: a node could not remove it.
        NodeUnreachable: a node does not answer.
    """
    nodes = sorted(job.entries, key=lambda node: node == head)
    for group in (nodes[:-1], nodes[-1:]):
        for node, answer in each(group, lambda connector: _remove(connector, job)).items():
            if isinstance(answer, NodeError):
                raise answer
            if isinstance(answer, ProvisionError):
                raise NodeUnreachable(
                    f"{job.name} could not be removed: {answer.message}",
                    node=node,
                    remedy=f"When {node} answers again, run: provision delete {job.name}",
                )


def _remove(connector: Connector, job: InvalidJob) -> None:
    """Stop and delete the job on one node; the node refuses to delete a running job."""
    token = job.entries[connector.name].id
    request: dict[str, Any] = {"name": job.name, **({"id": token} if token else {})}
    reason = f"deleted by {owner()}"
    ask_jobs(connector, "stop", Done, timeout=GRACE_SECONDS + 60, **request, reason=reason, grace=GRACE_SECONDS)
    end = time.monotonic() + GRACE_SECONDS + ENDING_SECONDS
    while True:
        try:
            is_deleted = ask_jobs(connector, "delete", Deleted, **request).deleted
            break
        except NodeError:
            if time.monotonic() > end:
                raise
        time.sleep(0.5)
    if not is_deleted:
        raise NodeError(f"{connector.name} has another job {job.name} by now", node=connector.name)
