"""Which roles a step brings along, because it takes away or changes what they made.

Without them a second apply would be needed, or worse: docker_engine alone would take the NVIDIA runtime out of
daemon.json, for it learns of it from nvidia_container in the same run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from provision.facts import Unknown, is_container
from provision.facts.container import Container
from provision.facts.docker import Image
from provision.gdr.observed import has_gpus
from provision.planning.causes import Cause, CauseKind
from provision.planning.classes import hurts_container, replaces_packages
from provision.planning.scene import ROLES, PlanScene

__all__ = ["WAITS_WITH", "RoleNeed", "with_needs"]

_SAME_IMAGE = frozenset(
    {"training_image_enabled", "training_image_retries", "training_image_retry_delay_seconds", "platform_package_sets"}
)
"""Variables that training_image sees and that choose no image."""
_RUNTIME = "nvidia_container.runtime"

WAITS_WITH: Mapping[str, tuple[str, ...]] = {
    "peer_memory": ("rdma_stack",),  # it is built against the stack
    "nvidia_container": ("docker_engine",),  # these two change daemon.json together
    "docker_engine": ("nvidia_container",),
    "training_image": ("docker_engine",),  # a pull may want the new registry settings
    "training_container": ("nvidia_container", "docker_engine", "training_image"),
}
"""Role -> those that it waits with: what a step builds on is not there yet while that step waits."""


@dataclass(frozen=True)
class RoleNeed:
    """That the step of one role wants a step of another."""

    role: str
    of: str
    reason: str
    only_alone: bool = False
    """It adds nothing to a step that the role has anyway."""


def with_needs(found: Mapping[str, tuple[Cause, ...]], scene: PlanScene) -> dict[str, tuple[Cause, ...]]:
    """Return the causes with those that roles are to each other, from the first role of ``site.yml`` to the last.

    A role that has no receipt to go by runs as a whole, and needs no further reason.
    """
    causes = dict(found)
    for need in _needs(causes, scene):
        had = causes.get(need.role, ())
        whole = any(cause.kind is CauseKind.RECEIPT for cause in had)
        if scene.enabled(need.role) and not whole and not (had and need.only_alone):
            causes[need.role] = (*had, Cause(CauseKind.NEED, need.of, need.reason))
    return {role: causes[role] for role in ROLES if role in causes}


def _needs(causes: Mapping[str, Sequence[Cause]], scene: PlanScene) -> Iterator[RoleNeed]:
    """Yield needs one after the other; `causes` has what came of the earlier ones."""
    if "rdma_stack" in causes:
        yield from _of_rdma_stack(causes["rdma_stack"], scene)
    if "nvidia_container" in causes and has_gpus(scene.facts):
        yield from _of_nvidia_container(causes["nvidia_container"], scene)
    if "docker_engine" in causes:
        yield from _of_docker_engine(causes["docker_engine"], scene)
    if "training_image" in causes and _other_image(causes["training_image"], scene):
        reason = "the image that it is made from may become another one"
        yield RoleNeed("training_container", "training_image", reason)
    if "training_container" in causes and _made_anew(causes["training_container"], scene):
        reason = "the container may be made anew, and its sshd with it"
        yield RoleNeed("container_ssh", "training_container", reason, only_alone=True)


def _of_rdma_stack(causes: Sequence[Cause], scene: PlanScene) -> Iterator[RoleNeed]:
    if is_container(scene.facts):
        return
    packages = any(cause.kind is CauseKind.PACKAGE or cause.name == "rdma_stack.packages" for cause in causes)
    if packages and has_gpus(scene.facts):
        reason = "packages of the RDMA stack change, and the module for GPU memory is built against it"
        yield RoleNeed("peer_memory", "rdma_stack", reason)
    if any(cause.kind is not CauseKind.FILE for cause in causes) and scene.facts.container is not None:
        yield RoleNeed("training_container", "rdma_stack", "the RDMA devices that the container is given may change")


def _of_nvidia_container(causes: Sequence[Cause], scene: PlanScene) -> Iterator[RoleNeed]:
    if replaces_packages(causes, scene):
        yield RoleNeed(
            "docker_engine", "nvidia_container", "docker has to be restarted for the NVIDIA runtime's packages"
        )
    elif any(cause.name == _RUNTIME for cause in causes):
        yield RoleNeed("docker_engine", "nvidia_container", "docker has to be told of the NVIDIA runtime")


def _of_docker_engine(causes: Sequence[Cause], scene: PlanScene) -> Iterator[RoleNeed]:
    if has_gpus(scene.facts):
        reason = "docker_engine runs, and learns of the NVIDIA runtime from this role"
        yield RoleNeed("nvidia_container", "docker_engine", reason, only_alone=True)
    moved = any(cause.name == "docker_engine_data_root" for cause in causes)
    service = scene.facts.docker_service
    absent = not isinstance(service, Unknown) and not service.loaded
    if moved or absent:
        why = "docker's data root changes" if moved else "docker is installed anew"
        yield RoleNeed("training_image", "docker_engine", f"{why}, and the image may not be there")
        yield RoleNeed("training_container", "docker_engine", f"{why}, and the container may not be there")


def _other_image(causes: Sequence[Cause], scene: PlanScene) -> bool:
    """Return whether the container, where there is one, may run on another image than it should after this."""
    image, container = scene.facts.image, scene.facts.container
    if any(cause.kind in {CauseKind.CHECK, CauseKind.IMAGE, CauseKind.NEED} for cause in causes):
        return True
    if any(cause.kind is CauseKind.VARIABLE and cause.name not in _SAME_IMAGE for cause in causes):
        return True
    return isinstance(image, Image) and isinstance(container, Container) and image.id != container.image_id


def _made_anew(causes: Sequence[Cause], scene: PlanScene) -> bool:
    gone = scene.facts.container is None
    return gone or hurts_container(causes, scene) or any(cause.kind is not CauseKind.FILE for cause in causes)
