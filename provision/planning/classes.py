"""What a step can do to a running job.

Safe is what disturbs no job. Needs-idle is whatever *can* hurt one: a restart of docker, modules loaded anew, links
set up anew, a container made anew. A role whose receipt is missing, edited or without fingerprint runs as a whole, and
nobody knows what it will find to do: on a node that is as wanted it changes nothing, but if a setting changed while
there was no receipt to tell, it restarts docker or replaces the container. So it has the class of the worst that it can
do, and so has a changed role; on an idle node that costs nothing, and on a busy one the wait costs less than a job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from provision.facts import Unknown, is_container
from provision.facts.container import Container
from provision.gdr.observed import has_gpus
from provision.model import StepClass
from provision.planning.causes import Cause, CauseKind
from provision.planning.fingerprint import NODES
from provision.planning.scene import PlanScene

__all__ = ["hurts_container", "replaces_packages", "step_class"]

_ADDRESSES = frozenset({NODES, "cluster_data_address", "cluster_data_networks"})
_DOCKER_HARMLESS = _ADDRESSES | {  # docker's pools are compared with the nodes' addresses
    "docker_engine_registry_ca",
    "docker_engine_registry_logins",
    "docker_engine_restart_allowed",
}
_NVIDIA_HARMLESS = frozenset(
    {"nvidia_container_cdi_enabled", "nvidia_container_repository_key", "nvidia_container_repository_uri"}
)
"""All but what chooses packages: a repository alone replaces none that is installed."""
_CONTAINER_HARMLESS = frozenset({"training_container_replace_allowed"})
_CERTIFICATES = "/etc/docker/certs.d/"


def step_class(role: str, causes: Sequence[Cause], scene: PlanScene) -> StepClass:
    """Return the class of a role's step from what it is run for."""
    hurts = _HURTS.get(role)
    return StepClass.NEEDS_IDLE if hurts and hurts(causes, scene) else StepClass.SAFE


def _loads_modules(_: Sequence[Cause], scene: PlanScene) -> bool:
    """Modules are reloaded and links set up; a container node has its host's, and the role leaves all as it is."""
    return not is_container(scene.facts)


def _loads_peer_memory(causes: Sequence[Cause], scene: PlanScene) -> bool:
    return _loads_modules(causes, scene) and has_gpus(scene.facts)


def replaces_packages(causes: Sequence[Cause], scene: PlanScene) -> bool:
    """Return whether nvidia_container may install packages: docker is restarted for a new runtime hook.

    Without a receipt the check of the packages tells whether any is missing.
    """
    return has_gpus(scene.facts) and any(_replaces(cause) for cause in causes)


def _replaces(cause: Cause) -> bool:
    if cause.kind is CauseKind.VARIABLE:
        return not _harmless(cause, "nvidia_container", _NVIDIA_HARMLESS)
    return cause.kind is CauseKind.PACKAGE or cause.name == "nvidia_container.toolkit"


def _restarts_docker(causes: Sequence[Cause], scene: PlanScene) -> bool:
    """Certificates and logins are read anew by themselves; where docker is not installed yet nothing can be hurt."""
    service = scene.facts.docker_service
    if not isinstance(service, Unknown) and not service.loaded:
        return False
    return not all(_is_registry(cause) for cause in causes)


def _is_registry(cause: Cause) -> bool:
    if cause.kind is CauseKind.VARIABLE:
        return _harmless(cause, "docker_engine", _DOCKER_HARMLESS)
    if cause.kind is CauseKind.FILE:
        return cause.name.startswith(_CERTIFICATES)
    return cause.name == "docker_engine.registry_ca"


def hurts_container(causes: Sequence[Cause], scene: PlanScene) -> bool:
    """Return whether training_container may replace a container that runs; one that is stopped or gone runs no job.

    Its files on the node (the unit that copies the node's names) are written beside the container.
    """
    container = scene.facts.container
    if container is None or (isinstance(container, Container) and not container.running):
        return False
    return not all(_is_beside(cause) for cause in causes)


def _is_beside(cause: Cause) -> bool:
    if cause.kind is CauseKind.VARIABLE:
        return _harmless(cause, "training_container", _CONTAINER_HARMLESS)
    return cause.kind in {CauseKind.FILE, CauseKind.UNIT}


def _harmless(cause: Cause, role: str, names: frozenset[str]) -> bool:
    return cause.name in names or cause.name == f"{role}_enabled"


_HURTS: dict[str, Callable[[Sequence[Cause], PlanScene], bool]] = {
    "rdma_stack": _loads_modules,
    "peer_memory": _loads_peer_memory,
    "nvidia_container": replaces_packages,
    "docker_engine": _restarts_docker,
    "training_container": hurts_container,
}
"""The roles that can hurt a job. The others are safe: they write what is read later, fetch images, exchange keys."""
