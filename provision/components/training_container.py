"""The role training_container: the long-lived container on each node in which interactive jobs run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from provision.components.base import Component, NodeState, RoleNeed, Setting, Variables
from provision.components.common import IMAGE_REMEDY, is_on
from provision.facts import NodeFacts, is_container, plain
from provision.facts.container import Container
from provision.model import CheckResult, PreflightCode
from provision.model.cause import Cause, CauseKind
from provision.model.reason import Wording, reason

_MOUNT = re.compile(r"/[^:]*:/[^:]*(:(ro|rw))?")


def _is_disruptive(causes: Sequence[Cause], state: NodeState) -> bool:
    """Return whether the role may replace a running container; one that is stopped or gone runs no job.

    The role's files on the node (the unit that copies the nodes' names) are written beside the container.
    """
    container = state.facts.container
    if container is None or (isinstance(container, Container) and not container.running):
        return False
    return not all(_is_beside(cause) for cause in causes)


def _is_beside(cause: Cause) -> bool:
    if cause.kind is CauseKind.VARIABLE:
        return COMPONENT.is_harmless(cause)
    return cause.kind in {CauseKind.FILE, CauseKind.UNIT}


def _needs(causes: Sequence[Cause], state: NodeState) -> Iterator[RoleNeed]:
    gone = state.facts.container is None
    if gone or _is_disruptive(causes, state) or any(cause.kind is not CauseKind.FILE for cause in causes):
        yield RoleNeed("container_ssh", reason("training_container.new_sshd"), only_alone=True)


def _image_is_the_roles(state: NodeState, _: CheckResult) -> bool:
    """A container for which the inventory sets another image than ``training_image_reference`` is as it should be."""
    image = state.node.variables.get("training_container_image")
    return image is None or not plain(image) or image == state.node.variables.get("training_image_reference")


def _settings(variables: Variables, facts: NodeFacts) -> Iterator[Setting]:
    image = variables.get("training_container_image")
    switched_off = not is_on(variables, "training_image_enabled")
    if image == "" or (switched_off and not plain(image) and not variables.get("training_image_reference")):
        yield PreflightCode.VARIABLE_MISSING, "training_container_image", "is not set", IMAGE_REMEDY
    mounts = variables.get("training_container_mounts")
    for mount in mounts if isinstance(mounts, list) else ():
        if plain(mount) and not _MOUNT.fullmatch(str(mount)):
            problem, remedy = f"'{mount}' is not a mount", "Write /source:/destination or /source:/destination:ro."
            yield PreflightCode.VARIABLE_INVALID, "training_container_mounts", problem, remedy
    if variables.get("training_container_profile") == "privileged" and is_container(facts):
        problem = "'privileged' is not possible on a node that is a container itself"
        remedy = "Set training_container_profile: default for this node."
        yield PreflightCode.VARIABLE_INVALID, "training_container_profile", problem, remedy


def _files(_: Variables, __: NodeFacts) -> Iterator[str]:
    yield from ("/usr/local/lib/provision/container-entrypoint", "/usr/local/lib/provision/container-hosts")
    for kind in ("service", "path"):
        yield f"/etc/systemd/system/provision-container-hosts.{kind}"


COMPONENT = Component(
    role="training_container",
    after=("training_image",),
    waits_with=("nvidia_container", "docker_engine", "training_image"),
    for_jobs=True,
    needs_image=True,
    read_variables=("training_container_name", "training_container_profile"),
    harmless_variables=frozenset({"training_container_replace_allowed"}),
    is_disruptive=_is_disruptive,
    needs=_needs,
    reasons={"training_container.new_sshd": Wording("the container may be recreated, and its sshd with it")},
    fixes_if={"training_container.image": _image_is_the_roles},
    settings=_settings,
    files=_files,
)
