"""Differences between the nodes; the odd ones come first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from provision.checks.base import cluster_check
from provision.components.check import ClusterScene, Verdict, fail, passed, skip, warn
from provision.facts import NodeFacts, Unknown, simulated
from provision.facts.derived import SYSTEM, system_label
from provision.facts.docker import DockerInfo, Image
from provision.facts.rdma import RdmaStack
from provision.facts.system import System
from provision.model import CheckStatus
from provision.model.reason import Reason, reason

_FEW = 2
_FAILING = frozenset({"cluster.skew_image.differ"})
"""The codes of differences with which jobs do not work."""
_CORE = ("rdma-core", "libibverbs1", "libibverbs")


def odd_ones(what: str, values: Mapping[str, str]) -> Reason | None:
    """Return which nodes differ, e.g. ``driver 550.54 on gpu3; 535.161 on the 7 others``; None if all are equal.

    Args:
        what: what is compared.
        values: node -> value. The most frequent value comes last, unless two values are equally frequent.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for name, value in values.items():
        groups[value].append(name)
    if len(groups) < _FEW:
        return None
    ordered = sorted(groups, key=lambda value: len(groups[value]))
    most, second = (len(groups[value]) for value in (ordered[-1], ordered[-2]))
    if most == second:
        values_ = [reason("cluster.skew.value", value=value, nodes=groups[value]) for value in ordered]
        return reason("cluster.skew.no_majority", what=what, values=values_)
    odd = [reason("cluster.skew.value", value=value, nodes=groups[value]) for value in ordered[:-1]]
    return reason("cluster.skew.odd", what=what, values=odd, usual=ordered[-1], others=most)


def _judge(scene: ClusterScene, code: str, what: str, read: Callable[[NodeFacts], str | None]) -> Verdict:
    """Compare one value of every node that reports it."""
    return _judge_each(scene, code, what, lambda facts: {} if (value := read(facts)) is None else {"": value})


def _judge_each(scene: ClusterScene, code: str, what: str, read: Callable[[NodeFacts], Mapping[str, str]]) -> Verdict:
    """Compare for each kind of object the values of all nodes that have it. `read` returns kind -> value of a node."""
    by_kind: dict[str, dict[str, str]] = defaultdict(dict)
    for name, facts in scene.facts.items():
        for kind, value in read(facts).items():
            by_kind[kind][name] = value
    compared = {kind: values for kind, values in by_kind.items() if len(values) >= _FEW}
    if not compared:
        return skip("cluster.skew.too_few", what=what)
    odd = [part for kind, values in compared.items() if (part := odd_ones(f"{what} {kind}".strip(), values))]
    if odd:
        return (fail if code in _FAILING else warn)(code, differences=odd)
    nodes = len({name for values in compared.values() for name in values})
    shared = [f"{kind} {next(iter(values.values()))}".strip() for kind, values in compared.items()]
    return passed("cluster.skew.same", nodes=nodes, what=what, values=shared)


def _marked(scene: ClusterScene, verdict: Verdict, component: str = "nvidia-smi") -> Verdict:
    """Mark the verdict as simulated if a component of a node is, by default its GPUs."""
    stand_in = any(simulated(facts, component) for facts in scene.facts.values())
    return replace(verdict, simulated=stand_in and verdict.status is not CheckStatus.SKIP)


@cluster_check("cluster.skew_os")
def _skew_os(scene: ClusterScene) -> Verdict:
    def read(facts: NodeFacts) -> str | None:
        return system_label(facts, facts.system.full_name) if isinstance(facts.system, System) else None

    return _marked(scene, _judge(scene, "cluster.skew_os.differ", "operating system", read), SYSTEM)


@cluster_check("cluster.skew_kernel")
def _skew_kernel(scene: ClusterScene) -> Verdict:
    def read(facts: NodeFacts) -> str | None:
        return facts.system.kernel if isinstance(facts.system, System) else None

    return _judge(scene, "cluster.skew_kernel.differ", "running kernel", read)


@cluster_check("cluster.skew_docker")
def _skew_docker(scene: ClusterScene) -> Verdict:
    def read(facts: NodeFacts) -> str | None:
        return facts.docker_info.version if isinstance(facts.docker_info, DockerInfo) else None

    return _judge(scene, "cluster.skew_docker.differ", "docker engine", read)


@cluster_check("cluster.skew_image")
def _skew_image(scene: ClusterScene) -> Verdict:
    def read(facts: NodeFacts) -> str | None:
        return facts.image.id.removeprefix("sha256:")[:12] if isinstance(facts.image, Image) else None

    return _judge(scene, "cluster.skew_image.differ", "training image", read)


@cluster_check("cluster.skew_rdma_stack")
def _skew_rdma_stack(scene: ClusterScene) -> Verdict:
    def read(facts: NodeFacts) -> str | None:
        if isinstance(facts.rdma, Unknown):
            return None
        if facts.rdma.ofed:
            return facts.rdma.ofed
        packages = {} if isinstance(facts.packages, Unknown) else facts.packages
        return next((f"{name} {packages[name]}" for name in _CORE if name in packages), None)

    return _judge(scene, "cluster.skew_rdma_stack.differ", "RDMA stack", read)


@cluster_check("cluster.skew_firmware")
def _skew_firmware(scene: ClusterScene) -> Verdict:
    """Compare cards of the same kind; a node without cards of a kind is no difference."""

    def read(facts: NodeFacts) -> Mapping[str, str]:
        firmware: dict[str, set[str]] = defaultdict(set)
        for device in facts.rdma.devices if isinstance(facts.rdma, RdmaStack) else ():
            if device.firmware and not device.soft:
                firmware[device.board or device.driver].add(device.firmware)
        return {board: " and ".join(sorted(versions)) for board, versions in firmware.items()}

    return _judge_each(scene, "cluster.skew_firmware.differ", "firmware of network card", read)


@cluster_check("cluster.skew_port_rate")
def _skew_port_rate(scene: ClusterScene) -> Verdict:
    """Compare active ports only: a node with fewer of them is as slow as one with slower ports."""

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

    return _judge(scene, "cluster.skew_port_rate.differ", "active RDMA ports", read)


@cluster_check("cluster.skew_gpus")
def _skew_gpus(scene: ClusterScene) -> Verdict:
    """A GPU that is no longer on the PCI bus shows up in no check of its own node."""

    def read(facts: NodeFacts) -> str | None:
        if isinstance(facts.gpus, Unknown) or not facts.gpus:
            return None
        counted = sorted(Counter(gpu.name for gpu in facts.gpus).items())
        return " + ".join(f"{count} x {name}" for name, count in counted)

    return _marked(scene, _judge(scene, "cluster.skew_gpus.differ", "GPUs", read))


@cluster_check("cluster.skew_driver")
def _skew_driver(scene: ClusterScene) -> Verdict:
    def read(facts: NodeFacts) -> str | None:
        if isinstance(facts.gpus, Unknown) or not facts.gpus:
            return None
        return " and ".join(sorted({gpu.driver for gpu in facts.gpus}))

    return _marked(scene, _judge(scene, "cluster.skew_driver.differ", "driver", read))


@cluster_check("cluster.skew_vbios")
def _skew_vbios(scene: ClusterScene) -> Verdict:
    """Compare GPUs of the same product."""

    def read(facts: NodeFacts) -> Mapping[str, str]:
        vbios: dict[str, set[str]] = defaultdict(set)
        for gpu in () if isinstance(facts.gpus, Unknown) else facts.gpus:
            if gpu.vbios:
                vbios[gpu.name].add(gpu.vbios)
        return {name: " and ".join(sorted(versions)) for name, versions in vbios.items()}

    return _marked(scene, _judge_each(scene, "cluster.skew_vbios.differ", "VBIOS of", read))
