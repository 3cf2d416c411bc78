"""Documents of batch jobs: the answers of the job agent on a node, and the job that a submitter signed.

`provision/jobs/README.md` describes the requests and the files behind these answers.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct, field, to_builtins
from msgspec.structs import asdict

from provision.documents.decoding import convert, decode
from provision.documents.slurm_jobs import Output
from provision.errors import InvalidDocument
from provision.model.bounds import (
    Address,
    Container,
    Digest,
    Identifier,
    JobName,
    Line,
    NodeName,
    ShortText,
    Text,
    Time,
    Url,
    Uuid,
)
from provision.model.job import Assignment, InstanceRecord, JobEvent, JobSpec, Kind
from provision.model.reason import NO_REASON, Reason, Value

Count = Annotated[int, Meta(ge=0, le=1_000_000)]
MOST_RETRIES = 1_000_000
"""Limit of --retry, also in `spec_checks` and the job agent."""
Port = Annotated[int, Meta(ge=1, le=65535)]
Index = Annotated[int, Meta(ge=-1, le=65535)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
CodeHash = Annotated[str, Meta(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})?\Z")]
ImageName = Annotated[str, Meta(max_length=512, pattern=r"^([A-Za-z0-9][A-Za-z0-9._:/@+-]*)?\Z")]
Instance = Annotated[str, Meta(max_length=128, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z")]
Nodes = Annotated[list[NodeName], Meta(max_length=100_000)]
Code = Annotated[str, Meta(max_length=128, pattern=r"^([a-z][a-z0-9_]*(\.[a-z0-9_]+)+)?\Z")]
ParamName = Annotated[str, Meta(max_length=64, pattern=r"^[a-z][a-z0-9_]*\Z")]


class SignedLimits:
    """Sizes of a signed job document, in characters; configuration files and code are sent separately."""

    TEXT = 4 * 1024 * 1024
    SIGNATURE = 8192


# Signed documents


class PackedCode(Struct, frozen=True):
    """Code that was packed at submission; its archive is stored with the job on the queue host."""

    content: Sha256
    """SHA-256 of the names and contents of the files, as `code_tree.tree_sha` computes it on the nodes."""
    archive: Sha256
    size: Annotated[int, Meta(ge=1, le=1 << 34)]


class SignedJob(Struct, frozen=True):
    """The text that a submitter signed; it alone defines the job.

    `provision.batch.signed` refuses unknown fields, also those of `JobSpec`, and newer versions.
    """

    version: Annotated[int, Meta(ge=1)]
    """`SIGNED_VERSION` of the program that signed it."""
    cluster: ShortText
    id: Identifier
    name: JobName
    owner: ShortText
    submitted: Time
    spec: JobSpec
    secrets: Sha256
    """SHA-256 of the canonical JSON of `SecretsDocument`."""
    code: PackedCode | None


class SecretsDocument(Struct, frozen=True):
    """The secrets of a job on the queue host; all empty for a job without secrets or a completed one."""

    env: dict[str, str] = field(default_factory=dict)
    sync: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    registry: dict[str, str] = field(default_factory=dict)
    salt: ShortText = ""

    def __bool__(self) -> bool:
        return bool(self.env or self.sync or self.files or self.registry)


# Reports


class Lease(Struct, frozen=True):
    """The owner of a GPU or a port; for a process that is not a job, ``job`` describes it and ``id`` is empty."""

    job: Text = ""
    id: ShortText = ""
    attempt: int | ShortText | None = None
    instance: ShortText = ""


Leases = Annotated[dict[Uuid, Lease], Meta(max_length=100_000)]


class ReasonDocument(Struct, frozen=True):
    """A reason as a parameter of another one."""

    code: Code
    params: Params


ParamPart = Text | int | float | ReasonDocument | None
Params = Annotated[
    dict[ParamName, ParamPart | Annotated[list[ParamPart], Meta(max_length=100_000)]],
    Meta(max_length=64),
]
"""Parameters of a reason, as `Reason.as_document` writes them."""


class RecordedReason(Struct, frozen=True):
    """A reason in a record; older versions wrote only the message."""

    reason: Text | None = None
    code: Code = ""
    params: Params = field(default_factory=dict)

    @property
    def cause(self) -> Reason:
        """Code and parameters; a message without a code is `job.unspecified`, and a code without a message is none."""
        if self.code and self.reason:
            return Reason(self.code, {name: _parameter(value) for name, value in self.params.items()})
        return Reason("job.unspecified", {"text": self.reason}) if self.reason else NO_REASON


def recorded_reason(reason: Reason, message: str) -> dict[str, Any]:
    """Return the fields of `RecordedReason` for a request or a record."""
    return {"reason": message, **reason.as_document()}


def _parameter(value: Any) -> Value:
    if isinstance(value, list):
        return tuple(map(_parameter, value))
    if isinstance(value, ReasonDocument):
        return Reason(value.code, {name: _parameter(part) for name, part in value.params.items()})
    return value  # type: ignore[no-any-return]


class Result(RecordedReason, frozen=True, kw_only=True):
    """result.json: the end of the attempt as observed by the node."""

    status: Literal["SUCCEEDED", "FAILED", "STOPPED"]
    exit_code: int | None = None
    first_failure: ShortText | None = None
    first_rank: int | None = None
    ended: Time = 0.0


class QueueEntry(RecordedReason, frozen=True):
    """queue.json of the queue host; without a state if the node has no queue for the job.

    `provision/jobs/README.md` describes the states.
    """

    state: Literal["", "pending", "held", "started", "stopped", "failed", "over"] = ""
    attempt: Count = 0
    failures: Count = 0
    retry: Annotated[int, Meta(ge=0, le=MOST_RETRIES)] = 0
    passed: Count = 0
    reason: Text = ""
    excluded: Nodes = field(default_factory=list)
    nodes: Nodes = field(default_factory=list)
    """The nodes of the attempt."""
    places: Annotated[dict[Instance, NodeName], Meta(max_length=100_000)] = field(default_factory=dict)
    """Instance -> node of the attempt; empty if an older version started it."""
    supervised: bool = field(default=False, name="handed")
    """Whether all nodes of the attempt are prepared and the starts of their job supervisors are being sent."""
    time: Time = 0.0
    unconfirmed: Nodes = field(default_factory=list)
    """Nodes that have not confirmed the requested stop, as recorded by the queue host."""
    deleted: bool = False
    """Whether deletion is requested too."""
    result: Result | None = None
    """The result of the attempt, recorded by the first command that saw it; its nodes may be silent since."""
    engine_job: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    """The number of its last job in Slurm; 0: none."""
    engine_attempt: Count = 0
    """The first attempt of that job."""
    engine_before: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    """The number of its last job in Slurm before a restart."""
    engine: ShortText = ""
    """The job engine that may start the job; empty in records of earlier versions."""

    @property
    def starting_engine(self) -> str:
        """The only job engine that may start the job; a job with a number in Slurm is one of Slurm."""
        return "slurm" if self.engine_job else self.engine or "direct"


class AssignmentDocument(Struct, frozen=True):
    """An assignment in attempt.json."""

    instance: Identifier
    role: ShortText
    index: int
    node: NodeName
    address: Address
    rank: int
    is_leader: bool = field(default=False, name="chief")
    gpus: tuple[int, ...] = ()
    uuids: tuple[Uuid, ...] = ()
    nics: tuple[Uuid, ...] = ()
    container: Container = ""

    @property
    def assignment(self) -> Assignment:
        """The assignment."""
        return Assignment(**asdict(self))


class AttemptRecord(Struct, frozen=True):
    """attempt.json: the start of an attempt on this node."""

    documents: Annotated[tuple[AssignmentDocument, ...], Meta(max_length=100_000)] = field(default=(), name="seats")
    boot_id: ShortText = ""
    time: Time = 0.0
    code_sha: CodeHash = ""
    image_digest: Digest = ""
    tensorboard: Url = ""

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """The assignments of the attempt."""
        return tuple(document.assignment for document in self.documents)


def assignment_document(assignment: Assignment) -> dict[str, Any]:
    """Return an assignment as it is written to attempt.json."""
    document = AssignmentDocument(**{item.name: getattr(assignment, item.name) for item in fields(assignment)})
    return to_builtins(document)  # type: ignore[no-any-return]


class JobReport(Struct, frozen=True):
    """The report of one node about one job."""

    name: JobName
    id: Identifier
    owner: ShortText | None = None
    submitted: Time | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    queue: QueueEntry = QueueEntry()
    attempt: Count = 0
    attempt_record: AttemptRecord | None = None
    boot_id: ShortText = ""
    instances: Annotated[dict[Instance, InstanceRecord], Meta(max_length=100_000)] = field(default_factory=dict)
    result: Result | None = None
    ending: Result | None = None
    """The end that its supervisor has decided, while containers of the attempt may still run."""
    supervisor: Literal["active", "gone", "none"] = field(default="none", name="keeper")
    stopping: bool = False
    """Whether its supervisor was requested to stop it."""
    events: Annotated[tuple[JobEvent, ...], Meta(max_length=1_000_000)] = ()
    nodes: Nodes = field(default_factory=list)
    """All nodes ever assigned to the job, according to the queue host."""
    signed: Annotated[str, Meta(max_length=SignedLimits.TEXT)] = ""
    signature: Annotated[str, Meta(max_length=SignedLimits.SIGNATURE)] = ""

    @property
    def record(self) -> AttemptRecord:
        """The attempt's record, or an empty one."""
        return self.attempt_record or AttemptRecord()


class ReportAnswer(Struct, frozen=True):
    """The answer to ``report``; ``jobs`` are parsed one by one by `job_reports`."""

    now: Time = 0.0
    jobs: Annotated[list[Raw], Meta(max_length=100_000)] = field(default_factory=list)
    leases: Leases = field(default_factory=dict)
    tried: Time | None = None
    older: Count = 0
    """Jobs that have ended and are not in this answer, because only recent ones were requested."""
    slurm: Output | None = None
    """Slurm's queue, in the answer to ``slurm_report``."""
    slurm_problem: NodeProblem | None = None
    """Why Slurm's queue cannot be read."""


class Gpu(Struct, frozen=True):
    """A GPU of a node."""

    index: Index
    uuid: Uuid
    name: ShortText = ""
    memory: Annotated[int, Meta(ge=0)] = 0
    mig: Annotated[list[Uuid], Meta(max_length=64)] = field(default_factory=list)


class LookAnswer(ReportAnswer, frozen=True):
    """The answer to ``look``."""

    gpus: Annotated[list[Gpu], Meta(max_length=1024)] | None = None
    gpu_error: Text = ""
    foreign: Annotated[dict[Uuid, Text], Meta(max_length=10_000)] = field(default_factory=dict)
    cpus: Count = 0
    drained: Text = ""
    docker_error: Text = ""
    simulated: bool = False


def job_reports(answer: ReportAnswer, node: str) -> tuple[tuple[JobReport, ...], tuple[str, ...]]:
    """Return the valid jobs of an answer, and a message for each invalid entry."""
    jobs: list[JobReport] = []
    problems: list[str] = []
    for raw in answer.jobs:
        try:
            jobs.append(_job_report(raw, node))
        except InvalidDocument as error:
            name = _field(raw, "name", JobName)
            remedy = f"; `provision delete {name}` deletes it" if name else ""
            problems.append(f"{node}: job {name or 'without a valid name'} is ignored: {error.message}{remedy}")
    return tuple(jobs), tuple(problems)


class InvalidEntry(Struct, frozen=True):
    """An invalid job entry; fields that are invalid themselves are empty."""

    name: str
    id: str
    owner: str
    problem: str


def invalid_entries(answer: ReportAnswer, node: str) -> tuple[InvalidEntry, ...]:
    """Return the entries that `job_reports` ignores, so that they can be deleted."""
    entries = []
    for raw in answer.jobs:
        try:
            _job_report(raw, node)
        except InvalidDocument as error:
            name, token = _field(raw, "name", JobName), _field(raw, "id", Identifier)
            entries.append(InvalidEntry(name, token, _field(raw, "owner", ShortText), error.message))
    return tuple(entries)


def _job_report(raw: Raw, node: str) -> JobReport:
    job = decode(bytes(raw), JobReport, node=node, what="job entry")
    spec_of(job, node)
    _check_instance_names(job, node)
    return job


def spec_of(job: JobReport, node: str) -> JobSpec:
    """Return the spec that a node reports, for display only; jobs are started from `SignedJob.spec`.

    Brief reports omit most fields.

    Raises:
        InvalidDocument: a field has the wrong type.
    """
    document = {"kind": Kind.RUN, "command": (), **job.spec, "name": job.name}
    return convert(document, JobSpec, node=node, what=f"spec of {job.name}")


_OF_INSTANCE = re.compile(r"-(launcher|master|worker)-[a-z0-9]{1,9}")
"""What follows the name of the job in the name of an instance."""


def _check_instance_names(job: JobReport, node: str) -> None:
    """Refuse instance names that do not belong to the job: `attach` runs commands in these containers."""
    for assignment in job.record.assignments:
        for name in {assignment.instance, assignment.container or assignment.instance}:
            if not name.startswith(job.name) or not _OF_INSTANCE.fullmatch(name, len(job.name)):
                raise InvalidDocument(
                    f"instance name does not belong to the job ({assignment.instance}, {assignment.container})",
                    node=node,
                )


def _field(raw: Raw, name: str, kind: Any) -> str:
    """Return a field of an entry, or an empty string if it is invalid."""
    try:
        fields = decode(bytes(raw), dict[str, Raw], node="", what="job entry")
        return str(decode(bytes(fields[name]), kind, node="", what=name))
    except (InvalidDocument, KeyError):
        return ""


# Other answers


class NodeProblem(Struct, frozen=True):
    """The reason why a node refused a request."""

    message: Text = "failed"
    remedy: Text | None = None
    output: Text | None = None
    code: ShortText = ""
    """Of a request that the user may not make: the reason for programs."""


class Reserved(Struct, frozen=True):
    """The answer to ``reserve``."""

    reserved: bool


class Stored(Struct, frozen=True):
    """The answer to ``upload``."""

    stored: bool


class Holder(Struct, frozen=True):
    """The client that currently starts jobs."""

    who: Line = ""
    seconds: int | None = None


class Held(Struct, frozen=True):
    """The answer to ``hold_queue``."""

    held: bool
    by: Holder = Holder()


class Watched(Struct, frozen=True):
    """The answer to ``watch``."""

    changed: bool


class Taken(Struct, frozen=True):
    """The answer to ``lease``: the GPUs that others have leased."""

    taken: Leases


class HeldLeases(Taken, frozen=True):
    """The answer to ``hold``."""

    starting: bool = False


class Done(Struct, frozen=True):
    """An answer without content, e.g. to ``release``, ``renew``, ``start`` or ``stop``."""


class Deleted(Struct, frozen=True):
    """The answer to ``delete``."""

    deleted: bool


class Written(Struct, frozen=True):
    """The answer to ``queue``."""

    written: bool


class WrittenMany(Struct, frozen=True):
    """The answer to ``queues``."""

    written: list[bool]


class Image(Struct, frozen=True):
    """An image on a node."""

    id: ImageName
    digest: Digest = ""


class Keys(Struct, frozen=True):
    """The public keys of an MPI job on a node."""

    client: Line = ""
    host: Line = ""


class Prepared(Struct, frozen=True):
    """The answer to ``prepare``; if GPUs are ``taken``, nothing was prepared."""

    images: Annotated[dict[Text, Image], Meta(max_length=16)] = field(default_factory=dict)
    keys: Keys = Keys()
    ports: Annotated[list[Port], Meta(max_length=64)] = field(default_factory=list)
    taken: Leases = field(default_factory=dict)


class CodeProblem(Struct, frozen=True):
    """The reason why ``code_sync.py`` could not provide the code."""

    kind: ShortText = ""
    what: Text = ""
    output: Text = ""


class CodeResult(Struct, frozen=True):
    """The answer of ``code_sync.py``: a commit, or the SHA-256 of names and contents; or an error."""

    sha: CodeHash = ""
    error: CodeProblem | None = None


class DataResult(Struct, frozen=True):
    """The answer of ``data_check.py``: volume -> its state on the node."""

    volumes: Annotated[dict[Text, Any], Meta(max_length=1000)] = field(default_factory=dict)


class TensorboardResult(Struct, frozen=True):
    """The answer of ``tensorboard.py``."""

    running: bool = False
    port: Port | None = None
    output: Text = ""
    code: Text | None = None
    """The exit code of an exited container."""
