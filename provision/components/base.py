"""What a component is: everything that provision knows about one role.

All functions here are pure: facts and inventory variables in, values out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Protocol

from provision.components.check import Check, Scene
from provision.facts import NodeFacts
from provision.model import CheckResult, Cluster, Node, PreflightCode
from provision.model.cause import Cause
from provision.model.reason import Reason, Wording

Variables = Mapping[str, Any]
Causes = Sequence[Cause]
Setting = tuple[PreflightCode, str, str, str]
"""Code, variable, problem and remedy."""


class NodeState(Protocol):
    """A node as planning sees it: its inventory variables, its facts and the rest of the cluster."""

    @property
    def node(self) -> Node:
        """The node, with the roles' defaults among its variables."""

    @property
    def facts(self) -> NodeFacts:
        """The facts of the node."""

    @property
    def cluster(self) -> Cluster:
        """All nodes of the inventory."""

    @property
    def all_facts(self) -> Mapping[str, NodeFacts]:
        """The facts of every node that was reached."""

    def enabled(self, role: str) -> bool:
        """Return whether the role is enabled on the node."""

    def fails_in(self, check: str, cluster: Cluster) -> bool:
        """Return whether a check of this node would fail if `cluster` were the whole cluster."""


@dataclass(frozen=True)
class RoleNeed:
    """A step of one role requires a step of another role."""

    role: str
    reason: Reason
    only_alone: bool = False
    """It adds nothing to a step that the role has anyway."""


@dataclass(frozen=True)
class Repository:
    """A package repository that an apply configures on a node."""

    name: str
    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    key: str
    variable: str
    """The inventory variable that names it."""
    role: str
    optional: bool = False
    """Whether the variable may be empty."""
    gpgcheck: bool = True
    """Whether dnf verifies the signatures of packages; apt always verifies the index."""
    repo_gpgcheck: bool = False
    """Whether dnf verifies the signature of the index."""


@dataclass(frozen=True, kw_only=True)
class PreservedSettings:
    """Pre-existing configuration on a node that the role preserves unless the inventory says otherwise."""

    facts: tuple[str, ...]
    """The facts without which pre-existing configuration cannot be recognised."""
    variables: Callable[[Node, NodeFacts], dict[str, Any]]
    """Return the role's variables that preserve it. The node has the inventory's variables without defaults."""
    describe: Callable[[NodeFacts], str]
    """Return a phrase that describes it."""
    forms: Mapping[str, Callable[[Any], bool]]
    """Variable -> whether a value, which comes from a node, is valid for it. Other variables are never preserved."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What nodes hand to each other in a role: the other nodes that have to take part in a node's step."""

    request: Callable[[Causes, NodeState], str | None]
    """Return the kind of the request that a node's step makes to all other nodes; None: no request."""
    reason: Callable[[Mapping[str, Sequence[str]], NodeState], Reason | None]
    """Return why a node has to take part, from the other nodes by kind of request; None: it need not."""
    possible: Callable[[NodeState, AbstractSet[str]], bool] = lambda _state, _roles: True
    """Whether a node without a step of the role can take part; the roles in its plan are given."""


@dataclass(frozen=True, kw_only=True)
class Component:
    """One role: its place in the order, what its steps disrupt, fix and preserve, and what they require."""

    role: str
    """The name of the folder under ``roles/``."""
    after: tuple[str, ...] = ()
    """The roles that have to run first. Together they give the order of ``site.yml``."""
    waits_with: tuple[str, ...] = ()
    """The roles without whose steps this role's step is of no use: it waits while one of them waits for jobs."""
    waits_also: Callable[[AbstractSet[str], Causes, NodeState], bool] = lambda _waiting, _causes, _state: False
    """Whether a step waits although it waits with none of those roles; the roles that wait are given."""
    shared: bool = False
    """The role runs before every other role of a run, and does their common work. There is one such role."""
    loads_module: bool = False
    """The role records a kernel module that is loaded at boot, and by ``provision reload``. There is one such role."""
    engine: str = ""
    """The job engine to whose clusters the role belongs: it is disabled in all others. Empty: every cluster."""
    required_variable: str = ""
    """The inventory variable without a value of which the role is disabled. Empty: none."""
    for_jobs: bool = False
    """The role exists for jobs: it is disabled on a node that takes none."""
    needs_image: bool = False
    """Without a training image there is nothing for the role to do."""
    after_all_waves: bool = False
    """The role runs once on all nodes, after the last wave."""
    is_requested: Callable[[Variables], bool] = lambda _variables: True
    """Whether the inventory asks for anything of the role. Without a request and a receipt, it is no step."""
    node_variable: str = ""
    """The inventory variable that names the only node of the role: it is requested on no other node."""

    derived_variables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of the shared role: variable that it sets for the others -> the inventory variables that decide it."""
    common_variables: frozenset[str] = frozenset()
    """Of the shared role: the inventory variables that it uses in the name of every role."""
    read_variables: tuple[str, ...] = ()
    """The variables that checks and jobs read, besides ``ROLE_enabled``. No secrets."""
    harmless_variables: frozenset[str] = frozenset()
    """The variables that can change without disrupting a job, besides ``ROLE_enabled``."""

    is_disruptive: Callable[[Causes, NodeState], bool] = lambda _causes, _state: False
    """Whether a step with these causes can disrupt a job."""
    needs_reboot: Callable[[Causes, NodeState], bool] = lambda _causes, _state: False
    """Whether a step with these causes requires a reboot of the node."""
    also_disrupts: Callable[[NodeState], tuple[str, ...]] = lambda _state: ()
    """Return what a disruptive step ends besides jobs; it waits for it as for jobs."""
    disruptions: Callable[[NodeState], tuple[Reason, ...]] = lambda _state: ()
    """Return what a disruptive run of the whole role disrupts, as reasons."""
    needs: Callable[[Causes, NodeState], Iterable[RoleNeed]] = lambda _causes, _state: ()
    """Yield the steps of other roles that a step requires."""
    exchange: Exchange | None = None

    stack_components: tuple[str, ...] = ()
    """The components of a stack lock (`provision/model/stack.py`) that the role brings to their versions. The value
    `present` of the variable ``ROLE_source`` keeps it from changing them."""

    checks: tuple[Check[Scene], ...] = ()
    """Checks of the role that have no module in ``provision/checks``."""
    reasons: Mapping[str, Wording] = field(default_factory=dict)
    """The wording of the reasons that the component and its checks use: code -> message and remedy."""
    never_fixes: frozenset[str] = frozenset()
    """The role's checks that no apply can fix. A failing one is a finding, not a step."""
    fixes_if: Mapping[str, Callable[[NodeState, CheckResult], bool]] = field(default_factory=dict)
    """The role's checks that an apply can fix in some cases. It can fix all that are in neither table."""
    fixes_warnings: frozenset[str] = frozenset()
    """The role's checks of which an apply fixes warnings too."""
    preserves: PreservedSettings | None = None

    applies: Callable[[NodeFacts], bool] = lambda _facts: True
    """Whether the role does anything on such a node."""
    settings: Callable[[Variables, NodeFacts], Iterable[Setting]] = lambda _variables, _facts: ()
    """Yield what is wrong in the inventory and would make the role fail."""
    system_settings: Callable[[Variables, Variables, NodeFacts], Iterable[Setting]] = lambda _variables, _system, _f: ()
    """Yield the settings that the node's system does not support; the second argument is the system's file."""
    cluster_settings: Callable[[Node, Cluster, Mapping[str, NodeFacts]], Iterable[Setting]] = lambda _n, _c, _f: ()
    """Yield what is wrong with the cluster as a whole, for one node, by the facts of all reached nodes."""
    files: Callable[[Variables, NodeFacts], Iterable[str]] = lambda _variables, _facts: ()
    """Yield the paths that the role writes."""
    controller_files: Callable[[Variables], Iterable[tuple[str, str, str]]] = lambda _variables: ()
    """Yield the files on the controller that a step requires: variable, path and remedy."""
    image: Callable[[Variables, NodeFacts], Mapping[str, Any] | None] | None = None
    """Return the image that a step pulls, for the check of its registry; None: no registry is asked."""
    packages: Callable[[Variables, Variables, NodeFacts], Iterable[str]] = lambda _variables, _system, _facts: ()
    """Yield packages beyond those of the system's file, which is the second argument."""
    first_nodes: Callable[[Cluster], AbstractSet[str]] = lambda _cluster: frozenset()
    """Return the nodes that the role has to change before others: they are in the first waves."""
    package_proxy: Callable[[Node, Cluster, Mapping[str, NodeFacts]], Mapping[str, Any]] = lambda _n, _c, _f: {}
    """Return the proxy from which a node gets packages (``url``) and the hosts that it serves (``hosts``)."""
    nodes_before_others: Callable[[Cluster], AbstractSet[str]] = lambda _cluster: frozenset()
    """Return the nodes whose step of the role has to end before any other node is changed: a wave of their own."""
    cluster_packages: Callable[[Node, Cluster], Iterable[str]] = lambda _node, _cluster: ()
    """Yield packages that the node needs because of its part in the cluster."""
    missing_package_remedy: str = (
        "Add a repository that has it to the node, or to platform_extra_repositories in the inventory."
    )
    repositories: Callable[[Variables, Variables], Iterable[Repository]] = lambda _variables, _system: ()
    """Yield the package repositories that the role configures; the second argument is the system's file."""

    def serves(self, variables: Variables) -> bool:
        """Return whether the role belongs to the cluster's job engine, or to every one, and is configured."""
        if self.required_variable and not variables.get(self.required_variable):
            return False
        return not self.engine or variables.get("cluster_engine") == self.engine

    def is_requested_on(self, node: Node) -> bool:
        """Return whether the inventory asks for anything of the role on the node."""
        is_here = not self.node_variable or node.variables.get(self.node_variable) == node.name
        return is_here and self.is_requested(node.variables)

    def is_harmless(self, cause: Cause) -> bool:
        """Return whether a changed variable disrupts no job."""
        return cause.name in self.harmless_variables or cause.name == f"{self.role}_enabled"


def in_order(components: Iterable[Component]) -> Iterator[Component]:
    """Yield the components so that each comes after those it depends on; otherwise by name.

    Raises:
        ValueError: a role depends on itself, or on one that does not exist.
    """
    left = {component.role: component for component in sorted(components, key=lambda one: one.role)}
    done: set[str] = set()
    while left:
        ready = next((one for one in left.values() if done.issuperset(one.after)), None)
        if ready is None:
            raise ValueError(f"the roles {', '.join(left)} cannot be ordered: see `after` of their components")
        done.add(ready.role)
        yield left.pop(ready.role)
