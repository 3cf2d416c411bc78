"""What a step can do to a running job.

Safe is what disturbs no job. Needs-idle is whatever *can* hurt one: a restart of docker, modules loaded anew, links
set up anew, a container made anew. A changed role has the class of the worst that it can do; on an idle node that costs
nothing, and on a busy one the wait costs less than a job. A role whose receipt is missing, edited or without
fingerprint runs as a whole, whatever has changed since: what it does to what runs there is told from the facts, for on
a node that others set up, and that is kept as it is, a first run changes nothing that a job could notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from provision.facts import Unknown, data_interface, is_container, plain
from provision.facts.container import Container
from provision.gdr.observed import has_gpus, verdict_of
from provision.model import StepClass
from provision.planning.causes import Cause, CauseKind
from provision.planning.docker_settings import restart_reasons
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


def _loads_modules(causes: Sequence[Cause], scene: PlanScene) -> bool:
    """Modules are reloaded and links set up; a container node has its host's, and the role leaves all as it is.

    A whole run loads what is not loaded. It takes nothing away but a Soft-RoCE device on another interface.
    """
    if is_container(scene.facts):
        return False
    return _moves_soft_roce(scene) if _whole(causes) else True


def _moves_soft_roce(scene: PlanScene) -> bool:
    if not scene.node.variables.get("rdma_stack_soft_roce_enabled"):
        return False
    if isinstance(scene.facts.rdma, Unknown):
        return True
    wanted = scene.node.variables.get("rdma_stack_soft_roce_interface")
    interface = wanted or data_interface(scene.node.variables, scene.facts)
    return any(device.soft and interface not in device.netdevs for device in scene.facts.rdma.devices)


def _loads_peer_memory(causes: Sequence[Cause], scene: PlanScene) -> bool:
    """A whole run loads what is not loaded; it unloads only where there is a unit of ours and nothing is wanted now."""
    if is_container(scene.facts) or not has_gpus(scene.facts):
        return False
    if not _whole(causes):
        return True
    record, wanted = scene.facts.peer_status, scene.node.variables.get("peer_memory_provider", "auto")
    if isinstance(record, Unknown) or not plain(wanted):
        return True
    if record.unit is None:
        return False
    return bool((verdict_of(scene.facts).path.value if wanted == "auto" else wanted) == "none")


def _whole(causes: Sequence[Cause]) -> bool:
    return any(cause.kind is CauseKind.RECEIPT for cause in causes)


def _replaces_hook(causes: Sequence[Cause], scene: PlanScene) -> bool:
    """Where docker is not there, or runs nothing, nobody uses the hook."""
    unused = _no_docker(scene) or _serves_nobody(scene)
    if any(cause.kind is CauseKind.FORCED for cause in causes):
        return has_gpus(scene.facts) and not unused
    return replaces_packages(causes, scene) and not (_whole(causes) and unused)


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
    if _no_docker(scene):
        return False
    if _whole(causes):
        return bool(restart_reasons(scene)) and not _serves_nobody(scene)
    return not all(_is_registry(cause) for cause in causes)


def _serves_nobody(scene: PlanScene) -> bool:
    """Return whether docker has no container that runs, and no job is on the node that might start one."""
    info, managed = scene.facts.docker_info, scene.facts.managed
    if isinstance(info, Unknown) or isinstance(managed, Unknown):
        return False
    return info.containers_running == 0 and not managed.jobs


def _no_docker(scene: PlanScene) -> bool:
    service = scene.facts.docker_service
    return not isinstance(service, Unknown) and not service.loaded


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
    "nvidia_container": _replaces_hook,
    "docker_engine": _restarts_docker,
    "training_container": hurts_container,
}
"""The roles that can hurt a job. The others are safe: they write what is read later, fetch images, exchange keys."""
