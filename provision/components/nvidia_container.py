"""The role nvidia_container: the NVIDIA runtime for docker and the CDI description of the GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from provision.commands.package_repositories import repository_paths
from provision.commands.signing_keys import NVIDIA_FINGERPRINT, InvalidKey, parse_armored
from provision.components.base import Component, NodeState, PreservedSettings, Repository, RoleNeed, Setting, Variables
from provision.components.common import (
    brought,
    docker_is_absent,
    docker_is_unused,
    is_on,
    is_whole_run,
    key_problems,
    matches,
    other_containers,
    package_manager,
    package_versions,
    text,
    toolkit_package,
)
from provision.facts import NodeFacts, Unknown, plain
from provision.gdr.observed import has_gpus
from provision.model import CheckResult, Node, PreflightCode
from provision.model.cause import Cause, CauseKind
from provision.model.reason import Wording, reason

_NVIDIA_HOST = "https://nvidia.github.io/"
_URI, _KEY = "nvidia_container_repository_uri", "nvidia_container_repository_key"


def _is_disruptive(causes: Sequence[Cause], state: NodeState) -> bool:
    """Docker is restarted for a new runtime hook. No container uses the hook where Docker is absent or runs nothing."""
    unused = docker_is_absent(state.facts) or docker_is_unused(state.facts)
    if any(cause.kind is CauseKind.FORCED for cause in causes):
        return has_gpus(state.facts) and not unused
    return _replaces_packages(causes, state) and not (is_whole_run(causes) and unused)


def _replaces_packages(causes: Sequence[Cause], state: NodeState) -> bool:
    """Without a receipt the check of the packages says whether any is missing."""
    return has_gpus(state.facts) and any(_replaces(cause) for cause in causes)


def _replaces(cause: Cause) -> bool:
    if cause.kind is CauseKind.VARIABLE:
        return not COMPONENT.is_harmless(cause)
    return cause.kind is CauseKind.PACKAGE or cause.name == "nvidia_container.toolkit"


def _needs(causes: Sequence[Cause], state: NodeState) -> Iterator[RoleNeed]:
    if not has_gpus(state.facts):
        return
    if _replaces_packages(causes, state):
        yield RoleNeed("docker_engine", reason("nvidia_container.restart_docker"))
    elif any(cause.name == "nvidia_container.runtime" for cause in causes):
        yield RoleNeed("docker_engine", reason("nvidia_container.configure_docker"))


def _package_is_missing(state: NodeState, _: CheckResult) -> bool:
    """The role installs missing packages; it changes none of other versions or without their hook."""
    packages = state.facts.packages
    return not isinstance(packages, Unknown) and toolkit_package(state.node.variables) not in packages


def _preserved(_: Node, facts: NodeFacts) -> dict[str, Any]:
    packages = facts.packages
    if isinstance(packages, Unknown) or "nvidia-docker2" not in packages or "nvidia-container-toolkit" in packages:
        return {}
    return {} if brought(facts, ("nvidia-docker2",)) else {"nvidia_container_flavor": "nvidia-docker2"}


def _settings(variables: Variables, _: NodeFacts) -> Iterator[Setting]:
    url, key = text(variables, _URI), text(variables, _KEY)
    if not url:
        return
    problems = list(key_problems(_KEY, key, f"the repository {url}"))
    yield from problems
    if not problems and plain(key) and url.startswith(_NVIDIA_HOST):
        problem = _other_than_nvidia(key)
        if problem:
            remedy = f"Put NVIDIA's key there; `provision init` writes it. Never use another key for {url}."
            yield PreflightCode.VARIABLE_INVALID, _KEY, problem, remedy


def _other_than_nvidia(key: str) -> str:
    """Return how a key differs from NVIDIA's signing key; empty where it is that key."""
    try:
        fingerprint = parse_armored(key).fingerprint
    except InvalidKey as error:
        return str(error)
    if fingerprint == NVIDIA_FINGERPRINT:
        return ""
    return f"has the fingerprint {fingerprint}; NVIDIA's key has {NVIDIA_FINGERPRINT}"


def _repositories(variables: Variables, _: Variables) -> Iterator[Repository]:
    url = text(variables, _URI)
    if url:
        key = text(variables, _KEY)
        yield Repository(
            name="nvidia-container",
            uris=(url,),
            suites=("/",),
            components=(),
            key=key,
            variable=_URI,
            role="nvidia_container",
            optional=True,
            gpgcheck=False,
            repo_gpgcheck=True,
        )


def _files(variables: Variables, facts: NodeFacts) -> Iterator[str]:
    if variables.get(_URI):
        yield from repository_paths("nvidia-container", package_manager(facts))
    if is_on(variables, "nvidia_container_cdi_enabled"):
        yield "/etc/cdi/nvidia.yaml"


COMPONENT = Component(
    role="nvidia_container",
    stack_components=("toolkit",),
    after=("peer_memory",),  # the CDI description lists the devices of the loaded modules
    waits_with=("docker_engine",),  # both change daemon.json
    reasons={
        "nvidia_container.restart_docker": Wording("Docker has to be restarted for the NVIDIA runtime's packages"),
        "nvidia_container.configure_docker": Wording("Docker has to be configured for the NVIDIA runtime"),
    },
    for_jobs=True,
    # All but the variables that choose packages: a new repository alone replaces no installed package.
    harmless_variables=frozenset({"nvidia_container_cdi_enabled", _KEY, _URI}),
    is_disruptive=_is_disruptive,
    also_disrupts=other_containers,
    needs=_needs,
    fixes_if={"nvidia_container.toolkit": _package_is_missing},
    preserves=PreservedSettings(
        facts=("packages",),
        variables=_preserved,
        describe=lambda facts: f"the NVIDIA runtime of {package_versions(facts, ('nvidia-docker2',))}",
        forms={"nvidia_container_flavor": matches("nvidia-docker2")},
    ),
    applies=has_gpus,
    settings=_settings,
    files=_files,
    missing_package_remedy=(
        "Set nvidia_container_repository_uri and nvidia_container_repository_key in the inventory "
        "(`provision init` writes NVIDIA's), or add a mirror to platform_extra_repositories."
    ),
    repositories=_repositories,
)
