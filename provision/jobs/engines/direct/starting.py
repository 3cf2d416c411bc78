"""Starting one job whose GPUs are held: everything is made ready on all its nodes, then it starts on all of them."""

from __future__ import annotations

import contextlib
import secrets as random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

from provision.batch import mpi
from provision.batch.containers import SHARE, NodeHardware, create_words, program_words
from provision.batch.ranks import by_container, rank_variables, slots
from provision.connectors import Connector, connect
from provision.errors import NodeError, ProvisionError
from provision.jobs.engines.base import Secrets
from provision.jobs.engines.direct.known import Known
from provision.jobs.keeper_programs import keeper_programs
from provision.jobs.node_ask import FILES, ask_jobs
from provision.model import Node
from provision.model.job import JobSpec, Kind, Seat, as_document
from provision.profiles import lightcc_settings, nccl_settings
from provision.threads import outcomes

__all__ = [
    "Attempt",
    "Extras",
    "Ways",
    "commands",
    "environment",
    "image_of",
    "insist_on_secrets",
    "release",
    "renew",
    "start",
    "take_leases",
]

T = TypeVar("T")

MANY = 64
"""Nodes at once."""
PREPARE_SECONDS = 1800.0
"""A large image takes its time."""
BROKEN_SECONDS = 90.0
"""A start of which nobody tells any more for so long was broken off."""
GRACE_SECONDS = 15.0
BEAT_SECONDS = 2.0
LOST_SECONDS = 12.0
_CLEAN = "All"
"""A container that has ended is of no more use: what it printed is kept beside the attempt."""


@dataclass(frozen=True)
class Attempt:
    """One start of a job, with its places."""

    spec: JobSpec
    id: str
    number: int
    job: Mapping[str, Any]
    """What the nodes keep as job.json."""
    seats: tuple[Seat, ...]
    secrets: Secrets
    known: Known
    fenced: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Node -> UUIDs that are held too, for nobody: of a node that a job has for itself."""
    notes: tuple[str, ...] = ()
    """What the submitter is told of the start."""

    @property
    def nodes(self) -> list[str]:
        """The nodes, in the order of the ranks."""
        return list(dict.fromkeys(seat.node for seat in self.seats))

    @property
    def chief(self) -> Seat:
        """The instance whose end is the job's."""
        return next(seat for seat in self.seats if seat.chief)

    @property
    def folder(self) -> str:
        """Where it is kept on each node."""
        return f"/var/lib/provision/jobs/{self.spec.name}/attempts/{self.number}"

    def leases(self, node: str) -> dict[str, str]:
        """Return UUID -> instance of the GPUs on a node; one that is held for nobody has none."""
        own = {uuid: seat.instance for seat in self.seats if seat.node == node for uuid in seat.uuids}
        return {**dict.fromkeys(self.fenced.get(node, ()), ""), **own}


class Extras(Protocol):
    """What a job needs beside its containers: code, data, TensorBoard."""

    def mounts(self, spec: JobSpec, node: str) -> list[str]:
        """Return ``/source:/target[:ro]`` for the containers on a node."""

    def before(self, attempt: Attempt, connectors: Mapping[str, Connector], say: Callable[[str], None]) -> str:
        """Bring the code, look at the data; return the code's SHA, empty without code."""

    def after(self, attempt: Attempt, connector: Connector, say: Callable[[str], None]) -> str:
        """Start what goes beside the job on the chief's node; return TensorBoard's address, empty without it."""


class Ways:
    """Connections to nodes that are kept as long as several questions follow each other."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._open: dict[str, Connector] = {}
        self._opening = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def to(self, name: str) -> Connector:
        """Return the connection to a node, made now unless it is there."""
        with self._opening:
            known = self._open.get(name)
        if known is not None:
            return known
        made = connect(self._nodes[name])
        with self._opening:
            return self._open.setdefault(name, made)

    def all(self, names: Sequence[str], function: Callable[[Connector], T]) -> dict[str, T]:
        """Run `function` for all nodes at once, and raise the first error after all have ended."""
        found = outcomes(lambda name: function(self.to(name)), names, limit=MANY)
        for name, one in zip(names, found, strict=True):
            if isinstance(one, ProvisionError):
                one.node = one.node or name
                raise one
            if isinstance(one, Exception):
                raise one
        return dict(zip(names, found, strict=True))  # type: ignore[arg-type]


def take_leases(ways: Ways, attempt: Attempt, *, force: bool = False) -> str:
    """Hold all GPUs of the attempt, node by node in the order of their names; return why not, empty when it is done."""
    done: list[str] = []
    for name in sorted(attempt.nodes):
        wanted = attempt.leases(name)
        try:
            answer = ask_jobs(ways.to(name), "lease", **_who(attempt), leases=wanted, force=force)
        except ProvisionError as error:
            release(ways, attempt, done)
            return f"{name}: {error.message}"
        done.append(name)
        taken = answer.get("taken")
        if isinstance(taken, Mapping) and taken:
            release(ways, attempt, done)
            uuid, lease = next(iter(taken.items()))
            by = lease.get("job") if isinstance(lease, Mapping) else lease
            return f"{name}: {uuid} was taken by {by} meanwhile"
    return ""


def renew(ways: Ways, attempt: Attempt) -> None:
    """Tell the nodes that what is held for an attempt is still wanted; nothing is taken, and nothing given back."""
    outcomes(lambda name: ask_jobs(ways.to(name), "renew", **_who(attempt)), attempt.nodes, limit=MANY)


def release(ways: Ways, attempt: Attempt, names: Sequence[str]) -> None:
    """Give the GPUs back; a node that is gone forgets them by itself."""
    for name in names:
        with contextlib.suppress(ProvisionError):
            ask_jobs(ways.to(name), "release", **_who(attempt))


def _who(attempt: Attempt) -> dict[str, Any]:
    return {"job": attempt.spec.name, "id": attempt.id, "attempt": attempt.number}


def start(
    ways: Ways,
    attempt: Attempt,
    extras: Extras | None,
    say: Callable[[str], None],
    hand_over: Callable[[], None] = lambda: None,
) -> str:
    """Start an attempt whose leases are held; return TensorBoard's address, empty without it.

    `hand_over` is called when all is ready and before anything starts: from then on the job is its nodes'. It raises
    when the job was stopped or forgotten meanwhile.

    Raises:
        ProvisionError: something failed on a node; nothing of the attempt is left, the leases are given back.
    """
    try:
        return _start(ways, attempt, extras, say, hand_over)
    except BaseException:
        _tear_down(ways, attempt)
        raise


def _start(
    ways: Ways,
    attempt: Attempt,
    extras: Extras | None,
    say: Callable[[str], None],
    hand_over: Callable[[], None],
) -> str:
    spec = attempt.spec
    insist_on_secrets(spec, attempt.secrets)
    prepared = ways.all(attempt.nodes, lambda way: _prepare(way, attempt))
    _same_images(prepared)
    sha = extras.before(attempt, {name: ways.to(name) for name in attempt.nodes}, say) if extras else ""
    ports = {name: [int(port) for port in answer.get("ports", [])] for name, answer in prepared.items()}
    logins = _logins(attempt, prepared, ports) if spec.kind is Kind.MPI else []
    files = _files(attempt, logins)
    configs = {str(n): attempt.secrets.files[text.partition(":")[2]] for n, text in enumerate(spec.config_files)}
    board = extras.after(attempt, ways.to(attempt.chief.node), say) if extras and spec.tensorboard else ""
    secret = random.token_hex(32)
    record = {"code_sha": sha, "tensorboard": board, "image_digest": _digest(prepared[attempt.chief.node], spec.image)}
    control, rendezvous = ports[attempt.chief.node][:2]

    def one(way: Connector) -> None:
        name = way.name
        mounts = extras.mounts(spec, name) if extras else []
        containers = list(_containers(attempt, name, logins, rendezvous, prepared[name], mounts))
        keeper = {
            **_who(attempt),
            "name": spec.name,
            "node": name,
            "chief": name == attempt.chief.node,
            "chief_node": attempt.chief.node,
            "chief_address": attempt.chief.address,
            "control_port": control,
            "secret": secret,
            "nodes": attempt.nodes,
            "ends": "chief" if spec.kind is Kind.MPI else "all",
            "grace_seconds": GRACE_SECONDS,
            "beat_seconds": BEAT_SECONDS,
            "lost_seconds": LOST_SECONDS,
            "starting_timeout": spec.starting_timeout,
            "running_timeout": spec.running_timeout,
            "clean": spec.clean_task_policy or _CLEAN,
            "containers": containers,
            "leases": [*attempt.leases(name), *(f"port-{port}" for port in ports[name])],
        }
        ask_jobs(
            way,
            "start",
            name=spec.name,
            attempt=attempt.number,
            keeper=keeper,
            files=files,
            configs=configs,
            record=record,
            programs=keeper_programs(),
        )

    hand_over()
    ways.all(attempt.nodes, one)
    return board


def insist_on_secrets(spec: JobSpec, secrets: Secrets) -> None:
    """A job that is over has lost its secrets; without them it would start as another one.

    Raises:
        NodeError: some are not there.
    """
    lost = [name for name in spec.secret_env if name not in secrets.env]
    lost += [text for text in spec.config_files if text.partition(":")[2] not in secrets.files]
    if lost:
        raise NodeError(
            f"{lost[0]} was taken off the nodes when the job was over, as secrets are",
            remedy=f"submit it again: provision delete {spec.name}, then provision submit",
        )


def _files(attempt: Attempt, logins: Sequence[mpi.Login]) -> dict[str, str]:
    """Return the files that all containers see."""
    files = mpi.files(attempt.spec, attempt.seats, logins) if logins else {}
    if attempt.spec.procs_per_gpu > 1:
        files[SHARE] = (FILES / SHARE).read_text(encoding="utf-8")
    return files


def _prepare(way: Connector, attempt: Attempt) -> dict[str, Any]:
    spec, name = attempt.spec, way.name
    images = {image_of(spec, seat): spec.pull for seat in attempt.seats if seat.node == name and image_of(spec, seat)}
    seats = [as_document(seat) for seat in attempt.seats]
    ports = 2 * (name == attempt.chief.node) + (spec.kind is Kind.MPI)
    record = {"attempt": attempt.number, "id": attempt.id, "seats": seats, "node": name, "time": time.time()}
    return ask_jobs(
        way,
        "prepare",
        timeout=PREPARE_SECONDS,
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


def image_of(spec: JobSpec, seat: Seat) -> str:
    """Return the image of the container that a seat is the first of."""
    return (spec.worker_image or spec.image) if not seat.chief and seat.role == "worker" else spec.image


def _same_images(prepared: Mapping[str, Mapping[str, Any]]) -> None:
    """Ranks of different images would fail in the middle of the training, if they fail at all."""
    seen: dict[str, tuple[str, str]] = {}
    for name, answer in prepared.items():
        for reference, image in (answer.get("images") or {}).items():
            other, before = seen.setdefault(reference, (name, str(image.get("id"))))
            if str(image.get("id")) != before:
                raise NodeError(
                    f"the image {reference} is another one here ({str(image.get('id'))[:19]}) than on {other} "
                    f"({before[:19]})",
                    node=name,
                    remedy="name the image by its digest, or submit with --image-pull-policy Always",
                )


def _digest(answer: Mapping[str, Any], reference: str) -> str:
    image = (answer.get("images") or {}).get(reference) or {}
    return str(image.get("digest") or image.get("id") or "")


def _logins(
    attempt: Attempt, prepared: Mapping[str, Mapping[str, Any]], ports: Mapping[str, Sequence[int]]
) -> list[mpi.Login]:
    address = {seat.node: seat.address for seat in attempt.seats}
    return [
        mpi.Login(name, address[name], ports[name][-1], str(keys.get("client", "")), str(keys.get("host", "")))
        for name in attempt.nodes
        for keys in [prepared[name].get("keys") or {}]
    ]


def environment(attempt: Attempt, seat: Seat, port: int) -> dict[str, str]:
    """Return an instance's variables without secrets: its place, its fabric's, and what the user gave, which wins."""
    spec = attempt.spec
    found = {**_fabric(attempt, seat.node), **rank_variables(spec, seat, attempt.seats, port)}
    if spec.kind is Kind.MPI and seat.chief:
        interfaces = {attempt.known.interfaces.get(name, "") for name in attempt.nodes}
        found |= mpi.launcher_variables(sorted(interfaces) if all(interfaces) else ())
    return {**found, **spec.env}


def _fabric(attempt: Attempt, node: str) -> dict[str, str]:
    """Return NCCL's variables of a node; a job without GPUs uses no NCCL."""
    spec = attempt.spec
    networks = [attempt.known.networks[name] for name in attempt.nodes if name in attempt.known.networks]
    if not spec.gpus or not networks:
        return {}
    settings = nccl_settings(networks, spec.fabric)
    if spec.preset == "horovod-lightcc":
        settings += lightcc_settings(min(one.gpus for one in networks), "preset horovod-lightcc", lossy=False)
    found: dict[str, str] = {}
    for setting in settings:
        value = (setting.nodes or {}).get(node) if setting.value is None else setting.value
        if value is not None:
            found[setting.name] = value
    return found


def commands(attempt: Attempt, seat: Seat, logins: Sequence[mpi.Login]) -> tuple[str, ...]:
    """Return the command of the container that a seat is the first of."""
    spec = attempt.spec
    if spec.kind is not Kind.MPI:
        return program_words(spec)
    if seat.chief:
        given = {**_fabric(attempt, seat.node), **spec.env, **dict.fromkeys(spec.secret_env, "")}
        return mpi.mpi_command(spec, given, sum(slots(spec, attempt.seats).values()))
    return mpi.sshd_command(next(login for login in logins if login.node == seat.node))


def _containers(
    attempt: Attempt,
    node: str,
    logins: Sequence[mpi.Login],
    port: int,
    prepared: Mapping[str, Any],
    mounts: Sequence[str],
) -> Iterator[dict[str, Any]]:
    spec = attempt.spec
    for name, inside in by_container([seat for seat in attempt.seats if seat.node == node]).items():
        seat = inside[0]
        reference = image_of(spec, seat)
        image = str(((prepared.get("images") or {}).get(reference) or {}).get("id") or reference)
        waits = spec.kind is Kind.MPI and not seat.chief
        labels = {
            "provision.job": spec.name,
            "provision.id": attempt.id,
            "provision.attempt": str(attempt.number),
            "provision.instance": seat.instance,
        }
        entry = commands(attempt, seat, logins)
        create = create_words(
            spec,
            inside,
            image,
            labels=labels,
            hardware=attempt.known.hardware.get(node, NodeHardware()),
            folder=attempt.folder,
            mounts=mounts,
            entry=entry,
        )
        yield {
            "name": name,
            "phase": 1 if waits else 2,
            "create": create,
            "env": {**environment(attempt, seat, port), **attempt.secrets.env},
            "ready_port": next(login.port for login in logins if login.node == node) if waits else 0,
            "ready_address": seat.address,
            "log_instance": seat.instance,
            "instances": [one.instance for one in inside],
        }


def _tear_down(ways: Ways, attempt: Attempt) -> None:
    """Leave nothing of a start that failed."""
    for name in attempt.nodes:
        with contextlib.suppress(ProvisionError):
            ask_jobs(
                ways.to(name),
                "stop",
                name=attempt.spec.name,
                attempt=attempt.number,
                reason="its start failed",
                grace=1,
            )
    release(ways, attempt, attempt.nodes)
