"""Documents of batch jobs. Their keys are those of arena, and additional ones."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from provision.model.job import JobStatus
from provision.model.reason import ReasonDocument


class GpuMetrics(TypedDict):
    """The use of a GPU."""

    gpuDutyCycle: int | None
    """Its utilization in percent."""
    usedGPUMemory: int | None
    """Used memory in MiB."""
    totalGPUMemory: int | None
    """Total memory in MiB."""


class Instance(TypedDict):
    """An instance of a job."""

    ip: str
    """The data address of its node."""
    status: str
    """`Pending`, `ContainerCreating`, `Running`, `Completed`, `Error`, `Stopped` or `Lost`."""
    name: str
    """Its name."""
    age: str
    """Its age, e.g. `5m`."""
    node: str
    """Its node."""
    nodeIP: str
    """The data address of its node."""
    chief: bool
    """Whether it is the launcher, or has rank 0."""
    requestGPUs: int
    """The number of its GPUs."""
    gpuMetrics: dict[str, GpuMetrics]
    """Index of a GPU -> its use; empty without `-g`."""
    creationTimestamp: int
    """Start in seconds since the epoch; 0 for never."""
    role: str
    """`launcher`, `master` or `worker`."""
    rank: int
    """Its rank; for MPI its place in the host file."""
    exitCode: int | None
    """Its exit code."""
    signal: int | None
    """The signal that killed it."""
    reason: str
    """Why it failed or waits."""
    endTimestamp: int
    """End in seconds since the epoch; 0 for never."""


class Event(TypedDict):
    """An event of a job."""

    job: str
    """The job."""
    time: float
    """Seconds since the epoch."""
    source: str
    """`submit`, `queue`, a node, an instance."""
    type: str
    """`Normal` or `Warning`."""
    message: str
    """What happened."""


class FirstFailure(TypedDict):
    """The instance of a job that failed first."""

    instance: str
    """The instance."""
    rank: int | None
    """Its rank."""
    node: str
    """Its node."""
    exitCode: int | None
    """Its exit code."""
    signal: int | None
    """The signal that killed it."""
    lastLines: list[str]
    """The last lines of its output."""


class Place(TypedDict):
    """The place of an instance."""

    instance: str
    """The instance."""
    node: str
    """Its node."""
    gpus: list[int]
    """The indices of its GPUs."""
    uuids: list[str]
    """The UUIDs of its GPUs, in the same order."""
    nics: list[str]
    """Its network cards."""
    links: str
    """Always empty."""


class ListedJob(ReasonDocument):
    """A job in a list."""

    uuid: str
    """The ID of the job."""
    name: str
    """Its name."""
    namespace: str
    """Always `default`."""
    duration: str
    """Its duration, e.g. `5m`."""
    status: JobStatus
    """Its status."""
    trainer: str
    """`mpijob`, `pytorchjob` or `runjob`."""
    tensorboard: str
    """The URL of its TensorBoard; empty without one."""
    chiefName: str
    """The instance that is the launcher, or has rank 0."""
    instances: list[Instance]
    """Its instances."""
    priority: str
    """Its priority; `N/A` for the default."""
    requestGPUs: int
    """The number of GPUs that it requests."""
    allocatedGPUs: int
    """The number of GPUs that it holds."""
    creationTimestamp: int
    """Submission in seconds since the epoch."""
    modelName: str
    """The annotation of this name."""
    modelVersion: str
    """The annotation of this name."""
    modelSource: str
    """The annotation of this name."""
    engine: str
    """The job engine: `direct` or `slurm`."""
    owner: str
    """`user@host` of the submitter."""
    attempt: int
    """The number of the attempt, from 1; 0 before any."""
    reason: str
    """Why it waits or failed; `code` and `params` are those of this reason."""
    reasonTimestamp: int
    """When the reason was last confirmed, in seconds since the epoch; 0 if it is current."""
    startTimestamp: int
    """Start in seconds since the epoch; 0 for never."""
    endTimestamp: int
    """End in seconds since the epoch; 0 for never."""
    exitCode: int | None
    """Its exit code."""
    exitCodes: dict[str, int | None]
    """Instance -> its exit code."""
    firstFailure: FirstFailure | None
    """The instance that failed first."""
    placement: list[Place]
    """The places of its instances."""
    codeSHA: str
    """The revision of its code."""
    imageDigest: str
    """The digest of its image."""
    labels: dict[str, str]
    """Its labels."""
    leases: dict[str, list[str]]
    """Node -> UUIDs of the GPUs that it holds."""
    unreachable: list[str]
    """Nodes of its instances that did not answer."""
    unconfirmedNodes: list[str]
    """Nodes that have not confirmed its end."""
    deleteRequested: bool
    """Whether it is deleted when all nodes have confirmed its end."""
    keeperLost: list[str]
    """Nodes without its job supervisor."""
    engineDetails: dict[str, Any]
    """Values that only its job engine has."""


class Job(ListedJob):
    """A job."""

    image: str
    """Its image."""
    noContainer: bool
    """Whether it runs without a container."""
    command: list[str]
    """Its command; a single word is a command line for a shell."""
    workingDir: str
    """The folder in which its command runs."""
    annotations: dict[str, str]
    """Its annotations."""
    env: dict[str, str]
    """Its environment variables, without secrets."""
    secretEnv: list[str]
    """The names of its secret variables."""
    events: list[Event]
    """Its events, oldest first."""


class PlannedInstance(TypedDict):
    """The place that an instance would have."""

    instance: str
    """The instance."""
    node: str
    """Its node."""
    address: str
    """The data address of its node."""
    rank: int
    """Its rank; for MPI its place in the host file."""
    gpus: list[int]
    """The indices of its GPUs."""
    uuids: list[str]
    """The UUIDs of its GPUs, in the same order."""
    nics: list[str]
    """Its network cards."""


class SubmitDryRun(ReasonDocument):
    """What a submission would start (`--dry-run`). `submit -f` accepts this document."""

    fits: bool
    """Whether the job would start now."""
    reason: str
    """Why it would not."""
    placement: list[PlannedInstance]
    """The places of its instances."""
    env: dict[str, dict[str, str]]
    """Instance -> its environment variables, with secrets as `[secret]`."""
    commands: dict[str, list[str]]
    """Instance -> the command that the engine would run."""
    files: dict[str, str]
    """Name -> text of the generated files."""
    warnings: list[str]
    """Warnings, and nodes that are excluded."""
    spec: dict[str, Any]
    """The job, with the keys of a spec file."""


class DeletedJobs(TypedDict):
    """Deleted jobs."""

    deleted: list[str]
    """The names of the deleted jobs."""


class PrunedJobs(DeletedJobs):
    """Jobs that ended long ago."""

    found: list[str]
    """The names of the jobs that are, or would be, deleted."""
    ofOthers: list[str]
    """The names of such jobs of other users."""


class StartedJobs(TypedDict):
    """Started jobs."""

    started: list[str]
    """The names of the started jobs."""


class QueueJob(TypedDict):
    """A job of the queue."""

    name: str
    """Its name."""
    uuid: str
    """Its ID."""
    owner: str
    """`user@host` of the submitter."""


class MovedQueueJob(QueueJob):
    """A waiting job that was moved to another engine, or would be."""

    engineJob: int
    """Its number in Slurm; 0 with `--dry-run`."""


class RemainingQueueJob(QueueJob):
    """A waiting job that was not moved."""

    code: str
    """The code of the reason; empty if it has none."""
    reason: str
    """Why it was not moved."""
    remedy: str
    """What to do; empty if nothing is known."""


class UnfinishedQueueJob(QueueJob):
    """A job that the engine `direct` has started, and that finishes there."""

    status: JobStatus
    """Its status."""
    nodes: list[str]
    """Its nodes, which Slurm cannot use before its end."""


class MigratedQueue(TypedDict):
    """The result of moving waiting jobs to another engine."""

    engine: str
    """The engine that they were moved to."""
    dryRun: bool
    """Whether nothing was changed."""
    moved: list[MovedQueueJob]
    """The moved jobs, in the order of their submission."""
    remaining: list[RemainingQueueJob]
    """The waiting jobs that were not moved."""
    unfinished: list[UnfinishedQueueJob]
    """Jobs that the engine `direct` has started."""


GpuState = Literal["using", "busy (unmanaged)", "idle"]


class Gpu(TypedDict):
    """A GPU of a node."""

    id: int
    """The index of nvidia-smi."""
    uuid: str
    """Its UUID."""
    name: str
    """The name of the product."""
    status: GpuState
    """`using`: a job holds it; `busy (unmanaged)`: a process without a job uses it."""
    job: str
    """The job that holds it."""
    instance: str
    """The instance that holds it."""
    foreign: str
    """A process on it that belongs to no known job."""


class JobNode(ReasonDocument):
    """A node of the batch queue."""

    name: str
    """Its name in the inventory."""
    ip: str
    """Its address."""
    role: str
    """`master` for the queue host, else `<none>`."""
    status: str
    """`Ready` or `NotReady`; with `,SchedulingDisabled` if it is drained."""
    reason: str
    """Why it accepts no jobs; `code` and `params` are those of this reason."""
    drained: bool
    """Whether it is drained."""
    type: str
    """The mode of its GPUs: `default`, `topology` or `share`."""
    labels: dict[str, str]
    """Its labels."""
    totalGPUs: int
    """The number of its GPUs."""
    allocatedGPUs: int
    """The number of GPUs that jobs hold."""
    unhealthyGPUs: int
    """The number of GPUs that processes without a job use."""
    simulated: bool
    """Whether its GPUs are simulated."""
    gpus: list[Gpu]
    """Its GPUs."""


class TopNode(TypedDict):
    """The use of the nodes."""

    nodes: list[JobNode]
    """The nodes."""
    totalGPUs: int
    """The number of GPUs."""
    allocatedGPUs: int
    """The number of GPUs that jobs hold."""


class GpuProcess(TypedDict):
    """A process on a GPU."""

    pid: int
    """Its process ID."""
    name: str
    """The program."""
    user: str
    """Its user."""


class TopGpu(GpuMetrics):
    """The use of a GPU of a node."""

    node: str
    """The node."""
    id: int
    """The index of nvidia-smi."""
    uuid: str
    """The UUID of the GPU."""
    name: str
    """The name of the product."""
    celsius: int | None
    """Its temperature."""
    watts: float | None
    """Its power."""
    job: str
    """The job that holds it."""
    instance: str
    """The instance that holds it."""
    processes: list[GpuProcess]
    """The processes on it."""
    simulated: bool
    """Whether it is simulated."""


class NodeChange(TypedDict):
    """The result of a drain or resume on a node."""

    ok: bool
    """Whether the node was changed."""
    error: str | None
    """Why it was not."""
