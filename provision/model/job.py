"""A batch job: what was asked for, where it goes, and what is known of it. Text and numbers alone, no secrets."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, partial
from typing import Any, TypeVar

__all__ = [
    "CodeSource",
    "InstanceRecord",
    "JobEvent",
    "JobRecord",
    "JobSpec",
    "JobStatus",
    "Kind",
    "Seat",
    "as_document",
    "from_document",
]

T = TypeVar("T")
Reader = Callable[[Any], Any]


class Kind(StrEnum):
    """What starts a job's processes; the words are arena's, without ``job``."""

    MPI = "mpi"
    """mpirun on the first node, over workers that wait for it."""
    PYTORCH = "pytorch"
    """The command itself on every instance, with the variables of a rendezvous."""
    RUN = "run"
    """The command itself on every instance, and nothing more."""


class JobStatus(StrEnum):
    """The words of arena; a job that was ended by hand is STOPPED."""

    QUEUING = "QUEUING"
    """Held: it waits for a person or for another job."""
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self in {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED}


@dataclass(frozen=True)
class CodeSource:
    """Code that is brought to every node before the start, into ``<working_dir>/code/<name>``."""

    mode: str
    """``git``, ``rsync`` or ``local`` (the submitter's folder)."""
    source: str
    """A git URL, an rsync source, or an absolute path of the submitter's machine; never with a password in it."""
    revision: str = ""
    """Branch, tag or commit for git; empty: the source's default branch."""
    options: Mapping[str, str] = field(default_factory=dict)
    """git-sync's settings without secrets: ``GIT_SYNC_DEPTH`` and the like."""

    @property
    def name(self) -> str:
        """The folder's name: the source's last part without ``.git``."""
        return self.source.rstrip("/").rpartition("/")[2].rpartition(":")[2].removesuffix(".git") or "code"


@dataclass(frozen=True)
class JobSpec:
    """What somebody asked for. Field names are those of the flags, with underscores; times are seconds."""

    name: str
    kind: Kind
    command: tuple[str, ...]
    """One word: a line for the shell; several: an argument vector."""
    image: str = ""
    worker_image: str = ""
    """For the instances that are not the chief; empty: `image`."""
    shell: str = "sh"
    gpus: int = 0
    """Of each worker."""
    workers: int = 1
    """pytorch: with the master; mpi: without the launcher."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Without secrets, which travel beside the spec (`secret_env` has their names)."""
    secret_env: tuple[str, ...] = ()
    working_dir: str = "/root"
    data: tuple[tuple[str, str], ...] = ()
    """(name in ``data list``, absolute path in the container)."""
    mounts: tuple[str, ...] = ()
    """``/source:/target[:ro]`` on every node."""
    config_files: tuple[str, ...] = ()
    """``/source:/target``: small files of the submitter's machine, mounted read-only; contents travel as secrets do."""
    sync: CodeSource | None = None
    tensorboard: bool = False
    tensorboard_image: str = ""
    logdir: str = "/training_logs"
    # placement
    gputopology: bool = False
    gang: bool = True
    nodes: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    selector: Mapping[str, str] = field(default_factory=dict)
    spread: bool = False
    max_per_node: int = 0
    """0: no limit."""
    exclusive: bool = False
    gpu_ids: tuple[int, ...] = ()
    allow_drained: bool = False
    # launch
    nproc_per_node: str = ""
    """``auto``, ``gpu``, ``cpu`` or a number; empty: one process for each instance."""
    launcher: str = ""
    """``torchrun``, ``launch``, ``python`` or ``mpirun``; empty: the command as it is."""
    procs_per_gpu: int = 0
    """Copies of the command that share a worker's GPU; 0 or 1: one process, as it is."""
    mps: bool = False
    ranks: int = 0
    """mpi: of a line that we make (``-n``); 0: one for each GPU, or worker."""
    preset: str = ""
    fabric: str = ""
    lint: bool = True
    """Whether a typed mpirun line that surely fails is kept from starting."""
    # container
    share_memory: str = "32g"
    ulimits: Mapping[str, str] = field(default_factory=dict)
    privileged: bool = False
    pull: str = "missing"
    """``always``, ``missing`` or ``never``."""
    user: str = ""
    """``UID:GID[,GID...]``; empty: the image's own."""
    rdma: bool = True
    no_container: bool = False
    # lifecycle
    retry: int = 0
    running_timeout: float = 0.0
    starting_timeout: float = 600.0
    ttl_after_finished: float = 0.0
    clean_task_policy: str = ""
    """``None``, ``Running`` or ``All``: which containers go at the end; empty: all, what they printed is kept."""
    priority: int = 0
    hold: bool = False
    depends: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def total_gpus(self) -> int:
        """GPUs of all workers."""
        return self.gpus * self.workers


@dataclass(frozen=True)
class Seat:
    """One instance of an attempt: who it is, and where it goes."""

    instance: str
    """``<job>-<role>-<index>``, or ``<job>-launcher-<5 letters>``."""
    role: str
    """``launcher``, ``master`` or ``worker``."""
    index: int
    node: str
    address: str
    """The node's data address."""
    rank: int
    """pytorch, run: RANK; mpi: place in the host file, 0 for the launcher."""
    chief: bool = False
    gpus: tuple[int, ...] = ()
    """nvidia-smi's indices, in the order of the ring."""
    uuids: tuple[str, ...] = ()
    """Of `gpus`, in the same order; a MIG instance by its own."""
    nics: tuple[str, ...] = ()
    container: str = ""
    """The container that it lives in; several mpi instances of a node share one."""


@dataclass(frozen=True)
class InstanceRecord:
    """What is known of one instance of one attempt; times are seconds since the epoch, 0 for never."""

    instance: str
    status: str = "Pending"
    """kubectl's words: Pending, ContainerCreating, Running, Completed, Error, Stopped, Lost."""
    exit_code: int | None = None
    """128 + n for signal n."""
    signal: int | None = None
    reason: str = ""
    started: float = 0.0
    ended: float = 0.0
    container_id: str = ""
    last_lines: tuple[str, ...] = ()
    """Of its output, where it failed."""


@dataclass(frozen=True)
class JobEvent:
    """Something that happened to a job."""

    time: float
    source: str
    """``submit``, ``queue``, ``node NAME``, an instance, ..."""
    type: str
    """``Normal`` or ``Warning``."""
    message: str


@dataclass(frozen=True)
class JobRecord:
    """A job as all nodes together tell it; what no node said is empty."""

    spec: JobSpec
    id: str
    """Unlike any other job's, also of the same name at another time."""
    owner: str
    """``user@host`` of the submitter."""
    submitted: float
    status: JobStatus
    reason: str = ""
    """Why it is pending, or failed; one sentence."""
    reason_time: float = 0.0
    """When the reason of a job that waits in line was last seen to hold, by the head's clock; 0: it holds now."""
    attempt: int = 0
    """1 for the first; 0 before any."""
    again: bool = False
    """Its last attempt failed, and there is to be another."""
    seats: tuple[Seat, ...] = ()
    instances: Mapping[str, InstanceRecord] = field(default_factory=dict)
    started: float = 0.0
    ended: float = 0.0
    exit_code: int | None = None
    first_failure: str = ""
    """The instance that failed first."""
    first_rank: int | None = None
    code_sha: str = ""
    image_digest: str = ""
    tensorboard: str = ""
    """``http://address:port``."""
    leases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node -> UUIDs of GPUs that are held for it now."""
    unreachable: tuple[str, ...] = ()
    """Nodes of its seats that did not answer."""
    events: tuple[JobEvent, ...] = ()
    keeper_lost: tuple[str, ...] = ()
    """Nodes on which nothing watches over it any more."""
    nodes: tuple[str, ...] = ()
    """Those that it was ever given to; empty where that is not known."""


def as_document(value: Any) -> Any:
    """Return a dataclass as what JSON can carry; tuples become lists, words of an enum text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: as_document(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_document(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_document(item) for item in value]
    return str(value) if isinstance(value, StrEnum) else value


def from_document(kind: type[T], document: Any) -> T:
    """Build a dataclass of this module from what `as_document` made; names it does not know are left out.

    Raises:
        ValueError: a value is of another kind than the field.
    """
    if not isinstance(document, Mapping):
        raise ValueError(f"a {kind.__name__} is a mapping, not {type(document).__name__}")  # noqa: TRY004
    readers = _readers(kind)  # type: ignore[arg-type]
    try:
        return kind(**{name: read(document[name]) for name, read in readers.items() if name in document})
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


@cache
def _readers(kind: type) -> dict[str, Reader]:
    """Return field -> what reads its value; made once, as a list of jobs has thousands of values."""
    hints = typing.get_type_hints(kind)
    return {item.name: _reader(hints[item.name], item.name) for item in dataclasses.fields(kind)}


def _reader(hint: Any, name: str) -> Reader:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {types.UnionType, typing.Union}:
        inner = _reader(next(item for item in arguments if item is not type(None)), name)
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _tuple_reader(arguments, name)
    if origin is not None and issubclass(origin, Mapping):
        return partial(_mapping, _reader(arguments[1], name), name)
    if dataclasses.is_dataclass(hint):
        return partial(from_document, typing.cast(type, hint))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint
    return partial(_plain, hint, name)


def _mapping(read: Reader, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: {value!r} is no mapping")  # noqa: TRY004
    return {str(key): read(item) for key, item in value.items()}


def _tuple_reader(arguments: tuple[Any, ...], name: str) -> Reader:
    """Return what reads a tuple: of any length where its last argument is an ellipsis."""
    readers = [_reader(item, name) for item in arguments if item is not Ellipsis]
    exact = arguments[-1] is not Ellipsis

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{name}: {value!r} is no list")  # noqa: TRY004
        if not exact:
            return tuple(map(readers[0], value))
        if len(readers) != len(value):
            raise ValueError(f"{name}: {value!r} is not {len(readers)} values")
        return tuple(one(item) for one, item in zip(readers, value, strict=True))

    return read


def _plain(hint: Any, name: str, value: Any) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ValueError(f"{name}: {value!r} is no {hint.__name__}")
    return value
