"""The minimum versions of a guide, compared with those of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from provision.checks.kubernetes_node import NEEDS as KUBERNETES
from provision.checks.requirements import NONE, Need
from provision.components.check import NotKnownError, Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import NodeFacts
from provision.facts.derived import SYSTEM, system_label
from provision.gdr.compare import at_least
from provision.model import CheckResult, Cluster, Node

_VOLTA = "7.0"
_TOOLKITS = ("nvidia-container-toolkit", "nvidia-docker2")
_MIB = 1024 * 1024


@dataclass(frozen=True)
class Held:
    """A requirement of a guide on a node."""

    component: str
    required: str
    present: str
    """`NONE` if there is nothing, or it is unknown."""
    verdict: Verdict

    def as_check(self) -> CheckResult:
        """Return it as a check's result."""
        return CheckResult(profile_id(self.component), self.verdict.status, self.verdict.reason, self.verdict.simulated)


def profile_id(component: str) -> str:
    """Return the id of a component's check: ``profile.container_toolkit``."""
    return "profile." + "_".join(component.lower().split())


def hold(
    profile: str, node: Node, facts: NodeFacts, cluster: Cluster, *, supported: Mapping[str, str] | None = None
) -> tuple[Held, ...]:
    """Compare a reachable node with one of `MINIMUMS`."""
    scene = Scene(node, facts, cluster, {node.name: facts}, supported or {})
    return tuple(_held(need, scene) for need in MINIMUMS[profile])


def _held(need: Need, scene: Scene) -> Held:
    try:
        present, verdict = need.judge(scene)
    except NotKnownError as problem:
        present, verdict = NONE, fail("profile.fact_unavailable", cause=str(problem))
    return Held(need.component, need.required, present, verdict)


def _at_least(code: str, component: str, version: str, bound: str, *, simulated: bool = False) -> tuple[str, Verdict]:
    if at_least(version, bound):
        return version, passed("profile.version", component=component, version=version, simulated=simulated)
    return version, fail(code, version=version, required=bound, simulated=simulated)


def _driver(bound: str) -> Callable[[Scene], tuple[str, Verdict]]:
    def judge(scene: Scene) -> tuple[str, Verdict]:
        gpus = known(scene.facts.gpus)
        simulated = scene.simulated("nvidia-smi")
        if not gpus:
            return NONE, fail("profile.no_gpu", simulated=simulated)
        versions = sorted({gpu.driver for gpu in gpus})
        lowest = next((version for version in versions if not at_least(version, bound)), versions[0])
        return _at_least("profile.driver.old", "NVIDIA driver", lowest, bound, simulated=simulated)

    return judge


def _nccl(bound: str) -> Callable[[Scene], tuple[str, Verdict]]:
    def judge(scene: Scene) -> tuple[str, Verdict]:
        versions = known(scene.facts.nccl).container
        if versions is None:
            return NONE, warn("profile.nccl.no_container")
        if not versions:
            return NONE, warn("profile.nccl.missing")
        lowest = next((version for version in versions if not at_least(version, bound)), versions[0])
        return _at_least("profile.nccl.old", "NCCL", lowest, bound)

    return judge


def _docker(bound: str) -> Callable[[Scene], tuple[str, Verdict]]:
    def judge(scene: Scene) -> tuple[str, Verdict]:
        return _at_least("profile.docker.old", "docker", known(scene.facts.docker_info).version, bound)

    return judge


def _system(*names: str) -> Callable[[Scene], tuple[str, Verdict]]:
    def judge(scene: Scene) -> tuple[str, Verdict]:
        system = known(scene.facts.system)
        name, stand_in = system_label(scene.facts, system.full_name), scene.simulated(SYSTEM)
        if system.full_name in names:
            return name, passed("profile.system.ok", simulated=stand_in, system=name)
        if system.name in scene.supported:
            return name, passed("profile.system.supported", simulated=stand_in, system=name)
        supported = (*names, *scene.supported)
        return name, fail("profile.system.unsupported", simulated=stand_in, system=name, supported=supported)

    return judge


def _card(scene: Scene) -> tuple[str, Verdict]:
    """V100 has compute capability 7.0; drivers before 510 do not report it."""
    gpus = known(scene.facts.gpus)
    simulated = scene.simulated("nvidia-smi")
    if not gpus:
        return NONE, fail("profile.no_gpu", simulated=simulated)
    names = ", ".join(sorted({gpu.name for gpu in gpus}))
    older = [gpu for gpu in gpus if gpu.compute_capability and not at_least(gpu.compute_capability, _VOLTA)]
    if older:
        return names, fail(
            "profile.card.old",
            product=older[0].name,
            capability=older[0].compute_capability,
            required=_VOLTA,
            simulated=simulated,
        )
    if any(not gpu.compute_capability and "V100" not in gpu.name for gpu in gpus):
        return names, warn("profile.card.unknown", products=names, simulated=simulated)
    return names, passed("profile.card.ok", products=names, simulated=simulated)


def _disk(bound_gb: int) -> Callable[[Scene], tuple[str, Verdict]]:
    def judge(scene: Scene) -> tuple[str, Verdict]:
        disks = known(scene.facts.disks)
        if not disks:
            return NONE, skip("profile.disk.unknown")
        size = max(disk.total_mib for disk in disks) * _MIB / 1e9
        present = f"{size:.0f} GB"
        if size >= bound_gb:
            return present, passed("profile.disk.ok", size=present)
        return present, fail("profile.disk.small", size=present, required_gb=bound_gb)

    return judge


def _rdma(scene: Scene) -> tuple[str, Verdict]:
    rdma = known(scene.facts.rdma)
    active = [device.name for device in rdma.devices if device.active]
    stack = f"OFED {rdma.ofed}" if rdma.ofed else "inbox"
    if active:
        return f"{', '.join(active)} ({stack})", passed("profile.rdma.ok", devices=active, stack=stack)
    return NONE, fail("profile.rdma.inactive" if rdma.devices else "profile.rdma.none")


def _toolkit(scene: Scene) -> tuple[str, Verdict]:
    packages = known(scene.facts.packages)
    simulated = scene.simulated("nvidia-container", "nvidia-docker2", "libnvidia-container")
    for name in _TOOLKITS:
        if name in packages:
            return packages[name], passed(
                "profile.version", component=name, version=packages[name], simulated=simulated
            )
    return NONE, fail("profile.container_toolkit.missing")


def _not_used(_: Scene) -> tuple[str, Verdict]:
    return NONE, skip("profile.not_used")


_ACK_SYSTEMS = ("centos 7.6", "centos 7.7", "ubuntu 16.04", "ubuntu 18.04", "alinux 2", "alinux 3")

MINIMUMS: Mapping[str, tuple[Need, ...]] = {
    "topology": (
        Need("Kubernetes", "1.18.8", _not_used),
        Need("Helm", "3.0", _not_used),
        Need("driver", "418.87.01", _driver("418.87.01")),
        Need("NCCL", "2.7", _nccl("2.7")),
        Need("docker", "19.03.5", _docker("19.03.5")),
        Need("system", "the guide's or ours", _system(*_ACK_SYSTEMS)),
        Need("card", "V100", _card),
    ),
    "taco": (
        Need("system", "CentOS 7.6, or ours", _system("centos 7.6")),
        Need("disk", "50 GB", _disk(50)),
        Need("RDMA", "an active device", _rdma),
        Need("driver", "any", _driver("0")),
        Need("docker", "any", _docker("0")),
        Need("container toolkit", "any", _toolkit),
    ),
    "kubernetes": KUBERNETES,
}
"""``topology``: the guides to topology-aware scheduling. ``taco``: the guide to training on bare metal with RDMA.

``kubernetes``: the prerequisites of a kubelet, and of the operators for GPUs and RDMA.
"""
