"""Questions about causes, facts and variables that several components ask, and their common texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from provision.components.base import NodeState, Setting, Variables
from provision.facts import NodeFacts, Unknown, plain
from provision.facts.container import Container
from provision.model import PreflightCode
from provision.model.cause import Cause, CauseKind

IMAGE_REMEDY = (
    "Set it in the inventory's group_vars/all.yml, e.g. training_image_reference: registry.example.com/team/train:1. "
    "Clusters whose jobs bring their own images set training_image_enabled, training_container_enabled and "
    "container_ssh_enabled to false."
)
_ARMOR = "BEGIN PGP PUBLIC KEY BLOCK"


def package_manager(facts: NodeFacts) -> str:
    """Return the package manager of a node by the name in the roles' files of variables; apt if it is unknown."""
    name = "" if isinstance(facts.system, Unknown) else facts.system.package_manager
    return name if name in {"dnf", "yum"} else "apt"


def is_whole_run(causes: Sequence[Cause]) -> bool:
    """Return whether the role runs as a whole: it has no receipt to compare with."""
    return any(cause.kind is CauseKind.RECEIPT for cause in causes)


def docker_is_absent(facts: NodeFacts) -> bool:
    """Return whether docker is not installed."""
    service = facts.docker_service
    return not isinstance(service, Unknown) and not service.loaded


def docker_is_unused(facts: NodeFacts) -> bool:
    """Return whether docker runs no container, and no job is on the node that might start one."""
    info, managed = facts.docker_info, facts.managed
    if isinstance(info, Unknown) or isinstance(managed, Unknown):
        return False
    return info.containers_running == 0 and not managed.jobs


def other_containers(state: NodeState) -> tuple[str, ...]:
    """Return the running containers besides the training container, which a restart of docker ends."""
    info, own = state.facts.docker_info, state.facts.container
    if isinstance(info, Unknown) or info.live_restore:
        return ()
    count = info.containers_running - (isinstance(own, Container) and own.status == "running")
    if count <= 0:
        return ()
    containers = f"{count} running container{'s' * (count != 1)}"
    return (f"a restart of docker ends {containers} that this tool did not create (docker ps)",)


def toolkit_package(variables: Variables) -> str:
    """Return the package of the NVIDIA runtime that the inventory chooses."""
    legacy = variables.get("nvidia_container_flavor") == "nvidia-docker2"
    return "nvidia-docker2" if legacy else "nvidia-container-toolkit"


def brought(facts: NodeFacts, packages: tuple[str, ...]) -> bool:
    """Return whether an apply installed, or began to install, one of the packages."""
    return isinstance(facts.managed, Unknown) or not facts.managed.brought.isdisjoint(packages)


def package_versions(facts: NodeFacts, names: Iterable[str]) -> str:
    """Return those of the packages that are installed, with their versions."""
    packages = {} if isinstance(facts.packages, Unknown) else facts.packages
    return ", ".join(f"{name} {packages[name]}" for name in names if name in packages)


def matches(pattern: str) -> Callable[[Any], bool]:
    """Return a function that returns whether a value is text of this form."""
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def items(variables: Variables, name: str) -> list[Mapping[str, Any]]:
    """Return the mappings in the list that a variable holds."""
    value = variables.get(name)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def text(variables: Variables, name: str) -> str:
    """Return a variable that holds text; empty where it holds anything else."""
    value = variables.get(name)
    return value if isinstance(value, str) else ""


def is_on(variables: Variables, name: str) -> bool:
    """Return whether a switch is on; it is by default."""
    return str(variables.get(name, True)).strip().lower() not in {"false", "no", "off", "0", "n", "f"}


def key_problems(variable: str, key: str, owner: str) -> Iterator[Setting]:
    """Yield what is wrong with an armored key; nothing where only Ansible can decide."""
    if plain(key) and _ARMOR not in key:
        missing = not key.strip()
        code = PreflightCode.VARIABLE_MISSING if missing else PreflightCode.VARIABLE_INVALID
        problem = "is not set" if missing else "is not an armored OpenPGP public key"
        remedy = f"Put the armored public key of {owner} there; `gpg --armor --export FINGERPRINT` prints it."
        yield code, variable, problem, remedy
