"""Documents of the verbs about a job's efficiency, its data and its manifests."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from provision.advisor.base import Confidence, Verdict
from provision.advisor.script import RuleVerdict
from provision.model.reason import ReasonDocument


class RuleFinding(TypedDict):
    """The result of a rule of distributed PyTorch."""

    rule: str
    """The rule."""
    verdict: RuleVerdict
    """The result."""
    file: str
    """The file of the evidence."""
    line: int | None
    """The line of the evidence."""
    evidence: str
    """The observation."""
    remedy: str | None
    """What to do."""
    framework: str | None
    """The library that implements the rule."""


class ScriptAdvice(TypedDict):
    """The rules that a training script follows (`--script`)."""

    ok: bool
    """Whether no rule is broken; with a job, and no check of the job reports a problem."""
    script: str
    """The script."""
    rules: list[RuleFinding]
    """The rules."""


class AdviceFinding(TypedDict):
    """The result of a check of a job."""

    check: str
    """The check."""
    verdict: Verdict
    """The result."""
    evidence: str
    """The observation; for `unknown` the reason."""
    remedy: str | None
    """What to do."""
    confidence: Confidence | None
    """The reliability of the verdict; null for `unknown`."""
    simulated: bool
    """Whether it depends on simulated GPUs."""


class AdviceGpu(TypedDict):
    """A GPU while it was observed."""

    uuid: str
    """Its UUID."""
    index: int | None
    """The index of nvidia-smi."""
    instance: str | None
    """The instance that holds it."""
    utilization: float | None
    """Mean utilization in percent."""
    memory: float | None
    """Maximum used memory in percent."""
    power: float | None
    """Mean power in watts."""


class AdviceNode(TypedDict):
    """A node of a job while it was observed."""

    node: str
    """The node."""
    instances: list[str]
    """The instances of the job on it."""
    samples: int
    """The number of samples."""
    seconds: float
    """The observed time."""
    processes: int
    """The number of processes of the job."""
    gpus: list[AdviceGpu]
    """The GPUs of the job."""
    simulated: bool
    """Whether its GPUs are simulated."""
    notes: list[str]
    """Problems during sampling."""
    error: str | None
    """Why samples are missing."""


class JobFindings(TypedDict):
    """The results of the checks of a job."""

    ok: bool
    """Whether no check reports a problem and all nodes answered."""
    job: str
    """The job."""
    simulated: bool
    """Whether a result depends on simulated GPUs."""
    findings: list[AdviceFinding]
    """The checks."""


class JobAdvice(JobFindings):
    """Why a job does not use its GPUs."""

    seconds: float
    """The duration of the observation."""
    attempt: int
    """The number of the attempt of the job."""
    idle: bool
    """Whether all GPUs of the job were idle."""
    ended: str | None
    """How the job ended during the observation, if it did."""
    nodes: list[AdviceNode]
    """The nodes of the job."""


class JobAndScriptAdvice(JobAdvice):
    """Why a job does not use its GPUs, and the rules that its script follows."""

    script: str
    """The script."""
    rules: list[RuleFinding]
    """The rules."""


class VolumeEntry(TypedDict):
    """A data volume in the inventory."""

    name: str
    """Its name."""
    kind: str
    """`nfs`, `lustre`, `s3fs` or `path`."""
    path: str
    """Its path on the nodes."""
    source: NotRequired[str]
    """The source of the mount."""
    read_only: NotRequired[bool]
    """Whether jobs mount it read-only."""
    description: NotRequired[str]
    """Its description."""
    owner: NotRequired[str]
    """The user who added it."""
    added: NotRequired[str]
    """When it was added."""


class VolumeFinding(TypedDict):
    """A problem of a data volume."""

    node: str
    """The node; empty for a difference between nodes."""
    level: str
    """`fail`: jobs cannot use it; `warn`: jobs can use it."""
    problem: str
    """What is wrong."""
    remedy: str
    """What to do."""


class Volume(TypedDict):
    """A data volume on the nodes."""

    name: str
    """Its name."""
    kind: str
    """`nfs`, `lustre`, `s3fs` or `path`."""
    path: str
    """Its path on the nodes."""
    source: str
    """The source of the mount; empty for `path`."""
    read_only: bool
    """Whether jobs mount it read-only."""
    description: str
    """Its description."""
    owner: str
    """The user who added it."""
    added: str
    """When it was added, in UTC; empty if it is unknown."""
    access_mode: str
    """`ReadWriteMany`, `ReadOnlyMany`, `ReadWriteOnce` or `ReadOnlyOnce`."""
    usable: bool
    """Whether jobs can use it on all nodes."""
    findings: list[VolumeFinding]
    """Its problems."""


class Volumes(TypedDict):
    """Data volumes."""

    volumes: list[Volume]
    """The volumes."""


class CheckedVolumes(Volumes):
    """The check of data volumes."""

    ok: bool
    """Whether jobs can use all volumes on all nodes."""


class Credential(TypedDict):
    """A stored credential, without its secret."""

    kind: str
    """`git` or `registry`."""
    server: str
    """`host` or `host:port`."""
    username: str
    """The user name."""
    changed: str
    """When it was stored, in UTC."""


class Credentials(TypedDict):
    """Stored credentials."""

    secrets: list[Credential]
    """The credentials."""


class ExportNote(ReasonDocument):
    """A property of a job that the export changes or loses."""

    message: str
    """What the export changes or loses."""
    remedy: str
    """What to do; empty without a remedy."""


class Export(TypedDict):
    """An exported job."""

    name: str
    """The name of the job."""
    target: str
    """The target of the export."""
    documents: NotRequired[list[dict[str, Any]]]
    """The manifests; missing with `--output`."""
    text: NotRequired[str]
    """The exported file; missing with `--output`."""
    notes: list[ExportNote]
    """What the export changes or loses."""
