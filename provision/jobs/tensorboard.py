"""TensorBoard of a batch job, on the node of its leader."""

from __future__ import annotations

from collections.abc import Sequence

from provision.batch.data import Volume
from provision.batch.tensorboard import container_name, create_words, explain_start, log_place
from provision.connectors import Connector
from provision.documents.jobs import TensorboardResult
from provision.errors import NodeError
from provision.jobs.node_ask import ask
from provision.model.job import JobRecord

_PROGRAM = "tensorboard"
_PULL_SECONDS = 600
_WAIT_SECONDS = 30
"""TensorBoard imports for several seconds before it listens; the job does not wait longer."""


def start_tensorboard(connector: Connector, record: JobRecord, volumes: Sequence[Volume]) -> str:
    """Start the TensorBoard of a job on the node of its leader, and return the URL when it answers.

    Raises:
        NodeError: it does not run; the job does not depend on it.
    """
    spec, place = record.spec, log_place(record.spec, volumes)
    leader = next((assignment for assignment in record.assignments if assignment.is_leader), None)
    address = leader.address if leader else "127.0.0.1"
    request = {
        "container": container_name(spec.name),
        "create": create_words(record, volumes, address),
        "address": address,
        "folder": "" if place.shared else place.path,
        "user": spec.user,
        "seconds": _PULL_SECONDS,
        "wait": _WAIT_SECONDS,
    }
    answer = ask(connector, _PROGRAM, request, TensorboardResult, seconds=_PULL_SECONDS + 3 * _WAIT_SECONDS)
    if not answer.running or answer.port is None:
        why, remedy = explain_start(answer.output, answer.code, spec.tensorboard_image or spec.image)
        raise NodeError(f"there is no TensorBoard: {why}", node=connector.name, remedy=remedy, output=answer.output)
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{answer.port}"
