"""The versions that a guide asks for, held against what a node has: lowest versions by the guide's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from provision.components.check import NotKnownError, Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import NodeFacts
from provision.gdr.compare import at_least
from provision.model import CheckResult, Cluster, Node

__all__ = ["MINIMUMS", "NONE", "Held", "hold", "profile_id"]

NONE = "-"
_VOLTA = "7.0"
_IMAGE = "Name the image's own with: provision image inspect IMAGE"
_TOOLKITS = ("nvidia-container-toolkit", "nvidia-docker2")
_MIB = 1024 * 1024


@dataclass(frozen=True)
class Held:
    """One thing that a guide asks for, on one node."""

    component: str
    required: str
    found: str
    """`NONE` where there is nothing, or it cannot be told."""
    verdict: Verdict

    def as_check(self) -> CheckResult:
        """Return it as a check's result."""
        verdict = self.verdict
        return CheckResult(
            profile_id(self.component), verdict.status, verdict.reason, verdict.remedy, verdict.simulated
        )


def profile_id(component: str) -> str:
    """Return the id of a component's check: ``profile.container_toolkit``."""
    return "profile." + "_".join(component.lower().split())


@dataclass(frozen=True)
class _Need:
    component: str
    required: str
    judge: Callable[[Scene], tuple[str, Verdict]]
    """Gives what was found, and whether that does."""


def hold(
    profile: str, node: Node, facts: NodeFacts, cluster: Cluster, *, supported: Sequence[str] = ()
) -> tuple[Held, ...]:
    """Hold a node that was reached against one of `MINIMUMS`.

    Args:
        profile: its name.
        node: as the inventory has it.
        facts: what is there.
        cluster: all nodes.
        supported: systems that the roles know, as ``debian 12``; they serve as well as the guide's.
    """
    scene = Scene(node, facts, cluster, {node.name: facts}, supported)
    return tuple(_held(need, scene) for need in MINIMUMS[profile])


def _held(need: _Need, scene: Scene) -> Held:
    try:
        found, verdict = need.judge(scene)
    except NotKnownError as problem:
        found, verdict = NONE, fail(str(problem), "`provision verify` says more of the node.")
    return Held(need.component, need.required, found, verdict)


def _at_least(what: str, found: str, bound: str, remedy: str, *, simulated: bool = False) -> tuple[str, Verdict]:
    told = f"{what} {found}"
    if at_least(found, bound):
        return found, passed(told, simulated=simulated)
    return found, fail(f"{told}: the guide asks for {bound} or newer", remedy, simulated=simulated)


def _driver(bound: str) -> Callable[[Scene], tuple[str, Verdict]]:
    def judge(scene: Scene) -> tuple[str, Verdict]:
        gpus = known(scene.facts.gpus)
        simulated = scene.simulated("nvidia-smi")
        if not gpus:
            return NONE, fail("nvidia-smi shows no GPU", "See gpu.driver of `provision verify`.", simulated=simulated)
        versions = sorted({gpu.driver for gpu in gpus})
        lowest = next((version for version in versions if not at_least(version, bound)), versions[0])
        return _at_least("NVIDIA driver", lowest, bound, "Install a newer NVIDIA driver.", simulated=simulated)

    return judge


def _nccl(bound: str) -> Callable[[Scene], tuple[str, Verdict]]:
    def judge(scene: Scene) -> tuple[str, Verdict]:
        versions = known(scene.facts.nccl).container
        if versions is None:
            return NONE, warn("the training container does not run", f"{scene.apply}. {_IMAGE}")
        if not versions:
            return NONE, warn("no NCCL is seen in the training container; a torch may have it built in", _IMAGE)
        lowest = next((version for version in versions if not at_least(version, bound)), versions[0])
        return _at_least("NCCL", lowest, bound, "Take a training image with a newer NCCL.")

    return judge


def _docker(bound: str) -> Callable[[Scene], tuple[str, Verdict]]:
    def judge(scene: Scene) -> tuple[str, Verdict]:
        found = known(scene.facts.docker_info).version
        return _at_least("docker", found, bound, "Upgrade docker, or let `provision apply` do it.")

    return judge


def _system(*names: str) -> Callable[[Scene], tuple[str, Verdict]]:
    def judge(scene: Scene) -> tuple[str, Verdict]:
        system = known(scene.facts.system)
        found = f"{system.id} {system.version}"
        if found in names:
            return found, passed(f"{found} is one of the guide's systems")
        if found in scene.supported:
            return found, passed(f"{found} is none of the guide's systems, and one that the roles know")
        known_ones = ", ".join((*names, *scene.supported))
        return found, fail(f"{found} is neither the guide's nor one that the roles know", f"Known are: {known_ones}.")

    return judge


def _card(scene: Scene) -> tuple[str, Verdict]:
    """V100 is the first of its kind (compute capability 7.0); drivers before 510 tell none."""
    gpus = known(scene.facts.gpus)
    simulated = scene.simulated("nvidia-smi")
    if not gpus:
        return NONE, fail("nvidia-smi shows no GPU", "See gpu.driver of `provision verify`.", simulated=simulated)
    names = ", ".join(sorted({gpu.name for gpu in gpus}))
    older = [gpu for gpu in gpus if gpu.compute_capability and not at_least(gpu.compute_capability, _VOLTA)]
    if older:
        why = f"{older[0].name} has compute capability {older[0].compute_capability}, and V100 has {_VOLTA}"
        return names, fail(why, "The guide's figures are those of V100; older GPUs go without.", simulated=simulated)
    if any(not gpu.compute_capability and "V100" not in gpu.name for gpu in gpus):
        why = f"the driver does not tell the generation of {names}"
        return names, warn(why, "Is it V100 or newer? A driver from 510 on tells.", simulated=simulated)
    return names, passed(f"{names}: V100 or newer", simulated=simulated)


def _disk(bound_gb: int) -> Callable[[Scene], tuple[str, Verdict]]:
    def judge(scene: Scene) -> tuple[str, Verdict]:
        disks = known(scene.facts.disks)
        if not disks:
            return NONE, skip("no disk that counts is known")
        size = max(disk.total_mib for disk in disks) * _MIB / 1e9
        found = f"{size:.0f} GB"
        if size >= bound_gb:
            return found, passed(f"the disk for images and containers has {found}")
        return found, fail(
            f"the disk for images and containers has {found}, and the guide asks for {bound_gb} GB",
            "Give the node a larger disk, or move docker there: docker_engine_data_root.",
        )

    return judge


def _rdma(scene: Scene) -> tuple[str, Verdict]:
    rdma = known(scene.facts.rdma)
    active = [device.name for device in rdma.devices if device.active]
    stack = f"OFED {rdma.ofed}" if rdma.ofed else "inbox"
    if active:
        return f"{', '.join(active)} ({stack})", passed(f"{', '.join(active)}: active, with the {stack} driver")
    why = "RDMA devices are there, and none is active" if rdma.devices else "there is no RDMA device"
    return NONE, fail(why, "See the checks rdma_stack.* of `provision verify`.")


def _toolkit(scene: Scene) -> tuple[str, Verdict]:
    packages = known(scene.facts.packages)
    simulated = scene.simulated("nvidia-container", "nvidia-docker2", "libnvidia-container")
    for name in _TOOLKITS:
        if name in packages:
            return packages[name], passed(f"{name} {packages[name]}", simulated=simulated)
    return NONE, fail(f"neither {' nor '.join(_TOOLKITS)} is installed", scene.apply)


def _no_part(scene: Scene) -> tuple[str, Verdict]:
    return NONE, skip(f"it has no part on {scene.node.name}: jobs are started without it")


_ACK_SYSTEMS = ("centos 7.6", "centos 7.7", "ubuntu 16.04", "ubuntu 18.04", "alinux 2", "alinux 3")

MINIMUMS: Mapping[str, tuple[_Need, ...]] = {
    "topology": (
        _Need("Kubernetes", "1.18.8", _no_part),
        _Need("Helm", "3.0", _no_part),
        _Need("driver", "418.87.01", _driver("418.87.01")),
        _Need("NCCL", "2.7", _nccl("2.7")),
        _Need("docker", "19.03.5", _docker("19.03.5")),
        _Need("system", "the guide's or ours", _system(*_ACK_SYSTEMS)),
        _Need("card", "V100", _card),
    ),
    "taco": (
        _Need("system", "CentOS 7.6, or ours", _system("centos 7.6")),
        _Need("disk", "50 GB", _disk(50)),
        _Need("RDMA", "an active device", _rdma),
        _Need("driver", "any", _driver("0")),
        _Need("docker", "any", _docker("0")),
        _Need("container toolkit", "any", _toolkit),
    ),
}
"""``topology``: the guides to topology-aware scheduling. ``taco``: the guide to training on bare metal with RDMA."""
