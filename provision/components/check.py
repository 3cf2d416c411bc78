"""What a check is: a function from a Scene (one node) or a ClusterScene (all nodes) to a Verdict.

The part of a check's id before the dot is its area. An area with the name of a role belongs to that role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from provision.facts import NodeFacts, Unknown, is_container, plain, simulated
from provision.facts.records import Receipt
from provision.model import Bandwidth, CheckStatus, Cluster, Collective, Node
from provision.model.reason import Reason, Value, reason

if TYPE_CHECKING:
    from provision.batch.data import DataFinding

T = TypeVar("T")
Param = Value | Iterable[Value]
SceneT_contra = TypeVar("SceneT_contra", contravariant=True)


@dataclass(frozen=True)
class Verdict:
    """A check's outcome without its id."""

    status: CheckStatus
    reason: Reason
    simulated: bool = False


@dataclass(frozen=True)
class PairOutcome:
    """One try to log in from the container of one node to that of another."""

    source: str
    target: str
    ok: bool
    reason: Reason | None = None


@dataclass(frozen=True)
class Scene:
    """One node, what is known of it, and what is around it."""

    node: Node
    facts: NodeFacts
    cluster: Cluster
    all_facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    """The facts of every node that was reached, this one included."""
    supported: Mapping[str, str] = field(default_factory=dict)
    """Supported systems as ``debian 12`` -> how much of it is tested; empty: unknown."""
    bandwidth: Bandwidth | None = None
    """None when none was measured."""
    data: Sequence[DataFinding] | None = None
    """What is wrong with data volumes, on all nodes; None when none was probed."""

    def want(self, name: str, default: T) -> T:
        """Return an inventory variable; `default` when it is unset, of another type, or holds Jinja."""
        value = self.node.variables.get(name)
        if value is None or not plain(value) or not isinstance(value, type(default)):
            return default
        return value

    def undecided(self, name: str) -> bool:
        """Return whether only Ansible can say what the variable is, because it holds Jinja."""
        return not plain(self.node.variables.get(name))

    def receipt(self, check: str) -> Receipt | None:
        """Return the receipt of the role to which a check belongs; None if there is none, or it is unknown."""
        receipts = self.facts.receipts
        return None if isinstance(receipts, Unknown) else receipts.get(check.partition(".")[0])

    @property
    def container(self) -> bool:
        """True on a node that is itself a container."""
        return is_container(self.facts)

    def simulated(self, *things: str) -> bool:
        """Return whether any of `things` is a stand-in on this node."""
        return simulated(self.facts, *things)


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
    """What is wrong with data volumes; None when none was probed."""


class NotKnownError(Exception):
    """A fact that the check needs could not be had; the runner turns it into a failure."""


def known(value: T | Unknown) -> T:
    """Return the value of a fact; ends the check as failed when it is Unknown."""
    if isinstance(value, Unknown):
        raise NotKnownError(value.reason)
    return value


def passed(code: str, /, *, simulated: bool = False, **params: Param) -> Verdict:
    """Return that the node is in the desired state."""
    return Verdict(CheckStatus.PASS, reason(code, **params), simulated)


def warn(code: str, /, *, simulated: bool = False, **params: Param) -> Verdict:
    """Return that something works, but not as well as it could."""
    return Verdict(CheckStatus.WARN, reason(code, **params), simulated)


def fail(code: str, /, *, simulated: bool = False, **params: Param) -> Verdict:
    """Return that something does not work or differs from the desired state."""
    return Verdict(CheckStatus.FAIL, reason(code, **params), simulated)


def skip(code: str, /, *, simulated: bool = False, **params: Param) -> Verdict:
    """Return why nothing can or has to be judged."""
    return Verdict(CheckStatus.SKIP, reason(code, **params), simulated)


@dataclass(frozen=True)
class Check(Generic[SceneT_contra]):
    """A registered check."""

    id: str
    judge: Callable[[SceneT_contra], Verdict]
    after: str | None = None
    """The check without whose success this one means nothing."""
    unavailable: str = "check.fact_unavailable"
    """The code of the reason if a fact that it requires is unavailable."""
    full: bool = False
    """Judged only where bandwidth was measured (level ``full``)."""
    collective: bool = False
    """Judged only where an all-reduce was asked for (``--collective``)."""
    data: bool = False
    """Judged only where data volumes were probed."""
