"""Nodes that differ from the others: the odd ones are named first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from provision.checks.base import cluster_check
from provision.checks.wording import few_names
from provision.components.check import ClusterScene, Verdict, fail, passed, skip, warn
from provision.facts import NodeFacts, Unknown, simulated
from provision.facts.docker import DockerInfo, Image
from provision.facts.rdma import RdmaStack
from provision.facts.system import System
from provision.model import CheckStatus

__all__ = ["odd_ones"]

_FEW = 2
_CORE = ("rdma-core", "libibverbs1", "libibverbs")


def odd_ones(what: str, values: Mapping[str, str]) -> str | None:
    """Return who differs in `what`, e.g. ``driver 550.54 on gpu3; 535.161 on the 7 others``; None when nobody does.

    `values` is node -> value. The value of most nodes comes last; where no value has more nodes than every other one,
    that is said, for then nobody can tell which nodes are odd.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for name, value in values.items():
        groups[value].append(name)
    if len(groups) < _FEW:
        return None
    ordered = sorted(groups, key=lambda value: len(groups[value]))
    most, second = (len(groups[value]) for value in (ordered[-1], ordered[-2]))
    if most == second:
        shown = "; ".join(f"{value} on {few_names(groups[value])}" for value in ordered)
        return f"{what} {shown}; no value has a majority"
    odd = "; ".join(f"{value} on {few_names(groups[value])}" for value in ordered[:-1])
    return f"{what} {odd}; {ordered[-1]} on the {most} others"


def _judge(scene: ClusterScene, what: str, read: Callable[[NodeFacts], str | None], remedy: str) -> Verdict:
    """Compare one value of every node that tells it."""
    return _judge_each(scene, what, lambda facts: {} if (value := read(facts)) is None else {"": value}, remedy)


def _judge_each(scene: ClusterScene, what: str, read: Callable[[NodeFacts], Mapping[str, str]], remedy: str) -> Verdict:
    """Compare, for each kind of thing, the values of all nodes that have it: kind -> value of one node."""
    by_kind: dict[str, dict[str, str]] = defaultdict(dict)
    for name, facts in scene.facts.items():
        for kind, value in read(facts).items():
            by_kind[kind][name] = value
    compared = {kind: values for kind, values in by_kind.items() if len(values) >= _FEW}
    if not compared:
        return skip(f"fewer than two nodes tell their {what}")
    odd = [text for kind, values in compared.items() if (text := odd_ones(f"{what} {kind}".strip(), values))]
    if odd:
        return warn(". ".join(odd), remedy)
    nodes = len({name for values in compared.values() for name in values})
    shown = ", ".join(f"{kind} {next(iter(values.values()))}".strip() for kind, values in compared.items())
    return passed(f"{nodes} nodes have the same {what}: {shown}")


def _marked(scene: ClusterScene, verdict: Verdict) -> Verdict:
    """Mark what rests on stand-ins for GPUs."""
    stand_in = any(simulated(facts, "nvidia-smi") for facts in scene.facts.values())
    return replace(verdict, simulated=stand_in and verdict.status is not CheckStatus.SKIP)


@cluster_check("cluster.skew_os")
def _skew_os(scene: ClusterScene) -> Verdict:
    def read(facts: NodeFacts) -> str | None:
        return f"{facts.system.id} {facts.system.version}" if isinstance(facts.system, System) else None

    return _judge(scene, "operating system", read, "Jobs are easier to reason about when all nodes run one system.")


@cluster_check("cluster.skew_kernel")
def _skew_kernel(scene: ClusterScene) -> Verdict:
    def read(facts: NodeFacts) -> str | None:
        return facts.system.kernel if isinstance(facts.system, System) else None

    return _judge(
        scene, "running kernel", read, "Upgrade the odd nodes, or reboot those that run an older kernel still."
    )


@cluster_check("cluster.skew_docker")
def _skew_docker(scene: ClusterScene) -> Verdict:
    def read(facts: NodeFacts) -> str | None:
        return facts.docker_info.version if isinstance(facts.docker_info, DockerInfo) else None

    return _judge(scene, "docker engine", read, "Upgrade docker on the odd nodes.")


@cluster_check("cluster.skew_image")
def _skew_image(scene: ClusterScene) -> Verdict:
    def read(facts: NodeFacts) -> str | None:
        return facts.image.id.removeprefix("sha256:")[:12] if isinstance(facts.image, Image) else None

    verdict = _judge(scene, "training image", read, "")
    if verdict.remedy is not None:
        return fail(verdict.reason, "Pin training_image_digest in the inventory, then run: provision apply")
    return verdict


@cluster_check("cluster.skew_rdma_stack")
def _skew_rdma_stack(scene: ClusterScene) -> Verdict:
    def read(facts: NodeFacts) -> str | None:
        if isinstance(facts.rdma, Unknown):
            return None
        if facts.rdma.ofed:
            return facts.rdma.ofed
        packages = {} if isinstance(facts.packages, Unknown) else facts.packages
        return next((f"{name} {packages[name]}" for name in _CORE if name in packages), None)

    return _judge(scene, "RDMA stack", read, "Install one RDMA stack of one version on all nodes.")


@cluster_check("cluster.skew_firmware")
def _skew_firmware(scene: ClusterScene) -> Verdict:
    """Cards of one kind are compared; a node that has none of a kind is not odd for that."""

    def read(facts: NodeFacts) -> Mapping[str, str]:
        found: dict[str, set[str]] = defaultdict(set)
        for device in facts.rdma.devices if isinstance(facts.rdma, RdmaStack) else ():
            if device.firmware and not device.soft:
                found[device.board or device.driver].add(device.firmware)
        return {board: " and ".join(sorted(versions)) for board, versions in found.items()}

    remedy = "Bring the odd nodes' cards to the others' firmware (mlxfwmanager, or flint for a single card)."
    return _judge_each(scene, "firmware of network card", read, remedy)


@cluster_check("cluster.skew_port_rate")
def _skew_port_rate(scene: ClusterScene) -> Verdict:
    """Ports that are down count as missing: a node with fewer active ports is as slow as one with slower ports."""

    def read(facts: NodeFacts) -> str | None:
        if isinstance(facts.rdma, Unknown):
            return None
        ports = [
            f"{port.gbit:g} Gbit/s {port.link_layer}"
            for device in facts.rdma.devices
            for port in device.ports
            if not device.soft and port.active and port.gbit is not None
        ]
        hard = any(not device.soft for device in facts.rdma.devices)
        counted = sorted(Counter(ports).items())
        return " + ".join(f"{count} x {kind}" for kind, count in counted) or ("none" if hard else None)

    return _judge(
        scene, "active RDMA ports", read, "Look at rdma_stack.devices and rdma_stack.port_rate of the odd nodes."
    )


@cluster_check("cluster.skew_gpus")
def _skew_gpus(scene: ClusterScene) -> Verdict:
    """A GPU that has left the PCI bus altogether is missed by nobody on its own node."""

    def read(facts: NodeFacts) -> str | None:
        if isinstance(facts.gpus, Unknown) or not facts.gpus:
            return None
        counted = sorted(Counter(gpu.name for gpu in facts.gpus).items())
        return " + ".join(f"{count} x {name}" for name, count in counted)

    remedy = (
        "If the nodes were delivered alike, look for the missing GPU in the BMC and in dmesg, and power-cycle the node."
    )
    return _marked(scene, _judge(scene, "GPUs", read, remedy))


@cluster_check("cluster.skew_driver")
def _skew_driver(scene: ClusterScene) -> Verdict:
    def read(facts: NodeFacts) -> str | None:
        if isinstance(facts.gpus, Unknown) or not facts.gpus:
            return None
        return " and ".join(sorted({gpu.driver for gpu in facts.gpus}))

    remedy = "Install one NVIDIA driver on all nodes, and reboot those where an older one is still loaded."
    return _marked(scene, _judge(scene, "driver", read, remedy))


@cluster_check("cluster.skew_vbios")
def _skew_vbios(scene: ClusterScene) -> Verdict:
    """GPUs of one product are compared."""

    def read(facts: NodeFacts) -> Mapping[str, str]:
        found: dict[str, set[str]] = defaultdict(set)
        for gpu in () if isinstance(facts.gpus, Unknown) else facts.gpus:
            if gpu.vbios:
                found[gpu.name].add(gpu.vbios)
        return {name: " and ".join(sorted(versions)) for name, versions in found.items()}

    remedy = "Ask the vendor of the nodes for one VBIOS on all GPUs of a product."
    return _marked(scene, _judge_each(scene, "VBIOS of", read, remedy))
