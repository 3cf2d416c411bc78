"""Which failing checks an apply mends, by a run of the role whose name the check's id begins with.

The others are findings: they are shown, and put no role in the plan, which would run again and again and never help.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

from provision.checks.base import CHECKS, UNJUDGED, Scene
from provision.facts import NodeFacts, Unknown, data_interface, plain
from provision.facts.container_ssh import ContainerSsh, ContainerTrust
from provision.gdr.observed import verdict_of
from provision.model import CheckResult, CheckStatus, Cluster, Node, Same
from provision.planning.scene import ROLES, PlanScene

__all__ = ["NEVER", "SOMETIMES", "mended"]

_APPLY = "provision apply"
"""In the remedy of a check that knows by itself whether an apply or a reload is what helps."""
_KERNEL = re.compile(r"kernel (\S+) would come up without")
_TRIED = "another kernel would come up without it"
"""So begins what the role peer_memory notes in its receipt of a kernel that it could not build for."""

NEVER = frozenset(
    {
        "base_system.time_sync",  # the role looks at the clock, and installs no time service
        "docker_engine.version",  # fails only where the engine does not answer: docker_engine.service judges that
        "docker_engine.storage",  # nobody but the operator can make room on a disk
        "peer_memory.modules",  # two modules in one place: which of them goes, and when, is the operator's choice
        "peer_memory.routing",  # ACS and the IOMMU are settings of firmware and kernel command line
        "rdma_stack.bandwidth",  # what is slow is measured, not configured
        "rdma_stack.devices",  # cards without driver and ports without link: drivers, cables, switches, subnet manager
        "rdma_stack.gids",  # the addresses of the cards' interfaces are the operator's
        "rdma_stack.pcie_width",  # slots and risers
        "rdma_stack.port_errors",  # cables
        "rdma_stack.port_rate",  # cables
    }
)
"""Checks that no apply mends; besides them none of the areas ``node`` and ``gpu``, which belong to no role."""


def mended(scene: PlanScene, result: CheckResult) -> bool:
    """Return whether an apply mends what the check found.

    What could not be seen is mended by none: nobody knows whether anything is wrong there.
    """
    if result.status is CheckStatus.WARN and result.id != "peer_memory.kernels":
        return False
    if result.id.partition(".")[0] not in ROLES or result.id in NEVER or _unseen(scene, result):
        return False
    decide = SOMETIMES.get(result.id)
    return decide is None or decide(scene, result)


def _unseen(scene: PlanScene, result: CheckResult) -> bool:
    """Return whether the check fails because a fact was not understood, or not had: its words are the reason then."""
    if result.reason.startswith(UNJUDGED):
        return True
    values = (getattr(scene.facts, field.name) for field in dataclasses.fields(scene.facts))
    return any(isinstance(value, Unknown) and value.reason == result.reason for value in values)


def _engine_is_down(scene: PlanScene, _: CheckResult) -> bool:
    """An engine that runs and does not answer hangs, and the role would hang with it."""
    service = scene.facts.docker_service
    answers = not isinstance(scene.facts.docker_info, Unknown)
    return isinstance(service, Unknown) or answers or service.active != "active" or not service.loaded


def _device_is_missing(scene: PlanScene, _: CheckResult) -> bool:
    """The role makes a missing Soft-RoCE device; one that is there and not active waits for its interface's link."""
    if isinstance(scene.facts.rdma, Unknown):
        return False
    wanted = scene.node.variables.get("rdma_stack_soft_roce_interface")
    interface = wanted if wanted and plain(wanted) else data_interface(scene.node.variables, scene.facts)
    devices = (device for device in scene.facts.rdma.devices if device.soft)
    return not any(not interface or interface in device.netdevs for device in devices)


def _provider_is_free(scene: PlanScene, _: CheckResult) -> bool:
    """The role takes the best way only where the inventory names no other one."""
    wanted = scene.node.variables.get("peer_memory_provider", "auto")
    return wanted == "auto" or not plain(wanted) or wanted == verdict_of(scene.facts).path.value


def _remedy_is_apply(_: PlanScene, result: CheckResult) -> bool:
    return _APPLY in (result.remedy or "")


def _kernels_untried(scene: PlanScene, result: CheckResult) -> bool:
    """A kernel that the last run could not build for (its headers are not to be had) is not tried at every apply."""
    receipts = scene.facts.receipts
    receipt = None if isinstance(receipts, Unknown) else receipts.get("peer_memory")
    tried = " ".join(text for text in receipt.names("reductions") if text.startswith(_TRIED)) if receipt else ""
    left = [kernel for kernel in _KERNEL.findall(result.reason) if kernel not in tried]
    return bool(left) and _remedy_is_apply(scene, result)


def _package_is_missing(scene: PlanScene, _: CheckResult) -> bool:
    """Missing packages are installed; packages of different versions, or without their hook, are left as they are."""
    legacy = scene.node.variables.get("nvidia_container_flavor") == "nvidia-docker2"
    wanted = "nvidia-docker2" if legacy else "nvidia-container-toolkit"
    return not isinstance(scene.facts.packages, Unknown) and wanted not in scene.facts.packages


def _image_is_the_roles(scene: PlanScene, _: CheckResult) -> bool:
    """A container that the inventory wants from another image than ``training_image_reference`` is as it should be."""
    wanted = scene.node.variables.get("training_container_image")
    return wanted is None or not plain(wanted) or wanted == scene.node.variables.get("training_image_reference")


def _keys_can_come(scene: PlanScene, result: CheckResult) -> bool:
    """Return whether the check would fail though all whose keys cannot be had in this run were left out of account.

    A node that cannot be reached, or is not asked for, brings its keys when it takes part again.
    """
    ssh, trust = scene.facts.container_ssh, scene.facts.container_trust
    if not isinstance(ssh, ContainerSsh) or not isinstance(trust, ContainerTrust):
        return True
    everybody = scene.all_facts
    if everybody.get(scene.node.name) is not scene.facts:
        everybody = {**everybody, scene.node.name: scene.facts}
    cluster = _with_keys(Same(scene.cluster), Same(everybody), Same(trust), result.id)
    verdict = CHECKS[result.id].judge(Scene(scene.node, scene.facts, cluster, everybody, scene.supported))
    return verdict.status is CheckStatus.FAIL


@lru_cache(maxsize=8)
def _with_keys(
    cluster: Same[Cluster], everybody: Same[Mapping[str, NodeFacts]], trust: Same[ContainerTrust], check: str
) -> Cluster:
    """Return the cluster without the nodes whose keys cannot be had; nodes that trust the same share the answer."""
    nodes = (node for node in cluster.it.nodes if _takes_part(node, everybody.it) or _is_known(node, trust.it, check))
    return dataclasses.replace(cluster.it, nodes=tuple(nodes))


def _takes_part(node: Node, reached: Collection[str]) -> bool:
    return node.name in reached and node.variables.get("container_ssh_enabled") is not False


def _is_known(node: Node, trust: ContainerTrust, check: str) -> bool:
    """Return whether its keys are recorded, in the place that the check looks at."""
    if check == "container_ssh.trusted_nodes":
        return node.name in trust.authorized_nodes or node.name in trust.known_nodes
    return any(name == node.name or name.startswith(f"[{node.name}]:") for name in trust.known_hosts)


SOMETIMES: dict[str, Callable[[PlanScene, CheckResult], bool]] = {
    "container_ssh.known_hosts": _keys_can_come,
    "container_ssh.trusted_nodes": _keys_can_come,
    "docker_engine.service": _engine_is_down,
    "nvidia_container.toolkit": _package_is_missing,
    "peer_memory.boot": _remedy_is_apply,
    "peer_memory.kernels": _kernels_untried,
    "peer_memory.path": _provider_is_free,
    "rdma_stack.soft_roce": _device_is_missing,
    "training_container.image": _image_is_the_roles,
}
"""Checks that an apply mends in some cases; all that stand in neither table it mends always."""
