"""How a check is written, registered and judged.

A check is a function from a Scene (one node) or a ClusterScene to a Verdict. The decorator gives it its id, the role
that answers for it and the check that must not have failed before it means anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, TypeVar

from provision.batch.data import DataFinding
from provision.facts import NodeFacts, Unknown, is_container, plain, simulated
from provision.model import Bandwidth, CheckResult, CheckStatus, Cluster, Collective, Node
from provision.model.cluster import JOB_ROLES, NO_JOBS

__all__ = [
    "CHECKS",
    "CLUSTER_CHECKS",
    "Check",
    "ClusterScene",
    "NotKnownError",
    "PairOutcome",
    "Scene",
    "Verdict",
    "check",
    "cluster_check",
    "fail",
    "known",
    "passed",
    "run",
    "skip",
    "warn",
]

T = TypeVar("T")
SceneT_contra = TypeVar("SceneT_contra", contravariant=True)


@dataclass(frozen=True)
class Verdict:
    """A check's outcome without its id."""

    status: CheckStatus
    reason: str
    remedy: str | None = None
    simulated: bool = False


@dataclass(frozen=True)
class PairOutcome:
    """One try to log in from the container of one node to that of another."""

    source: str
    target: str
    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class Scene:
    """One node, what is known of it, and what is around it."""

    node: Node
    facts: NodeFacts
    cluster: Cluster
    all_facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    """The facts of every node that was reached, this one included."""
    supported: Sequence[str] = ()
    """Supported systems as ``debian 12``; empty: unknown."""
    bandwidth: Bandwidth | None = None
    """None when none was measured."""
    data: Sequence[DataFinding] | None = None
    """What is wrong with data volumes, on all nodes; None when none was looked at."""

    def want(self, name: str, default: T) -> T:
        """Return an inventory variable; `default` when it is unset, of another type, or holds Jinja."""
        value = self.node.variables.get(name)
        if value is None or not plain(value) or not isinstance(value, type(default)):
            return default
        return value

    def undecided(self, name: str) -> bool:
        """Return whether only Ansible can say what the variable is, because it holds Jinja."""
        return not plain(self.node.variables.get(name))

    @property
    def container(self) -> bool:
        """True on a node that is itself a container."""
        return is_container(self.facts)

    def simulated(self, *things: str) -> bool:
        """Return whether any of `things` is a stand-in on this node."""
        return simulated(self.facts, *things)

    @property
    def apply(self) -> str:
        """The command that mends what a role manages."""
        return f"Run: provision apply --limit {self.node.name}"


@dataclass(frozen=True)
class ClusterScene:
    """All nodes that were reached, and what the tries between them gave."""

    cluster: Cluster
    nodes: Sequence[Node]
    """The nodes that were asked for, reached or not."""
    facts: Mapping[str, NodeFacts]
    pairs: Sequence[PairOutcome] | None = None
    """None when no pairs were tried."""
    bandwidth: Bandwidth | None = None
    """None when none was measured."""
    collective: Collective | None = None
    """None when no all-reduce was asked for."""
    data: Sequence[DataFinding] | None = None
    """What is wrong with data volumes; None when none was looked at."""


class NotKnownError(Exception):
    """A fact that the check needs could not be had; the runner turns it into a failure."""


def known(value: T | Unknown) -> T:
    """Return the value of a fact; ends the check as failed when it is Unknown."""
    if isinstance(value, Unknown):
        raise NotKnownError(value.reason)
    return value


def passed(reason: str, *, simulated: bool = False) -> Verdict:
    """All is as it should be."""
    return Verdict(CheckStatus.PASS, reason, None, simulated)


def warn(reason: str, remedy: str, *, simulated: bool = False) -> Verdict:
    """It works, though less well than it could."""
    return Verdict(CheckStatus.WARN, reason, remedy, simulated)


def fail(reason: str, remedy: str, *, simulated: bool = False) -> Verdict:
    """It does not work, or is not what the inventory wants."""
    return Verdict(CheckStatus.FAIL, reason, remedy, simulated)


def skip(reason: str, *, simulated: bool = False) -> Verdict:
    """Nothing can or need be judged, and why."""
    return Verdict(CheckStatus.SKIP, reason, None, simulated)


@dataclass(frozen=True)
class Check(Generic[SceneT_contra]):
    """A registered check."""

    id: str
    judge: Callable[[SceneT_contra], Verdict]
    role: str | None = None
    after: str | None = None
    remedy: str = ""
    """What to do when a fact that it needs cannot be had."""
    full: bool = False
    """Judged only where bandwidth was measured (level ``full``)."""
    collective: bool = False
    """Judged only where an all-reduce was asked for (``--collective``)."""
    data: bool = False
    """Judged only where data volumes were looked at."""


CHECKS: dict[str, Check[Scene]] = {}
CLUSTER_CHECKS: dict[str, Check[ClusterScene]] = {}

_AREAS = (
    "node",
    "base_system",
    "rdma_stack",
    "docker_engine",
    "gpu",
    "peer_memory",
    "nvidia_container",
    "training_image",
    "training_container",
    "container_ssh",
)
"""The order of the results: what others depend on comes first."""

UNJUDGED = "what the node answered cannot be judged"
"""So begins the reason of a check that could not make sense of a fact."""
_FACT_REMEDY = "Log in to the node and run that command by hand to see where it stops."


def check(
    id: str,  # noqa: A002 - it is an id, and reads best so where checks are declared
    *,
    role: str | None = None,
    after: str | None = None,
    remedy: str = _FACT_REMEDY,
    full: bool = False,
    data: bool = False,
) -> Callable[[Callable[[Scene], Verdict]], Callable[[Scene], Verdict]]:
    """Register a check of one node: skipped when `role` is disabled there or the check `after` failed.

    One that is `full` is judged only where bandwidth was measured, one of `data` only where volumes were looked at.
    """

    def register(function: Callable[[Scene], Verdict]) -> Callable[[Scene], Verdict]:
        if id in CHECKS:
            raise ValueError(f"two checks are called {id}")
        CHECKS[id] = Check(id, function, role, after, remedy, full, data=data)
        return function

    return register


def cluster_check(
    id: str,  # noqa: A002 - as above
    *,
    full: bool = False,
    collective: bool = False,
    data: bool = False,
) -> Callable[[Callable[[ClusterScene], Verdict]], Callable[[ClusterScene], Verdict]]:
    """Register a check that only all nodes together can answer."""

    def register(function: Callable[[ClusterScene], Verdict]) -> Callable[[ClusterScene], Verdict]:
        if id in CLUSTER_CHECKS:
            raise ValueError(f"two checks are called {id}")
        CLUSTER_CHECKS[id] = Check(id, function, full=full, collective=collective, data=data)
        return function

    return register


def run(scene: Scene) -> tuple[CheckResult, ...]:
    """Judge one node by every check, area by area."""
    done: dict[str, CheckResult] = {}
    for item in map(CHECKS.__getitem__, _in_order(tuple(CHECKS))):
        if (item.full and scene.bandwidth is None) or (item.data and scene.data is None):
            continue
        verdict = _verdict(item, scene, done)
        done[item.id] = CheckResult(item.id, verdict.status, verdict.reason, verdict.remedy, verdict.simulated)
    return tuple(done.values())


@lru_cache(maxsize=4)
def _in_order(ids: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(ids, key=lambda id: _AREAS.index(id.partition(".")[0])))  # noqa: A006


def _verdict(item: Check[Scene], scene: Scene, done: Mapping[str, CheckResult]) -> Verdict:
    enabled: Any = scene.node.variables.get(f"{item.role}_enabled") if item.role else None
    if enabled is False and item.role in JOB_ROLES and not scene.node.takes_jobs:
        return skip(NO_JOBS)
    if enabled is False:
        return skip(f"the role {item.role} is switched off for this node")
    before = done.get(item.after) if item.after else None
    if before is not None and (before.status is CheckStatus.FAIL or before.reason.startswith("waits for ")):
        root = before.reason.removeprefix("waits for ") if before.status is CheckStatus.SKIP else before.id
        return skip(f"waits for {root}")
    try:
        return item.judge(scene)
    except NotKnownError as problem:
        return fail(str(problem), item.remedy)
    except Exception as problem:  # noqa: BLE001 - one node's odd answer must not hide what is known of the others
        return fail(f"{UNJUDGED}: {type(problem).__name__}: {problem}", item.remedy)
