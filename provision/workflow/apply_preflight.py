"""The preflight: what would make the steps of a plan fail, found before anything changes, and what they will install.

Only nodes that have steps are asked, each in one SSH session, all at once. A converged plan costs nothing here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.commands.package_holds import deviating_packages, locked_versions
from provision.commands.package_repositories import (
    RPM,
    base_urls,
    login_lines,
    repo_text,
    source_text,
    without_logins,
)
from provision.components import COMPONENTS, SHARED
from provision.components.base import Repository
from provision.components.common import package_manager
from provision.documents.preflight import PreflightAnswer
from provision.errors import InventoryError, ProvisionError, VaultPasswordMissing
from provision.facts import NodeFacts, Unknown, plain, proxies
from provision.model import Cluster, Node, NodePlan, PackageChange, Plan, PreflightCode, PreflightProblem, Secret, Step
from provision.planning.requirements import cluster_problems, packages_of, repositories_of, setting_problems
from provision.planning.stack_lock import locked_on

if TYPE_CHECKING:
    from provision.connectors import Connector
    from provision.workflow.plan import PlanResult

_PROGRAM = "package-preflight"
_ANSWER_SECONDS = 10
"""How long a package source or a registry may take to answer."""
_LIMIT_SECONDS = 900.0
"""How long the checks of a node may take: a slow node without package lists fetches all of them."""


@dataclass(frozen=True)
class Requested:
    """What is asked of one node."""

    packages: Mapping[str, tuple[str, ...]]
    """Role -> its packages that are not installed."""
    repositories: tuple[Repository, ...] = ()
    image: Mapping[str, Any] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    """Package -> the exact version of the stack lock."""
    manager: str = "apt"
    """The node's package manager."""
    wrong: frozenset[str] = frozenset()
    """Roles whose settings are wrong: what follows from that is not reported again."""
    cache: Mapping[str, Any] = field(default_factory=dict)
    """The package cache; empty without one, and before the first apply has set it up."""

    def names(self) -> list[str]:
        """Return the packages of all roles."""
        return sorted({name for names in self.packages.values() for name in names})

    def request(self) -> dict[str, Any]:
        """Return it as the program on the node reads it."""
        return {
            "packages": self.names(),
            "versions": {name: self.versions[name] for name in self.names() if name in self.versions},
            "repositories": [_source(item, self.manager) for item in self.repositories],
            "streams": streams if isinstance(streams := self.variables.get("platform_module_streams"), list) else [],
            "image": self.image,
            "environment": proxies(self.variables),
            "cache": self.cache,
            "seconds": _ANSWER_SECONDS,
        }


def preflight(result: PlanResult, *, read_only: bool = False) -> PlanResult:
    """Return the plan with what its steps will install and write, and with every problem that would make one fail.

    With `read_only` no node is asked, so versions and problems of repositories and registries are not known.
    """
    planned = [plan for plan in result.plan.nodes if plan.steps and not plan.error and plan.name in result.facts]
    if not planned:
        return result
    values, problems = _rendered(result, planned)
    requested: dict[str, Requested] = {}
    for plan in planned:
        node, facts = result.cluster.node(plan.name), result.facts[plan.name]
        node = replace(node, variables={**node.variables, **values.get(node.name, {})})
        own = problems.setdefault(node.name, [])
        for role in dict.fromkeys((SHARED.role, *(step.role for step in plan.steps))):
            own.extend(setting_problems(role, node.variables, facts, system_of(facts)))
            own.extend(cluster_problems(role, node, result.cluster, result.facts))
        own.extend(_missing_files(plan, node))
        asked = _requested(plan, node, result.cluster, facts, without=own)
        requested[plan.name] = replace(asked, cache=_cache_of(node, result))
    answers = {} if read_only else _ask(result, requested)
    return replace(
        result, plan=Plan(tuple(_completed(plan, result, requested, problems, answers) for plan in result.plan.nodes))
    )


def _completed(
    plan: NodePlan,
    result: PlanResult,
    requested: Mapping[str, Requested],
    problems: Mapping[str, Sequence[PreflightProblem]],
    answers: Mapping[str, PreflightAnswer | ProvisionError],
) -> NodePlan:
    """Return the plan of a node with all that is known of it."""
    if plan.name not in requested:
        return plan
    asked, answer = requested[plan.name], answers.get(plan.name)
    known = answer if isinstance(answer, PreflightAnswer) else PreflightAnswer()
    versions: dict[str, str] = {entry.name: entry.version for entry in known.install}
    versions |= {name: version for name, version in (known.packages or {}).items() if version}
    variables, facts = asked.variables, result.facts[plan.name]

    def complete(step: Step) -> Step:
        packages = tuple(PackageChange(name, versions.get(name)) for name in asked.packages.get(step.role, ()))
        component = COMPONENTS[step.role]
        files = tuple(component.files(variables, facts)) if component.applies(facts) else ()
        return replace(step, packages=packages, files=tuple(filter(plain, files)))

    direct = {name for names in asked.packages.values() for name in names}
    more = tuple(PackageChange(entry.name, entry.version) for entry in known.install if entry.name not in direct)
    every = [*problems.get(plan.name, ()), *_of_answer(answer, asked, plan)]
    return replace(
        plan, steps=tuple(map(complete, plan.steps)), problems=tuple(dict.fromkeys(every)), dependencies=more
    )


def _rendered(
    result: PlanResult, planned: Sequence[NodePlan]
) -> tuple[dict[str, dict[str, Any]], dict[str, list[PreflightProblem]]]:
    """Render the variables with Jinja that the steps' roles use, and return values and problems by node."""
    from provision.inventory.listing import VAULT_REMEDY
    from provision.inventory.sources import SourceIndex
    from provision.inventory.specs import read_specs
    from provision.inventory.templates import has_template, rendering_problems
    from provision.resources import roles_folder

    specs = read_specs(roles_folder()).options
    problems: dict[str, list[PreflightProblem]] = {}
    stated = result.stated or result.cluster
    variables = {
        plan.name: {
            key: value for key, value in stated.node(plan.name).variables.items() if not isinstance(value, Secret)
        }
        for plan in planned
    }
    steps = {plan.name: {step.role for step in plan.steps} for plan in planned}
    if not any(has_template(own[key]) for own in variables.values() for key in own.keys() & specs.keys()):
        return {}, problems
    try:
        values, failures = rendering_problems(result.cluster.inventory, variables, specs.keys())
    except InventoryError as error:
        missing_password = isinstance(error, VaultPasswordMissing)
        remedy = VAULT_REMEDY if missing_password else "Fix the inventory; `ansible-inventory --list -i FILE` reads it."
        code = PreflightCode.VARIABLE_TEMPLATE
        problem = PreflightProblem(code, SHARED.role, "inventory", error.message, remedy)
        return {}, {plan.name: [problem] for plan in planned}
    sources = SourceIndex(result.cluster.inventory)
    for host, reasons in failures.items():
        for variable, reason in sorted(reasons.items()):
            role = specs[variable].role
            if role in steps[host] or role == SHARED.role:
                place = sources.find(variable, host, stated.node(host).groups) or f"the inventory ({variable})"
                remedy = f"Fix the value in {place}, or define what it names."
                problem = PreflightProblem(PreflightCode.VARIABLE_TEMPLATE, role, variable, reason, remedy)
                problems.setdefault(host, []).append(problem)
    return values, problems


def _missing_files(plan: NodePlan, node: Node) -> Iterable[PreflightProblem]:
    """Yield the files on the controller that steps require and that are missing."""
    for step in plan.steps:
        for variable, path, remedy in COMPONENTS[step.role].controller_files(node.variables):
            if not Path(path).is_file():
                problem = f"there is no file {path} on this machine"
                yield PreflightProblem(PreflightCode.FILE_MISSING, step.role, variable, problem, remedy)


def _requested(
    plan: NodePlan, node: Node, cluster: Cluster, facts: NodeFacts, *, without: Sequence[PreflightProblem]
) -> Requested:
    """Return what has to be asked of the node; nothing of what is known to be wrong already."""
    roles = [step.role for step in plan.steps]
    system = system_of(facts)
    installed = {} if isinstance(facts.packages, Unknown) else facts.packages
    locked = locked_on(node, cluster, facts)
    packages: dict[str, tuple[str, ...]] = {}
    for role in roles:
        known = {*installed, *(name for names in packages.values() for name in names)}
        names = packages_of(role, node.variables, system, facts, (node, cluster))
        other = deviating_packages(locked, [role], installed)
        packages[role] = (*(name for name in names if name not in known), *other)
    packages = {role: names for role, names in packages.items() if names}
    wrong = frozenset(problem.role for problem in without)
    repositories = [
        item
        for item in repositories_of(_enabled(node), node.variables, system)
        if item.role not in wrong and item.uris and COMPONENTS[item.role].applies(facts)
    ]
    image = None
    for role in roles:
        describe = COMPONENTS[role].image
        if describe and role not in wrong:
            image = describe(node.variables, facts)
    manager = package_manager(facts)
    sources = tuple(repositories) if packages else ()
    return Requested(packages, sources, image, node.variables, locked_versions(locked), manager, wrong)


def _cache_of(node: Node, result: PlanResult) -> Mapping[str, Any]:
    """Return the package cache that the node uses in an apply; empty before the cache is set up."""
    caches = (component.package_proxy(node, result.cluster, result.facts) for component in COMPONENTS.values())
    return next(filter(None, caches), {})


def _enabled(node: Node) -> list[str]:
    """Return the roles whose repositories a run configures: all that are enabled, with or without a step."""
    off = {"false", "no", "off", "0"}
    return [role for role in COMPONENTS if str(node.variables.get(f"{role}_enabled", True)).lower() not in off]


def system_of(facts: NodeFacts) -> Mapping[str, Any]:
    """Return what the shared role knows of the node's system."""
    from provision.inventory.role_files import systems
    from provision.resources import roles_folder

    if isinstance(facts.system, Unknown):
        return {}
    system: Mapping[str, Any] = systems(roles_folder()).get(facts.system.variables, {})
    return system


def _source(item: Repository, manager: str) -> dict[str, Any]:
    """Return a repository as the package manager reads it: the same as the shared role writes.

    One of a role is not written where the node has a source with this address from others.
    """
    if manager in RPM:
        return {
            "name": item.name,
            "uri": base_urls(dataclasses.asdict(item))[0],
            "written": item.role == SHARED.role,
            "source": repo_text(dataclasses.asdict(item)),
            "key": f"{item.key.strip()}\n",
        }
    return {
        "name": item.name,
        "uri": without_logins(item.uris)[0],
        "written": item.role == SHARED.role,
        "source": source_text(dataclasses.asdict(item)),
        "auth": "".join(f"{line}\n" for line in login_lines(item.uris)),
    }


def _ask(result: PlanResult, requested: Mapping[str, Requested]) -> dict[str, PreflightAnswer | ProvisionError]:
    """Ask the nodes that there is something to ask of, all at once."""
    from provision.connectors import each
    from provision.jobs.node_ask import ask

    nodes = [result.cluster.node(name) for name, asked in requested.items() if asked.packages or asked.image]
    if not nodes:
        return {}

    def one(connector: Connector) -> PreflightAnswer:
        request = requested[connector.name].request()
        return ask(
            connector,
            _PROGRAM,
            request,
            PreflightAnswer,
            seconds=_LIMIT_SECONDS,
        )

    return each(nodes, one)


def _of_answer(
    answer: PreflightAnswer | ProvisionError | None, asked: Requested, plan: NodePlan
) -> list[PreflightProblem]:
    """Return the problems in the answer of a node."""
    if answer is None:
        return []
    role = next(iter(asked.packages), plan.steps[0].role)
    if isinstance(answer, ProvisionError):
        remedy = answer.remedy or f"Log in to {plan.name} and look, then run the same command again."
        return [PreflightProblem(PreflightCode.NODE_UNCHECKED, role, "preflight", answer.message, remedy)]
    return [*_of_packages(answer, asked, role), *_of_image(answer, asked, plan)]


def _of_packages(answer: PreflightAnswer, asked: Requested, role: str) -> Iterable[PreflightProblem]:
    configured: dict[str, Repository] = {item.name: item for item in asked.repositories}
    versions: dict[str, str | None] = {str(name): version for name, version in (answer.packages or {}).items()}
    for source in answer.sources:
        item = configured.get(source.repository)
        unreachable = source.code == "unreachable"
        code = PreflightCode.REPOSITORY_UNREACHABLE if unreachable else PreflightCode.REPOSITORY_INVALID
        what = "the node cannot reach it" if unreachable else f"{asked.manager} refuses it"
        yield PreflightProblem(
            code,
            item.role if item else role,
            source.uri or "the node's package sources",
            f"{what} ({source.reason})" if source.reason else what,
            _repository_remedy(item, asked.manager, unreachable=unreachable),
        )
    for owner, wanted in asked.packages.items():
        missing = [name for name in wanted if answer.packages is not None and not versions.get(name)]
        if missing and not answer.sources and owner not in asked.wrong:
            yield PreflightProblem(
                PreflightCode.PACKAGE_MISSING,
                owner,
                ", ".join(f"{name}={asked.versions[name]}" if name in asked.versions else name for name in missing),
                "no configured package repository has it" if len(missing) == 1 else "no configured repository has them",
                COMPONENTS[owner].missing_package_remedy,
            )
    if answer.conflict:
        names = ", ".join(sorted({name for names in asked.packages.values() for name in names}))
        remedy = "Remove or hold the packages that stand in the way, or set platform_package_sets for this node."
        yield PreflightProblem(
            PreflightCode.PACKAGE_CONFLICT,
            role,
            names,
            f"{asked.manager} cannot install them ({answer.conflict})",
            remedy,
        )


def _repository_remedy(item: Repository | None, manager: str, *, unreachable: bool) -> str:
    if item is None:
        folder = "/etc/yum.repos.d" if manager in RPM else "/etc/apt/sources.list.d"
        return (
            "Check the node's DNS, proxy (cluster_http_proxy, cluster_package_cache) and firewall, or correct its "
            f"{folder}."
            if unreachable
            else f"Correct the source in {folder} on the node, or its key."
        )
    other = " Set it to '' if the nodes' own sources have the packages." if item.optional else ""
    if unreachable:
        return f"Open the way from the node to it, set cluster_http_proxy, or set {item.variable} to a mirror.{other}"
    return f"Correct {item.variable} and its key in the inventory.{other}"


def _of_image(answer: PreflightAnswer, asked: Requested, plan: NodePlan) -> Iterable[PreflightProblem]:
    if answer.image is None or asked.image is None or answer.image.code not in _IMAGE_PROBLEMS:
        return
    code, problem, remedy = _IMAGE_PROBLEMS[answer.image.code]
    registry = str(asked.image["registry"])
    said = f" ({answer.image.reason})" if answer.image.reason else ""
    reference, digest = str(asked.image["reference"]).partition("@")[0], asked.image["digest"]
    yield PreflightProblem(
        code,
        next(step.role for step in plan.steps if COMPONENTS[step.role].image),
        f"{reference}@{digest}" if digest else reference,
        problem.format(registry=registry) + said,
        remedy.format(registry=registry),
    )


_IMAGE_PROBLEMS = {
    "unreachable": (
        PreflightCode.REGISTRY_UNREACHABLE,
        "the node cannot reach the registry {registry}",
        "Check training_image_reference, the registry, and the way from the node to it (DNS, proxy, firewall).",
    ),
    "untrusted": (
        PreflightCode.REGISTRY_UNTRUSTED,
        "the node does not trust the certificate of {registry}",
        "Add the certificate of its CA to the inventory: provision init --registry-ca FILE",
    ),
    "missing": (
        PreflightCode.IMAGE_MISSING,
        "{registry} has no such image",
        "Push the image, or correct training_image_reference and training_image_digest.",
    ),
    "refused": (
        PreflightCode.IMAGE_REFUSED,
        "{registry} refuses it without a login, or with this one",
        "Set docker_engine_registry_logins for {registry} (the password in ansible-vault), or check the image's name.",
    ),
}
