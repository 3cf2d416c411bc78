"""Ends of jobs: the queue host records the request, and each node of the job confirms the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import to_builtins

from provision.batch.records import Report, result_of
from provision.batch.requested_ends import END_REQUESTED, RequestedEnd, has_part, requested_ends
from provision.connectors import Connector
from provision.documents.jobs import Deleted, Done, JobReport, ReportAnswer, Written
from provision.errors import NodeError, NodeUnreachable, ProvisionError, UsageError
from provision.jobs.node_ask import ask_jobs, owner
from provision.jobs.node_contact import Contact, is_silent
from provision.model.job import JobRecord, JobStatus

GRACE_SECONDS = 15.0
ENDING_SECONDS = 30.0
"""The time of an end in addition to the grace time."""
POLL_SECONDS = 0.5
_REQUESTED = f'"{END_REQUESTED}"'.encode()


class Ending:
    """The requested end of one job.

    Args:
        contact: asks nodes.
        head: the queue host.
        record: the job, with its nodes.
        delete: whether its records are deleted too.
        keep_secrets: whether the queue host keeps the job's secrets, for a next attempt.
    """

    def __init__(
        self, contact: Contact, head: str, record: JobRecord, *, delete: bool = False, keep_secrets: bool = False
    ) -> None:
        self._contact, self._head, self._record = contact, head, record
        self._delete, self._keep_secrets = delete, keep_secrets
        self.recorded = False
        """Whether the queue host has recorded the request; only then is it carried out when a silent node is back."""
        self.has_result = record.status is JobStatus.SUCCEEDED
        """Whether the job had ended before, with a result that stays until its records are deleted."""
        self.silent: set[str] = set()
        """Nodes that could not be reached."""
        self.nodes: tuple[str, ...] = tuple(
            dict.fromkeys((*record.nodes, *(assignment.node for assignment in record.assignments), *record.unconfirmed))
        )

    def request(self) -> None:
        """Record the request on the queue host, and get the nodes that must confirm the end.

        Raises:
            NodeUnreachable: the queue host does not answer.
            NodeError: it refuses, because the job is owned by another user.
        """
        reason = f"{'deleted' if self._delete else 'stopped'} by {owner()}"
        queue: dict[str, Any] = {"state": END_REQUESTED, "reason": reason}
        if self._delete:
            queue["deleted"] = True
            result = result_of(self._record)
            if result is not None:
                queue["result"] = to_builtins(result)
        event = {"time": time.time(), "source": "queue", "type": "Normal", "message": reason}
        name = self._record.spec.name

        def ask(connector: Connector) -> JobReport | None:
            part = _part(
                connector.name, ask_jobs(connector, "report", ReportAnswer, names=[name], brief=True), self._record.id
            )
            if part is None:
                return None
            over = not self._keep_secrets
            request: dict[str, Any] = {"name": name, "queue": queue, "merge": True, "over": over, "event": event}
            ask_jobs(connector, "queue", Written, **request, if_id=self._record.id)
            return _part(
                connector.name, ask_jobs(connector, "report", ReportAnswer, names=[name], brief=True), self._record.id
            )

        answer = self._contact.each([self._contact.nodes[self._head]], ask)[self._head]
        if is_silent(answer):
            raise NodeUnreachable(
                f"the queue host {self._head} does not answer, so that the end of {name} cannot be recorded",
                node=self._head,
                remedy=f"Run the same command again when {self._head} answers.",
            )
        if isinstance(answer, ProvisionError):
            raise answer
        if answer is not None:  # without an answer, the queue host does not know this job, which may run on other nodes
            self.recorded = True
            self.has_result = self.has_result or answer.queue.result is not None
            self.nodes = tuple(dict.fromkeys((*self.nodes, *answer.queue.unconfirmed)))

    def stop(self, grace: float, nodes: Sequence[str] | None = None) -> dict[str, str]:
        """End the job on its nodes; return the nodes that have not confirmed the end in time, and why."""
        name, token = self._record.spec.name, self._record.id
        asked = self.nodes if nodes is None else nodes
        request = {"name": name, "reason": f"stopped by {owner()}", "grace": grace, "id": token}
        answers = self._each(asked, lambda connector: ask_jobs(connector, "stop", Done, timeout=grace + 60, **request))
        why = {node: _why(answer) for node, answer in answers.items() if isinstance(answer, ProvisionError)}
        self.silent |= {node for node, answer in answers.items() if is_silent(answer)}
        return self._await_ends(asked, why, grace)

    def _await_ends(self, nodes: Sequence[str], why: dict[str, str], grace: float) -> dict[str, str]:
        """Ask the nodes until no answering node reports a running part, or the time limit is reached."""
        end = time.monotonic() + grace + ENDING_SECONDS
        left = dict.fromkeys(nodes)
        report = partial(_report, self._record.spec.name)
        while True:
            answers = self._each([node for node in left if node not in self.silent], report)
            for node, answer in answers.items():
                if isinstance(answer, ReportAnswer):
                    part = _part(node, answer, self._record.id)
                    if part is None or not has_part(part):
                        del left[node]
                    else:
                        why.setdefault(node, "the job has not ended there")
                elif is_silent(answer):
                    self.silent.add(node)
                    why[node] = _why(answer)
                else:
                    why[node] = _why(answer)
            if set(left) <= self.silent or time.monotonic() > end:
                return {node: why.get(node, "it did not answer") for node in left}
            time.sleep(POLL_SECONDS)

    def check_lost(self, lost: Sequence[str], nodes: Sequence[str]) -> None:
        """Refuse to ignore a node that never had the job, or that answers and can confirm.

        Raises:
            UsageError: one of them is such a node.
        """
        name = self._record.spec.name
        for node in lost:
            if node not in nodes:
                raise UsageError(
                    f"--lost {node}: {name} was never on this node", remedy=f"Its nodes are {', '.join(nodes)}."
                )
        answers = self._each(list(lost), partial(_report, name))
        for node, answer in answers.items():
            if not is_silent(answer):
                raise UsageError(f"--lost {node}: this node answers", remedy="Leave --lost out: it can confirm.")

    def remove(self, nodes: Iterable[str]) -> dict[str, str]:
        """Delete a finished job on nodes; return the nodes that could not be reached, and why.

        Raises:
            NodeError: a node was reached and could not delete it.
        """
        name, token = self._record.spec.name, self._record.id
        answers = self._each(list(nodes), lambda connector: ask_jobs(connector, "delete", Deleted, name=name, id=token))
        for answer in answers.values():
            if isinstance(answer, ProvisionError) and not is_silent(answer):
                raise answer
        away = {node: _why(answer) for node, answer in answers.items() if is_silent(answer)}
        self.silent |= set(away)
        return away

    def confirm(self, nodes: Iterable[str]) -> None:
        """Record the confirmations of nodes on the queue host; later commands repeat it after a failure."""
        confirmed = sorted(nodes)
        if self.recorded and confirmed:
            with contextlib.suppress(ProvisionError):
                self._each(
                    [self._head],
                    lambda connector: _confirm(connector, self._record.spec.name, self._record.id, confirmed),
                )

    def _each(self, names: Sequence[str], work: Any) -> dict[str, Any]:
        """Ask these nodes; a node that is not in this inventory counts as unreachable."""
        nodes = [self._contact.nodes[name] for name in names if name in self._contact.nodes]
        answers: dict[str, Any] = dict(self._contact.each(nodes, work))
        for name in names:
            if name not in self._contact.nodes:
                answers[name] = NodeUnreachable("it is not in this inventory", node=name)
        return answers


def carry_out(contact: Contact, head: str, ends: Sequence[RequestedEnd]) -> None:
    """Carry out requested ends on the nodes that answer; failures are repeated by later commands."""
    names = dict.fromkeys(node for end in ends for node in (*end.stop, *end.remove))
    answers = contact.each([contact.nodes[name] for name in names if name in contact.nodes], partial(_do_all, ends))
    removed = {node: answer for node, answer in answers.items() if not isinstance(answer, ProvisionError)}

    def record(connector: Connector) -> None:
        for end in ends:
            confirmed = [*end.confirmed, *(node for node in removed if end.id in removed[node])]
            with contextlib.suppress(NodeError):
                if confirmed:
                    _confirm(connector, end.name, end.id, confirmed)
                if end.delete and not set(end.left) - set(confirmed):
                    ask_jobs(connector, "delete", Deleted, name=end.name, id=end.id)

    contact.each([contact.nodes[head]], record)


def _do_all(ends: Sequence[RequestedEnd], connector: Connector) -> list[str]:
    """Stop jobs on a node, and delete those that have ended there; return the IDs of the deleted ones."""
    removed = []
    for end in ends:
        with contextlib.suppress(NodeError):
            if connector.name in end.stop:
                request = {"name": end.name, "id": end.id, "reason": end.reason or "stopped", "grace": GRACE_SECONDS}
                ask_jobs(connector, "stop", Done, timeout=GRACE_SECONDS + 60, **request)
            elif connector.name in end.remove:
                ask_jobs(connector, "delete", Deleted, name=end.name, id=end.id)
                removed.append(end.id)
    return removed


def pending(answers: Mapping[str, ReportAnswer | ProvisionError], head: str) -> list[RequestedEnd]:
    """Return the requested ends that are not complete, from the answers of nodes."""
    answer = answers.get(head)
    if not isinstance(answer, ReportAnswer) or not any(_REQUESTED in bytes(raw) for raw in answer.jobs):
        return []  # the usual case: do not parse many jobs a second time
    reports = [Report.of(name, one) for name, one in answers.items() if not isinstance(one, ProvisionError)]
    return requested_ends(reports, head)


def _confirm(connector: Connector, name: str, token: str, nodes: Sequence[str]) -> None:
    request: dict[str, Any] = {"name": name, "queue": {"state": END_REQUESTED}, "merge": True, "confirmed": list(nodes)}
    ask_jobs(connector, "queue", Written, **request, if_id=token, if_state=[END_REQUESTED])


def _report(name: str, connector: Connector) -> ReportAnswer:
    return ask_jobs(connector, "report", ReportAnswer, names=[name], brief=True)


def _part(node: str, answer: ReportAnswer, token: str) -> JobReport | None:
    return next((job for job in Report.of(node, answer).jobs if job.id == token), None)


def _why(error: object) -> str:
    return error.message if isinstance(error, ProvisionError) else str(error)
