"""Documents of the verbs that change nodes, or show changes."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

from provision.model import NodeStatus, ReloadResult, ResetResult, RoleStatus, StepClass
from provision.model.preflight import PreflightCode
from provision.model.reason import ReasonDocument
from provision.report.json_documents.base import Finding, NodeResult


class FileDiff(TypedDict):
    """Pending changes of one file."""

    path: str
    """The file on the node."""
    diff: str
    """The lines of a unified diff."""
    note: str
    """Why there is no diff."""


class RoleFileDiff(FileDiff):
    """Pending changes of one file by a role without a step."""

    role: str
    """The role that changes it."""


class Package(TypedDict):
    """A package that a step installs."""

    name: str
    """Its name."""
    version: str | None
    """The version in the package index; null if it is unknown."""


_Class = TypedDict(
    "_Class",
    {
        "class": Annotated[
            StepClass, Meta(description="Whether the step requires a node without jobs, or also a reboot.")
        ]
    },
)


class Step(_Class):
    """A role that apply runs on a node."""

    role: str
    """The role."""
    reasons: list[str]
    """Why it runs."""
    reason_codes: list[ReasonDocument]
    """The codes of `reasons`, in the same order."""
    waits_for: list[str]
    """Jobs, owners of settings, and the maintenance window that block the step."""
    disturbs: list[str]
    """Running jobs that it may interrupt, because `--disruptive` allows it."""
    packages: list[Package]
    """Packages that it installs."""
    files: list[str]
    """Paths that it writes."""
    diffs: NotRequired[list[FileDiff]]
    """With `--diff`: pending changes of files."""
    diffs_note: NotRequired[str]
    """With `--diff`: why differences are missing."""


class PlanNode(NodeResult):
    """The steps of a node."""

    reachable: bool
    """Whether the connection succeeded. A reachable node can have an error."""
    steps: list[Step]
    """The steps, in the order of execution."""
    findings: list[str]
    """Problems that no apply can fix, and unknown facts."""
    finding_codes: list[ReasonDocument]
    """The codes of `findings`, in the same order."""
    dependencies: list[Package]
    """Packages that are installed as dependencies of those of the steps."""
    kept: dict[str, Any]
    """Variables that preserve pre-existing configuration, which the inventory does not set."""
    seconds: float | None
    """Duration of the probe; null without an answer."""
    diffs: NotRequired[list[RoleFileDiff]]
    """With `--diff`: pending changes by roles without a step."""


class PreflightProblem(TypedDict):
    """A problem that would make an apply fail."""

    code: PreflightCode
    """The kind of the problem."""
    role: str
    """The role that would fail."""
    object: str
    """The variable, package, URL or image."""
    problem: str
    """What is wrong."""
    remedy: str
    """What to do."""
    nodes: list[str]
    """The nodes that have the problem."""


class Plan(TypedDict):
    """Pending changes."""

    converged: bool
    """Whether nothing is to be done and every node answered."""
    nodes: list[PlanNode]
    """The nodes."""
    problems: list[PreflightProblem]
    """Problems that would make an apply fail."""


class RoleResult(TypedDict):
    """The result of a role on a node."""

    role: str
    """The role."""
    status: RoleStatus
    """Its result."""
    reasons: list[str]
    """Why it ran."""
    changes: list[str]
    """The tasks that changed something."""
    remedy: str
    """How to run a role that waits or was skipped."""


class TaskFailure(TypedDict):
    """A task that failed on a node."""

    task: str
    """The task."""
    message: str
    """What is wrong."""
    output: str
    """The output of the program that failed."""
    remedy: str | None
    """What to do."""
    code: str | None
    """The code of the error; null for a failed task of Ansible."""


class RoleFailure(TaskFailure):
    """The task at which an apply failed on a node."""

    role: str | None
    """The role of the task."""


class AppliedNode(TypedDict):
    """The result of an apply on a node."""

    name: str
    """Its name in the inventory."""
    status: NodeStatus
    """Its result."""
    roles: list[RoleResult]
    """The roles of its steps."""
    error: RoleFailure | None
    """Why it failed."""


class ApplyResult(TypedDict):
    """The result of an apply."""

    ok: bool
    """Whether every node has converged."""
    seconds: float
    """Duration of the apply."""
    nodes: list[AppliedNode]
    """The nodes."""
    remote_tasks: int
    """The largest number of tasks that ran on one node."""
    warnings: list[str]
    """Problems on the controller that do not affect the nodes."""


class Apply(ApplyResult):
    """The result of an apply, with the problems of its preflight."""

    problems: list[PreflightProblem]
    """Problems that would make the apply fail; with any, it changes nothing."""


class AdoptedNode(NodeResult):
    """Pre-existing settings of a node."""

    reachable: bool
    """Whether the connection succeeded."""
    found: list[str]
    """The pre-existing settings, as sentences."""
    record: dict[str, Any]
    """Variables that preserve them and that the inventory does not set."""


class AdoptedFile(TypedDict):
    """A file of the inventory."""

    path: str
    """The file."""
    variables: dict[str, Any]
    """The variables that are, or would be, added to it."""


class Adopt(TypedDict):
    """Settings that are recorded in the inventory."""

    ok: bool
    """Whether every node was probed."""
    written: bool
    """Whether the variables were added to the files."""
    nodes: list[AdoptedNode]
    """The nodes."""
    files: list[AdoptedFile]
    """The files of the inventory."""


class ResetNode(TypedDict):
    """The reset of a node, or its plan."""

    name: str
    """Its name in the inventory."""
    result: ResetResult
    """The result."""
    steps: list[str]
    """The actions, in order."""
    left: list[str]
    """What remains on the node, and why."""
    refused: list[str]
    """Why the node is not reset."""
    error: TaskFailure | None
    """Why it failed."""


class Reset(TypedDict):
    """The result of a reset, or its plan."""

    ok: bool
    """Whether no node failed or was refused."""
    dry_run: bool
    """Whether this is the plan of `--dry-run`, which changes nothing."""
    nodes: list[ResetNode]
    """The nodes."""


class ReloadNode(Finding):
    """The result of a reload on a node."""

    name: str
    """Its name in the inventory."""
    result: ReloadResult
    """The result."""
    provider: str
    """`dma_buf`, `nvidia_peermem` or `nv_peer_mem`; empty if it is unknown."""
    module: str
    """The kernel module; empty if the provider needs none."""
    cause: str
    """The cause in the status file of the node."""
    simulated: bool
    """Whether the result is about simulated hardware."""


class Reload(TypedDict):
    """The result of a reload of kernel modules."""

    ok: bool
    """Whether the modules of all nodes are ready or not needed."""
    nodes: list[ReloadNode]
    """The nodes."""
