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
from provision.model.job import JobRecord, Kind, Seat
from provision.model.job_requests import LogRequest

__all__ = ["exec_argv", "forward_argv", "instance_of", "logs"]


LOGS_LIMIT = 4 * 1024**3
"""Bytes of a container's output where it is not followed; nodes keep less."""
LINE_LIMIT = 1024 * 1024
"""Bytes of a line of a job's output; a longer one is shown as several."""


def instance_of(record: JobRecord, wanted: str) -> Seat:
    """Return the seat of an instance, by its whole name or by what follows the job's; the chief's without a name.

    Raises:
        NodeUnreachable: no instance is known, and a node that may have one does not answer.
        NotFound: the job has no such instance.
    """
    for seat in record.seats:
        if (not wanted and seat.chief) or wanted in {seat.instance, seat.instance.removeprefix(f"{record.spec.name}-")}:
            return seat
    if not record.seats and record.silent:  # these nodes may have its instances
        silent = ", ".join(record.silent)
        raise NodeUnreachable(
            f"the instances of {record.spec.name} are unknown: {silent} does not answer",
            remedy=f"Try again when {silent} answers.",
        )
    if not record.seats:
        raise NotFound(
            f"{record.spec.name} has no instance yet: it is {record.status}",
            remedy=record.reason or f"`provision get {record.spec.name} -e` tells what it waits for",
        )
    raise NotFound(
        f"{record.spec.name} has no instance {wanted}",
        remedy=f"`provision get {record.spec.name}` lists them: " + ", ".join(s.instance for s in record.seats[:4]),
    )


def logs(
    get: Callable[[str], JobRecord],
    contact: Contact,
    name: str,
    request: LogRequest,
    write: Callable[[str, bytes], None],
) -> JobRecord:
    """Write lines of the requested instances as they arrive; return the job as it is afterwards.

    `get` returns the record of a job.
    """
    record = get(name)
    attempt = request.attempt or record.attempt
    of_attempt, away = (record, {}) if attempt == record.attempt else _earlier(record, contact, attempt)
    try:
        seats = _asked(of_attempt, request)
    except NotFound as error:
        if away:
            raise NodeUnreachable(f"{error.message}, and these nodes do not answer: {', '.join(away)}") from error
        raise
    lines: queue.SimpleQueue[tuple[str, bytes] | ProvisionError | None] = queue.SimpleQueue()

    def read(seat: Seat) -> None:
        try:
            _node_of(contact.nodes, seat)
            _read_lines(contact, record, attempt, seat, request, lambda line: lines.put((seat.instance, line)))
        except ProvisionError as error:
            lines.put(error)
        finally:
            lines.put(None)

    for seat in seats:
        threading.Thread(target=read, args=(seat,), daemon=True, name=f"logs {seat.instance}").start()
    left = len(seats)
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
    return get(name) if request.follow else record


def _asked(record: JobRecord, request: LogRequest) -> list[Seat]:
    """Return the seats whose lines are asked for; those of one container have one output."""
    if not request.every:
        return [instance_of(record, one) for one in request.instances or ("",)]
    first = {seat.container: seat for seat in reversed(record.seats)}
    return [seat for seat in record.seats if first[seat.container] is seat]


def _node_of(nodes: Mapping[str, Node], seat: Seat) -> Node:
    """Return the node of an instance.

    Raises:
        NotFound: it has been taken out of the inventory.
    """
    if seat.node not in nodes:
        raise NotFound(
            f"{seat.instance} is on {seat.node}, which is not in the inventory any more",
            remedy="put the node back into the inventory, or use the one that the job was submitted with",
        )
    return nodes[seat.node]


def _earlier(record: JobRecord, contact: Contact, attempt: int) -> tuple[JobRecord, Mapping[str, str]]:
    """Return the record with the seats of an earlier attempt, and the nodes that did not tell theirs.

    Raises:
        NotFound: no node has anything of that attempt.
    """
    name, nodes = record.spec.name, contact.nodes
    asked = [nodes[node] for node in record.nodes if node in nodes] or list(nodes.values())
    found = contact.each(asked, lambda way: _instances_there(way, name, attempt))
    away = {node: one.message for node, one in found.items() if isinstance(one, ProvisionError)}
    seats = [
        _seat(record, instance, node)
        for node, told in found.items()
        if not isinstance(told, ProvisionError)
        for instance in told
    ]
    if not seats:
        if away:
            raise _lost(record, attempt, away)
        raise NotFound(
            f"nothing is kept of attempt {attempt} of {name}", remedy=f"the last attempt is {record.attempt}"
        )
    return replace(record, seats=tuple(sorted(seats, key=lambda seat: (not seat.chief, seat.index)))), away


def _lost(record: JobRecord, attempt: int, away: Mapping[str, str]) -> NodeUnreachable:
    told = "; ".join(f"{node}: {why}" for node, why in away.items())
    return NodeUnreachable(f"what else there is of attempt {attempt} of {record.spec.name} is not known: {told}")


def _instances_there(way: Connector, name: str, attempt: int) -> tuple[str, ...]:
    """Return the instances that a node has of an attempt: its program names them where it is asked for none."""
    try:
        ask_jobs(way, "logs", Done, name=name, attempt=attempt, instance="")
    except NodeError as error:
        return tuple(
            re.findall(rf"\b{re.escape(name)}-(?:launcher|master|worker)-[a-z0-9]{{1,9}}\b", error.remedy or "")
        )
    return ()


def _seat(record: JobRecord, instance: str, node: str) -> Seat:
    """Return a seat by the instance's name; GPUs and addresses of earlier attempts are not kept where it is asked."""
    role, _, index = instance.removeprefix(f"{record.spec.name}-").partition("-")
    mpi = record.spec.kind is Kind.MPI
    number = int(index) if index.isdecimal() and role != "launcher" else 0
    chief = role in {"launcher", "master"} or (record.spec.kind is Kind.RUN and number == 0)
    return Seat(instance, role, number, node, "", number, chief, container=f"on {node}" if mpi else instance)


def _read_lines(
    contact: Contact, record: JobRecord, attempt: int, seat: Seat, request: LogRequest, take: Callable[[bytes], None]
) -> None:
    try:
        _lines_of(contact, record, attempt, seat, request, take)
    except ConnectionFailed as error:
        raise NodeUnreachable(error.message, node=seat.node, remedy=error.remedy, output=error.output) from error


_REFUSAL = b'{"error": {'


def _lines_of(
    contact: Contact, record: JobRecord, attempt: int, seat: Seat, request: LogRequest, take: Callable[[bytes], None]
) -> None:
    way = contact.connect(seat.node)
    try:
        process = begin(
            way,
            "logs",
            name=record.spec.name,
            attempt=attempt,
            instance=seat.instance,
            tail=request.tail,
            since=request.since,
            timestamps=request.timestamps,
            follow=request.follow,
        )
        rest, said, begun = b"", b"", False
        process.deadline = None if request.follow else time.monotonic() + ANSWER_SECONDS
        allowance = Allowance(seat.node, LOGS_LIMIT)
        for stream, chunk in process.output():
            if not request.follow:
                allowance.spend(len(chunk))
            process.deadline = None if request.follow else time.monotonic() + ANSWER_SECONDS
            if stream == "stderr":
                said = (said + chunk)[-2000:]
                continue
            rest += chunk
            if not begun and rest.startswith(_REFUSAL) and rest.count(b"\n") <= 1:
                continue  # alone it may be a refusal, which the exit status tells
            begun = True
            *whole, rest = rest.split(b"\n")
            for line in whole:
                take(line + b"\n")
            if len(rest) > LINE_LIMIT:
                take(rest + b"\n")
                rest = b""
        code = process.wait()
        if code:
            raise _refused(rest, said, seat.node)
        if rest:
            take(rest)
    finally:
        way.close()


def _refused(out: bytes, err: bytes, node: str) -> ProvisionError:
    """Return why lines did not come: the node has no such instance, or it cannot be asked."""
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
    """Return the ssh command that runs `argv` in an instance's container, or unit."""
    from provision.batch.units import unit_name
    from provision.jobs.forward import attach_argv, attach_unit_argv

    seat = instance_of(record, instance)
    connection, words = _node_of(nodes, seat).connection, argv or ("sh",)
    if record.spec.no_container:
        unit = unit_name(seat, record.attempt)
        folder = attempt_folder(record.spec.name, record.attempt)
        return tuple(attach_unit_argv(connection, folder, unit, words, terminal=terminal))
    return tuple(attach_argv(connection, seat.container, words, terminal=terminal))


def forward_argv(record: JobRecord, nodes: Mapping[str, Node], local: int, target: str) -> tuple[str, ...]:
    """Return the ssh command that forwards a local port to one of the chief's node, or to TensorBoard."""
    from provision.jobs.forward import forward_argv as line

    seat = instance_of(record, "")
    connection = _node_of(nodes, seat).connection
    if target != "tensorboard":
        if record.status.over:
            name = record.spec.name
            raise NotFound(
                f"{name} is {record.status}: nothing of it runs that a port could be forwarded to",
                remedy=f"provision restart {name}",
            )
        return tuple(line(connection, local, seat.address, int(target)))
    if not record.tensorboard:
        raise NotFound(f"{record.spec.name} has no TensorBoard", remedy="submit it with --tensorboard")
    address, _, port = record.tensorboard.removeprefix("http://").rpartition(":")
    return tuple(line(connection, local, address.strip("[]"), int(port)))
