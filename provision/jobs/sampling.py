"""Runs the advisor's sampler on nodes, and reads its output as it arrives."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from posixpath import normpath
from typing import Any

from provision.advisor.records import read_series
from provision.advisor.series import NodeSeries
from provision.batch.names import attempt_folder
from provision.connectors import Connector, RemoteProcess
from provision.connectors.programs import start_program
from provision.documents.sampler import LINE_LIMIT
from provision.errors import ConnectionFailed, NodeUnreachable, ProvisionError
from provision.jobs.node_contact import Contact
from provision.model.job import Assignment, JobRecord

_LATE_SECONDS = 45.0
"""The sampler itself gives up half a minute after its window."""


def sample_node(
    connector: Connector, containers: Sequence[Mapping[str, Any]], *, seconds: float, interval: float = 1.0
) -> tuple[NodeSeries, str]:
    """Sample a job on one node.

    Args:
        connector: the connection to the node.
        containers: the job's containers there, as entries of the sampler (``id``, ``instance``, ``gpus``, ``log``,
            ``speaks_for_all``, ``watch``).
        seconds: the window.
        interval: seconds between two samples.

    Returns:
        The series, and why it ended early; empty if it is complete.

    Raises:
        ConnectionFailed: the node cannot be reached.
    """
    process = start_program(connector, "sampler")
    late = threading.Timer(seconds + _LATE_SECONDS, process.close)
    late.daemon = True
    late.start()
    request = {"seconds": seconds, "interval": interval, "containers": list(containers)}
    said: list[bytes] = []
    try:
        with suppress(ConnectionFailed, OSError, ValueError):  # what ended before it read all of it says why
            process.write(json.dumps(request).encode() + b"\n")
        series = read_series(connector.name, _lines(process, said))
    finally:
        late.cancel()
        process.close()  # its input ends, and so does it
    return series, "" if series.ended else _why(b"".join(said))


def _lines(process: RemoteProcess, said: list[bytes]) -> Iterator[bytes]:
    """Return whole lines until the sampler ends or is lost; what it says on stderr goes into `said`."""
    rest = b""
    with suppress(ConnectionFailed):
        for stream, chunk in process.output():
            if stream == "stderr":
                said[:] = [b"".join((*said, chunk))[-4000:]]
                continue
            *complete_lines, rest = (rest + chunk).split(b"\n")
            yield from complete_lines
            if len(rest) > LINE_LIMIT:  # it is read as a record that is not valid
                yield rest
                rest = b""


def _why(said: bytes) -> str:
    words = said.decode(errors="replace").strip().splitlines()
    return words[-1] if words else "the connection was lost, or the node gave no answer in time"


def sample_job(
    contact: Contact, job: JobRecord, *, seconds: float, interval: float = 1.0
) -> dict[str, tuple[NodeSeries, str] | ProvisionError]:
    """Sample a job on all of its nodes in parallel; return the results of `sample_node` in the order of ranks."""
    names = list(dict.fromkeys(assignment.node for assignment in job.assignments))
    containers = {name: list(containers_of(job, name)) for name in names}

    def sample(connector: Connector) -> tuple[NodeSeries, str]:
        return sample_node(connector, containers[connector.name], seconds=seconds, interval=interval)

    answers = contact.each([contact.nodes[name] for name in names if name in contact.nodes], sample)
    missing = {name: NodeUnreachable("it is not in the inventory", node=name) for name in names if name not in answers}
    return {name: answers[name] if name in answers else missing[name] for name in names}


def containers_of(record: JobRecord, node: str) -> Iterator[dict[str, Any]]:
    """Yield the sampler's entry of each container on a node; the first instance stands for all in the container."""
    spec = record.spec
    folder = attempt_folder(spec.name, record.attempt)
    containers: dict[str, list[Assignment]] = {}
    for assignment in record.assignments:
        if assignment.node == node:
            containers.setdefault(assignment.container or assignment.instance, []).append(assignment)
    for assignments in containers.values():
        first = assignments[0].instance
        instance = record.instances.get(first)
        yield {
            "id": instance.container_id if instance else "",
            "instance": first,
            "gpus": [uuid for assignment in assignments for uuid in assignment.uuids],
            "log": f"{folder}/{first}.log",
            "speaks_for_all": any(assignment.role == "launcher" for assignment in assignments),
            "watch": [normpath(spec.logdir)] if spec.tensorboard else [],
        }
