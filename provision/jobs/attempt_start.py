"""The start of an attempt with leased GPUs: all nodes are prepared first, then all are started."""

from __future__ import annotations

import secrets as random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from provision.batch import mpi
from provision.batch.containers import SHARE
from provision.connectors import Connector
from provision.documents.jobs import Done, Image, Prepared, Taken, assignment_document
from provision.errors import InvalidDocument, LaunchError, NodeError, ProvisionError
from provision.jobs.attempt import Attempt, containers_of, image_of
from provision.jobs.connections import MANY, Connections
from provision.jobs.extras import JobExtras
from provision.jobs.node_ask import ask_jobs
from provision.model.job import JobSpec, Kind
from provision.model.reason import Reason, reason
from provision.node.supervisor.handshake import node_secret
from provision.node_archive import source
from provision.report.reasons import error_of
from provision.threads import outcomes

if TYPE_CHECKING:
    from provision.jobs.code import Archive

PULL_SECONDS = 1800.0
"""For pulling a large image, unless --starting-timeout is set."""
PREPARE_SECONDS = 60.0
"""For the other preparations of a node."""
BROKEN_SECONDS = 90.0
"""A start that has not renewed its leases for so long was interrupted."""
LEASE_SECONDS = 30.0
"""How long the end of a killed job may keep GPUs that Slurm has allocated again."""
GRACE_SECONDS = 15.0
BEAT_SECONDS = 2.0
LOST_SECONDS = 12.0
_CLEAN = "All"
"""A container that has ended is removed, because its output is stored with the attempt."""


def take_leases(connections: Connections, attempt: Attempt, *, force: bool = False) -> Reason | None:
    """Lease all GPUs of the attempt on all nodes in parallel, or none; return why not, None for success.

    Scheduling passes do not run at the same time, and `run` waits for others that start: no two of them refuse each
    other for ever.

    Args:
        connections: to the nodes.
        attempt: the attempt.
        force: whether drained nodes lease them too.
    """

    def take(name: str) -> Taken:
        return ask_jobs(connections.to(name), "lease", Taken, **_who(attempt), leases=attempt.leases(name), force=force)

    names = sorted(attempt.nodes)
    answers = dict(zip(names, outcomes(take, names, limit=MANY), strict=True))
    taken = [name for name, answer in answers.items() if isinstance(answer, Taken) and not answer.taken]
    if len(taken) == len(names):
        return None
    release(connections, attempt, taken)
    return next(_refusal(name, answers[name]) for name in names if name not in taken)


def _refusal(name: str, answer: Taken | Exception) -> Reason:
    """Return why a node did not lease its GPUs."""
    if isinstance(answer, ProvisionError):
        return reason("job.lease_refused", node_name=name, cause=answer.reason or answer.message)
    if isinstance(answer, Exception):
        raise answer
    return _taken(name, answer)


def _taken(name: str, answer: Taken | Prepared) -> Reason:
    """Return why a node did not lease its GPUs."""
    uuid, lease = next(iter(answer.taken.items()))
    return reason("job.lease_refused", node_name=name, cause=reason("job.lease_taken", gpu=uuid, job=lease.job))


def renew(connections: Connections, attempt: Attempt) -> None:
    """Renew the leases of an attempt; none is added or released."""
    outcomes(lambda name: ask_jobs(connections.to(name), "renew", Done, **_who(attempt)), attempt.nodes, limit=MANY)


def release(connections: Connections, attempt: Attempt, names: Sequence[str]) -> None:
    """Release the GPUs; the leases on an unreachable node expire."""
    outcomes(lambda name: ask_jobs(connections.to(name), "release", Done, **_who(attempt)), names, limit=MANY)


def _who(attempt: Attempt) -> dict[str, Any]:
    return {"job": attempt.spec.name, "id": attempt.id, "attempt": attempt.number}


def start(
    connections: Connections,
    attempt: Attempt,
    extras: JobExtras | None,
    say: Callable[[str], None],
    hand_over: Callable[[], None] = lambda: None,
    code: Archive | None = None,
    *,
    slurm_job: int = 0,
) -> str:
    """Start an attempt; return the address of TensorBoard, empty without TensorBoard.

    `hand_over` is called when all nodes are prepared and before anything starts: from then on the nodes have the job.
    It raises an error if the job was stopped or deleted meanwhile.

    The attempt has its leases, or `slurm_job` is the number of a job in Slurm that has the GPUs: then ``prepare``
    leases them.

    Raises:
        ProvisionError: a node failed; nothing of the attempt is left, and the leases are released.
    """
    try:
        return _start(connections, attempt, extras, say, hand_over, code, slurm_job)
    except BaseException:
        _tear_down(connections, attempt)
        raise


def _start(
    connections: Connections,
    attempt: Attempt,
    extras: JobExtras | None,
    say: Callable[[str], None],
    hand_over: Callable[[], None],
    code: Archive | None,
    slurm_job: int,
) -> str:
    spec = attempt.spec
    assignments = [assignment_document(assignment) for assignment in attempt.assignments]
    prepared = connections.all(attempt.nodes, lambda connector: _prepare(connector, attempt, assignments, slurm_job))
    _same_images(prepared)
    sha = extras.before(attempt, {name: connections.to(name) for name in attempt.nodes}, say, code) if extras else ""
    ports = {name: answer.ports for name, answer in prepared.items()}
    logins = _logins(attempt, prepared, ports) if spec.kind is Kind.MPI else []
    files = _files(attempt, logins)
    configs = {str(n): attempt.secrets.files[text.partition(":")[2]] for n, text in enumerate(spec.config_files)}
    board = extras.after(attempt, connections.to(attempt.leader.node), say) if extras and spec.tensorboard else ""
    secret = random.token_bytes(32)
    record = {"code_sha": sha, "tensorboard": board, "image_digest": _digest(prepared[attempt.leader.node], spec.image)}
    control, rendezvous = ports[attempt.leader.node][:2]

    def one(connector: Connector) -> None:
        name = connector.name
        mounts = extras.mounts(spec, name) if extras else []
        supervisor = {
            **_who(attempt),
            "name": spec.name,
            "node": name,
            "chief": name == attempt.leader.node,
            "chief_node": attempt.leader.node,
            "chief_address": attempt.leader.address,
            "control_port": control,
            "secret": _supervisor_secret(secret, name, attempt.leader.node),
            "nodes": attempt.nodes,
            "ends": "chief" if spec.kind is Kind.MPI else "all",
            "grace_seconds": GRACE_SECONDS,
            "beat_seconds": BEAT_SECONDS,
            "lost_seconds": LOST_SECONDS,
            "starting_timeout": spec.starting_timeout,
            "running_timeout": spec.running_timeout,
            "clean": spec.clean_task_policy or _CLEAN,
            "containers": list(containers_of(attempt, name, logins, rendezvous, prepared[name], mounts)),
            "leases": [*attempt.leases(name), *(f"port-{port}" for port in ports[name])],
        }
        request: dict[str, Any] = {
            "name": spec.name,
            "attempt": attempt.number,
            "keeper": supervisor,
            "files": files,
            "configs": configs,
            "record": record,
        }
        ask_jobs(connector, "start", Done, **request)

    hand_over()
    connections.all(attempt.nodes, one)
    return board


def _supervisor_secret(secret: bytes, node: str, leader_node: str) -> str:
    """Return the secret of a node's supervisor: that of the attempt for the leader, else one of the node."""
    return (secret if node == leader_node else node_secret(secret, node)).hex()


def _files(attempt: Attempt, logins: Sequence[mpi.Login]) -> dict[str, str]:
    """Return the files that are mounted into all containers."""
    files = mpi.files(attempt.spec, attempt.assignments, logins) if logins else {}
    if attempt.spec.procs_per_gpu > 1:
        files[SHARE] = source("run/share")
    return files


def _prepare(
    connector: Connector, attempt: Attempt, assignments: Sequence[Mapping[str, Any]], slurm_job: int
) -> Prepared:
    spec, name = attempt.spec, connector.name
    images = {
        image_of(spec, assignment): spec.pull
        for assignment in attempt.assignments
        if assignment.node == name and image_of(spec, assignment)
    }
    ports = 2 * (name == attempt.leader.node) + (spec.kind is Kind.MPI)
    record = {"attempt": attempt.number, "id": attempt.id, "seats": assignments, "node": name, "time": time.time()}
    pulling = PULL_SECONDS if spec.starting_timeout in {0.0, JobSpec.starting_timeout} else spec.starting_timeout
    lease = {"leases": attempt.leases(name), "force": True, "slurm": slurm_job, "patience": LEASE_SECONDS}
    answer = ask_jobs(
        connector,
        "prepare",
        Prepared,
        timeout=pulling + PREPARE_SECONDS,
        seconds=pulling,
        name=spec.name,
        id=attempt.id,
        job=attempt.job,
        attempt=attempt.number,
        attempt_record=record,
        images=images,
        registry=dict(attempt.secrets.registry),
        mpi=spec.kind is Kind.MPI,
        ports=ports,
        uid=spec.user.partition(",")[0],
        **({"lease": {**_who(attempt), **lease}} if slurm_job else {}),
    )
    if answer.taken:
        raise error_of(LaunchError, _taken(name, answer), node=name)
    if len(answer.ports) != ports or not set(images) <= set(answer.images):
        raise InvalidDocument(
            f"answer to `prepare`: {len(answer.ports)} ports of {ports}, or an image is missing", node=name
        )
    return answer


def _same_images(prepared: Mapping[str, Prepared]) -> None:
    """Refuse different images under one name: the ranks would fail during the training, or train wrongly.

    Images with the same digest are the same, with a configuration for each platform.
    """
    seen: dict[str, tuple[str, Image]] = {}
    for name, answer in prepared.items():
        for reference, image in answer.images.items():
            other, before = seen.setdefault(reference, (name, image))
            if image.id != before.id and (not image.digest or image.digest != before.digest):
                raise NodeError(
                    f"the image {reference} differs here ({image.id[:19]}) from the one on {other} ({before.id[:19]})",
                    node=name,
                    remedy="Specify the image by its digest, or submit with --image-pull-policy Always.",
                )


def _digest(answer: Prepared, reference: str) -> str:
    image = answer.images.get(reference)
    return (image.digest or image.id) if image is not None else ""


def _logins(attempt: Attempt, prepared: Mapping[str, Prepared], ports: Mapping[str, Sequence[int]]) -> list[mpi.Login]:
    address = {assignment.node: assignment.address for assignment in attempt.assignments}
    return mpi.logins_of(
        {name: address[name] for name in attempt.nodes},
        {name: ports[name][-1] if ports[name] else 0 for name in attempt.nodes},
        {name: {"client": prepared[name].keys.client, "host": prepared[name].keys.host} for name in attempt.nodes},
    )


def _tear_down(connections: Connections, attempt: Attempt) -> None:
    """Remove everything of a failed start."""
    why = "its start failed"
    stop: dict[str, Any] = {"name": attempt.spec.name, "attempt": attempt.number, "reason": why, "grace": 1}
    outcomes(lambda name: ask_jobs(connections.to(name), "stop", Done, **stop), attempt.nodes, limit=MANY)
    release(connections, attempt, attempt.nodes)
