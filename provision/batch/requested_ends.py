"""Requested ends of jobs: which nodes have confirmed one, and what is left to do on the others.

The queue host records that a job is to end, and the nodes that have not confirmed it. A node confirms an end when it
reports no unfinished part of the job, and a deletion when it reports nothing of the job at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from provision.batch.reports import Report
from provision.documents.jobs import JobReport, QueueEntry

END_REQUESTED = "stopped"
"""The state in the queue of a job whose end is requested, also after all nodes have confirmed it."""


@dataclass(frozen=True)
class RequestedEnd:
    """A requested end that at least one node that answered has to carry out or has confirmed."""

    name: str
    id: str
    owner: str
    reason: str
    delete: bool
    stop: tuple[str, ...] = ()
    """Nodes with an unfinished part of the job that have not received the request yet."""
    remove: tuple[str, ...] = ()
    """Nodes with records of a job to delete, of which nothing runs there."""
    confirmed: tuple[str, ...] = ()
    """Nodes that have confirmed since the queue host wrote its list."""
    left: tuple[str, ...] = ()
    """All other nodes of that list."""


def has_part(job: JobReport) -> bool:
    """Return whether a node has an attempt of a job that has not ended there."""
    return bool(job.attempt) and job.result is None


def unconfirmed_nodes(
    queue: QueueEntry, parts: Mapping[str, JobReport], answered: Collection[str], head: str
) -> tuple[str, ...]:
    """Return the nodes that have not confirmed the requested end of a job; none where no end is requested."""
    if queue.state != END_REQUESTED:
        return ()
    listed = [node for node in queue.unconfirmed if not _confirms(node, queue, parts, answered, head)]
    unlisted = (node for node, job in parts.items() if has_part(job) and job.supervisor != "none")
    return (*listed, *(node for node in unlisted if node not in listed))


def _confirms(
    node: str, queue: QueueEntry, parts: Mapping[str, JobReport], answered: Collection[str], head: str
) -> bool:
    if node not in answered:
        return False
    job = parts.get(node)
    return job is None or (not has_part(job) and (node == head or not queue.deleted))


def requested_ends(reports: Sequence[Report], head: str) -> list[RequestedEnd]:
    """Return the unfinished work of all requested ends, according to the nodes that answered."""
    by_node = {report.node: {job.name: job for job in report.jobs} for report in reports}
    requested = (job for job in by_node.get(head, {}).values() if job.queue.state == END_REQUESTED)
    ends = (_requested_end(job, _parts(job, by_node, head), by_node, head) for job in requested)
    return [end for end in ends if end.stop or end.remove or end.confirmed or (end.delete and not end.left)]


def is_accepted(node: str, job: JobReport, of_head: JobReport) -> bool:
    """Return whether the queue host has assigned this attempt of the job to this node."""
    queue = of_head.queue
    given = {*queue.nodes, *of_head.nodes, *queue.unconfirmed}
    if not given or not job.attempt:
        return True
    if job.attempt == queue.attempt and queue.nodes:
        return node in {*queue.nodes, *queue.unconfirmed}
    return node in given and job.attempt <= queue.attempt


def _parts(of_head: JobReport, by_node: Mapping[str, Mapping[str, JobReport]], head: str) -> dict[str, JobReport]:
    """Return node -> its report about a job, without reports about other jobs of that name."""
    parts = {node: jobs[of_head.name] for node, jobs in by_node.items() if of_head.name in jobs}
    return {
        node: job
        for node, job in parts.items()
        if job.id == of_head.id and (node == head or is_accepted(node, job, of_head))
    }


def _requested_end(
    job: JobReport, parts: Mapping[str, JobReport], answered: Collection[str], head: str
) -> RequestedEnd:
    queue = job.queue
    left = unconfirmed_nodes(queue, parts, answered, head)
    running = [node for node in left if node in parts and has_part(parts[node])]
    return RequestedEnd(
        job.name,
        job.id,
        job.owner or "",
        queue.reason,
        queue.deleted,
        tuple(node for node in running if not parts[node].stopping),
        tuple(node for node in left if node in parts and node not in running),
        tuple(node for node in queue.unconfirmed if node not in left),
        left,
    )
