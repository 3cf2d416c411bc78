"""Access to a job's instances: their output, commands in them and their ports."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from provision.batch.names import attempt_folder
from provision.connectors import Connector
from provision.connectors.limits import Allowance
from provision.documents.jobs import Done
from provision.errors import ConnectionFailed, NodeError, NodeUnreachable, NotAllowed, NotFound, ProvisionError
from provision.jobs.node_ask import ANSWER_SECONDS, ask_jobs, begin, refusal
from provision.jobs.node_contact import Contact
from provision.model import Node
from provision.model.job import Assignment, JobRecord, JobStatus, Kind
from provision.model.job_requests import LogRequest
from provision.report.node_names import in_short

LOGS_LIMIT = 4 * 1024**3
"""Bytes of output that is not followed; nodes store less."""
LINE_LIMIT = 1024 * 1024
"""Bytes of a line of output; a longer line is split."""


def instance_of(record: JobRecord, wanted: str) -> Assignment:
    """Return the assignment of an instance, by its name with or without the name of the job; empty: the leader.

    Raises:
        NodeUnreachable: no instance is known, because a node does not answer.
        NotFound: the job has no such instance.
    """
    for assignment in record.assignments:
        if (not wanted and assignment.is_leader) or wanted in {
            assignment.instance,
            assignment.instance.removeprefix(f"{record.spec.name}-"),
        }:
            return assignment
    if not record.assignments and record.silent:  # these nodes may have its instances
        silent = ", ".join(record.silent)
        raise NodeUnreachable(
            f"the instances of {record.spec.name} are unknown: {silent} does not answer",
            remedy=f"Try again when {silent} answers.",
        )
    if not record.assignments:
        raise NotFound(
            f"{record.spec.name} has no instance yet: it is {record.status}",
            remedy=record.reason or f"See what it waits for: provision get {record.spec.name} -e",
        )
    raise NotFound(
        f"{record.spec.name} has no instance {wanted}",
        remedy=f"`provision get {record.spec.name}` lists them: "
        + ", ".join(s.instance for s in record.assignments[:4]),
    )


def logs(
    get: Callable[[str], JobRecord],
    contact: Contact,
    record: JobRecord,
    request: LogRequest,
    write: Callable[[str, bytes], None],
) -> JobRecord:
    """Write lines of the requested instances as they arrive; return the job as it is afterwards.

    `get` returns the record of a job.
    """
    attempt = request.attempt or record.attempt
    of_attempt, away = (record, {}) if attempt == record.attempt else _earlier(record, contact, attempt)
    try:
        assignments = _asked(of_attempt, request)
    except NotFound as error:
        if away:
            raise NodeUnreachable(f"{error.message}, and these nodes do not answer: {in_short(list(away))}") from error
        raise
    lines: queue.SimpleQueue[tuple[str, bytes] | ProvisionError | None] = queue.SimpleQueue()

    def read(assignment: Assignment) -> None:
        try:
            _node_of(contact.nodes, assignment)
            _read_lines(
                contact, record, attempt, assignment, request, lambda line: lines.put((assignment.instance, line))
            )
        except ProvisionError as error:
            lines.put(error)
        finally:
            lines.put(None)

    for assignment in assignments:
        threading.Thread(target=read, args=(assignment,), daemon=True, name=f"logs {assignment.instance}").start()
    left = len(assignments)
    failed: ProvisionError | None = _lost(record, attempt, away) if request.every and away else None
    while left:
        item = lines.get()
        if item is None:
            left -= 1
        elif isinstance(item, ProvisionError):
            failed = failed or item
        else:
            write(*item)
    if failed is not None:
        raise failed
    return get(record.spec.name) if request.follow else record


def _asked(record: JobRecord, request: LogRequest) -> list[Assignment]:
    """Return the assignments whose lines are requested; those of one container share one output."""
    if not request.every:
        return [instance_of(record, one) for one in request.instances or ("",)]
    first = {assignment.container: assignment for assignment in reversed(record.assignments)}
    return [assignment for assignment in record.assignments if first[assignment.container] is assignment]


def _node_of(nodes: Mapping[str, Node], assignment: Assignment) -> Node:
    """Return the node of an instance.

    Raises:
        NotFound: it is no longer in the inventory.
    """
    if assignment.node not in nodes:
        raise NotFound(
            f"{assignment.instance} is on {assignment.node}, which is no longer in the inventory",
            remedy="Add the node to the inventory, or use the inventory with which the job was submitted.",
        )
    return nodes[assignment.node]


def _earlier(record: JobRecord, contact: Contact, attempt: int) -> tuple[JobRecord, Mapping[str, str]]:
    """Return the record with the assignments of an earlier attempt, and the nodes that did not answer.

    Raises:
        NotFound: no node has a part of that attempt.
    """
    name, nodes = record.spec.name, contact.nodes
    asked = [nodes[node] for node in record.nodes if node in nodes] or list(nodes.values())
    answers = contact.each(asked, lambda connector: _instances_there(connector, name, attempt))
    away = {node: one.message for node, one in answers.items() if isinstance(one, ProvisionError)}
    assignments = [
        _assignment(record, instance, node)
        for node, answer in answers.items()
        if not isinstance(answer, ProvisionError)
        for instance in answer
    ]
    if not assignments:
        if away:
            raise _lost(record, attempt, away)
        raise NotFound(f"attempt {attempt} of {name} has no output", remedy=f"The last attempt is {record.attempt}.")
    return replace(
        record,
        assignments=tuple(sorted(assignments, key=lambda assignment: (not assignment.is_leader, assignment.index))),
    ), away


def _lost(record: JobRecord, attempt: int, away: Mapping[str, str]) -> NodeUnreachable:
    reasons = "; ".join(f"{node}: {why}" for node, why in away.items())
    return NodeUnreachable(f"the other output of attempt {attempt} of {record.spec.name} is unknown: {reasons}")


def _instances_there(connector: Connector, name: str, attempt: int) -> tuple[str, ...]:
    """Return the instances of an attempt on a node: the node program lists them if the name is empty."""
    try:
        ask_jobs(connector, "logs", Done, name=name, attempt=attempt, instance="")
    except NodeError as error:
        return tuple(
            re.findall(rf"\b{re.escape(name)}-(?:launcher|master|worker)-[a-z0-9]{{1,9}}\b", error.remedy or "")
        )
    return ()


def _assignment(record: JobRecord, instance: str, node: str) -> Assignment:
    """Return an assignment from the name of the instance, without GPUs and address, which are not recorded there."""
    role, _, index = instance.removeprefix(f"{record.spec.name}-").partition("-")
    mpi = record.spec.kind is Kind.MPI
    number = int(index) if index.isdecimal() and role != "launcher" else 0
    is_leader = role in {"launcher", "master"} or (record.spec.kind is Kind.RUN and number == 0)
    return Assignment(instance, role, number, node, "", number, is_leader, container=f"on {node}" if mpi else instance)


def _read_lines(
    contact: Contact,
    record: JobRecord,
    attempt: int,
    assignment: Assignment,
    request: LogRequest,
    take: Callable[[bytes], None],
) -> None:
    try:
        _lines_of(contact, record, attempt, assignment, request, take)
    except ConnectionFailed as error:
        raise NodeUnreachable(error.message, node=assignment.node, remedy=error.remedy, output=error.output) from error


_REFUSAL = b'{"error": {'


def _lines_of(
    contact: Contact,
    record: JobRecord,
    attempt: int,
    assignment: Assignment,
    request: LogRequest,
    take: Callable[[bytes], None],
) -> None:
    connector = contact.connect(assignment.node)
    try:
        process = begin(
            connector,
            "logs",
            name=record.spec.name,
            attempt=attempt,
            instance=assignment.instance,
            tail=request.tail,
            since=request.since,
            timestamps=request.timestamps,
            follow=request.follow,
        )
        rest, said, begun = b"", b"", False
        process.deadline = None if request.follow else time.monotonic() + ANSWER_SECONDS
        allowance = Allowance(assignment.node, LOGS_LIMIT)
        for stream, chunk in process.output():
            if not request.follow:
                allowance.spend(len(chunk))
            process.deadline = None if request.follow else time.monotonic() + ANSWER_SECONDS
            if stream == "stderr":
                said = (said + chunk)[-2000:]
                continue
            rest += chunk
            if not begun and rest.startswith(_REFUSAL) and rest.count(b"\n") <= 1:
                continue  # a single line may be an error, which the exit status decides
            begun = True
            *complete_lines, rest = rest.split(b"\n")
            for line in complete_lines:
                take(line + b"\n")
            if len(rest) > LINE_LIMIT:
                take(rest + b"\n")
                rest = b""
        code = process.wait()
        if code:
            raise _refused(rest, said, assignment.node)
        if rest:
            take(rest)
    finally:
        connector.close()


def _refused(out: bytes, err: bytes, node: str) -> ProvisionError:
    """Return why there are no lines: the node has no such instance, or does not answer."""
    problem = refusal(out, node)
    if problem is not None and problem.code:
        return NotAllowed(problem.message, problem.code, node=node, remedy=problem.remedy or None)
    if problem is not None:
        return NotFound(problem.message, node=node, remedy=problem.remedy or None)
    said = err.decode(errors="replace").strip()[-300:] or "the connection ended"
    return NodeUnreachable(f"its output cannot be read: {said}", node=node)


def exec_argv(
    record: JobRecord, nodes: Mapping[str, Node], instance: str, argv: Sequence[str], *, terminal: bool
) -> tuple[str, ...]:
    """Return the ssh command that runs `argv` in the container or unit of an instance."""
    from provision.batch.units import unit_name
    from provision.jobs.forward import attach_argv, attach_unit_argv

    assignment = instance_of(record, instance)
    connection, words = _node_of(nodes, assignment).connection, argv or ("sh",)
    if record.spec.no_container:
        unit = unit_name(assignment, record.attempt)
        folder = attempt_folder(record.spec.name, record.attempt)
        return tuple(attach_unit_argv(connection, folder, unit, words, terminal=terminal))
    return tuple(attach_argv(connection, assignment.container, words, terminal=terminal))


def forward_argv(record: JobRecord, nodes: Mapping[str, Node], local: int, target: str) -> tuple[str, ...]:
    """Return the ssh command that forwards a local port to the node of the leader, or to TensorBoard."""
    from provision.jobs.forward import forward_argv as line

    assignment = instance_of(record, "")
    connection = _node_of(nodes, assignment).connection
    if target != "tensorboard":
        if record.status.over:
            name = record.spec.name
            raise NotFound(
                f"{name} is {record.status}: it has no running process to forward a port to",
                remedy=f"Restart it: provision restart {name}",
            )
        return tuple(line(connection, local, assignment.address, int(target)))
    if not record.tensorboard:
        raise _no_tensorboard(record)
    address, _, port = record.tensorboard.removeprefix("http://").rpartition(":")
    return tuple(line(connection, local, address.strip("[]"), int(port)))


def _no_tensorboard(record: JobRecord) -> NotFound:
    name = record.spec.name
    if not record.spec.tensorboard:
        return NotFound(f"{name} has no TensorBoard", remedy="Submit it with --tensorboard.")
    if record.status in {JobStatus.QUEUING, JobStatus.PENDING}:
        return NotFound(
            f"{name} is {record.status}: its TensorBoard starts with it",
            remedy=f"See what it waits for: provision get {name}",
        )
    return NotFound(
        f"the TensorBoard of {name} did not start: its image may not contain it",
        remedy="Submit the job again with --tensorboard-image and an image that contains TensorBoard.",
    )
