"""A batch job: its specification, its assignments and its state. It contains no secrets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from provision.model.bounds import Address, Container, Identifier, NodeName, ShortText, Text, Time, Uuid
from provision.model.reason import NO_REASON, Reason


class Kind(StrEnum):
    """How the processes of a job are started; the words are those of arena without ``job``."""

    MPI = "mpi"
    """mpirun on the first node starts the ranks on workers that wait for it."""
    PYTORCH = "pytorch"
    """The command runs on every instance, with the variables of a rendezvous."""
    RUN = "run"
    """The command runs on every instance."""


class JobStatus(StrEnum):
    """The words of arena, and STOPPED for a job that a user ended."""

    QUEUING = "QUEUING"
    """Held until a user releases it."""
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    """Its end or its deletion is requested, and a node has not confirmed it: the job may still run there."""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def over(self) -> bool:
        """Whether the job has finished."""
        return self in {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED}


@dataclass(frozen=True)
class CodeSource:
    """Code that is copied to every node before the start, into ``<working_dir>/code/<name>``."""

    mode: str
    """``git``, ``rsync`` or ``local`` (the submitter's folder)."""
    source: str
    """A git URL, an rsync source, or an absolute path of the submitter's machine; never with a password in it."""
    revision: str = ""
    """Branch, tag or commit for git; empty: the source's default branch."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Settings of git-sync without secrets, for example ``GIT_SYNC_DEPTH``."""

    @property
    def name(self) -> str:
        """The folder's name: the source's last part without ``.git``."""
        return self.source.rstrip("/").rpartition("/")[2].rpartition(":")[2].removesuffix(".git") or "code"


@dataclass(frozen=True)
class JobSpec:
    """The specification of a job. Field names are those of the flags, with underscores; times are seconds."""

    name: str
    kind: Kind
    command: tuple[str, ...]
    """One word: a command line for the shell; several: an argument vector."""
    image: str = ""
    worker_image: str = ""
    """For the instances that are not the leader; empty: `image`."""
    shell: str = "sh"
    gpus: int = 0
    """GPUs of each worker."""
    workers: int = 1
    """Includes the master of pytorch, but not the launcher of mpi."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Without secrets, which are sent separately (`secret_env` has their names)."""
    secret_env: tuple[str, ...] = ()
    working_dir: str = "/root"
    data: tuple[tuple[str, str], ...] = ()
    """(name in ``data list``, absolute path in the container)."""
    mounts: tuple[str, ...] = ()
    """``/source:/target[:ro]`` on every node."""
    config_files: tuple[str, ...] = ()
    """``/source:/target``: small files of the submitter, mounted read-only; the contents are sent as secrets."""
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
    """What starts the ranks, by the name of its launcher or ``mpirun``; empty: the unchanged command."""
    procs_per_gpu: int = 0
    """Copies of the command that share the GPU of a worker; 0 or 1: one process."""
    mps: bool = False
    ranks: int = 0
    """mpi: number of ranks (``-n``) of a generated command; 0: one for each GPU or worker."""
    preset: str = ""
    fabric: str = ""
    lint: bool = True
    """Whether a typed mpirun command that would fail is refused."""
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
    """``None``, ``Running`` or ``All``: containers to remove at the end; empty: all. Their output stays."""
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
class Assignment:
    """The assignment of one instance of an attempt to a node and its GPUs."""

    instance: Identifier
    """``<job>-<role>-<index>``, or ``<job>-launcher-<5 letters>``."""
    role: ShortText
    """``launcher``, ``master`` or ``worker``."""
    index: int
    node: NodeName
    address: Address
    """The node's data address."""
    rank: int
    """pytorch, run: RANK; mpi: place in the host file, 0 for the launcher."""
    is_leader: bool = False
    gpus: tuple[int, ...] = ()
    """Indices of nvidia-smi, in the order of the ring."""
    uuids: tuple[Uuid, ...] = ()
    """UUIDs of `gpus` in the same order; a MIG instance has its own."""
    nics: tuple[Uuid, ...] = ()
    container: Container = ""
    """The container of the instance; several mpi instances of a node share one."""


@dataclass(frozen=True)
class InstanceRecord:
    """The state of one instance of one attempt; times are seconds since the epoch, 0 for never."""

    instance: Identifier
    status: ShortText = "Pending"
    """The words of kubectl: Pending, ContainerCreating, Running, Completed, Error, Stopped, Lost."""
    exit_code: int | None = None
    """128 + n for signal n."""
    signal: int | None = None
    reason: Text = ""
    started: Time = 0.0
    ended: Time = 0.0
    container_id: Container = ""
    last_lines: tuple[Text, ...] = ()
    """The last lines of its output if it failed."""


@dataclass(frozen=True)
class JobEvent:
    """Something that happened to a job."""

    time: Time
    source: ShortText
    """``submit``, ``queue``, ``node NAME``, an instance, ..."""
    type: ShortText
    """``Normal`` or ``Warning``."""
    message: Text


@dataclass(frozen=True)
class JobRecord:
    """The state of a job. Unknown values are empty."""

    spec: JobSpec
    id: str
    """Unique, also among jobs that had the same name at another time."""
    owner: str
    """``user@host`` of the submitter."""
    submitted: float
    status: JobStatus
    reason: str = ""
    """Why it is pending or has failed, in one sentence: the message of `cause`."""
    cause: Reason = NO_REASON
    """Code and parameters of `reason`; without a code if there is no reason."""
    reason_time: float = 0.0
    """When the reason of a waiting job was last confirmed, by the clock of the queue host; 0: it is current."""
    attempt: int = 0
    """1 for the first; 0 before any."""
    retrying: bool = False
    """Whether its last attempt failed, and another one follows."""
    starting: bool = False
    """Whether the queue host has begun to start it, and no node has reported it yet."""
    assignments: tuple[Assignment, ...] = ()
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
    allocations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node -> UUIDs of the GPUs that are allocated to it now."""
    unreachable: tuple[str, ...] = ()
    """Nodes of its instances that did not answer."""
    events: tuple[JobEvent, ...] = ()
    nodes: tuple[str, ...] = ()
    """Nodes of all of its attempts; empty if they are not known."""
    unconfirmed: tuple[str, ...] = ()
    """Nodes that have not confirmed the requested end; the name stays taken until all have."""
    deleting: bool = False
    """Whether the record is deleted too when all nodes have confirmed."""
    silent: tuple[str, ...] = ()
    """Those of `unconfirmed` that did not answer."""
    name_reused: bool = False
    """Whether another job has its name now, so that only the ID identifies it."""

    @property
    def reference(self) -> str:
        """The name; the ID if another job has the name."""
        return self.id if self.name_reused else self.spec.name

    @property
    def engine_details(self) -> Mapping[str, Any]:
        """Values that only the job's engine has, for the JSON key ``engineDetails``."""
        return {}


def as_document(value: Any) -> Any:
    """Return a dataclass as a JSON document; tuples become lists, enum members text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: as_document(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_document(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_document(item) for item in value]
    return str(value) if isinstance(value, StrEnum) else value
