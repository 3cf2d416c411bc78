"""What each role requires before its first task, and what it puts on a node, from the roles' components.

A role's preflight tasks check the same again on the node; here it is known before anything has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from provision.components import COMPONENTS, SHARED
from provision.components.base import Repository, Setting, Variables
from provision.facts import NodeFacts, plain
from provision.model import Cluster, Node, PreflightCode, PreflightProblem


def setting_problems(
    role: str, variables: Variables, facts: NodeFacts, system: Variables | None = None
) -> tuple[PreflightProblem, ...]:
    """Return what of the inventory would make the role fail on the node; values with Jinja are not judged here.

    Args:
        role: the role.
        variables: the node's variables.
        facts: the node's facts.
        system: what the shared role knows of the node's system; None: unknown.
    """
    component = COMPONENTS[role]
    if not component.applies(facts):
        return ()
    return tuple(
        PreflightProblem(code, role, variable, problem, remedy)
        for code, variable, problem, remedy in (
            *component.settings(variables, facts),
            *component.system_settings(variables, system or {}, facts),
            *_unavailable(role, variables, system or {}),
        )
    )


def _unavailable(role: str, variables: Variables, system: Variables) -> Iterator[Setting]:
    """Yield why the node's system has no packages for the chosen alternative of a role."""
    choice = system.get("__platform_package_choices", {}).get(role, "")
    reason = system.get("__platform_unavailable", {}).get(role, {}).get(str(variables.get(choice)))
    if reason:
        yield PreflightCode.VARIABLE_INVALID, choice, reason["problem"], reason["remedy"]


def cluster_problems(
    role: str, node: Node, cluster: Cluster, all_facts: Mapping[str, NodeFacts]
) -> tuple[PreflightProblem, ...]:
    """Return why the cluster as a whole must not get the role; `all_facts` has the nodes that were reached."""
    return tuple(
        PreflightProblem(code, role, variable, problem, remedy)
        for code, variable, problem, remedy in COMPONENTS[role].cluster_settings(node, cluster, all_facts)
    )


def packages_of(
    role: str, variables: Variables, system: Variables, facts: NodeFacts, member: tuple[Node, Cluster] | None = None
) -> tuple[str, ...]:
    """Return the packages that the role needs on the node, installed or not.

    Args:
        role: the role.
        variables: the node's variables.
        system: what the shared role knows of the node's system.
        facts: the node's facts.
        member: the node and its cluster, for the packages that depend on the other nodes.
    """
    component = COMPONENTS[role]
    if not component.applies(facts) or variables.get(f"{SHARED.role}_enabled") is False:
        return ()
    own = variables.get("platform_package_sets")
    sets = {**system.get("__platform_package_sets", {}), **(own if isinstance(own, Mapping) else {})}
    packages = sets.get(role, [])
    if isinstance(packages, Mapping):
        choice = variables.get(system.get("__platform_package_choices", {}).get(role, ""))
        packages = packages.get(choice, []) if choice is not None else next(iter(packages.values()), [])
    names = [*(packages if isinstance(packages, list) else []), *component.packages(variables, system, facts)]
    names += component.cluster_packages(*member) if member else ()
    return tuple(dict.fromkeys(str(name) for name in names if plain(name)))


def repositories_of(roles: Sequence[str], variables: Variables, system: Variables) -> tuple[Repository, ...]:
    """Return the repositories that a run of `roles` configures; those of the shared role always."""
    if variables.get(f"{SHARED.role}_enabled") is False:
        return ()
    names = dict.fromkeys((SHARED.role, *roles))
    repositories = [item for role in names for item in COMPONENTS[role].repositories(variables, system)]
    return tuple(item for item in repositories if plain([*item.uris, *item.suites, *item.components, item.key]))
