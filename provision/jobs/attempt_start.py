"""Starting one job whose GPUs are held: everything is made ready on all its nodes, then it starts on all of them."""

from __future__ import annotations

import contextlib
import secrets as random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from provision.batch import mpi
from provision.batch.containers import SHARE
from provision.connectors import Connector
from provision.documents.jobs import Done, Prepared, Taken
from provision.errors import InvalidDocument, NodeError, ProvisionError
from provision.jobs.attempt import Attempt, containers_of, image_of
from provision.jobs.code import Archive
from provision.jobs.connections import MANY, Ways
from provision.jobs.files.keeper_greeting import node_secret
from provision.jobs.node_ask import ask_jobs
from provision.jobs.node_programs import FILES, keeper_programs, unit_programs
from provision.model.job import JobSpec, Kind, as_document
from provision.threads import outcomes

__all__ = [
    "Extras",
    "release",
    "renew",
    "start",
    "take_leases",
]


PULL_SECONDS = 1800.0
"""A large image takes its time, where --starting-timeout does not say how much."""
PREPARE_SECONDS = 60.0
"""What else a node does to make itself ready."""
BROKEN_SECONDS = 90.0
"""A start of which nobody tells any more for so long was broken off."""
GRACE_SECONDS = 15.0
BEAT_SECONDS = 2.0
LOST_SECONDS = 12.0
_CLEAN = "All"
"""A container that has ended is of no more use: what it printed is kept beside the attempt."""


class Extras(Protocol):
    """What a job needs beside its containers: code, data, TensorBoard."""

    def mounts(self, spec: JobSpec, node: str) -> list[str]:
        """Return ``/source:/target[:ro]`` for the containers on a node."""

    def before(
        self, attempt: Attempt, connectors: Mapping[str, Connector], say: Callable[[str], None], code: Archive | None
    ) -> str:
        """Bring the code, look at the data; return the code's SHA, empty without code."""

    def after(self, attempt: Attempt, connector: Connector, say: Callable[[str], None]) -> str:
        """Start what goes beside the job on the chief's node; return TensorBoard's address, empty without it."""


def take_leases(ways: Ways, attempt: Attempt, *, force: bool = False) -> str:
    """Hold all GPUs of the attempt, node by node in the order of their names; return why not, empty when it is done."""
    done: list[str] = []
    for name in sorted(attempt.nodes):
        wanted = attempt.leases(name)
        try:
            answer = ask_jobs(ways.to(name), "lease", Taken, **_who(attempt), leases=wanted, force=force)
        except ProvisionError as error:
            release(ways, attempt, done)
            return f"{name}: {error.message}"
        done.append(name)
        if answer.taken:
            release(ways, attempt, done)
            uuid, lease = next(iter(answer.taken.items()))
            return f"{name}: {uuid} was taken by {lease.job} meanwhile"
    return ""


def renew(ways: Ways, attempt: Attempt) -> None:
    """Tell the nodes that what is held for an attempt is still wanted; nothing is taken, and nothing given back."""
    outcomes(lambda name: ask_jobs(ways.to(name), "renew", Done, **_who(attempt)), attempt.nodes, limit=MANY)


def release(ways: Ways, attempt: Attempt, names: Sequence[str]) -> None:
    """Give the GPUs back; a node that is gone forgets them by itself."""
    for name in names:
        with contextlib.suppress(ProvisionError):
            ask_jobs(ways.to(name), "release", Done, **_who(attempt))


def _who(attempt: Attempt) -> dict[str, Any]:
    return {"job": attempt.spec.name, "id": attempt.id, "attempt": attempt.number}


def start(
    ways: Ways,
    attempt: Attempt,
    extras: Extras | None,
    say: Callable[[str], None],
    hand_over: Callable[[], None] = lambda: None,
    code: Archive | None = None,
) -> str:
    """Start an attempt whose leases are held; return TensorBoard's address, empty without it.

    `hand_over` is called when all is ready and before anything starts: from then on the job is its nodes'. It raises
    when the job was stopped or forgotten meanwhile.

    Raises:
        ProvisionError: something failed on a node; nothing of the attempt is left, the leases are given back.
    """
    try:
        return _start(ways, attempt, extras, say, hand_over, code)
    except BaseException:
        _tear_down(ways, attempt)
        raise


def _start(
    ways: Ways,
    attempt: Attempt,
    extras: Extras | None,
    say: Callable[[str], None],
    hand_over: Callable[[], None],
    code: Archive | None,
) -> str:
    spec = attempt.spec
    prepared = ways.all(attempt.nodes, lambda way: _prepare(way, attempt))
    _same_images(prepared)
    sha = extras.before(attempt, {name: ways.to(name) for name in attempt.nodes}, say, code) if extras else ""
    ports = {name: answer.ports for name, answer in prepared.items()}
    logins = _logins(attempt, prepared, ports) if spec.kind is Kind.MPI else []
    files = _files(attempt, logins)
    configs = {str(n): attempt.secrets.files[text.partition(":")[2]] for n, text in enumerate(spec.config_files)}
    board = extras.after(attempt, ways.to(attempt.chief.node), say) if extras and spec.tensorboard else ""
    secret = random.token_bytes(32)
    record = {"code_sha": sha, "tensorboard": board, "image_digest": _digest(prepared[attempt.chief.node], spec.image)}
    control, rendezvous = ports[attempt.chief.node][:2]

    def one(way: Connector) -> None:
        name = way.name
        mounts = extras.mounts(spec, name) if extras else []
        keeper = {
            **_who(attempt),
            "name": spec.name,
            "node": name,
            "chief": name == attempt.chief.node,
            "chief_node": attempt.chief.node,
            "chief_address": attempt.chief.address,
            "control_port": control,
            "secret": _keeper_secret(secret, name, attempt.chief.node),
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
        ask_jobs(
            way,
            "start",
            Done,
            name=spec.name,
            attempt=attempt.number,
            keeper=keeper,
            files=files,
            configs=configs,
            record=record,
            programs=keeper_programs() | (unit_programs() if spec.no_container else {}),
        )

    hand_over()
    ways.all(attempt.nodes, one)
    return board


def _keeper_secret(secret: bytes, node: str, chief: str) -> str:
    """Return what a node's keeper proves itself with: the chief knows the attempt's secret, each other node its own."""
    return (secret if node == chief else node_secret(secret, node)).hex()


def _files(attempt: Attempt, logins: Sequence[mpi.Login]) -> dict[str, str]:
    """Return the files that all containers see."""
    files = mpi.files(attempt.spec, attempt.seats, logins) if logins else {}
    if attempt.spec.procs_per_gpu > 1:
        files[SHARE] = (FILES / SHARE).read_text(encoding="utf-8")
    return files


def _prepare(way: Connector, attempt: Attempt) -> Prepared:
    spec, name = attempt.spec, way.name
    images = {image_of(spec, seat): spec.pull for seat in attempt.seats if seat.node == name and image_of(spec, seat)}
    seats = [as_document(seat) for seat in attempt.seats]
    ports = 2 * (name == attempt.chief.node) + (spec.kind is Kind.MPI)
    record = {"attempt": attempt.number, "id": attempt.id, "seats": seats, "node": name, "time": time.time()}
    pulling = PULL_SECONDS if spec.starting_timeout in {0.0, JobSpec.starting_timeout} else spec.starting_timeout
    answer = ask_jobs(
        way,
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
    )
    if len(answer.ports) != ports or not set(images) <= set(answer.images):
        raise InvalidDocument(
            f"answer to `prepare`: {len(answer.ports)} ports of {ports}, or an image is missing", node=name
        )
    return answer


def _same_images(prepared: Mapping[str, Prepared]) -> None:
    """Ranks of different images would fail in the middle of the training, if they fail at all."""
    seen: dict[str, tuple[str, str]] = {}
    for name, answer in prepared.items():
        for reference, image in answer.images.items():
            other, before = seen.setdefault(reference, (name, image.id))
            if image.id != before:
                raise NodeError(
                    f"the image {reference} is another one here ({image.id[:19]}) than on {other} ({before[:19]})",
                    node=name,
                    remedy="name the image by its digest, or submit with --image-pull-policy Always",
                )


def _digest(answer: Prepared, reference: str) -> str:
    image = answer.images.get(reference)
    return (image.digest or image.id) if image is not None else ""


def _logins(attempt: Attempt, prepared: Mapping[str, Prepared], ports: Mapping[str, Sequence[int]]) -> list[mpi.Login]:
    address = {seat.node: seat.address for seat in attempt.seats}
    return mpi.logins_of(
        {name: address[name] for name in attempt.nodes},
        {name: ports[name][-1] if ports[name] else 0 for name in attempt.nodes},
        {name: {"client": prepared[name].keys.client, "host": prepared[name].keys.host} for name in attempt.nodes},
    )


def _tear_down(ways: Ways, attempt: Attempt) -> None:
    """Leave nothing of a start that failed."""
    for name in attempt.nodes:
        with contextlib.suppress(ProvisionError):
            ask_jobs(
                ways.to(name),
                "stop",
                Done,
                name=attempt.spec.name,
                attempt=attempt.number,
                reason="its start failed",
                grace=1,
            )
    release(ways, attempt, attempt.nodes)
